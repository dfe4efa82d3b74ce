//! Attention of few query tokens over short rows, a query head to a threadgroup: see `attention_head.metal`.

use metallic_core::{BLOCK_TOKENS, DType};

use super::attention::{ATTEND, AttentionParams, AttentionSpec, Split};
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, EARLY, Launch, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "attention_head" (AttentionParams) uses COMMON, EARLY, KV, ATTEND;
    "attention_head" {
        reads q: 16, keys: KV_ALIGN, values: KV_ALIGN, rows: 8, blocks: 4, sinks: 4; writes out: 4
    }
}

/// Loads of 32 lanes that a simdgroup has of keys at a time, and of values: `LOADS` in the MSL.
const LOADS: usize = 4;

/// Whether the kernel takes such heads, and such a cache, on this device. It keeps a whole block in registers, of which others than
/// those with matrix units may have fewer.
pub(crate) fn fits(spec: &AttentionSpec, limits: &Limits) -> bool {
    limits.matrix_units.is_some() && spec.kv == DType::F16 && matches!(spec.attention.head_dim, 64 | 128)
}

/// One launch for all query heads and tokens, whose rows have so many blocks at most.
pub(crate) fn plan(spec: &AttentionSpec, blocks: u32, limits: &Limits) -> Result<Stages, GpuError> {
    let (heads, head_dim) = (spec.attention.heads as u32, spec.attention.head_dim);
    let kernel = FAMILY.kernel("attention_head", spec.fused_constants()?);
    // A part of a block each: `PART` in the MSL.
    let parts = blocks * (BLOCK_TOKENS * head_dim / (LOADS * 256)) as u32;
    let most = (2 * limits.tuning.attention_simdgroups).min(limits.max_threads / limits.simd_width.max(1));
    let simdgroups = parts.clamp(1, most.max(1));
    let params = spec.params(1, Split { simdgroups, span: blocks, splits: 1 }, 0).params();
    let groups = [heads, spec.shape.tokens as u32, 1];
    let launch = Launch {
        // Two numbers for each simdgroup, and what it has of the values.
        threadgroup_bytes: 4 * ((2 * simdgroups).next_multiple_of(4) + simdgroups * head_dim as u32),
        work: spec.half_work(head_dim).saturating_mul(2),
        ..kernel.launch(params, groups, [simdgroups * limits.simd_width, 1, 1])
    };
    launch.check(limits)?;
    let slots =
        [Slot::Input(0), Slot::Keys, Slot::Values, Slot::ROWS, Slot::BLOCKS, spec.sinks(), Slot::Output];
    // Each head reads its keys.
    let seen = spec.seen(head_dim, spec.attention.heads / spec.attention.kv_heads.max(1), false);
    Ok(Stage::new(launch, slots).moving(1, seen).moving(2, seen).into())
}
