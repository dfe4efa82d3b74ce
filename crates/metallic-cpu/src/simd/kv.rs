//! Blocks of the KV cache: what one head keeps of [`BLOCK_TOKENS`] neighbouring positions.
//!
//! Scores want positions in lanes and weighted sums want columns in lanes, so keys are kept turned over and
//! values are not: keys `[head_dim][32 positions]`, values `[32 positions][head_dim]`. Bytes need no alignment.
//! q8_0 has the numbers of GGUF (an f16 scale for 32 values of a row, 32 × i8) in another order: for every 32
//! columns first the scales of the 32 positions, then the values, keys `[32 columns][32 positions]`, values
//! `[32 positions][32 columns]`.

use half::bf16;
use metallic_core::{BLOCK_TOKENS, DType};

use super::isa::{Isa, dispatch};
use super::lanes::Lanes;

/// The type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes a value.
    F32,
    /// 2 bytes a value.
    F16,
    /// 2 bytes a value.
    BF16,
    /// 34 bytes for 32 values; heads are whole multiples of 32.
    Q8_0,
}

/// Columns that share a scale in q8_0.
pub(super) const GROUP: usize = 32;
/// Bytes of the scales of a group, one f16 a position, and of the group.
pub(super) const SCALES_BYTES: usize = 2 * BLOCK_TOKENS;
pub(super) const GROUP_BYTES: usize = SCALES_BYTES + GROUP * BLOCK_TOKENS;

impl KvType {
    /// Every type of the cache.
    pub const ALL: [KvType; 4] = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8_0];

    /// The cache type for `dtype`, where there is one.
    pub fn of(dtype: DType) -> Option<KvType> {
        match dtype {
            DType::F32 => Some(KvType::F32),
            DType::F16 => Some(KvType::F16),
            DType::BF16 => Some(KvType::BF16),
            DType::Q8_0 => Some(KvType::Q8_0),
            _ => None,
        }
    }

    /// Bytes of the keys, and of the values, of one head in one block; such heads have been counted before.
    pub fn block_bytes(self, head_dim: usize) -> usize {
        self.checked_block_bytes(head_dim).unwrap_or(usize::MAX)
    }

    /// Those of any head; `None` for more than this machine can count.
    pub fn checked_block_bytes(self, head_dim: usize) -> Option<usize> {
        match self {
            KvType::F32 => head_dim.checked_mul(BLOCK_TOKENS * 4),
            KvType::F16 | KvType::BF16 => head_dim.checked_mul(BLOCK_TOKENS * 2),
            KvType::Q8_0 => (head_dim / GROUP).checked_mul(GROUP_BYTES),
        }
    }
}

/// Writes one position's key into the keys of a block.
pub fn store_key(isa: Isa, kind: KvType, src: &[f32], position: usize, keys: &mut [u8]) {
    store(isa, Place { kind, position, turned: true }, src, keys);
}

/// Writes one position's value into the values of a block.
pub fn store_value(isa: Isa, kind: KvType, src: &[f32], position: usize, values: &mut [u8]) {
    store(isa, Place { kind, position, turned: false }, src, values);
}

/// Where a row goes.
#[derive(Clone, Copy)]
struct Place {
    kind: KvType,
    position: usize,
    /// Keys lie turned over.
    turned: bool,
}

/// Reads one position's key, or where `turned` is false its value, of a block: what was stored, as numbers. For comparisons: it takes its
/// time.
pub fn load(kind: KvType, position: usize, turned: bool, block: &[u8], out: &mut [f32]) {
    let dim = out.len();
    let index =
        |column: usize| if turned { column * BLOCK_TOKENS + position } else { position * dim + column };
    let pair = |at: usize| [block[2 * at], block[2 * at + 1]];
    for (column, out) in out.iter_mut().enumerate() {
        *out = match kind {
            KvType::F32 => {
                let at = 4 * index(column);
                f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
            }
            KvType::F16 => half::f16::from_le_bytes(pair(index(column))).to_f32(),
            KvType::BF16 => bf16::from_le_bytes(pair(index(column))).to_f32(),
            KvType::Q8_0 => {
                let group = &block[column / GROUP * GROUP_BYTES..][..GROUP_BYTES];
                let scale = half::f16::from_le_bytes([group[2 * position], group[2 * position + 1]]);
                let column = column % GROUP;
                let at = if turned { column * BLOCK_TOKENS + position } else { position * GROUP + column };
                scale.to_f32() * f32::from(group[SCALES_BYTES + at] as i8)
            }
        };
    }
}

