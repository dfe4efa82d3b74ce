//! Matrices in cells times the rows of many tokens, as halfs, by tiles: see `cell_matmul.metal`.

use super::cell_columns::{Columns, check, columns, of_columns};
use super::cells::{CELL_KINDS, CELL_ROWS, CELLS, PAIR_ROWS, UNITS};
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Launch, Stages, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::tuning::Tuning;

family! {
    "cell_matmul" (ProjectParams) uses COMMON, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS;
    "cell_matmul_32", "cell_matmul_64", "cell_matmul_128" {
        reads columns: 16, sums: 4, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4;
        writes out: 4
    }
}

/// Tokens that fill the largest tiles however few rows there are.
const MANY: u32 = 1 << 13;

/// The vectors as matrix units take them, then the products by tiles of rows and tokens.
pub(crate) fn plan(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    check(projection)?;
    let (tokens, cols) = (projection.tokens, projection.cols);
    let (mut stages, columns) = columns(projection, Columns::Halfs, limits)?;
    let rows = projection.part_rows();
    let gated = projection.gate.is_some();
    let (each, parts) = if gated { (CELL_ROWS, &rows[..1]) } else { (PAIR_ROWS, &rows[..]) };
    let down = |simds: u32| -> u32 { parts.iter().map(|rows| rows.div_ceil(each * simds)).sum() };
    // Large tiles where there are enough of them for all cores.
    let cores = limits.matrix_units.map_or(0, |units| units.cores);
    let Tuning { small_tile_tokens, tile_rounds, .. } = limits.tuning;
    let (name, tokens_of_group, simds) = match tokens {
        few if few <= small_tile_tokens => ("cell_matmul_32", 32, 4),
        ..MANY if tokens.div_ceil(128) * down(8) < tile_rounds * cores => ("cell_matmul_64", 64, 8),
        _ => ("cell_matmul_128", 128, 8),
    };
    let constants = Constants::starting::<3, 8>(Projection { norm: None, ..*projection }.constants()?);
    let groups = [tokens.div_ceil(tokens_of_group), down(simds), 1];
    let launch = Launch {
        work: work([tokens, cols, rows.iter().sum()].map(|n| n as usize)),
        ..FAMILY.kernel(name, constants).launch(
            projection.params().params(),
            groups,
            [simds * limits.simd_width, 1, 1],
        )
    };
    launch.check(limits)?;
    stages.stages.push(of_columns(projection, launch, columns, groups[0]));
    Ok(stages)
}

#[cfg(test)]
mod tests;
