//! The way into attention in one launch: norm, products, biases, rotation and the write into the cache.

use metallic_core::DType;

use super::matvec::{DOTS, MatvecParams, Spread};
use super::project::{Projection, plan_tiles, plan_vectors};
use super::rope::{KV, KV_ALIGN, ROTATE, RopeKv, interleaved, rope_kv_write};
use super::{
    Arg, COMMON, Constants, Family, Kernel, QUANT, QUANT_TYPES, Slot, Stage, Stages, StepTable, reads, writes,
};
use crate::error::GpuError;
use crate::gpu::Limits;

pub(crate) const FAMILY: Family = Family {
    name: "qkv",
    params: &[MatvecParams::MSL],
    uses: &[COMMON, KV, ROTATE, QUANT_TYPES, QUANT, DOTS],
    text: include_str!("qkv.metal"),
    kernels: &[("qkv_1", ARGS), ("qkv_2", ARGS), ("qkv_4", ARGS), ("qkv_8", ARGS)],
};

const ARGS: &[Arg] = &[
    reads("x", 4),
    reads("norm", 4),
    reads("w0", 2),
    reads("w1", 2),
    reads("w2", 2),
    reads("bias0", 4),
    reads("bias1", 4),
    reads("bias2", 4),
    reads("positions", 4),
    reads("freqs", 4),
    reads("rows", 8),
    reads("blocks", 4),
    writes("out", 4),
    writes("keys", KV_ALIGN),
    writes("values", KV_ALIGN),
];

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

fn after(
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
fn check(projection: &Projection, way: &RopeKv<'_>) -> Result<(), GpuError> {
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
    Err(GpuError::Unsupported { op: projection.op, reason })
}

fn stage(projection: &Projection, way: &RopeKv<'_>, limits: &Limits) -> Result<Stage, GpuError> {
    let kv_type = way.check(projection.op)?;
    let spread = Spread::of(projection, limits);
    let function = match spread.slots {
        1 => "qkv_1",
        2 => "qkv_2",
        4 => "qkv_4",
        _ => "qkv_8",
    };
    let types = projection.types()?;
    let constants = Constants::of([
        kv_type,
        way.kv.head_dim as u32,
        interleaved(way.rope),
        types[0],
        types[1],
        types[2],
        u32::from(projection.norm.is_some()),
        u32::from(projection.has_bias()),
    ]);
    let params =
        MatvecParams { pairs: way.pairs, magnitude: way.rope.magnitude, ..spread.params(projection) };
    let kernel = Kernel { family: &FAMILY, function, constants, args: ARGS };
    let launch = spread.launch(kernel, params, limits)?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let slots = [
        projection.x,
        projection.norm.map_or(Slot::Unused, |(_, slot)| slot),
        w0,
        w1,
        w2,
        b0,
        b1,
        b2,
        way.positions,
        way.freqs,
        Slot::Step(StepTable::Rows),
        Slot::Step(StepTable::Blocks),
        Slot::Output,
        Slot::Keys,
        Slot::Values,
    ];
    projection.reading(way.kv.moving(Stage::new(launch, slots), [11, 13, 14]), 2, spread.passes())
}

#[cfg(test)]
mod tests;
