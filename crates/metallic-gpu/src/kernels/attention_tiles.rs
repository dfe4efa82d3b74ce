//! Flash attention over query tiles, with `simdgroup_matrix`.

use super::attention::{ATTEND, AttentionSpec};
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, Launch, Slot, Stage, Stages, StepTable, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// One threadgroup per (head, tile). No window: `window` is the largest number.
    TileParams { heads: u32, kv_heads: u32, window: u32, scale: f32, softcap: f32 }
}

family! {
    "attention_tiles" (TileParams) uses COMMON, KV, ATTEND;
    "attention_tiles_8", "attention_tiles_16", "attention_tiles_32" {
        reads q: 4, keys: KV_ALIGN, values: KV_ALIGN, tiles: 16, blocks: 4, sinks: 4; writes out: 4
    }
}

const THREADS: u32 = 128;
/// Bytes of threadgroup memory the kernel declares.
pub(crate) const MEMORY: u32 = 4 * (32 * 68 + 4 * 8 * 36 + 4 * 64);

/// Whether the kernel takes heads of this size on this device.
pub(crate) fn fits(spec: &AttentionSpec, limits: &Limits) -> bool {
    spec.attention.head_dim.is_multiple_of(8)
        && limits.max_threads >= THREADS
        && limits.simd_width == 32
        && limits.threadgroup_memory >= MEMORY
}

/// Plans attention by tiles: `(q [tokens, heads * head_dim], receipt) -> [tokens, heads * head_dim]`.
pub(crate) fn plan(spec: &AttentionSpec, limits: &Limits) -> Result<Stages, GpuError> {
    let constants = spec.fused_constants()?;
    let a = &spec.attention;
    if !fits(spec, limits) {
        let reason = format!("query tiles of heads of {}; they must be whole matrices of 8", a.head_dim);
        return Err(GpuError::unsupported("attention", reason));
    }
    // Matrices of 8 columns that a head takes, for which there are three kernels.
    let room = (a.head_dim as u32 / 8).next_power_of_two().max(8);
    let kernel = FAMILY.kernel(&format!("attention_tiles_{room}"), constants);
    let (window, scale, softcap) = spec.numbers();
    let (heads, kv_heads) = (a.heads as u32, a.kv_heads as u32);
    let params = TileParams { heads, kv_heads, window, scale, softcap };
    let groups = [heads, spec.shape.tiles as u32, 1];
    let launch = Launch {
        work: spec.half_work(a.head_dim).saturating_mul(2),
        ..kernel.launch(params.params(), groups, [THREADS, 1, 1])
    };
    let (tiles, sinks) = (Slot::Step(StepTable::Tiles), spec.sinks());
    let slots = [Slot::Input(0), Slot::Keys, Slot::Values, tiles, Slot::BLOCKS, sinks, Slot::Output];
    let seen = spec.seen(a.head_dim, a.heads / a.kv_heads, true);
    Ok(Stage::new(launch, slots).moving(1, seen).moving(2, seen).into())
}
