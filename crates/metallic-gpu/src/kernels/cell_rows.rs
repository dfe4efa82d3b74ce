//! Matrices in cells times the vectors of up to eight tokens, as halfs: see `cell_rows.metal`.

use super::cell_columns::{check, columns, of_columns};
use super::cell_matvec::{CELL_DOTS, CELL_PRODUCTS, CellSpread, MAX_TOKENS};
use super::cells::{CELL_KINDS, CELLS, PAIR_ROWS, UNITS};
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Launch, Stages, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "cell_rows" (ProjectParams) uses
        COMMON, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, CELL_DOTS, CELL_PRODUCTS;
    "cell_rows" {
        reads columns: 16, sums: 8, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4;
        writes out: 4
    }
}

/// The vectors of up to [`MAX_TOKENS`] tokens as halfs, then the products, for which the weights are read once.
pub(crate) fn plan(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    check(projection)?;
    let refuse = |reason: &str| GpuError::unsupported(projection.op, reason);
    let units = limits.matrix_units.ok_or_else(|| refuse("weights in cells, and no matrix units"))?;
    // Spread as those of few tokens are, whose columns would not be staged.
    let one = Projection { tokens: 1, ..*projection };
    let spread =
        CellSpread::of(&one, units, limits).ok_or_else(|| refuse("too little threadgroup memory"))?;
    let (mut stages, columns) = columns(projection, limits)?;
    let [first, second, third, _, bias, residual, gate, act] = projection.constants()?;
    // Every result has a scale, as those of a norm have.
    let constants = Constants::starting::<3, 8>([first, second, third, 1, bias, residual, gate, act]);
    let simds = spread.threads / limits.simd_width.max(1);
    let params = ProjectParams { split: spread.split, ..projection.params() };
    let rows: u32 = projection.part_rows().iter().sum();
    let launch = Launch {
        threadgroup_bytes: 4 * (MAX_TOKENS + 2 * simds * PAIR_ROWS * MAX_TOKENS),
        work: work([projection.tokens, projection.cols, rows].map(|n| n as usize)),
        ..FAMILY.kernel("cell_rows", constants).launch(params.params(), spread.groups, [spread.threads, 1, 1])
    };
    launch.check(limits)?;
    stages.stages.push(of_columns(projection, launch, columns, 1));
    Ok(stages)
}
