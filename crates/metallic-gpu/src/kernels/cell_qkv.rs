//! The way into attention with matrices in cells: see `cell_qkv.metal`.

use metallic_core::DType;

use super::cell_columns::{Columns, TWO_BYTES, columns, reading_cells};
use super::cell_matvec::{CELL_DOTS, CELL_OWN, plan_vectors, stage};
use super::cell_rows::{self, CELL_EIGHTS};
use super::cells::{CELL_KINDS, CELL_ROWS, CELLS, PAIR_ROWS, UNITS};
use super::project::{PROJECT, ProjectParams, Projection};
use super::rope::{KV, KV_ALIGN, ROTATE, RopeKv, interleaved};
use super::{COMMON, Constants, EARLY, Stage, Stages, family, qkv};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "cell_qkv" (ProjectParams) uses
        COMMON, EARLY, KV, ROTATE, PROJECT, CELL_KINDS, UNITS, CELLS, TWO_BYTES, CELL_DOTS, CELL_OWN, CELL_EIGHTS;
    "cell_qkv_own", "cell_qkv_1", "cell_qkv_4", "cell_qkv_8" {
        reads x: 16, norm: 16, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, positions: 4, freqs: 4,
        rows: 8, blocks: 4;
        writes out: 4, keys: KV_ALIGN, values: KV_ALIGN
    }
    "cell_qkv_rows", "cell_qkv_rows_near" {
        reads columns: 16, sums: 16, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, positions: 4,
        freqs: 4, rows: 8, blocks: 4;
        writes out: 4, keys: KV_ALIGN, values: KV_ALIGN
    }
}

/// Whether one launch can do it all: heads are whole tiles, and the cache's elements stand alone.
fn whole(way: &RopeKv<'_>) -> bool {
    way.kv.head_dim.is_multiple_of(PAIR_ROWS as usize)
        && (interleaved(way.rope) != 0 || way.pairs.is_multiple_of(CELL_ROWS))
        && way.kv.dtype != DType::Q8_0
        && way.norm.is_none()
}

/// The constants of its kernels, which normalise vectors or not, and their numbers.
fn facts(
    projection: &Projection,
    way: &RopeKv<'_>,
    norm: u32,
) -> Result<(Constants, ProjectParams), GpuError> {
    qkv::check(projection, way)?;
    let (kv_type, turn) = (way.check(projection.op)?, interleaved(way.rope));
    let [w0, w1, w2, _, bias, residual, gate, act] = projection.constants()?;
    let constants =
        Constants::of([kv_type, way.kv.head_dim as u32, turn, w0, w1, w2, norm, bias, residual, gate, act]);
    let params = ProjectParams { pairs: way.pairs, magnitude: way.rope.magnitude, ..projection.params() };
    Ok((constants, params))
}

/// The way into attention: one launch where that can do it all, else the product and then its way into the cache.
pub(crate) fn plan(projection: &Projection, way: &RopeKv<'_>, limits: &Limits) -> Result<Stages, GpuError> {
    if !whole(way) {
        return qkv::after(plan_vectors(projection, limits)?, projection, way, limits);
    }
    let (constants, params) = facts(projection, way, projection.norm.is_some().into())?;
    let slots = qkv::slots(projection, way);
    let kernel = (&FAMILY, "cell_qkv", constants);
    let stage = stage(projection, kernel, params, slots, limits)?;
    Ok(way.kv.moving(stage, [11, 13, 14]).into())
}

/// The same of up to eight tokens, whose vectors are laid out before.
pub(crate) fn plan_rows(
    projection: &Projection,
    way: &RopeKv<'_>,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    if !whole(way) || !cell_rows::of_bytes(projection) {
        return qkv::after(cell_rows::plan(projection, limits)?, projection, way, limits);
    }
    // Every result has a scale, as those of a norm have.
    let (constants, params) = facts(projection, way, 1)?;
    let (mut stages, [numbers, sums, scales]) = columns(projection, Columns::Bytes, limits)?;
    let kernel = |end: &str| FAMILY.kernel(&format!("cell_qkv_rows{end}"), constants);
    let launch = cell_rows::launch(projection, params, kernel, limits)?;
    let [_, _, w0, w1, w2, b0, b1, b2, positions, freqs, rows, blocks, out, keys, values] =
        qkv::slots(projection, way);
    let slots =
        [numbers, sums, scales, w0, w1, w2, b0, b1, b2, positions, freqs, rows, blocks, out, keys, values];
    let stage = reading_cells(projection, Stage::new(launch, slots), 3, 1);
    stages.stages.push(way.kv.moving(stage, [12, 14, 15]));
    Ok(stages)
}
