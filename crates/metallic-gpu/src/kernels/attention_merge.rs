//! What brings the splits of attention's rows together: see `attention_merge.metal`.

use super::attention::{ATTEND, AttentionSpec};
use super::rope::KV;
use super::{COMMON, EARLY, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// One threadgroup per (head, token).
    MergeParams { heads: u32, splits: u32 }
}

family! {
    "attention_merge" (MergeParams) uses COMMON, EARLY, KV, ATTEND;
    "attention_merge" { reads sums: 4, stats: 8, sinks: 4; writes out: 4 }
}

/// Threads that bring splits together at most, and splits that one of them reads at a time: `MOST_MERGING` and `TOGETHER` in the MSL.
pub(crate) const MOST_MERGING: u32 = 512;
const MERGED_AT_ONCE: u32 = 8;

/// The launch for a step's tokens, whose rows have so many splits.
pub(crate) fn launch(spec: &AttentionSpec, splits: u32, limits: &Limits) -> Result<Launch, GpuError> {
    let (heads, tokens) = (spec.attention.heads as u32, spec.shape.tokens as u32);
    let most = limits.max_threads.min(MOST_MERGING);
    let across = (spec.attention.head_dim as u32).next_multiple_of(limits.simd_width).min(most);
    // As many rows of threads as have splits to read.
    let threads = [across, (most / across.max(1)).min(splits.div_ceil(MERGED_AT_ONCE)).max(1), 1];
    let kernel = FAMILY.kernel("attention_merge", spec.fused_constants()?);
    Ok(kernel.launch(MergeParams { heads, splits }.params(), [heads, tokens, 1], threads))
}
