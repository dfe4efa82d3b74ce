//! Matrices times many rows, by the tensor operations of Metal 4: see `tensor_matmul.metal`.

use metallic_core::DType;

use super::cell_columns::HALF_SCALE;
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Launch, QUANT, QUANT_TYPES, Slot, Stage, Stages, TENSOR_OPS, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::threadgroup;

family! {
    "tensor_matmul" (ProjectParams)
        uses COMMON, FUNCTIONS, ACTIVATION, QUANT_TYPES, QUANT, PROJECT, HALF_SCALE, TENSOR_OPS;
    "tensor_vectors" { reads x: 4, norm: 4; writes vectors: 16, scales: 4 }
    "tensor_matmul" {
        reads vectors: 16, scales: 4, w0: 2, w1: 2, w2: 2, bias0: 4, bias1: 4, bias2: 4, residual: 4;
        writes out: 4
    }
}

/// `TILE_TOKENS`, `TILE_ROWS`, `TILE_THREADS`, `RUN_BYTES` and `RUN` in the MSL.
const TILE_TOKENS: u32 = 64;
const TILE_ROWS: u32 = 64;
const TILE_THREADS: u32 = 128;
const RUN_BYTES: u32 = 128;
const RUN: u32 = 64;

/// Whether two types are multiplied as the same: `TileOf` in the MSL.
fn alike(a: DType, b: DType) -> bool {
    let wider = |dtype| matches!(dtype, DType::F32 | DType::BF16);
    a == b || !wider(a) && !wider(b)
}

/// The vectors as halfs, then the products by tiles of rows and tokens.
pub(crate) fn plan(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    let refuse = |reason: String| Err(GpuError::unsupported(projection.op, reason));
    if !limits.tensor_ops {
        return refuse(
            "tensor operations, which this device lacks: Metal 4 on an M5 or later has them".to_owned(),
        );
    }
    projection.check()?;
    let types: Vec<DType> = projection.parts.iter().flatten().map(|part| part.dtype).collect();
    if let ([gate, gated], true) = (&types[..], projection.gate.is_some())
        && !alike(*gate, *gated)
    {
        return refuse(format!("a gate of {gate} over a matrix of {gated} by tensor operations"));
    }
    let (mut stages, [vectors, scales]) = vectors(projection, limits)?;
    let rows = projection.part_rows();
    let gated = projection.gate.is_some();
    let parts = if gated { &rows[..1] } else { &rows[..] };
    let down = parts.iter().map(|rows| rows.div_ceil(TILE_ROWS)).sum();
    let constants = Constants::starting::<3, 8>(Projection { norm: None, ..*projection }.constants()?);
    let groups = [projection.tokens.div_ceil(TILE_TOKENS), down, 1];
    let kernel = FAMILY.kernel("tensor_matmul", constants);
    let launch = Launch {
        threadgroup_bytes: TILE_ROWS * RUN_BYTES * if gated { 2 } else { 1 },
        work: work([projection.tokens, projection.cols, rows.iter().sum()].map(|n| n as usize)),
        ..kernel.launch(projection.params().params(), groups, [TILE_THREADS, 1, 1])
    };
    launch.check(limits)?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let residual = projection.residual_slot();
    let stage = Stage::new(launch, [vectors, scales, w0, w1, w2, b0, b1, b2, residual, Slot::Output]);
    stages.stages.push(projection.reading(stage, 2, groups[0])?);
    Ok(stages)
}

/// The vectors as halfs in whole tiles, normalised where asked for: a stage, and where numbers and scales lie.
fn vectors(projection: &Projection, limits: &Limits) -> Result<(Stages, [Slot; 2]), GpuError> {
    let (tokens, cols) = (projection.tokens.next_multiple_of(TILE_TOKENS), projection.cols);
    let mut stages = Stages::default();
    let vectors = stages.add_scratch(tokens as usize * cols.next_multiple_of(RUN) as usize * 2);
    let scales = stages.add_scratch(tokens as usize * 4);
    let with_norm = Constants::starting::<6, 1>([u32::from(projection.norm.is_some())]);
    let most = Limits { max_threads: limits.max_threads.min(256), ..*limits };
    let threads = threadgroup::row_threads(cols, &most);
    let kernel = FAMILY.kernel("tensor_vectors", with_norm);
    let launch = kernel.launch(projection.params().params(), [tokens, 1, 1], [threads, 1, 1]);
    launch.check(limits)?;
    stages.stages.push(Stage::new(launch, [projection.x, projection.norm_slot(), vectors, scales]));
    Ok((stages, [vectors, scales]))
}

#[cfg(test)]
mod tests;
