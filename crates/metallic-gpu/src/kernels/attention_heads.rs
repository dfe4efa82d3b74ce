//! Attention of few query tokens on matrix units: see `attention_heads.metal`.

use metallic_core::{BLOCK_TOKENS, DType};

use super::attention::{ATTEND, AttentionParams, AttentionSpec, Split};
use super::cells::UNITS;
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, EARLY, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "attention_heads" (AttentionParams) uses COMMON, EARLY, KV, ATTEND, UNITS;
    "attention_heads" {
        reads q: 16, keys: KV_ALIGN, values: KV_ALIGN, rows: 8, blocks: 4, sinks: 4; writes out: 4, stats: 8
    }
}

/// Query heads a threadgroup can serve: `ROOM` in the MSL.
pub(crate) const ROOM: u32 = 8;
const SIMDGROUPS: u32 = 8;

/// Whether the kernel takes such heads, and such a cache, on this device.
pub(crate) fn fits(spec: &AttentionSpec, limits: &Limits) -> bool {
    let head_dim = spec.attention.head_dim;
    limits.matrix_units.is_some()
        && spec.kv == DType::F16
        && head_dim.is_multiple_of(32)
        && head_dim <= 128
        && most_simdgroups(head_dim as u32, limits) > 0
}

/// Bytes of threadgroup memory: for each simdgroup the keys and values of a block, which leave room for what it has of the values, and two
/// numbers for each head.
fn memory(simdgroups: u32, head_dim: u32) -> u32 {
    simdgroups * (2 * BLOCK_TOKENS as u32 * head_dim * 2 + ROOM * 2 * 4)
}

/// Simdgroups that a threadgroup has room for, as many as are of use.
fn most_simdgroups(head_dim: u32, limits: &Limits) -> u32 {
    let room = limits.most_threadgroup_memory() / memory(1, head_dim).max(1);
    room.min(limits.max_threads / limits.simd_width.max(1)).min(SIMDGROUPS)
}

/// Shares `blocks` cache blocks out where `groups` threadgroups stand side by side anyway: each core has one of them, and each
/// simdgroup a block at least.
pub(crate) fn split(blocks: u32, groups: u32, head_dim: usize, limits: &Limits) -> Split {
    let (blocks, most) = (blocks.max(1), most_simdgroups(head_dim as u32, limits).max(1));
    let cores = limits.matrix_units.map_or(1, |units| units.cores);
    let splits = (cores / groups.max(1)).clamp(1, blocks.div_ceil(most));
    let span = blocks.div_ceil(splits);
    Split { simdgroups: span.min(most), span, splits: blocks.div_ceil(span) }
}

/// The launch of a part of it.
pub(crate) fn launch(
    spec: &AttentionSpec,
    params: AttentionParams,
    groups: [u32; 3],
    split: Split,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let head_dim = spec.attention.head_dim;
    let kernel = FAMILY.kernel("attention_heads", spec.fused_constants()?);
    Ok(Launch {
        threadgroup_bytes: memory(split.simdgroups, head_dim as u32),
        work: spec.half_work(head_dim).saturating_mul(2),
        ..kernel.launch(params.params(), groups, [split.simdgroups * limits.simd_width, 1, 1])
    })
}
