//! The way into attention in one launch: norm, products, biases, rotation and the write into the cache.

use metallic_core::DType;

use super::matvec::{DOTS, Spread};
use super::project::{PROJECT, ProjectParams, Projection, plan_tiles, plan_vectors};
use super::rope::{KV, KV_ALIGN, ROTATE, RopeKv, interleaved, rope_kv_write};
use super::{COMMON, Constants, QUANT, QUANT_TYPES, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "qkv" (ProjectParams) uses COMMON, KV, ROTATE, QUANT_TYPES, QUANT, PROJECT, DOTS;
    "qkv_1", "qkv_2", "qkv_4", "qkv_8" {
        reads x: 4, norm: 4, w0: 2, w1: 2, w2: 2, bias0: 4, bias1: 4, bias2: 4, positions: 4, freqs: 4,
        rows: 8, blocks: 4;
        writes out: 4, keys: KV_ALIGN, values: KV_ALIGN
    }
}

/// One launch for any number of tokens where the cache's elements stand alone, else the product and then its way into the
/// cache. `projection` has the matrices of queries, keys and values.
pub(crate) fn vectors(
    projection: &Projection,
    way: &RopeKv<'_>,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    // A block of Q8_0 has one scale for more rows than a simdgroup has, and rotated elements come in pairs.
    let alone = way.kv.dtype != DType::Q8_0 && way.kv.head_dim.is_multiple_of(2) && way.norm.is_none();
    if alone {
        check(projection, way)?;
        return Ok(stage(projection, way, limits)?.into());
    }
    after(plan_vectors(projection, limits)?, projection, way, limits)
}

/// The product by tiles, then its way into the cache.
pub(crate) fn tiles(projection: &Projection, way: &RopeKv<'_>, limits: &Limits) -> Result<Stages, GpuError> {
    after(plan_tiles(projection, limits)?, projection, way, limits)
}

pub(crate) fn after(
    mut stages: Stages,
    projection: &Projection,
    way: &RopeKv<'_>,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    check(projection, way)?;
    let qkv = stages.keep_output(projection.tokens as usize * projection.width() as usize * 4);
    stages.stages.push(rope_kv_write(way, qkv, limits)?);
    Ok(stages)
}

/// Rows of the matrices are those of the heads.
pub(crate) fn check(projection: &Projection, way: &RopeKv<'_>) -> Result<(), GpuError> {
    projection.check()?;
    let [heads, kv_heads] = [way.heads as usize, way.kv.kv_heads];
    let needed = [heads, kv_heads, kv_heads].map(|heads| (heads * way.kv.head_dim) as u32);
    let rows = projection.part_rows();
    if rows == needed && projection.tokens == way.kv.tokens {
        return Ok(());
    }
    let reason = format!(
        "matrices of {rows:?} rows for {} tokens, the cache takes {needed:?} for {}",
        projection.tokens, way.kv.tokens
    );
    Err(GpuError::unsupported(projection.op, reason))
}

fn stage(projection: &Projection, way: &RopeKv<'_>, limits: &Limits) -> Result<Stage, GpuError> {
    let kv_type = way.check(projection.op)?;
    let spread = Spread::of(projection, limits);
    let [w0, w1, w2, norm, bias, residual, gate, act] = projection.constants()?;
    let (head_dim, turn) = (way.kv.head_dim as u32, interleaved(way.rope));
    let constants = Constants::of([kv_type, head_dim, turn, w0, w1, w2, norm, bias, residual, gate, act]);
    let params =
        ProjectParams { pairs: way.pairs, magnitude: way.rope.magnitude, ..spread.params(projection) };
    let launch = spread.launch(FAMILY.kernel(&format!("qkv_{}", spread.slots), constants), params, limits)?;
    let stage = Stage::new(launch, slots(projection, way)).reading_again(spread.vectors_again(projection));
    projection.reading(way.kv.moving(stage, [11, 13, 14]), 2, spread.passes())
}

/// What stands behind the arguments of a kernel that does it all.
pub(crate) fn slots(projection: &Projection, way: &RopeKv<'_>) -> [Slot; 15] {
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let (x, norm, out, keys, values) =
        (projection.x, projection.norm_slot(), Slot::Output, Slot::Keys, Slot::Values);
    let RopeKv { positions, freqs, .. } = *way;
    let (rows, blocks) = (Slot::ROWS, Slot::BLOCKS);
    [x, norm, w0, w1, w2, b0, b1, b2, positions, freqs, rows, blocks, out, keys, values]
}

#[cfg(test)]
mod tests;
