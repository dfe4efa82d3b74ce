//! Weights laid out for matrix units, and products with them: see `cells.metal` and `cell_dots.metal`.

use metallic_core::{DType, Op, TensorType, WeightUse};

use super::project::{PROJECT, ProjectParams, Projection};
use super::rope::{KV, KV_ALIGN, ROTATE, RopeKv, interleaved};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{
    COMMON, Constants, Family, Launch, QUANT, QUANT_TYPES, Slot, Stage, Stages, family, qkv, weight_type,
    work,
};
use crate::error::GpuError;
use crate::gpu::{Limits, MatrixUnits};
use crate::params::kernel_params;

kernel_params! {
    /// A matrix `[rows, cols]`, whose tiles have so many words each.
    CellPackParams { rows: u32, cols: u32, words: u32 }
}

/// Products of matrix units.
pub(crate) const UNITS: (&str, &str) = ("units.metal", include_str!("units.metal"));
const CELLS: (&str, &str) = ("cells.metal", include_str!("cells.metal"));
const CELL_DOTS: (&str, &str) = ("cell_dots.metal", include_str!("cell_dots.metal"));
const CELL_PRODUCTS: (&str, &str) = ("cell_products.metal", include_str!("cell_products.metal"));

/// Rows and columns of a cell.
const CELL_ROWS: u32 = 16;
const CELL_COLS: u32 = 64;
/// Rows of a pair of tiles.
const PAIR_ROWS: u32 = 32;
/// Simdgroups of a threadgroup at most; their registers are all a core has.
const SIMDS: u32 = 16;
/// Simdgroups that share a pair of tiles at least: fewer have too few loads under way.
const LEAST_SPLIT: u32 = 4;
/// Tokens that read the weights together.
pub(crate) const MAX_TOKENS: u32 = 8;

/// Declares which types have cells, for Rust and for the MSL: bytes of a cell, and of what stands once for four.
macro_rules! cell_types {
    ($($dtype:ident $kind:ident $number:literal: $cell:literal + $four:literal, $ahead:literal ahead);+ $(;)?) => {
        /// Bytes of 16 rows of so many columns; `None` where the type has no cells.
        fn tile_bytes(dtype: DType, cols: u32) -> Option<usize> {
            let cells = cols.div_ceil(CELL_COLS) as usize;
            match dtype {
                $(DType::$dtype => Some(cells * $cell + cells.div_ceil(4) * $four),)+
                _ => None,
            }
        }

        /// Cells that kernels load before they are needed: `AHEAD` in the MSL.
        fn ahead(dtype: DType) -> u32 {
            match dtype {
                $(DType::$dtype => $ahead,)+
                _ => 1,
            }
        }

        /// Every type that has cells.
        #[cfg(test)]
        const CELL_TYPES: &[DType] = &[$(DType::$dtype),+];

        const KINDS: &str = concat!(
            "#define FOR_CELL_TYPE(type, DO) switch (type) {",
            $(" case ", $number, ": DO(", stringify!($kind), ") break;",)+
            " }\n",
        );
    };
}

cell_types! {
    F16 F16 1: 2048 + 0, 1 ahead;
    BF16 BF16 2: 2048 + 0, 1 ahead;
    Q4_0 Q4_0 3: 576 + 0, 3 ahead;
    Q8_0 Q8_0 7: 1088 + 0, 2 ahead;
    Q4K Q4_K 10: 576 + 64, 3 ahead;
    Q6K Q6_K 12: 832 + 32, 2 ahead;
}

/// The kinds of cells by the numbers of their types.
const CELL_KINDS: (&str, &str) = ("cell_kinds.metal", KINDS);

pub(crate) mod pack {
    use super::*;

    family! {
        "cell_pack" (CellPackParams) uses COMMON, QUANT_TYPES, QUANT, CELL_KINDS, UNITS, CELLS;
        "cell_pack" { reads raw: 1; writes out: 16 }
    }
}

family! {
    "cell_matvec" (ProjectParams) uses
        COMMON, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, CELL_DOTS, CELL_PRODUCTS;
    "cell_matvec_4", "cell_matvec_8" {
        reads x: 16, norm: 16, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4; writes out: 4
    }
}

