//! Matrices in cells times the vectors of a few tokens, exact to two bfloats a number: see `cell_dots.metal`.

use super::cells::{CELL_COLS, CELL_KINDS, CELL_ROWS, CELLS, PAIR_ROWS, UNITS, ahead, bytes};
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Family, Launch, Slot, Stage, Stages, family, work};
use crate::error::GpuError;
use crate::gpu::{Limits, MatrixUnits};
use crate::tuning::Tuning;

pub(crate) const CELL_DOTS: (&str, &str) = ("cell_dots.metal", include_str!("cell_dots.metal"));
pub(crate) const CELL_PRODUCTS: (&str, &str) = ("cell_products.metal", include_str!("cell_products.metal"));

family! {
    "cell_matvec" (ProjectParams) uses
        COMMON, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, CELL_DOTS, CELL_PRODUCTS;
    "cell_matvec_4", "cell_matvec_8" {
        reads x: 16, norm: 16, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4; writes out: 4
    }
}

/// Tokens that read the weights together.
pub(crate) const MAX_TOKENS: u32 = 8;

/// How the rows of a projection in cells are spread.
pub(crate) struct CellSpread {
    /// Tokens that read the weights together, 4 or 8.
    pub(crate) slots: u32,
    /// Simdgroups that share a pair of tiles.
    pub(crate) split: u32,
    /// Cells of the vectors that lie in threadgroup memory at a time.
    pub(crate) per_chunk: u32,
    pub(crate) groups: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) threadgroup_bytes: u32,
}

/// The greatest power of two that is no greater.
fn power_of_two(n: u32) -> u32 {
    1 << n.max(1).ilog2()
}

impl CellSpread {
    pub(crate) fn of(projection: &Projection, units: MatrixUnits, limits: &Limits) -> Option<CellSpread> {
        let slots = if projection.tokens <= 4 { 4 } else { MAX_TOKENS };
        let together = projection.tokens.min(slots);
        let rows = projection.part_rows();
        let pairs: u32 = if projection.gate.is_some() {
            rows[0].div_ceil(CELL_ROWS)
        } else {
            rows.iter().map(|rows| rows.div_ceil(PAIR_ROWS)).sum()
        };
        let cells = projection.cols.div_ceil(CELL_COLS);
        let Tuning { cell_simdgroups, cell_split, cell_groups, .. } = limits.tuning;
        let most = power_of_two(cell_simdgroups.min(limits.max_threads / limits.simd_width.max(1)));
        // As many simdgroups on a pair as keep all of them busy, but each with a few cells of it.
        let split = power_of_two((units.cores * cell_simdgroups / pairs.max(1)).max(cell_split));
        let split = split.min(most).min(power_of_two(cells.div_ceil(2)));
        // Few tokens leave room for several groups on a core: while one waits another works.
        let each = power_of_two(cell_simdgroups / cell_groups.max(1));
        let simds = if slots == MAX_TOKENS { most } else { most.min(each).max(split) };
        let ahead = projection.parts.iter().flatten().map(|part| ahead(part.dtype)).fold(1, least_common);
        // Fewer simdgroups, where the sums of many leave no room for the vectors.
        let fewer = (0..=simds.ilog2()).map(|n| (simds >> n, split.min(simds >> n)));
        fewer.into_iter().find_map(|(simds, split)| {
            let per_core = (cell_simdgroups / simds).max(1);
            // The norm's scales, the squares of each simdgroup, and two rounds of all their sums.
            let fixed = 4 * slots * (simds + 1) + 2 * simds * PAIR_ROWS * slots * 4;
            let room =
                (units.threadgroup_memory / per_core.clamp(1, cell_groups.max(1))).checked_sub(fixed)?;
            let plane =
                |cells: u32| together * (2 * (2 * cells * CELL_COLS + 64) + cells * CELL_COLS / 16 * 4);
            let fit = room.checked_sub(plane(0))? / (plane(1) - plane(0)).max(1);
            // A chunk is a whole number of turns of what is loaded ahead.
            let per_chunk = if cells <= fit { cells } else { fit / (split * ahead) * (split * ahead) };
            (per_chunk > 0).then(|| CellSpread {
                slots,
                split,
                per_chunk,
                groups: [
                    pairs.div_ceil(simds / split).min(units.cores * per_core),
                    projection.tokens.div_ceil(slots),
                    1,
                ],
                threads: simds * limits.simd_width,
                threadgroup_bytes: plane(per_chunk) + fixed,
            })
        })
    }
}

/// The least number that both divide.
fn least_common(a: u32, b: u32) -> u32 {
    (1..=b).map(|n| a * n).find(|n| n.is_multiple_of(b)).unwrap_or(a * b)
}

/// The launch of a projection by one of the families of these products, whose kernels are named after `name` and have these
/// constants; weights stand at argument 2.
pub(crate) fn stage<const N: usize>(
    projection: &Projection,
    (family, name, constants): (&'static Family, &str, Constants),
    params: ProjectParams,
    slots: [Slot; N],
    limits: &Limits,
) -> Result<Stage, GpuError> {
    let refuse = |reason: &str| GpuError::unsupported(projection.op, reason);
    let units = limits.matrix_units.ok_or_else(|| refuse("weights in cells, and no matrix units"))?;
    let spread = CellSpread::of(projection, units, limits)
        .ok_or_else(|| refuse("too little threadgroup memory for weights in cells"))?;
    let kernel = family.kernel(&format!("{name}_{}", spread.slots), constants);
    let params = ProjectParams { blocks: spread.per_chunk, split: spread.split, ..params };
    let rows: u32 = projection.part_rows().iter().sum();
    let launch = Launch {
        threadgroup_bytes: spread.threadgroup_bytes,
        work: work([projection.tokens, projection.cols, rows].map(|n| n as usize)),
        ..kernel.launch(params.params(), spread.groups, [spread.threads, 1, 1])
    };
    launch.check(limits)?;
    let mut stage = Stage::new(launch, slots);
    for (index, part) in projection.parts.iter().flatten().enumerate() {
        let bytes = bytes(part.dtype, part.rows as usize, projection.cols as usize).unwrap_or(0);
        stage = stage.touching(2 + index, bytes.saturating_mul(spread.groups[1] as usize));
    }
    Ok(stage)
}

/// One launch for everything. Every [`MAX_TOKENS`] tokens read the weights once.
pub(crate) fn plan_vectors(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    projection.check()?;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let (x, norm, residual) = (projection.x, projection.norm_slot(), projection.residual_slot());
    let slots = [x, norm, w0, w1, w2, b0, b1, b2, residual, Slot::Output];
    let kernel = (&FAMILY, "cell_matvec", Constants::starting::<3, 8>(projection.constants()?));
    Ok(stage(projection, kernel, projection.params(), slots, limits)?.into())
}

#[cfg(test)]
pub(crate) mod tests;
