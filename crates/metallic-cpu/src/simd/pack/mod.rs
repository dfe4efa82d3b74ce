//! Weights as the kernels want them: tiles of 16 rows, lanes across rows, so that no sum crosses lanes.
//!
//! Integer formats: for each tile, groups of 32 k. A group is 8 vectors of 64 bytes; vector `j` holds
//! k `4j..4j + 4` of row `r` in bytes `4r..4r + 4`. With 4 bits, byte block `b` has vector `2b` in its low and
//! `2b + 1` in its high nibbles; further bits of 5- and 6-bit values follow in planes of 64 bytes. Scales lie
//! apart, at the precision of the file (see `Format::SCALE_BYTES`). Float formats: `[tile][k][16]`.

mod lines;
mod row;

use std::ops::Range;

use metallic_core::DType;
use metallic_core::quant::Block;

pub use self::lines::Lines;
use super::activations::Grain;
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
    /// No memory for it.
    #[error("{needed} bytes of memory for a {rows} × {cols} matrix cannot be had")]
    NoRoom { rows: usize, cols: usize, needed: usize },
}

/// A matrix of weights (`[rows, cols]`, `y = W x`) packed for the kernels of every instruction set.
pub struct PackedMatrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    /// Bytes of a row in a file.
    row_bytes: usize,
    takes: Grain,
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
        let mut packed = PackedMatrix::zeros(dtype, (rows, cols))?;
        let needed = packed.source(0..rows).end;
        if needed != bytes.len() {
            return Err(PackError::Bytes { dtype, rows, cols, needed, found: bytes.len() });
        }
        packed.put_rows(team, 0, bytes)?;
        Ok(packed)
    }

    /// A matrix of zeros, whose memory is taken when rows are put there.
    pub fn zeros(dtype: DType, (rows, cols): (usize, usize)) -> Result<PackedMatrix, PackError> {
        if !dtype.is_float() && !dtype.is_quantized() {
            return Err(PackError::DType(dtype));
        }
        let impossible = PackError::Shape { dtype, rows, cols };
        let row_bytes = dtype.bytes_for(cols).filter(|_| cols > 0).ok_or(impossible.clone())?;
        row_bytes.checked_mul(rows).ok_or(impossible)?;
        let tiles = rows.div_ceil(TILE);
        let (value_bytes, scale_bytes) =
            with_format!(dtype, |Q| sizes::<Q>(cols), else (cols * TILE * dtype.block_bytes(), 0));
        let lines = |bytes: usize| {
            let needed = tiles.saturating_mul(bytes);
            Lines::zeros(tiles, bytes).ok_or(PackError::NoRoom { rows, cols, needed })
        };
        Ok(PackedMatrix {
            dtype,
            rows,
            cols,
            row_bytes,
            takes: with_format!(dtype, |Q| if Q::SPLIT { Grain::Half } else { Grain::Group }, else Grain::Group),
            values: lines(value_bytes)?,
            scales: lines(scale_bytes)?,
        })
    }

    /// The bytes these rows have in a file.
    pub fn source(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.row_bytes..rows.end * self.row_bytes
    }

    /// Puts rows from `first` on, the first one of a tile, from the row-major blocks of a file: whole tiles, or up to the last row.
    pub fn put_rows(&mut self, team: &Team, first: usize, bytes: &[u8]) -> Result<(), PackError> {
        let (dtype, row_bytes, cols) = (self.dtype, self.row_bytes, self.cols);
        let last = first.saturating_add(bytes.len() / row_bytes);
        let whole = last == self.rows || last.is_multiple_of(TILE);
        if !first.is_multiple_of(TILE) || !whole || last > self.rows || !bytes.len().is_multiple_of(row_bytes)
        {
            let (needed, found) = (self.source(0..self.rows.saturating_sub(first)).end, bytes.len());
            return Err(PackError::Bytes { dtype, rows: self.rows, cols, needed, found });
        }
        let tiles = first / TILE..last.div_ceil(TILE);
        let source = |tile: usize| {
            let from = tile * TILE * row_bytes;
            &bytes[from..bytes.len().min(from + TILE * row_bytes)]
        };
        let lens = [self.values.tile_bytes(), self.scales.tile_bytes()];
        let (values, scales) = (self.values.tiles_mut(tiles.clone()), self.scales.tiles_mut(tiles));
        with_format!(dtype, |Q| {
            team.for_both(values, scales, lens, |tile, values, scales| {
                put_tile::<Q>(source(tile), row_bytes, values, scales);
            });
        }, else team.for_chunks(values, lens[0], |tile, values| {
            if dtype == DType::F32 {
                interleave::<4>(source(tile), row_bytes, values);
            } else {
                interleave::<2>(source(tile), row_bytes, values);
            }
        }));
        Ok(())
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

    /// Bytes of a row in a file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Tiles of 16 rows, the last one padded with zeros.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Bytes held; a product with one token reads about this many.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.scales.bytes()
    }

    /// The finest activations products take. Types with two scales in a group take halves for nothing.
    pub fn takes(&self) -> Grain {
        self.takes
    }

    /// Makes products take halves of groups, which costs them some speed.
    pub fn take_halves(&mut self) {
        if self.is_quantized() {
            self.takes = Grain::Half;
        }
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

/// Puts the rows of a tile, block by block: what a group of it is made of is put while it is in the cache.
fn put_tile<Q: Format>(source: &[u8], row_bytes: usize, values: &mut [u8], scales: &mut [u8]) {
    let (block_bytes, groups) = (Q::DTYPE.block_bytes(), Q::DTYPE.block_len() / 32);
    for b in 0..row_bytes / block_bytes {
        for (row, source) in source.chunks_exact(row_bytes).enumerate() {
            // The type as a constant: reading a block is then code for this type alone.
            let block = Block { dtype: Q::DTYPE, bytes: &source[b * block_bytes..][..block_bytes] };
            for g in 0..groups {
                put_values::<Q>(values, b * groups + g, row, &block.levels(g));
            }
            put_scales::<Q>(scales, b, row, &block);
        }
    }
}

/// Puts 32 values of `row` into group `at` of a tile, four at a time.
#[inline(always)]
fn put_values<Q: Format>(tile: &mut [u8], at: usize, row: usize, q: &[u8; 32]) {
    let group = &mut tile[at * Q::GROUP_BYTES..][..Q::GROUP_BYTES];
    let quads = q.as_chunks::<4>().0;
    let quad = |j: usize| u32::from_le_bytes(quads[j]);
    let mut put = |line: usize, quad: u32| {
        group[64 * line + 4 * row..][..4].copy_from_slice(&quad.to_le_bytes());
    };
    if Q::BITS == 8 {
        (0..8).for_each(|j| put(j, quad(j)));
        return;
    }
    let low = |quad: u32| quad & 0x0f0f_0f0f;
    (0..4).for_each(|b| put(b, low(quad(2 * b)) | low(quad(2 * b + 1)) << 4));
    if Q::BITS == 5 {
        put(4, (0..8).fold(0, |bits, j| bits | (quad(j) >> 4 & 0x0101_0101) << j));
    } else if Q::BITS == 6 {
        for plane in 0..2 {
            let crumb = |c: usize| (quad(4 * plane + c) >> 4 & 0x0303_0303) << (2 * c);
            put(4 + plane, crumb(0) | crumb(1) | crumb(2) | crumb(3));
        }
    }
}

/// Puts the scales of block `b` of `row`.
#[inline(always)]
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