fn store(isa: Isa, place: Place, src: &[f32], block: &mut [u8]) {
    assert!(place.position < BLOCK_TOKENS, "position {} in a block", place.position);
    let whole = place.kind != KvType::Q8_0 || src.len().is_multiple_of(GROUP);
    assert!(
        whole && block.len() == place.kind.block_bytes(src.len()),
        "a block of {} bytes for heads of {} in {:?}",
        block.len(),
        src.len(),
        place.kind
    );
    dispatch!(isa, store_body(place: Place, src: &[f32], block: &mut [u8]));
}

/// # Safety
/// The caller has the features of `L`.
#[inline(always)]
unsafe fn store_body<L: Lanes>(place: Place, src: &[f32], block: &mut [u8]) {
    match place.kind {
        KvType::F32 => {
            for (c, x) in src.chunks(16).enumerate() {
                let mut row = [[0; 4]; 16];
                for (bytes, x) in row.iter_mut().zip(x) {
                    *bytes = x.to_le_bytes();
                }
                place_floats(place, (16 * c, src.len()), &row[..x.len()], block);
            }
        }
        KvType::F16 => {
            for (c, x) in src.chunks(16).enumerate() {
                let mut row = [[0; 2]; 16];
                let mut padded = [0.0; 16];
                padded[..x.len()].copy_from_slice(x);
                // SAFETY: features by the caller; both buffers hold 16 values.
                unsafe { L::store_f16(L::load(padded.as_ptr()), row.as_mut_ptr().cast()) };
                place_floats(place, (16 * c, src.len()), &row[..x.len()], block);
            }
        }
        KvType::BF16 => {
            for (c, x) in src.chunks(16).enumerate() {
                let mut row = [[0; 2]; 16];
                for (bytes, x) in row.iter_mut().zip(x) {
                    *bytes = bf16::from_f32(*x).to_le_bytes();
                }
                place_floats(place, (16 * c, src.len()), &row[..x.len()], block);
            }
        }
        KvType::Q8_0 => {
            for (x, group) in src.as_chunks::<GROUP>().0.iter().zip(block.chunks_exact_mut(GROUP_BYTES)) {
                let (scale, row) = quantize(x);
                let (scales, values) = group.split_at_mut(SCALES_BYTES);
                scales[2 * place.position..][..2].copy_from_slice(&scale);
                if place.turned {
                    for (column, x) in values.chunks_exact_mut(BLOCK_TOKENS).zip(row) {
                        column[place.position] = x;
                    }
                } else {
                    values[GROUP * place.position..][..GROUP].copy_from_slice(&row);
                }
            }
        }
    }
}

/// Puts the columns from `from` on, of `head_dim`, to their place.
#[inline(always)]
fn place_floats<const N: usize>(
    place: Place,
    (from, head_dim): (usize, usize),
    row: &[[u8; N]],
    block: &mut [u8],
) {
    let block = block.as_chunks_mut::<N>().0;
    if place.turned {
        let columns = block[from * BLOCK_TOKENS..].chunks_exact_mut(BLOCK_TOKENS);
        for (column, x) in columns.zip(row) {
            column[place.position] = *x;
        }
    } else {
        block[place.position * head_dim + from..][..row.len()].copy_from_slice(row);
    }
}

/// GGUF's rounding: scale absmax / 127 kept as f16, values rounded with the scale before that.
#[inline(always)]
fn quantize(x: &[f32; GROUP]) -> ([u8; 2], [u8; GROUP]) {
    // As integers, magnitudes order the same way, with infinities and NaNs above all numbers.
    let top = x.iter().fold(0, |top, v| (v.to_bits() & 0x7fff_ffff).max(top));
    let absmax = f32::from_bits(top);
    let scale = absmax / 127.0;
    let inverse = if absmax.is_finite() && scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut values = [0; GROUP];
    for (q, x) in values.iter_mut().zip(x) {
        *q = (x * inverse).round_ties_even() as i8 as u8;
    }
    (half::f16::from_f32(scale).to_le_bytes(), values)
}
