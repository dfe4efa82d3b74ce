//! Flash attention over query tiles on matrix units: see `attention_units.metal`.

use metallic_core::DType;

use super::attention::{ATTEND, AttentionSpec};
use super::cells::UNITS;
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, Launch, Slot, Stage, Stages, StepTable, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// One threadgroup per (four query heads of a key/value head, tile). No window: `window` is the largest number.
    UnitAttentionParams { heads: u32, kv_heads: u32, window: u32, scale: f32, softcap: f32 }
}

family! {
    "attention_units" (UnitAttentionParams) uses COMMON, KV, ATTEND, UNITS;
    "attention_units" {
        reads q: 16, keys: KV_ALIGN, values: KV_ALIGN, tiles: 16, blocks: 4, sinks: 4; writes out: 8
    }
}

/// Query heads of a threadgroup: `UNIT_HEADS` in the MSL.
const HEADS: u32 = 4;
const THREADS: u32 = 256;
/// Bytes of threadgroup memory the kernel declares.
pub(crate) const MEMORY: u32 = 2 * (32 * (128 + 32) + 128 * (32 + 8));

/// Whether the kernel takes such heads, and such a cache, on this device.
pub(crate) fn fits(spec: &AttentionSpec, limits: &Limits) -> bool {
    limits.matrix_units.is_some()
        && spec.kv == DType::F16
        && spec.attention.head_dim.is_multiple_of(32)
        && spec.attention.head_dim <= 128
        && limits.max_threads >= THREADS
        && limits.most_threadgroup_memory() >= MEMORY
}

/// Plans attention: `(q [tokens, heads * head_dim], receipt) -> [tokens, heads * head_dim]`.
pub(crate) fn plan(spec: &AttentionSpec, limits: &Limits) -> Result<Stages, GpuError> {
    let constants = spec.fused_constants()?;
    let a = &spec.attention;
    let (window, scale, softcap) = spec.numbers();
    let (heads, kv_heads) = (a.heads as u32, a.kv_heads as u32);
    let params = UnitAttentionParams { heads, kv_heads, window, scale, softcap };
    let parts = (heads / kv_heads).div_ceil(HEADS);
    let launch = Launch {
        work: spec.half_work(a.head_dim).saturating_mul(2),
        ..FAMILY.kernel("attention_units", constants).launch(
            params.params(),
            [kv_heads * parts, spec.shape.tiles as u32, 1],
            [THREADS, 1, 1],
        )
    };
    launch.check(limits)?;
    let (tiles, sinks) = (Slot::Step(StepTable::Tiles), spec.sinks());
    let slots = [Slot::Input(0), Slot::Keys, Slot::Values, tiles, Slot::BLOCKS, sinks, Slot::Output];
    let seen = spec.seen(a.head_dim, parts as usize, true);
    Ok(Stage::new(launch, slots).moving(1, seen).moving(2, seen).into())
}
