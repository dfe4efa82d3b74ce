//! Matrices in cells times the vectors of up to eight tokens: see `cell_rows.metal`.

use super::cell_columns::{Columns, TWO_BYTES, check, columns, of_columns};
use super::cell_matvec::{
    CELL_DOTS, CELL_PRODUCTS, CellSpread, MAX_TOKENS, Vectors, check as check_cells, too_little,
};
use super::cells::{CELL_KINDS, CELLS, UNITS, takes_bytes};
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, EARLY, Kernel, Launch, Stages, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;

/// Vectors that were laid out before.
pub(crate) const CELL_EIGHTS: (&str, &str) = ("cell_eights.metal", include_str!("cell_eights.metal"));

family! {
    "cell_rows" (ProjectParams) uses
        COMMON, EARLY, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, TWO_BYTES, CELL_DOTS, CELL_EIGHTS, CELL_PRODUCTS;
    "cell_rows", "cell_rows_near" {
        reads columns: 16, sums: 16, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4;
        writes out: 4
    }
}

/// Pairs of tiles that each core has at least where vectors are copied to its threadgroup memory.
const NEAR_ROUNDS: u32 = 2;

/// Whether the vectors of a projection go as numbers of two bytes: all weights take them.
pub(crate) fn of_bytes(projection: &Projection) -> bool {
    projection.parts.iter().flatten().all(|part| takes_bytes(part.dtype))
}

/// The launch of a product with vectors that were laid out before, by a kernel that `kernel` makes of the end of its name.
pub(crate) fn launch(
    projection: &Projection,
    params: ProjectParams,
    kernel: impl Fn(&str) -> Kernel,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let units = check_cells(projection, limits)?;
    let eight = Projection { tokens: MAX_TOKENS, fine: false, ..*projection };
    let buffered = CellSpread::of(&eight, Vectors::Buffered, units, limits)
        .ok_or_else(|| too_little(projection, units))?;
    // Vectors are not worth the simdgroups whose room they take, and a copy is not worth it where each core needs them about once.
    let near = (of_bytes(projection) && buffered.rounds >= NEAR_ROUNDS)
        .then(|| CellSpread::of(&eight, Vectors::Near, units, limits))
        .flatten()
        .filter(|near| near.threads == buffered.threads);
    let (end, spread) = near.map_or(("", buffered), |near| ("_near", near));
    let params = ProjectParams { blocks: spread.per_chunk, split: spread.at_a_time, ..params };
    let rows: u32 = projection.part_rows().iter().sum();
    let launch = Launch {
        threadgroup_bytes: spread.threadgroup_bytes,
        work: work([projection.tokens, projection.cols, rows].map(|n| n as usize)),
        ..kernel(end).launch(params.params(), spread.groups, [spread.threads, 1, 1])
    };
    launch.check(limits)?;
    Ok(launch)
}

/// The vectors of up to [`MAX_TOKENS`] tokens, as numbers of two bytes where all weights take them and else as halfs, then the products,
/// for which the weights are read once.
pub(crate) fn plan(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    check(projection)?;
    let kind = if of_bytes(projection) { Columns::Bytes } else { Columns::Halfs };
    let (mut stages, columns) = columns(projection, kind, limits)?;
    let [first, second, third, _, bias, residual, gate, act] = projection.constants()?;
    // Every result has a scale, as those of a norm have.
    let constants = Constants::starting::<3, 8>([first, second, third, 1, bias, residual, gate, act]);
    let kernel = |end: &str| FAMILY.kernel(&format!("cell_rows{end}"), constants);
    let launch = launch(projection, projection.params(), kernel, limits)?;
    stages.stages.push(of_columns(projection, launch, columns, 1));
    Ok(stages)
}
