//! Matrices in cells times the vectors of a few tokens, exact to two bfloats a number: see `cell_dots.metal`.

use super::cell_columns::{TWO_BYTES, reading_cells};
use super::cells::{CELL_COLS, CELL_KINDS, CELL_ROWS, CELLS, PAIR_ROWS, UNITS, ring_bytes, takes_bytes};
use super::project::{PROJECT, ProjectParams, Projection};
use super::typed::{ACTIVATION, FUNCTIONS};
use super::{COMMON, Constants, EARLY, Family, Launch, Slot, Stage, Stages, family, work};
use crate::error::GpuError;
use crate::gpu::{Limits, MatrixUnits};

pub(crate) const CELL_DOTS: (&str, &str) = ("cell_dots.metal", include_str!("cell_dots.metal"));
pub(crate) const CELL_OWN: (&str, &str) = ("cell_own.metal", include_str!("cell_own.metal"));
pub(crate) const CELL_PRODUCTS: (&str, &str) = ("cell_products.metal", include_str!("cell_products.metal"));

family! {
    "cell_matvec" (ProjectParams) uses
        COMMON, EARLY, FUNCTIONS, ACTIVATION, PROJECT, CELL_KINDS, UNITS, CELLS, TWO_BYTES, CELL_DOTS, CELL_OWN, CELL_PRODUCTS;
    "cell_matvec_own", "cell_matvec_1", "cell_matvec_4", "cell_matvec_8" {
        reads x: 16, norm: 16, w0: 16, w1: 16, w2: 16, bias0: 4, bias1: 4, bias2: 4, residual: 4; writes out: 4
    }
}

/// Tokens that read the weights together.
pub(crate) const MAX_TOKENS: u32 = 8;

/// How the rows of a projection in cells are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellSpread {
    /// Tokens that read the weights together, 4 or 8; half as many where what is left of their numbers comes along.
    pub(crate) slots: u32,
    /// Pairs of tiles that each threadgroup has at least, and at most.
    pub(crate) rounds: u32,
    pub(crate) most_rounds: u32,
    /// Pairs of tiles that a threadgroup has at a time.
    pub(crate) at_a_time: u32,
    /// Cells of the vectors that lie in threadgroup memory at a time.
    pub(crate) per_chunk: u32,
    pub(crate) groups: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) threadgroup_bytes: u32,
}

/// How vectors come to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// As they are: each threadgroup lays them out in its memory.
    Staged,
    /// As they are: of one token, each simdgroup lays out what it needs.
    Own,
    /// Laid out before as numbers of two bytes, and copied to threadgroup memory.
    Near,
    /// Laid out before, and read from their buffer with each cell.
    Buffered,
}

/// Bytes of a cell's numbers of two bytes of eight tokens, with what they are worth.
const NEAR_CELL: u32 = 2 * MAX_TOKENS * CELL_COLS + 2 * MAX_TOKENS * 8;

/// Pairs of tiles that a threadgroup has at most where simdgroups lay vectors out for themselves: with more they need the same columns.
const OWN_PAIRS: u32 = 2;
/// Cells that a simdgroup lays out at a time, and bytes of them: `AT_ONCE` and `BYTES` in the MSL.
const OWN_CELLS: u32 = 4;
const OWN_BYTES: u32 = OWN_CELLS * (2 * CELL_COLS + 16);

/// What takes threadgroup memory of a group: its vectors' tokens, or none where they are not staged, and its simdgroups.
struct Needs {
    slots: u32,
    staged: u32,
    /// Bytes of each cell of vectors that were laid out before.
    near: u32,
    with_bfloats: bool,
    /// Bytes of vectors of each simdgroup.
    own: u32,
    simds: u32,
    ring: u32,
}