pub(crate) mod into_cache {
    use super::*;

    family! {
        "cell_qkv" (ProjectParams) uses COMMON, KV, ROTATE, PROJECT, CELL_KINDS, UNITS, CELLS, CELL_DOTS;
        "cell_qkv_4", "cell_qkv_8" {
            reads x: 16, norm: 16, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, positions: 4, freqs: 4,
            rows: 8, blocks: 4;
            writes out: 4, keys: KV_ALIGN, values: KV_ALIGN
        }
    }
}

pub(crate) mod columns {
    use super::*;

    kernel_params! {
        /// `x [tokens, cols]`, normalised with this epsilon.
        ColumnParams { cols: u32, tokens: u32, eps: f32 }
    }

    family! {
        "cell_columns" (ColumnParams) uses COMMON;
        "cell_columns" { reads x: 16, norm: 16; writes columns: 16, sums: 4, scales: 4 }
    }
}

pub(crate) mod eight {
    use super::*;

    family! {
        "cell_rows" (ProjectParams) uses
            COMMON, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, CELL_DOTS, CELL_PRODUCTS;
        "cell_rows" {
            reads columns: 16, sums: 8, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4;
            writes out: 4
        }
    }
}

pub(crate) mod many {
    use super::*;

    family! {
        "cell_matmul" (ProjectParams) uses COMMON, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS;
        "cell_matmul_32", "cell_matmul_64", "cell_matmul_128" {
            reads columns: 16, sums: 4, scales: 4, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4;
            writes out: 4
        }
    }
}

/// Bytes of a matrix in cells.
pub(crate) fn bytes(dtype: DType, rows: usize, cols: usize) -> Option<usize> {
    let tile = tile_bytes(dtype, u32::try_from(cols).ok()?)?;
    let all = rows.div_ceil(CELL_ROWS as usize).checked_mul(tile)?;
    // Kernels count words with 32 bits within a tile.
    (cols.is_multiple_of(32) && cols > 0 && rows > 0).then_some(all)
}

/// Whether the matrices of an operation lie in cells on such a device: all of them do, or none. `is_weight` says which inputs are
/// weights; what is computed lies as it was written.
pub(crate) fn serve(
    op: &Op,
    inputs: &[TensorType],
    is_weight: impl Fn(usize) -> bool,
    limits: &Limits,
) -> bool {
    if limits.matrix_units.is_none()
        || !matches!(op, Op::Linear | Op::Project(_) | Op::GatedProject { .. } | Op::Qkv(_))
    {
        return false;
    }
    let mut matrices =
        (0..inputs.len()).filter(|index| op.weight_use(*index) == WeightUse::Matrix).peekable();
    let Some(first) = matrices.peek().map(|index| inputs[*index].dtype) else { return false };
    let gated = matches!(op, Op::GatedProject { .. });
    matrices.all(|index| {
        let [rows, cols] = inputs[index].shape.dims() else { return false };
        let (metallic_core::Dim::Fixed(rows), metallic_core::Dim::Fixed(cols)) = (*rows, *cols) else {
            return false;
        };
        let alike = !gated || inputs[index].dtype == first;
        is_weight(index) && alike && bytes(inputs[index].dtype, rows, cols).is_some()
    })
}

/// Lays a matrix out in cells: `(raw, out)`.
pub(crate) fn pack(dtype: DType, (rows, cols): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    const OP: &str = "cell_pack";
    let none = || GpuError::unsupported(OP, format!("cells of {dtype}"));
    let words = u32::try_from(tile_bytes(dtype, cols).ok_or_else(none)? / 4).map_err(|_| none())?;
    let kernel = pack::FAMILY.kernel(OP, Constants::of([weight_type(OP, dtype)?]));
    let params = CellPackParams { rows, cols, words }.params();
    Ok(kernel.plane(params, (words, rows.div_ceil(CELL_ROWS)), limits))
}

