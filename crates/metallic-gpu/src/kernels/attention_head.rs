//! Attention of few query tokens over short rows, a query head to a threadgroup: see `attention_head.metal`.

use metallic_core::DType;

use super::attention::{ATTEND, AttentionParams, AttentionSpec, Split};
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, EARLY, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "attention_head" (AttentionParams) uses COMMON, EARLY, KV, ATTEND;
    "attention_head" {
        reads q: 16, keys: KV_ALIGN, values: KV_ALIGN, rows: 8, blocks: 4, sinks: 4; writes out: 4, stats: 8
    }
}

/// Whether the kernel takes such heads, and such a cache, on this device. It keeps a whole block in registers, of which others than
/// those with matrix units may have fewer.
pub(crate) fn fits(spec: &AttentionSpec, limits: &Limits) -> bool {
    limits.matrix_units.is_some() && spec.kv == DType::F16 && matches!(spec.attention.head_dim, 64 | 128)
}

/// The launch for all query heads and tokens.
pub(crate) fn launch(spec: &AttentionSpec, split: Split, limits: &Limits) -> Result<Launch, GpuError> {
    let (heads, head_dim) = (spec.attention.heads as u32, spec.attention.head_dim);
    let kernel = FAMILY.kernel("attention_head", spec.fused_constants()?);
    let groups = [heads, spec.shape.tokens as u32, split.splits];
    let threads = [split.simdgroups * limits.simd_width, 1, 1];
    let launch = Launch {
        // Two numbers for each simdgroup, and what it has of the values.
        threadgroup_bytes: 4
            * ((2 * split.simdgroups).next_multiple_of(4) + split.simdgroups * head_dim as u32),
        work: spec.half_work(head_dim).saturating_mul(2),
        ..kernel.launch(spec.params(1, split, 0).params(), groups, threads)
    };
    launch.check(limits)?;
    Ok(launch)
}
