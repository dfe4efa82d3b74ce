//! Weights as the kernels want them: tiles of 16 rows, lanes across rows, so that no sum crosses lanes.
//!
//! Integer formats: for each tile, groups of 32 k. A group is 8 vectors of 64 bytes; vector `j` holds
//! k `4j..4j + 4` of row `r` in bytes `4r..4r + 4`. With 4 bits, byte block `b` has vector `2b` in its low and
//! `2b + 1` in its high nibbles; further bits of 5- and 6-bit values follow in planes of 64 bytes. Scales lie
//! apart, at the precision of the file (see `Format::SCALE_BYTES`). Float formats: `[tile][k][16]`.

#[cfg(test)]
mod tests;

use metallic_core::DType;
use metallic_core::quant::Block;

use super::format::{self, Format, with_format};
use super::team::Team;

/// Rows of a tile.
pub const TILE: usize = 16;

/// Why a matrix could not be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PackError {
    /// The type is not one of weights.
    #[error("{0} is no type of weights; a matrix product takes floats and quantised blocks")]
    DType(DType),
    /// Rows that do not fill blocks, or a size beyond the address space.
    #[error("a {rows} × {cols} matrix of {dtype} is impossible: a row is blocks of {}", dtype.block_len())]
    Shape { dtype: DType, rows: usize, cols: usize },
    /// Too few or too many bytes.
    #[error("a {rows} × {cols} matrix of {dtype} has {needed} bytes, found {found}")]
    Bytes { dtype: DType, rows: usize, cols: usize, needed: usize, found: usize },
}

/// 64 bytes, aligned: a cache line and a vector.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes at the alignment of cache lines, `tile` of them for each tile.
pub(super) struct Lines {
    lines: Vec<Line>,
    tile: usize,
}

impl Lines {
    fn new(tiles: usize, tile_bytes: usize) -> Lines {
        let tile = tile_bytes.div_ceil(64);
        let mut lines: Vec<Line> = Vec::with_capacity(tiles * tile);
        ask_for_huge_pages(lines.as_ptr().cast(), lines.capacity() * 64);
        lines.resize(tiles * tile, Line([0; 64]));
        Lines { lines, tile: tile * 64 }
    }

    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        let lines = &self.lines[tile * (self.tile / 64)..][..self.tile / 64];
        // SAFETY: lines are plain bytes without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), self.tile) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.lines.len() * 64;
        // SAFETY: lines are plain bytes without padding, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }
}

/// A product with one token walks through all weights: with small pages it waits for address translations.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: *const u8, len: usize) {
    const PAGE: usize = 4096;
    const HUGE_PAGE: usize = 2 << 20;
    const MADV_HUGEPAGE: std::ffi::c_int = 14;
    unsafe extern "C" {
        fn madvise(start: *const u8, len: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
    }
    if len < 2 * HUGE_PAGE {
        return;
    }
    let skip = start.align_offset(PAGE);
    let len = (len - skip) / PAGE * PAGE;
    // SAFETY: advice about whole pages of our own allocation; it changes no contents, and a refusal is no loss.
    unsafe { madvise(start.wrapping_add(skip), len, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: *const u8, _: usize) {}

/// A matrix of weights (`[rows, cols]`, `y = W x`) packed for the kernels of every instruction set.
pub struct PackedMatrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    pub(super) values: Lines,
    /// None for floats.
    pub(super) scales: Lines,
}

impl std::fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedMatrix({} {} × {})", self.dtype, self.rows, self.cols)
    }
}

impl PackedMatrix {
    /// Packs `rows × cols` weights from the row-major blocks of a file, with the threads of `team`.
    pub fn pack(
        team: &Team,
        dtype: DType,
        (rows, cols): (usize, usize),
        bytes: &[u8],
    ) -> Result<PackedMatrix, PackError> {
        if !dtype.is_float() && !dtype.is_quantized() {
            return Err(PackError::DType(dtype));
        }
        let impossible = PackError::Shape { dtype, rows, cols };
        let row_bytes = dtype.bytes_for(cols).filter(|_| cols > 0).ok_or(impossible.clone())?;
        let needed = row_bytes.checked_mul(rows).ok_or(impossible)?;
        if needed != bytes.len() {
            return Err(PackError::Bytes { dtype, rows, cols, needed, found: bytes.len() });
        }
        let tiles = rows.div_ceil(TILE);
        let (value_bytes, scale_bytes) =
            with_format!(dtype, |Q| sizes::<Q>(cols), else (cols * TILE * dtype.block_bytes(), 0));
        let mut packed = PackedMatrix {
            dtype,
            rows,
            cols,
            values: Lines::new(tiles, value_bytes),
            scales: Lines::new(tiles, scale_bytes),
        };
        if rows > 0 {
            packed.fill(team, row_bytes, bytes);
        }
        Ok(packed)
    }

