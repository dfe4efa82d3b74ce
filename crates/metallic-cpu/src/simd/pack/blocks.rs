//! The blocks of GGUF's quantised types, read field by field.

use metallic_core::DType;

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

    /// The f16 scale `d`.
    pub(super) fn scale(&self) -> [u8; 2] {
        match self.dtype {
            DType::Q2K => self.half(80),
            DType::Q3K => self.half(108),
            DType::Q6K => self.half(208),
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
        // Position of group `g` among the 128 values of a half block.
        let (n, j) = (g / 4, g % 4);
        let value = |l: usize| match self.dtype {
            DType::Q4_0 => nibbles(2, l),
            DType::Q4_1 => nibbles(4, l),
            DType::Q5_0 => nibbles(6, l) | fifth(2, l) << 4,
            DType::Q5_1 => nibbles(8, l) | fifth(4, l) << 4,
            DType::Q8_0 => b[2 + l] ^ 0x80,
            DType::Q2K => (b[16 + 32 * n + l] >> (2 * j)) & 3,
            DType::Q3K => {
                let low = (b[32 + 32 * n + l] >> (2 * j)) & 3;
                low | ((b[l] >> g) & 1) << 2
            }
            DType::Q4K => (b[16 + 32 * (g / 2) + l] >> (g % 2 * 4)) & 15,
            DType::Q5K => {
                let low = (b[48 + 32 * (g / 2) + l] >> (g % 2 * 4)) & 15;
                low | ((b[16 + l] >> g) & 1) << 4
            }
            DType::Q6K => {
                let low = (b[64 * n + 32 * (j % 2) + l] >> (j / 2 * 4)) & 15;
                low | ((b[128 + 32 * n + l] >> (2 * j)) & 3) << 4
            }
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32 => 0,
        };
        std::array::from_fn(value)
    }
}
