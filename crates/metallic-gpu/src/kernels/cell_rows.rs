//! Matrices in cells times the vectors of up to eight tokens: see `cell_rows.metal`.

use super::cell_columns::{Columns, TWO_BYTES, check, columns, of_columns};
use super::cell_matvec::{CELL_DOTS, CELL_PRODUCTS, CellSpread, MAX_TOKENS};
use super::cells::{CELL_KINDS, CELLS, UNITS, takes_bytes};
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, EARLY, Launch, Stages, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;

family! {
    "cell_rows" (ProjectParams) uses
        COMMON, EARLY, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, TWO_BYTES, CELL_DOTS, CELL_PRODUCTS;
    "cell_rows" {
        reads columns: 16, sums: 16, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4;
        writes out: 4
    }
}

/// The vectors of up to [`MAX_TOKENS`] tokens, as numbers of two bytes where all weights take them and else as halfs, then the products,
/// for which the weights are read once.
pub(crate) fn plan(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    check(projection)?;
    let bytes = projection.parts.iter().flatten().all(|part| takes_bytes(part.dtype));
    let kind = if bytes { Columns::Bytes } else { Columns::Halfs };
    let refuse = |reason: &str| GpuError::unsupported(projection.op, reason);
    let units = limits.matrix_units.ok_or_else(|| refuse("weights in cells, and no matrix units"))?;
    let eight = Projection { tokens: MAX_TOKENS, fine: false, ..*projection };
    let spread = CellSpread::of(&eight, false, units, limits)
        .ok_or_else(|| refuse("too little threadgroup memory"))?;
    let (mut stages, columns) = columns(projection, kind, limits)?;
    let [first, second, third, _, bias, residual, gate, act] = projection.constants()?;
    // Every result has a scale, as those of a norm have.
    let constants = Constants::starting::<3, 8>([first, second, third, 1, bias, residual, gate, act]);
    let params = ProjectParams { blocks: spread.per_chunk, split: spread.at_a_time, ..projection.params() };
    let rows: u32 = projection.part_rows().iter().sum();
    let launch = Launch {
        threadgroup_bytes: spread.threadgroup_bytes,
        work: work([projection.tokens, projection.cols, rows].map(|n| n as usize)),
        ..FAMILY.kernel("cell_rows", constants).launch(params.params(), spread.groups, [spread.threads, 1, 1])
    };
    launch.check(limits)?;
    stages.stages.push(of_columns(projection, launch, columns, 1));
    Ok(stages)
}