    fn fill(&mut self, team: &Team, row_bytes: usize, bytes: &[u8]) {
        let (dtype, tile_values, tile_scales) = (self.dtype, self.values.tile, self.scales.tile);
        let tile_source = |tile: usize| {
            let from = tile * TILE * row_bytes;
            &bytes[from..bytes.len().min(from + TILE * row_bytes)]
        };
        if dtype.is_float() {
            team.for_chunks(self.values.bytes_mut(), tile_values, |tile, values| {
                if dtype == DType::F32 {
                    interleave::<4>(tile_source(tile), row_bytes, values);
                } else {
                    interleave::<2>(tile_source(tile), row_bytes, values);
                }
            });
            return;
        }
        // The blocks of a tile: of which row, and which of it.
        let blocks = |tile: usize| {
            let rows = tile_source(tile).chunks_exact(row_bytes).enumerate();
            rows.flat_map(move |(row, source)| {
                let blocks = source.chunks_exact(dtype.block_bytes()).enumerate();
                blocks.map(move |(b, bytes)| (row, b, Block { dtype, bytes }))
            })
        };
        // Values and scales in two passes: each is then one run of disjoint chunks.
        let groups = dtype.block_len() / 32;
        team.for_chunks(self.values.bytes_mut(), tile_values, |tile, values| {
            for (row, b, block) in blocks(tile) {
                for g in 0..groups {
                    let (at, levels) = (b * groups + g, block.levels(g));
                    with_format!(dtype, |Q| put_values::<Q>(values, at, row, &levels), else ());
                }
            }
        });
        team.for_chunks(self.scales.bytes_mut(), tile_scales, |tile, scales| {
            for (row, b, block) in blocks(tile) {
                with_format!(dtype, |Q| put_scales::<Q>(scales, b, row, &block), else ());
            }
        });
    }

    /// The type of the weights.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows: outputs of the product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: inputs of the product.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Tiles of 16 rows, the last one padded with zeros.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Bytes held; a product with one token reads about this many.
    pub fn bytes(&self) -> usize {
        (self.values.lines.len() + self.scales.lines.len()) * 64
    }

    /// Whether products need [`super::Activations::Q8`].
    pub fn is_quantized(&self) -> bool {
        self.dtype.is_quantized()
    }
}

/// Bytes of values and scales of a tile.
fn sizes<Q: Format>(cols: usize) -> (usize, usize) {
    let groups = cols / 32;
    (groups * Q::GROUP_BYTES, groups / Q::SPAN * Q::SCALE_BYTES)
}

/// `[rows][cols]` elements of `SIZE` bytes to `[cols][16]`, a few columns at a time so that both sides stay in
/// the cache.
fn interleave<const SIZE: usize>(source: &[u8], row_bytes: usize, out: &mut [u8]) {
    const COLUMNS: usize = 64;
    let out = out.as_chunks_mut::<SIZE>().0;
    let cols = row_bytes / SIZE;
    for from in (0..cols).step_by(COLUMNS) {
        for (row, source) in source.chunks_exact(row_bytes).enumerate() {
            let source = &source.as_chunks::<SIZE>().0[from..cols.min(from + COLUMNS)];
            let columns = out[from * TILE..].chunks_exact_mut(TILE);
            for (element, column) in source.iter().zip(columns) {
                column[row] = *element;
            }
        }
    }
}

/// Puts 32 values of `row` into group `at` of a tile.
fn put_values<Q: Format>(tile: &mut [u8], at: usize, row: usize, q: &[u8; 32]) {
    let group = &mut tile[at * Q::GROUP_BYTES..][..Q::GROUP_BYTES];
    let lane = row * 4;
    if Q::BITS == 8 {
        for (j, quad) in q.as_chunks::<4>().0.iter().enumerate() {
            group[64 * j + lane..][..4].copy_from_slice(quad);
        }
        return;
    }
    for b in 0..4 {
        for i in 0..4 {
            let (low, high) = (q[8 * b + i] & 15, q[8 * b + 4 + i] & 15);
            group[64 * b + lane + i] = low | high << 4;
        }
    }
    for i in 0..4 {
        if Q::BITS == 5 {
            group[256 + lane + i] = (0..8).fold(0, |byte, j| byte | (q[4 * j + i] >> 4) << j);
        } else if Q::BITS == 6 {
            for plane in 0..2 {
                let crumb = |c: usize| (q[16 * plane + 4 * c + i] >> 4) << (2 * c);
                group[256 + 64 * plane + lane + i] = crumb(0) | crumb(1) | crumb(2) | crumb(3);
            }
        }
    }
}

/// Puts the scales of block `b` of `row`.
fn put_scales<Q: Format>(tile: &mut [u8], b: usize, row: usize, block: &Block<'_>) {
    let out = &mut tile[b * Q::SCALE_BYTES..][..Q::SCALE_BYTES];
    out[2 * row..][..2].copy_from_slice(&block.scale());
    if Q::MIN {
        out[32 + 2 * row..][..2].copy_from_slice(&block.min());
    }
    if Q::SUPER {
        for sub in 0..8 * Q::HALVES {
            let (scale, min) = block.sub(sub);
            out[Q::SUBS_AT + 16 * sub + row] = scale as u8;
            if Q::MIN {
                out[Q::MINS_AT + 16 * sub + row] = min as u8;
            }
        }
    }
}

// The formats the kernels know and the sizes of the file's types must agree.
const _: () = {
    assert!(format::Q4_0::GROUP_BYTES + format::Q4_0::SCALE_BYTES == 16 * 18);
    assert!(format::Q4_1::GROUP_BYTES + format::Q4_1::SCALE_BYTES == 16 * 20);
    assert!(format::Q5_0::GROUP_BYTES + format::Q5_0::SCALE_BYTES == 16 * 22);
    assert!(format::Q8_0::GROUP_BYTES + format::Q8_0::SCALE_BYTES == 16 * 34);
    assert!(8 * format::Q6K::GROUP_BYTES + format::Q6K::SCALE_BYTES == 16 * 210);
};
