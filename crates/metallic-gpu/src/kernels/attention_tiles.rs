//! Flash attention over query tiles, with `simdgroup_matrix`.

use super::attention::{ATTEND, AttentionSpec};
use super::rope::{KV, KV_ALIGN};
use super::{Arg, COMMON, Family, Kernel, Launch, Slot, Stage, Stages, StepTable, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// One threadgroup per (head, tile). No window: `window` is the largest number.
    TileParams { heads: u32, kv_heads: u32, window: u32, scale: f32, softcap: f32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "attention_tiles",
    params: &[TileParams::MSL],
    uses: &[COMMON, KV, ATTEND],
    text: include_str!("attention_tiles.metal"),
    kernels: &[("attention_tiles_8", TILES), ("attention_tiles_16", TILES), ("attention_tiles_32", TILES)],
};

const TILES: &[Arg] = &[
    reads("q", 4),
    reads("keys", KV_ALIGN),
    reads("values", KV_ALIGN),
    reads("tiles", 16),
    reads("blocks", 4),
    reads("sinks", 4),
    writes("out", 4),
];

/// Threads of a threadgroup, as the kernel is written.
const THREADS: u32 = 128;
/// Bytes of threadgroup memory the kernel declares.
const MEMORY: u32 = 4 * (32 * 68 + 4 * 8 * 36 + 4 * 64);

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
        return Err(GpuError::Unsupported { op: "attention", reason });
    }
    let function = match a.head_dim {
        ..=64 => "attention_tiles_8",
        65..=128 => "attention_tiles_16",
        _ => "attention_tiles_32",
    };
    let params = TileParams {
        heads: a.heads as u32,
        kv_heads: a.kv_heads as u32,
        window: spec.window(),
        scale: a.scale,
        softcap: a.softcap.unwrap_or(1.0),
    };
    let launch = Launch {
        kernel: Kernel { family: &FAMILY, function, constants, args: TILES },
        params: params.params(),
        groups: [a.heads as u32, spec.shape.tiles as u32, 1],
        threads: [THREADS, 1, 1],
        threadgroup_bytes: 0,
        work: spec.half_work(a.head_dim).saturating_mul(2),
    };
    let slots = [
        Slot::Input(0),
        Slot::Keys,
        Slot::Values,
        Slot::Step(StepTable::Tiles),
        Slot::Step(StepTable::Blocks),
        spec.sinks(),
        Slot::Output,
    ];
    let seen = spec.seen(a.head_dim, a.heads / a.kv_heads, true);
    Ok(Stage::new(launch, slots).moving(1, seen).moving(2, seen).into())
}