impl Needs {
    /// Bytes for so many cells of the vectors and pairs of tiles at a time, and chunks that columns come in.
    fn bytes(&self, per_chunk: u32, at_a_time: u32, chunks: u32) -> u64 {
        let columns = per_chunk * CELL_COLS;
        let plane = if self.with_bfloats { 2 * columns } else { columns.next_multiple_of(LINE) } + 64;
        // Halves of numbers, and units and sums of each 32; the norm's scales, and the squares of each simdgroup.
        let vectors = u64::from(self.staged) * u64::from(2 * plane + columns / 4)
            + u64::from(per_chunk * self.near + self.simds * self.own);
        let scales = match (self.staged, self.own) {
            (0, 0) => 4 * self.slots,
            (0, _) => 8 * self.simds,
            _ => 4 * self.slots * (self.simds + 1),
        };
        let sums = u64::from(chunks * (at_a_time + self.simds)) * u64::from(PAIR_ROWS * self.slots * 4);
        (vectors + u64::from(scales)).next_multiple_of(LINE.into()) + sums + u64::from(self.simds * self.ring)
    }
}

/// Bytes of a line of threadgroup memory.
const LINE: u32 = 128;

/// Whether vectors are taken with what numbers of two bytes leave of them; two bfloats are nearly as exact.
fn is_fine(projection: &Projection) -> bool {
    projection.fine && projection.parts.iter().flatten().all(|part| takes_bytes(part.dtype))
}

/// A number, and what is left of it by halves.
fn halves(n: u32) -> impl Iterator<Item = u32> {
    (0..=n.max(1).ilog2()).map(move |by| n.max(1) >> by)
}

/// Refuses what kernels of these products cannot tell apart or count; the matrix units they run on.
pub(crate) fn check(projection: &Projection, limits: &Limits) -> Result<MatrixUnits, GpuError> {
    let refuse = |reason: String| GpuError::unsupported(projection.op, reason);
    let units =
        limits.matrix_units.ok_or_else(|| refuse("weights in cells, and no matrix units".to_owned()))?;
    let mut types = projection.parts.iter().flatten().map(|part| part.dtype);
    if let (Some(_), Some(first), Some(second)) = (projection.gate, types.next(), types.next())
        && first != second
    {
        return Err(refuse(format!("a gate in cells of {first} over {second}; both must be alike")));
    }
    // They count pairs of tiles times groups.
    let groups = units.cores.max(1).saturating_mul(limits.tuning.cell_groups).saturating_add(1);
    let most = (u32::MAX / groups).saturating_mul(CELL_ROWS);
    let rows: u32 = projection.part_rows().iter().fold(0, |sum, rows| sum.saturating_add(*rows));
    if rows > most {
        return Err(refuse(format!("{rows} rows in cells; at most {most}")));
    }
    Ok(units)
}

/// Threadgroup memory that is too small for one simdgroup.
pub(crate) fn too_little(projection: &Projection, units: MatrixUnits) -> GpuError {
    let reason =
        format!("{} bytes of threadgroup memory, too little for weights in cells", units.threadgroup_memory);
    GpuError::unsupported(projection.op, reason)
}

impl CellSpread {
    /// How a projection is spread whose vectors come like this.
    pub(crate) fn of(
        projection: &Projection,
        vectors: Vectors,
        units: MatrixUnits,
        limits: &Limits,
    ) -> Option<CellSpread> {
        // Fewer groups on a core, where they leave each other no room, and then fewer simdgroups.
        halves(limits.tuning.cell_groups).find_map(|per_core| {
            let most = limits.max_threads / limits.simd_width.max(1);
            let simds = (limits.tuning.cell_simdgroups / per_core).min(most);
            halves(simds).find_map(|simds| Self::with(projection, vectors, (per_core, simds), units, limits))
        })
    }

