//! The way into attention with matrices in cells: see `cell_qkv.metal`.

use metallic_core::DType;

use super::cell_columns::TWO_BYTES;
use super::cell_matvec::{CELL_DOTS, plan_vectors, stage};
use super::cells::{CELL_KINDS, CELL_ROWS, CELLS, PAIR_ROWS, UNITS};
use super::project::{PROJECT, ProjectParams, Projection};
use super::rope::{KV, KV_ALIGN, ROTATE, RopeKv, interleaved};
use super::{COMMON, Constants, EARLY, Stages, family, qkv};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "cell_qkv" (ProjectParams) uses COMMON, EARLY, KV, ROTATE, PROJECT, CELL_KINDS, UNITS, CELLS, TWO_BYTES, CELL_DOTS;
    "cell_qkv_4", "cell_qkv_8" {
        reads x: 16, norm: 16, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, positions: 4, freqs: 4,
        rows: 8, blocks: 4;
        writes out: 4, keys: KV_ALIGN, values: KV_ALIGN
    }
}

/// The way into attention: one launch where heads are whole tiles and the cache's elements stand alone, else the product and then
/// its way into the cache.
pub(crate) fn plan(projection: &Projection, way: &RopeKv<'_>, limits: &Limits) -> Result<Stages, GpuError> {
    let turn = interleaved(way.rope);
    let whole = way.kv.head_dim.is_multiple_of(PAIR_ROWS as usize)
        && (turn != 0 || way.pairs.is_multiple_of(CELL_ROWS));
    if !whole || way.kv.dtype == DType::Q8_0 || way.norm.is_some() {
        return qkv::after(plan_vectors(projection, limits)?, projection, way, limits);
    }
    qkv::check(projection, way)?;
    let kv_type = way.check(projection.op)?;
    let [w0, w1, w2, norm, bias, residual, gate, act] = projection.constants()?;
    let constants =
        Constants::of([kv_type, way.kv.head_dim as u32, turn, w0, w1, w2, norm, bias, residual, gate, act]);
    let params = ProjectParams { pairs: way.pairs, magnitude: way.rope.magnitude, ..projection.params() };
    let slots = qkv::slots(projection, way);
    let kernel = (&FAMILY, "cell_qkv", constants);
    let stage = stage(projection, kernel, params, slots, limits)?;
    Ok(way.kv.moving(stage, [11, 13, 14]).into())
}
