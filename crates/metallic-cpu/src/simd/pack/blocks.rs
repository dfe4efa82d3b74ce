//! The blocks of GGUF's quantised types, read field by field.

use std::array::from_fn;

use metallic_core::{DType, quant};

/// One block of a row.
pub(super) struct Block<'a> {
    pub(super) dtype: DType,
    /// `dtype.block_bytes()` of them.
    pub(super) bytes: &'a [u8],
}

impl Block<'_> {
    fn half(&self, at: usize) -> [u8; 2] {
        [self.bytes[at], self.bytes[at + 1]]
    }

    /// The f16 scale `d`, or the upper half of it as an f32.
    pub(super) fn scale(&self) -> [u8; 2] {
        match self.dtype {
            DType::Q2K => self.half(80),
            DType::Q3K => self.half(108),
            DType::Q6K => self.half(208),
            DType::MXFP4 => ((quant::mxfp4_scale(self.bytes[0]).to_bits() >> 16) as u16).to_le_bytes(),
            _ => self.half(0),
        }
    }

    /// The f16 minimum, to be added: that of K types is subtracted by the format, so its sign is flipped.
    pub(super) fn min(&self) -> [u8; 2] {
        let negated = |[low, high]: [u8; 2]| [low, high ^ 0x80];
        match self.dtype {
            DType::Q2K => negated(self.half(82)),
            DType::Q4K | DType::Q5K => negated(self.half(2)),
            _ => self.half(2),
        }
    }

    /// Scale and minimum of a sub-block (16 or 32 values) of a K type, as factors of `d` and `dmin`.
    pub(super) fn sub(&self, sub: usize) -> (i8, i8) {
        match self.dtype {
            DType::Q2K => ((self.bytes[sub] & 15) as i8, (self.bytes[sub] >> 4) as i8),
            DType::Q3K => {
                let s = &self.bytes[96..108];
                let low = (s[sub % 8] >> (sub / 8 * 4)) & 15;
                let high = (s[8 + sub % 4] >> (sub / 4 * 2)) & 3;
                ((low | high << 4) as i8 - 32, 0)
            }
            DType::Q6K => (self.bytes[192 + sub] as i8, 0),
            DType::IQ4XS => {
                let low = (self.bytes[4 + sub / 2] >> (sub % 2 * 4)) & 15;
                let high = (self.bytes[2 + sub / 4] >> (sub % 4 * 2)) & 3;
                ((low | high << 4) as i8 - 32, 0)
            }
            // Q4_K, Q5_K: eight pairs of 6 bits in 12 bytes.
            _ => {
                let s = &self.bytes[4..16];
                if sub < 4 {
                    ((s[sub] & 63) as i8, (s[sub + 4] & 63) as i8)
                } else {
                    let scale = (s[sub + 4] & 15) | (s[sub - 4] >> 6) << 4;
                    let min = (s[sub + 4] >> 4) | (s[sub] >> 6) << 4;
                    (scale as i8, min as i8)
                }
            }
        }
    }

    /// The 32 values of group `g` of the block, unsigned.
    pub(super) fn values(&self, g: usize) -> [u8; 32] {
        let b = self.bytes;
        let nibbles = |at: usize, l: usize| (b[at + l % 16] >> (l / 16 * 4)) & 15;
        let fifth = |at: usize, l: usize| (b[at + l / 8] >> (l % 8)) & 1;
        let part = |at: usize| b[at..].first_chunk::<32>().unwrap_or(&[0; 32]);
        // Position of group `g` among the 128 values of a half block.
        let (n, j) = (g / 4, g % 4);
        // The type is asked once a group: each loop below is then straight code.
        match self.dtype {
            DType::Q4_0 | DType::IQ4NL => from_fn(|l| nibbles(2, l)),
            DType::IQ4XS => from_fn(|l| nibbles(8 + 16 * g, l)),
            DType::MXFP4 => from_fn(|l| nibbles(1, l)),
            DType::Q4_1 => from_fn(|l| nibbles(4, l)),
            DType::Q5_0 => from_fn(|l| nibbles(6, l) | fifth(2, l) << 4),
            DType::Q5_1 => from_fn(|l| nibbles(8, l) | fifth(4, l) << 4),
            DType::Q8_0 => part(2).map(|q| q ^ 0x80),
            DType::Q2K => part(16 + 32 * n).map(|q| (q >> (2 * j)) & 3),
            DType::Q3K => {
                let (low, high) = (part(32 + 32 * n), part(0));
                from_fn(|l| (low[l] >> (2 * j)) & 3 | ((high[l] >> g) & 1) << 2)
            }
            DType::Q4K => part(16 + 32 * (g / 2)).map(|q| (q >> (g % 2 * 4)) & 15),
            DType::Q5K => {
                let (low, high) = (part(48 + 32 * (g / 2)), part(16));
                from_fn(|l| (low[l] >> (g % 2 * 4)) & 15 | ((high[l] >> g) & 1) << 4)
            }
            DType::Q6K => {
                let (low, high) = (part(64 * n + 32 * (j % 2)), part(128 + 32 * n));
                from_fn(|l| (low[l] >> (j / 2 * 4)) & 15 | ((high[l] >> (2 * j)) & 3) << 4)
            }
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32 | DType::U8 => [0; 32],
        }
    }
}
