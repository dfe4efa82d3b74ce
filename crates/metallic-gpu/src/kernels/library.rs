//! Products by a library of the device's maker: vectors and weights become halfs, or bfloats, row by row; one product of all
//! matrices; then what is done with it. See `library.metal`.

use metallic_core::DType;

use super::cell_columns::{ColumnParams, HALF_SCALE, ROW_SCALES, row_threads};
use super::cells::{CELL_COLS, CELL_KINDS, CELL_ROWS, CELLS, UNITS, bytes};
use super::gather::{self, Gathered};
use super::gemm::Gemm;
use super::project::{Part, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, Slot, Stage, Stages, count, family, row_bytes, weight_type};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// A matrix `[rows, cols]` in cells.
    CellRowsParams { rows: u32, cols: u32 }
}

family! {
    "library" (ColumnParams, CellRowsParams, ProjectParams)
        uses COMMON, FUNCTIONS, ACTIVATION, CELL_KINDS, UNITS, CELLS, HALF_SCALE, ROW_SCALES;
    "library_rows" { reads x: 16, norm: 16; writes rows: 16, scales: 4 }
    "library_cells" { reads w: 16; writes out: 8 }
    "library_finish" {
        reads products: 4, scales: 4, bias0: 4, bias1: 4, bias2: 4, residual: 4;
        writes out: 4
    }
}

/// Simdgroups of a threadgroup that lays cells out as rows.
const SIMDS: u32 = 8;

/// Whether such matrices go through a library: all as halfs, or all as bfloats. Those of floats would lose what they have.
pub(crate) fn takes(types: impl IntoIterator<Item = DType>) -> bool {
    let mut types = types.into_iter().peekable();
    let bfloats = types.peek() == Some(&DType::BF16);
    types.all(|dtype| dtype != DType::F32 && (dtype == DType::BF16) == bfloats)
}

/// The products of many tokens; `cells` says that matrices are laid out for matrix units.
pub(crate) fn plan(projection: &Projection, cells: bool, limits: &Limits) -> Result<Stages, GpuError> {
    projection.check()?;
    let refuse = |reason: String| Err(GpuError::unsupported(projection.op, reason));
    if !limits.library {
        return refuse("products by a library: the device has none".to_owned());
    }
    let types: Vec<DType> = projection.parts.iter().flatten().map(|part| part.dtype).collect();
    if !takes(types.iter().copied()) {
        return refuse(format!(
            "products of {types:?} by a library: halfs, or bfloats, do not hold all of them"
        ));
    }
    let (tokens, cols) = (projection.tokens, projection.cols);
    if !cols.is_multiple_of(8) {
        return refuse(format!("products of rows of {cols} by a library: 8 at a time are needed"));
    }
    let bfloats = types.first() == Some(&DType::BF16);
    let all: u32 = projection.part_rows().iter().sum();
    let mut stages = Stages::default();
    let one = tokens as usize * cols as usize * 2;
    let rows = stages.add_scratch(if bfloats { 2 * one } else { one });
    let scales = stages.add_scratch(tokens as usize * 4);
    stages.stages.push(vectors(projection, bfloats, [rows, scales], limits)?);
    let weights = stages.add_scratch(all as usize * cols as usize * 2);
    let mut start = 0;
    for part in projection.parts.iter().flatten() {
        let stage = if cells { from_cells(part, cols, limits) } else { from_blocks(part, cols, limits) }?;
        stages.stages.push(Stage::starting(stage, if cells { 1 } else { 3 }, start));
        start += part.rows as usize * cols as usize * 2;
    }
    stages.stages.iter_mut().skip(1).for_each(|stage| stage.replace(Slot::Output, weights));
    let products = stages.add_scratch(tokens as usize * all as usize * 4);
    let product = Gemm { m: tokens, n: all, k: cols, pitch: all, bfloats, adds: false };
    stages.stages.push(product.stage([rows, weights, products], limits)?);
    if bfloats {
        let rest = Gemm { adds: true, ..product };
        stages.stages.push(rest.stage([rows, weights, products], limits)?.starting(0, one));
    }
    stages.stages.push(finish(projection, [products, scales], limits)?);
    Ok(stages)
}

/// Vectors as a library takes them.
fn vectors(
    projection: &Projection,
    bfloats: bool,
    [rows, scales]: [Slot; 2],
    limits: &Limits,
) -> Result<Stage, GpuError> {
    let (tokens, cols) = (projection.tokens, projection.cols);
    let constants = Constants::of([u32::from(bfloats), 0, u32::from(projection.norm.is_some())]);
    let eps = projection.norm.map_or(0.0, |(eps, _)| eps);
    let launch = FAMILY.kernel("library_rows", constants).launch(
        ColumnParams { cols, tokens, eps }.params(),
        [tokens, 1, 1],
        [row_threads(cols, tokens, limits), 1, 1],
    );
    launch.check(limits)?;
    Ok(Stage::new(launch, [projection.x, projection.norm_slot(), rows, scales]))
}

/// A matrix in cells, row by row.
fn from_cells(part: &Part, cols: u32, limits: &Limits) -> Result<Stage, GpuError> {
    const OP: &str = "library_cells";
    let constants = Constants::of([0, weight_type(OP, part.dtype)?]);
    let simds = SIMDS.min(limits.max_threads / limits.simd_width.max(1)).max(1);
    let groups = [cols.div_ceil(CELL_COLS).div_ceil(simds), part.rows.div_ceil(CELL_ROWS), 1];
    let params = CellRowsParams { rows: part.rows, cols }.params();
    let launch = FAMILY.kernel(OP, constants).launch(params, groups, [simds * limits.simd_width, 1, 1]);
    launch.check(limits)?;
    let read = bytes(part.dtype, part.rows as usize, cols as usize).unwrap_or(0);
    let written = part.rows as usize * cols as usize * 2;
    Ok(Stage::new(launch, [part.weight, Slot::Output]).touching(0, read).touching(1, written))
}

/// A matrix as it lies in its file, row by row.
fn from_blocks(part: &Part, cols: u32, limits: &Limits) -> Result<Stage, GpuError> {
    let (table, rows) = (part.dtype, part.rows);
    let out = if table == DType::BF16 { DType::BF16 } else { DType::F16 };
    let pitch = row_bytes("library", table, cols)?;
    let spec = Gathered { table, out, rows, cols, of: rows, fed: false };
    let launch = gather::decode(&spec, count("library", pitch)?, limits)?;
    launch.check(limits)?;
    let slots = [Slot::Unused, part.weight, Slot::Unused, Slot::Output];
    let (read, written) = (pitch * rows as usize, rows as usize * cols as usize * 2);
    Ok(Stage::new(launch, slots).touching(1, read).touching(3, written))
}

/// What is done with the products.
fn finish(
    projection: &Projection,
    [products, scales]: [Slot; 2],
    limits: &Limits,
) -> Result<Stage, GpuError> {
    let [.., bias, residual, gate, code] = projection.constants()?;
    let kernel = FAMILY.kernel("library_finish", Constants::of([0, 0, 0, bias, residual, gate, code]));
    let launch = kernel.plane(projection.params().params(), (projection.width(), projection.tokens), limits);
    launch.check(limits)?;
    let [b0, b1, b2] = projection.biases();
    let slots = [products, scales, b0, b1, b2, projection.residual_slot(), Slot::Output];
    Ok(Stage::new(launch, slots))
}

#[cfg(test)]
mod tests;