/// How the rows of a projection in cells are spread.
struct CellSpread {
    /// Tokens that read the weights together, 4 or 8.
    slots: u32,
    /// Simdgroups that share a pair of tiles.
    split: u32,
    /// Cells of the vectors that lie in threadgroup memory at a time.
    per_chunk: u32,
    groups: [u32; 3],
    threads: u32,
    threadgroup_bytes: u32,
}

/// The greatest power of two that is no greater.
fn power_of_two(n: u32) -> u32 {
    1 << n.max(1).ilog2()
}

impl CellSpread {
    fn of(projection: &Projection, units: MatrixUnits, limits: &Limits) -> Option<CellSpread> {
        let slots = if projection.tokens <= 4 { 4 } else { MAX_TOKENS };
        let together = projection.tokens.min(slots);
        let rows = projection.part_rows();
        let pairs: u32 = if projection.gate.is_some() {
            rows[0].div_ceil(CELL_ROWS)
        } else {
            rows.iter().map(|rows| rows.div_ceil(PAIR_ROWS)).sum()
        };
        let cells = projection.cols.div_ceil(CELL_COLS);
        let most = power_of_two(SIMDS.min(limits.max_threads / limits.simd_width.max(1)));
        // As many simdgroups on a pair as keep all of them busy, but each with a few cells of it.
        let split = power_of_two((units.cores * SIMDS / pairs.max(1)).max(LEAST_SPLIT));
        let split = split.min(most).min(power_of_two(cells.div_ceil(2)));
        // Few tokens leave room for two groups on a core: while one waits the other works.
        let simds = if slots == MAX_TOKENS { most } else { most.min(SIMDS / 2).max(split) };
        let ahead = projection.parts.iter().flatten().map(|part| ahead(part.dtype)).fold(1, least_common);
        // Fewer simdgroups, where the sums of many leave no room for the vectors.
        let fewer = (0..=simds.ilog2()).map(|n| (simds >> n, split.min(simds >> n)));
        fewer.into_iter().find_map(|(simds, split)| {
            let per_core = (SIMDS / simds).max(1);
            // The norm's scales, the squares of each simdgroup, and two rounds of all their sums.
            let fixed = 4 * slots * (simds + 1) + 2 * simds * PAIR_ROWS * slots * 4;
            let room = (units.threadgroup_memory / per_core.min(2)).checked_sub(fixed)?;
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
fn stage<const N: usize>(
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

/// The way into attention: one launch where heads are whole tiles and the cache's elements stand alone, else the product and then
/// its way into the cache.
pub(crate) fn plan_qkv(
    projection: &Projection,
    way: &RopeKv<'_>,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    let turn = interleaved(way.rope);
    let whole = way.kv.head_dim.is_multiple_of(PAIR_ROWS as usize)
        && (turn != 0 || way.pairs.is_multiple_of(CELL_ROWS));
    if !whole || way.kv.dtype == DType::Q8_0 || way.norm.is_some() {
        return qkv::after(plan_vectors(projection, limits)?, projection, way, limits);
    }
    qkv::check(projection, way)?;
    let kv_type = way.check(projection.op)?;
    let [w0, w1, w2, norm, bias, residual, gate, act] = projection.constants()?;
    let constants =
        Constants::of([kv_type, way.kv.head_dim as u32, turn, w0, w1, w2, norm, bias, residual, gate, act]);
    let params = ProjectParams { pairs: way.pairs, magnitude: way.rope.magnitude, ..projection.params() };
    let slots = qkv::slots(projection, way);
    let kernel = (&into_cache::FAMILY, "cell_qkv", constants);
    let stage = stage(projection, kernel, params, slots, limits)?;
    Ok(way.kv.moving(stage, [11, 13, 14]).into())
}

/// Tokens of a tile of the vectors of many tokens.
const TILE_TOKENS: u32 = 8;

/// Refuses what halfs do not hold.
fn check_halfs(projection: &Projection) -> Result<(), GpuError> {
    projection.check()?;
    if projection.parts.iter().flatten().any(|part| part.dtype == DType::BF16) {
        return Err(GpuError::unsupported(projection.op, "bfloats by tiles: halfs do not hold them"));
    }
    Ok(())
}

/// The vectors as halfs, as matrix units take them: a stage, and where numbers, sums and scales lie.
fn columns(projection: &Projection, limits: &Limits) -> Result<(Stages, [Slot; 3]), GpuError> {
    let (tokens, cols) = (projection.tokens, projection.cols);
    let tiles = tokens.div_ceil(TILE_TOKENS);
    let blocks = 2 * cols.div_ceil(CELL_COLS) as usize;
    let mut stages = Stages::default();
    let columns = stages.add_scratch(tiles as usize * blocks * 512);
    let sums = stages.add_scratch(tiles as usize * blocks * 32);
    let scales = stages.add_scratch((tiles * TILE_TOKENS) as usize * 4);
    let with_norm = Constants::of([u32::from(projection.norm.is_some())]);
    let kernel = columns::FAMILY.kernel("cell_columns", with_norm);
    let eps = projection.norm.map_or(0.0, |(eps, _)| eps);
    let params = columns::ColumnParams { cols, tokens, eps }.params();
    let most = Limits { max_threads: limits.max_threads.min(256), ..*limits };
    let threads = crate::threadgroup::row_threads(cols, &most);
    let launch = kernel.launch(params, [tiles * TILE_TOKENS, 1, 1], [threads, 1, 1]);
    launch.check(limits)?;
    let slots = [projection.x, projection.norm_slot(), columns, sums, scales];
    stages.stages.push(Stage::new(launch, slots));
    Ok((stages, [columns, sums, scales]))
}

/// The arguments of a kernel that takes vectors as [`columns`] leaves them, so many times over the weights.
fn of_columns(projection: &Projection, launch: Launch, columns: [Slot; 3], times: u32) -> Stage {
    let [columns, sums, scales] = columns;
    let [w0, w1, w2] = projection.weights();
    let [b0, b1, b2] = projection.biases();
    let slots = [columns, sums, scales, w0, w1, w2, b0, b1, b2, projection.residual_slot(), Slot::Output];
    let mut stage = Stage::new(launch, slots);
    for (index, part) in projection.parts.iter().flatten().enumerate() {
        let bytes = bytes(part.dtype, part.rows as usize, projection.cols as usize).unwrap_or(0);
        stage = stage.touching(3 + index, bytes.saturating_mul(times as usize));
    }
    stage
}

/// The vectors of up to [`MAX_TOKENS`] tokens as halfs, then the products, for which the weights are read once.
pub(crate) fn plan_eight(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    check_halfs(projection)?;
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
        ..eight::FAMILY.kernel("cell_rows", constants).launch(
            params.params(),
            spread.groups,
            [spread.threads, 1, 1],
        )
    };
    launch.check(limits)?;
    stages.stages.push(of_columns(projection, launch, columns, 1));
    Ok(stages)
}

/// The vectors as matrix units take them, then the products by tiles of rows and tokens.
pub(crate) fn plan_tiles(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    check_halfs(projection)?;
    let (tokens, cols) = (projection.tokens, projection.cols);
    let (mut stages, columns) = columns(projection, limits)?;
    let rows = projection.part_rows();
    let gated = projection.gate.is_some();
    let (each, parts) = if gated { (CELL_ROWS, &rows[..1]) } else { (PAIR_ROWS, &rows[..]) };
    let down = |simds: u32| -> u32 { parts.iter().map(|rows| rows.div_ceil(each * simds)).sum() };
    // Large tiles where there are enough of them for all cores.
    let cores = limits.matrix_units.map_or(0, |units| units.cores);
    let (name, tokens_of_group, simds) = match tokens {
        ..=32 => ("cell_matmul_32", 32, 4),
        _ if tokens.div_ceil(128) * down(8) < 2 * cores => ("cell_matmul_64", 64, 8),
        _ => ("cell_matmul_128", 128, 8),
    };
    let constants = Constants::starting::<3, 8>(Projection { norm: None, ..*projection }.constants()?);
    let groups = [tokens.div_ceil(tokens_of_group), down(simds), 1];
    let launch = Launch {
        work: work([tokens, cols, rows.iter().sum()].map(|n| n as usize)),
        ..many::FAMILY.kernel(name, constants).launch(
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
pub(crate) mod tests;
