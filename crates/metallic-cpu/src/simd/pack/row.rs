//! Rows out of the packed form again: a table that is a matrix as well needs no second copy.

use metallic_core::DType;

use super::{PackedMatrix, TILE};
use crate::simd::format::{Format, with_format};
use crate::simd::lanes::{Lanes, Portable, widen};

impl PackedMatrix {
    /// The weights of a row in f32, to the bit as the file says them.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row of the matrix");
        let (values, scales) = (self.values.tile(row / TILE), self.scales.tile(row / TILE));
        let lane = row % TILE;
        with_format!(self.dtype, |Q| take_row::<Q>(values, scales, lane, out), else {
            take_floats(self.dtype, values, lane, out);
        });
    }
}

/// The values `put_values` put.
fn take_values<Q: Format>(tile: &[u8], at: usize, lane: usize) -> [u8; 32] {
    let group = &tile[at * Q::GROUP_BYTES..][..Q::GROUP_BYTES];
    std::array::from_fn(|k| {
        let (j, byte) = (k / 4, lane * 4 + k % 4);
        if Q::BITS == 8 {
            return group[64 * j + byte];
        }
        let low = (group[64 * (j / 2) + byte] >> (j % 2 * 4)) & 15;
        let high = match Q::BITS {
            5 => (group[256 + byte] >> j) & 1,
            6 => (group[256 + 64 * (j / 4) + byte] >> (j % 4 * 2)) & 3,
            _ => 0,
        };
        low | high << 4
    })
}

/// Dequantises a row in the arithmetic of the file's format: `scale * (q - offset) + min`.
fn take_row<Q: Format>(values: &[u8], scales: &[u8], lane: usize, out: &mut [f32]) {
    for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let q = take_values::<Q>(values, g, lane);
        let block = &scales[g / Q::SPAN * Q::SCALE_BYTES..][..Q::SCALE_BYTES];
        let half = |at: usize| {
            let at = at + 2 * lane;
            let bits = u16::from_le_bytes([block[at], block[at + 1]]);
            if Q::BRAIN { f32::from_bits(u32::from(bits) << 16) } else { widen(bits) }
        };
        for (k, out) in out.iter_mut().enumerate() {
            let sub = g % Q::SPAN * Q::HALVES + k / (32 / Q::HALVES);
            let factor =
                |at: usize| if Q::SUPER { f32::from(block[at + 16 * sub + lane] as i8) } else { 1.0 };
            let scale = half(0) * factor(Q::SUBS_AT);
            let level = Q::TABLE.map_or(q[k], |table| table[usize::from(q[k])]);
            let value = scale * f32::from(i16::from(level) - Q::OFFSET);
            *out = if Q::MIN { value + half(32) * factor(Q::MINS_AT) } else { value };
        }
    }
}

fn take_floats(dtype: DType, values: &[u8], lane: usize, out: &mut [f32]) {
    let size = dtype.block_bytes();
    for (out, column) in out.iter_mut().zip(values.chunks_exact(TILE * size)) {
        let mut lanes = [0.0; TILE];
        let p = column.as_ptr();
        // SAFETY: `Portable` needs no features, and `column` holds 16 elements of the type.
        unsafe {
            let x = match dtype {
                DType::F16 => Portable::load_f16(p),
                DType::BF16 => Portable::load_bf16(p),
                _ => Portable::load(p.cast()),
            };
            Portable::store(x, lanes.as_mut_ptr());
        }
        *out = lanes[lane];
    }
}