    /// The same with so many groups on a core, of so many simdgroups.
    fn with(
        projection: &Projection,
        vectors: Vectors,
        (per_core, simds): (u32, u32),
        units: MatrixUnits,
        limits: &Limits,
    ) -> Option<CellSpread> {
        // What is left of a token's numbers is one more token.
        let fine = u32::from(is_fine(projection));
        let tokens = projection.tokens << fine;
        let slots = if tokens <= 4 { 4 } else { MAX_TOKENS };
        let gated = projection.gate.is_some();
        let rows = projection.part_rows();
        let (each, parts) = if gated { (CELL_ROWS, &rows[..1]) } else { (PAIR_ROWS, &rows[..]) };
        let cells = projection.cols.div_ceil(CELL_COLS);
        // All cores have as many groups, also such as have nothing to do: the next kernel's come where there is room, and two of them
        // on one core would take twice as long.
        let groups = units.cores.max(1) * per_core;
        // Matrices of one type are shared as one.
        let types = || projection.parts.iter().flatten().map(|part| part.dtype);
        let pairs = parts.iter().map(|rows| rows.div_ceil(each));
        let alike = types().all(|dtype| Some(dtype) == types().next());
        let pairs = if gated || alike { pairs.sum::<u32>() } else { pairs.max().unwrap_or(0) };
        let staged = vectors == Vectors::Staged;
        let needs = Needs {
            slots,
            staged: if staged { tokens.min(slots) } else { 0 },
            near: if vectors == Vectors::Near { NEAR_CELL } else { 0 },
            with_bfloats: !types().all(takes_bytes),
            own: if vectors == Vectors::Own { OWN_BYTES } else { 0 },
            simds,
            ring: types().map(ring_bytes).max().unwrap_or(0),
        };
        let room = u64::from(units.threadgroup_memory / per_core);
        // All columns at once if that leaves room for a pair, else in chunks.
        (1..=if staged { cells } else { 1 }).find_map(|chunks| {
            let per_chunk = cells.div_ceil(chunks);
            let chunks = cells.div_ceil(per_chunk);
            halves(pairs.div_ceil(groups)).find_map(|at_a_time| {
                let bytes = needs.bytes(per_chunk, at_a_time, chunks);
                (bytes <= room).then_some(CellSpread {
                    slots,
                    rounds: pairs / groups,
                    most_rounds: pairs.div_ceil(groups),
                    at_a_time,
                    per_chunk,
                    groups: [groups, tokens.div_ceil(slots), 1],
                    threads: simds * limits.simd_width,
                    threadgroup_bytes: u32::try_from(bytes).ok()?,
                })
            })
        })
    }
}

/// Whether the kernels in which simdgroups lay vectors out for themselves take these.
fn suits_own(projection: &Projection) -> bool {
    // What is laid out begins again past the end, once.
    projection.cols.div_ceil(CELL_COLS) >= 2 * OWN_CELLS
        && projection.gate.is_none()
        && projection.parts.iter().flatten().all(|part| takes_bytes(part.dtype))
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
    let units = check(projection, limits)?;
    let staged = CellSpread::of(projection, Vectors::Staged, units, limits)
        .ok_or_else(|| too_little(projection, units))?;
    let fine = u32::from(is_fine(projection));
    let one = projection.tokens << fine == 1;
    let own = (one && suits_own(projection))
        .then(|| CellSpread::of(projection, Vectors::Own, units, limits))
        .flatten()
        .filter(|own| own.most_rounds <= OWN_PAIRS && own.threads == staged.threads);
    let (end, spread) = match own {
        Some(own) => ("own".to_owned(), own),
        None => ((if one { 1 } else { staged.slots }).to_string(), staged),
    };
    let kernel = family.kernel(&format!("{name}_{end}"), constants);
    let params = ProjectParams { blocks: spread.per_chunk, split: spread.at_a_time, fine, ..params };
    let rows: u32 = projection.part_rows().iter().sum();
    let launch = Launch {
        threadgroup_bytes: spread.threadgroup_bytes,
        work: work([projection.tokens, projection.cols, rows].map(|n| n as usize)),
        ..kernel.launch(params.params(), spread.groups, [spread.threads, 1, 1])
    };
    launch.check(limits)?;
    Ok(reading_cells(projection, Stage::new(launch, slots), 2, spread.groups[1]))
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
