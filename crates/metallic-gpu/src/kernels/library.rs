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
    "library_floats" { reads x: 4, norm: 4; writes rows: 4, scales: 4 }
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

/// How matrices reach a library.
#[derive(Clone, Copy)]
struct Way {
    /// What numbers become.
    dtype: DType,
    /// Whether they are laid out for matrix units.
    cells: bool,
    /// Products of as many matrices.
    batches: u32,
}

/// The products of many tokens; `cells` says that matrices are laid out for matrix units.
pub(crate) fn plan(projection: &Projection, cells: bool, limits: &Limits) -> Result<Stages, GpuError> {
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
    let dtype = if types.first() == Some(&DType::BF16) { DType::BF16 } else { DType::F16 };
    products(projection, Way { dtype, cells, batches: 1 }, limits)
}

/// The products of many tokens by MetalPerformanceShaders: of halfs, or of floats where halfs would lose something. `batches` of
/// them lie one after another.
pub(crate) fn plan_mps(projection: &Projection, batches: u32, limits: &Limits) -> Result<Stages, GpuError> {
    if !limits.apple.mps {
        let reason = "products by MPS: the system has none for this device";
        return Err(GpuError::unsupported(projection.op, reason));
    }
    let halfs = |dtype: DType| !matches!(dtype, DType::F32 | DType::BF16);
    let exact = projection.fine || !projection.parts.iter().flatten().all(|part| halfs(part.dtype));
    let dtype = if exact { DType::F32 } else { DType::F16 };
    if let Some(product) = plain_floats(projection, batches).filter(|_| exact) {
        projection.check()?;
        return Ok(product
            .stage(
                [projection.x, projection.parts[0].map_or(Slot::Unused, |part| part.weight), Slot::Output],
                limits,
            )?
            .into());
    }
    products(projection, Way { dtype, cells: false, batches }, limits)
}

/// A product that takes its operands as they lie and leaves the result where it is wanted.
fn plain_floats(projection: &Projection, batches: u32) -> Option<Gemm> {
    let [Some(part), None, None] = projection.parts else { return None };
    let plain = projection.norm.is_none() && projection.residual.is_none() && projection.gate.is_none();
    let (m, n, k) = (projection.tokens, part.rows, projection.cols);
    let floats = part.dtype == DType::F32 && part.bias.is_none();
    (plain && floats).then_some(Gemm { m, n, k, pitch: n, dtype: DType::F32, batches, adds: false })
}

fn products(projection: &Projection, way: Way, limits: &Limits) -> Result<Stages, GpuError> {
    projection.check()?;
    let Way { dtype, cells, batches } = way;
    let (m, cols) = (projection.tokens, projection.cols);
    if !cols.is_multiple_of(8) {
        let reason = format!("products of rows of {cols} by a library: 8 at a time are needed");
        return Err(GpuError::unsupported(projection.op, reason));
    }
    let tokens = count(projection.op, m as usize * batches as usize)?;
    let projection = &Projection { tokens, ..*projection };
    let (bfloats, size) = (dtype == DType::BF16, dtype.block_bytes());
    let all: u32 = projection.part_rows().iter().sum();
    let mut stages = Stages::default();
    let one = tokens as usize * cols as usize * size;
    let rows = stages.add_scratch(if bfloats { 2 * one } else { one });
    let scales = stages.add_scratch(tokens as usize * 4);
    stages.stages.push(vectors(projection, dtype, [rows, scales], limits)?);
    let weights = stages.add_scratch(all as usize * batches as usize * cols as usize * size);
    let mut start = 0;
    for part in projection.parts.iter().flatten() {
        let part = Part { rows: count(projection.op, part.rows as usize * batches as usize)?, ..*part };
        let stage =
            if cells { from_cells(&part, cols, limits) } else { from_blocks(&part, (cols, dtype), limits) }?;
        stages.stages.push(Stage::starting(stage, if cells { 1 } else { 3 }, start));
        start += part.rows as usize * cols as usize * size;
    }
    stages.stages.iter_mut().skip(1).for_each(|stage| stage.replace(Slot::Output, weights));
    let products = stages.add_scratch(tokens as usize * all as usize * 4);
    let product = Gemm { m, n: all, k: cols, pitch: all, dtype, batches, adds: false };
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
    dtype: DType,
    [rows, scales]: [Slot; 2],
    limits: &Limits,
) -> Result<Stage, GpuError> {
    let (tokens, cols) = (projection.tokens, projection.cols);
    let bfloats = u32::from(dtype == DType::BF16);
    let constants = Constants::of([bfloats, 0, u32::from(projection.norm.is_some())]);
    let name = if dtype == DType::F32 { "library_floats" } else { "library_rows" };
    let eps = projection.norm.map_or(0.0, |(eps, _)| eps);
    let launch = FAMILY.kernel(name, constants).launch(
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
pub(crate) fn from_blocks(
    part: &Part,
    (cols, out): (u32, DType),
    limits: &Limits,
) -> Result<Stage, GpuError> {
    let (table, rows) = (part.dtype, part.rows);
    let pitch = row_bytes("library", table, cols)?;
    let spec = Gathered { table, out, rows, cols, of: rows, fed: false };
    let launch = gather::decode(&spec, count("library", pitch)?, limits)?;
    launch.check(limits)?;
    let slots = [Slot::Unused, part.weight, Slot::Unused, Slot::Output];
    let (read, written) = (pitch * rows as usize, rows as usize * cols as usize * out.block_bytes());
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
