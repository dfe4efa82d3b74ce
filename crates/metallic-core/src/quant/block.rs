//! The blocks of GGUF's quantised types, read field by field. Functions are inlined, so that a caller that names a type has
//! code for this type alone.

use std::array::from_fn;

use crate::DType;

/// One block: 32 or 256 elements `d * (q - offset) + m`, where `q` is the stored level of an element. In a K type `d` and `m`
/// are those of a sub-block: products of the block's own with small integers.
pub struct Block<'a> {
    /// A quantised type.
    pub dtype: DType,
    /// [`DType::block_bytes`] of them.
    pub bytes: &'a [u8],
}

impl Block<'_> {
    #[inline(always)]
    fn part<const N: usize>(&self, at: usize) -> &[u8; N] {
        self.bytes[at..].first_chunk().unwrap_or(&[0; N])
    }

    /// The f16 scale `d`; of MXFP4 the upper half of it as an f32.
    #[inline(always)]
    pub fn scale(&self) -> [u8; 2] {
        if self.dtype == DType::MXFP4 {
            return ((super::mxfp4_scale(self.bytes[0]).to_bits() >> 16) as u16).to_le_bytes();
        }
        *self.part(match self.dtype {
            DType::Q2K => 80,
            DType::Q3K => 108,
            DType::Q6K => 208,
            _ => 0,
        })
    }

    /// The f16 minimum, to be added: that of K types is subtracted by the format, so its sign is flipped.
    #[inline(always)]
    pub fn min(&self) -> [u8; 2] {
        let negated = |[low, high]: [u8; 2]| [low, high ^ 0x80];
        match self.dtype {
            DType::Q2K => negated(*self.part(82)),
            DType::Q4K | DType::Q5K => negated(*self.part(2)),
            _ => *self.part(2),
        }
    }

    /// Scale and minimum of a sub-block (16 or 32 values) of a K type, as factors of `d` and `dmin`.
    #[inline(always)]
    pub fn sub(&self, sub: usize) -> (i8, i8) {
        match self.dtype {
            DType::Q2K => ((self.bytes[sub] & 15) as i8, (self.bytes[sub] >> 4) as i8),
            // Four low bits in nibbles of the first 8 bytes, two high bits in the last 4.
            DType::Q3K => {
                let s = self.part::<12>(96);
                let low = s[sub % 8] >> (sub / 8 * 4) & 15;
                let high = s[8 + sub % 4] >> (sub / 4 * 2) & 3;
                ((low | high << 4) as i8 - 32, 0)
            }
            DType::Q6K => (self.bytes[192 + sub] as i8, 0),
            DType::IQ4XS => {
                let low = self.bytes[4 + sub / 2] >> (sub % 2 * 4) & 15;
                let high = self.bytes[2 + sub / 4] >> (sub % 4 * 2) & 3;
                ((low | high << 4) as i8 - 32, 0)
            }
            // Q4_K, Q5_K: the first four in the low six bits of bytes 0..4 and 4..8, the others with four bits in bytes
            // 8..12 and two bits on top of the first ones.
            _ => {
                let s = self.part::<12>(4);
                let (scale, min) = if sub < 4 {
                    (s[sub] & 63, s[sub + 4] & 63)
                } else {
                    ((s[sub + 4] & 15) | s[sub - 4] >> 6 << 4, s[sub + 4] >> 4 | s[sub] >> 6 << 4)
                };
                (scale as i8, min as i8)
            }
        }
    }

    /// The levels of the `g`-th 32 elements; those of Q8_0 are 128 more.
    #[inline(always)]
    pub fn levels(&self, g: usize) -> [u8; 32] {
        let nibble = |q: &[u8; 16], i: usize| q[i % 16] >> (i / 16 * 4) & 15;
        let fifth = |bits: &[u8; 4], i: usize| ((u32::from_le_bytes(*bits) >> i & 1) as u8) << 4;
        // Position among the 128 elements of a half.
        let (half, k) = (g / 4, g % 4);
        // The type is asked once a group: each loop below is then straight code.
        match self.dtype {
            // `[d: f16][q: 16 × 2 × 4 bit]`; byte `i` holds elements `i` (low) and `i + 16` (high).
            DType::Q4_0 | DType::IQ4NL => from_fn(|i| nibble(self.part(2), i)),
            // `[e: u8][q as in Q4_0]`
            DType::MXFP4 => from_fn(|i| nibble(self.part(1), i)),
            // `[d: f16][high bits of scales: u16][low bits: 8 × 4 bit][q: 16 bytes for each 32 elements, as in Q4_0]`
            DType::IQ4XS => from_fn(|i| nibble(self.part(8 + 16 * g), i)),
            // `[d: f16][m: f16][q as in Q4_0]`
            DType::Q4_1 => from_fn(|i| nibble(self.part(4), i)),
            // `[d: f16][fifth bits: u32, bit i of element i][low four bits as in Q4_0]`
            DType::Q5_0 => from_fn(|i| nibble(self.part(6), i) | fifth(self.part(2), i)),
            // `[d: f16][m: f16][fifth bits][low four bits]`, as in Q5_0.
            DType::Q5_1 => from_fn(|i| nibble(self.part(8), i) | fifth(self.part(4), i)),
            // `[d: f16][q: 32 × i8]`
            DType::Q8_0 => self.part(2).map(|q| q ^ 0x80),
            // `[scales: 16 × (4 bit scale, 4 bit min)][q: 256 × 2 bit][d: f16][dmin: f16]`. Each half of 128 elements has
            // 32 bytes of `q`; its elements `32 * k + i` are at bits `2 * k` of byte `i`.
            DType::Q2K => self.part(16 + 32 * half).map(|q| q >> (2 * k) & 3),
            // `[third bits: 32 bytes, bit g of byte i of element 32 * g + i][q: as in Q2_K][scales: 16 × 6 bit][d: f16]`
            DType::Q3K => {
                let (low, high) = (self.part::<32>(32 + 32 * half), self.part::<32>(0));
                from_fn(|i| low[i] >> (2 * k) & 3 | (high[i] >> g & 1) << 2)
            }
            // `[d: f16][dmin: f16][scales: 8 × (6 bit scale, 6 bit min)][q: 256 × 4 bit]`. Each 64 elements have 32 bytes
            // of `q`: the first 32 in the low nibbles, the others in the high ones.
            DType::Q4K => self.part(16 + 32 * (g / 2)).map(|q| q >> (g % 2 * 4) & 15),
            // `[d: f16][dmin: f16][scales as in Q4_K][fifth bits: 32 bytes, as the third of Q3_K][q as in Q4_K]`
            DType::Q5K => {
                let (low, high) = (self.part::<32>(48 + 32 * (g / 2)), self.part::<32>(16));
                from_fn(|i| low[i] >> (g % 2 * 4) & 15 | (high[i] >> g & 1) << 4)
            }
            // `[low four bits: 128 bytes][high two bits: 64 bytes][scales: 16 × i8][d: f16]`. Each half of 128 elements has
            // 64 bytes of low bits (first 64 elements in the low nibbles) and 32 bytes of high bits, as `q` of Q2_K.
            DType::Q6K => {
                let (low, high) =
                    (self.part::<32>(64 * half + 32 * (k % 2)), self.part::<32>(128 + 32 * half));
                from_fn(|i| low[i] >> (k / 2 * 4) & 15 | (high[i] >> (2 * k) & 3) << 4)
            }
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32 | DType::U8 => [0; 32],
        }
    }

    /// Decodes it.
    #[inline(always)]
    pub(super) fn decode(&self, out: &mut [f32]) {
        let f16 = |bytes: [u8; 2]| half::f16::from_le_bytes(bytes).to_f32();
        let table = match self.dtype {
            DType::IQ4NL | DType::IQ4XS => Some(&super::IQ4_LEVELS),
            DType::MXFP4 => Some(&super::MXFP4_LEVELS),
            _ => None,
        };
        if let Some(table) = table {
            let d = match self.dtype {
                DType::MXFP4 => super::mxfp4_scale(self.bytes[0]),
                _ => f16(self.scale()),
            };
            for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let scale = if self.dtype == DType::IQ4XS { d * f32::from(self.sub(g).0) } else { d };
                *out = self.levels(g).map(|q| scale * f32::from(table[usize::from(q)]));
            }
            return;
        }
        let (offset, min, sub_len) = match self.dtype {
            DType::Q4_0 => (8.0, None, None),
            DType::Q5_0 => (16.0, None, None),
            DType::Q8_0 => (128.0, None, None),
            DType::Q3K => (4.0, None, Some(16)),
            DType::Q6K => (32.0, None, Some(16)),
            DType::Q2K => (0.0, Some(f16(self.min())), Some(16)),
            DType::Q4K | DType::Q5K => (0.0, Some(f16(self.min())), Some(32)),
            _ => (0.0, Some(f16(self.min())), None),
        };
        let d = f16(self.scale());
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (levels, len) = (self.levels(g), sub_len.unwrap_or(32));
            for (i, (levels, out)) in levels.chunks_exact(len).zip(out.chunks_exact_mut(len)).enumerate() {
                let (scale, least) = match sub_len {
                    Some(len) => self.sub(32 / len * g + i),
                    None => (1, 1),
                };
                let scale = d * f32::from(scale);
                for (out, q) in out.iter_mut().zip(levels) {
                    *out = scale * (f32::from(*q) - offset);
                }
                if let Some(min) = min {
                    let min = min * f32::from(least);
                    for out in out {
                        *out += min;
                    }
                }
            }
        }
    }
}
