//! The vectors of several tokens as halfs, as matrix units take them: see `cell_columns.metal`.

use metallic_core::DType;

use super::cells::{CELL_COLS, UNITS, bytes};
use super::project::Projection;
use super::{COMMON, Constants, EARLY, Launch, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// `x [tokens, cols]`, normalised with this epsilon.
    ColumnParams { cols: u32, tokens: u32, eps: f32 }
}

/// How vectors become halfs.
pub(crate) const HALF_SCALE: (&str, &str) = ("half_scale.metal", include_str!("half_scale.metal"));
/// What makes a row's numbers fit halfs, see the file. [`HALF_SCALE`] goes before.
pub(crate) const ROW_SCALES: (&str, &str) = ("row_scales.metal", include_str!("row_scales.metal"));

family! {
    "cell_columns" (ColumnParams) uses COMMON, EARLY, HALF_SCALE, ROW_SCALES, UNITS, TWO_BYTES;
    "cell_columns" { reads x: 16, norm: 16; writes columns: 16, sums: 4, scales: 4 }
    "cell_bytes" { reads x: 16, norm: 16; writes columns: 16, blocks: 8, scales: 4 }
}

/// Vectors as numbers of two bytes. [`UNITS`] goes before.
pub(crate) const TWO_BYTES: (&str, &str) = ("two_bytes.metal", include_str!("two_bytes.metal"));

/// How vectors lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Columns {
    /// As halfs, with the sums of each 32 columns.
    Halfs,
    /// As numbers of two bytes, with a unit and a sum for each 32 columns.
    Bytes,
}

/// Tokens of a tile of the vectors of many tokens.
const TILE_TOKENS: u32 = 8;

/// Refuses what halfs do not hold.
pub(crate) fn check(projection: &Projection) -> Result<(), GpuError> {
    projection.check()?;
    if projection.parts.iter().flatten().any(|part| part.dtype == DType::BF16) {
        return Err(GpuError::unsupported(projection.op, "bfloats by tiles: halfs do not hold them"));
    }
    Ok(())
}

/// Tokens whose rows are enough for all cores with a few threads each.
const MANY_ROWS: u32 = 64;

/// Threads of a threadgroup that has a row of so many tokens': few of them leave cores idle, and each is done sooner by more.
pub(crate) fn row_threads(cols: u32, tokens: u32, limits: &Limits) -> u32 {
    let most = if tokens < MANY_ROWS { 1024 } else { 256 };
    threadgroup::row_threads(cols, &Limits { max_threads: limits.max_threads.min(most), ..*limits })
}

/// The vectors as matrix units take them: a stage, and where numbers, sums and scales lie.
pub(crate) fn columns(
    projection: &Projection,
    kind: Columns,
    limits: &Limits,
) -> Result<(Stages, [Slot; 3]), GpuError> {
    let (tokens, cols) = (projection.tokens, projection.cols);
    let tiles = tokens.div_ceil(TILE_TOKENS);
    let blocks = 2 * cols.div_ceil(CELL_COLS) as usize;
    let mut stages = Stages::default();
    let columns = stages.add_scratch(tiles as usize * blocks * 512);
    let (name, sums_each) = match kind {
        Columns::Halfs => ("cell_columns", 32),
        Columns::Bytes => ("cell_bytes", 64),
    };
    let sums = stages.add_scratch(tiles as usize * blocks * sums_each);
    let scales = stages.add_scratch((tiles * TILE_TOKENS) as usize * 4);
    let with_norm = Constants::of([u32::from(projection.norm.is_some())]);
    let kernel = FAMILY.kernel(name, with_norm);
    let eps = projection.norm.map_or(0.0, |(eps, _)| eps);
    let params = ColumnParams { cols, tokens, eps }.params();
    let threads = row_threads(cols, tokens, limits);
    let launch = kernel.launch(params, [tiles * TILE_TOKENS, 1, 1], [threads, 1, 1]);
    launch.check(limits)?;
    let slots = [projection.x, projection.norm_slot(), columns, sums, scales];
    stages.stages.push(Stage::new(launch, slots));
    Ok((stages, [columns, sums, scales]))
}

/// The arguments of a kernel that takes vectors as [`columns`] leaves them, so many times over the weights.
#[allow(clippy::large_types_passed_by_value)] // It is moved through.
pub(crate) fn of_columns(projection: &Projection, launch: Launch, columns: [Slot; 3], times: u32) -> Stage {
    let [columns, sums, scales] = columns;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let slots = [columns, sums, scales, w0, w1, w2, b0, b1, b2, projection.residual_slot(), Slot::Output];
    reading_cells(projection, Stage::new(launch, slots), 3, times)
}

/// A stage that reads every matrix in cells so many times, the first of them at this argument.
#[allow(clippy::large_types_passed_by_value)] // It is moved through.
pub(crate) fn reading_cells(projection: &Projection, mut stage: Stage, first: usize, times: u32) -> Stage {
    for (index, part) in projection.parts.iter().flatten().enumerate() {
        let bytes = bytes(part.dtype, part.rows as usize, projection.cols as usize).unwrap_or(0);
        stage = stage.touching(first + index, bytes.saturating_mul(times as usize));
    }
    stage
}
