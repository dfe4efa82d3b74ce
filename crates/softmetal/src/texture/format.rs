//! Pixel formats, and what their bytes mean to a kernel.

use half::f16;
use serde::Serialize;

/// What a component is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// An unsigned integer that stands for a number from 0 to 1.
    Unorm,
    /// A signed integer that stands for a number from -1 to 1.
    Snorm,
    /// A float of 16 or 32 bits.
    Float,
    /// An unsigned integer.
    Uint,
    /// A signed integer.
    Sint,
}

impl Encoding {
    /// Kernels see numbers as floats or halfs, not as integers.
    pub fn is_float(self) -> bool {
        match self {
            Self::Unorm | Self::Snorm | Self::Float => true,
            Self::Uint | Self::Sint => false,
        }
    }
}

macro_rules! formats {
    ($($format:ident $name:literal $number:literal $components:literal x $bytes:literal $encoding:ident;)+) => {
        /// The pixel formats that textures can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the names are those of MTLPixelFormat")]
        pub enum Format {
            $($format,)+
        }

        impl Format {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$format,)+];

            /// As Metal spells it: `rgba8Unorm`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$format => $name,)+ }
            }

            /// The number of the `MTLPixelFormat`.
            pub fn number(self) -> u32 {
                match self { $(Self::$format => $number,)+ }
            }

            /// Components of a texel.
            pub fn components(self) -> usize {
                match self { $(Self::$format => $components,)+ }
            }

            /// Bytes of a component.
            pub fn component_bytes(self) -> usize {
                match self { $(Self::$format => $bytes,)+ }
            }

            /// What a component is stored as.
            pub fn encoding(self) -> Encoding {
                match self { $(Self::$format => Encoding::$encoding,)+ }
            }
        }
    };
}
formats! {
    R8Unorm "r8Unorm" 10 1 x 1 Unorm;
    R8Snorm "r8Snorm" 12 1 x 1 Snorm;
    R8Uint "r8Uint" 13 1 x 1 Uint;
    R8Sint "r8Sint" 14 1 x 1 Sint;
    R16Unorm "r16Unorm" 20 1 x 2 Unorm;
    R16Snorm "r16Snorm" 22 1 x 2 Snorm;
    R16Uint "r16Uint" 23 1 x 2 Uint;
    R16Sint "r16Sint" 24 1 x 2 Sint;
    R16Float "r16Float" 25 1 x 2 Float;
    Rg8Unorm "rg8Unorm" 30 2 x 1 Unorm;
    Rg8Snorm "rg8Snorm" 32 2 x 1 Snorm;
    Rg8Uint "rg8Uint" 33 2 x 1 Uint;
    Rg8Sint "rg8Sint" 34 2 x 1 Sint;
    R32Uint "r32Uint" 53 1 x 4 Uint;
    R32Sint "r32Sint" 54 1 x 4 Sint;
    R32Float "r32Float" 55 1 x 4 Float;
    Rg16Unorm "rg16Unorm" 60 2 x 2 Unorm;
    Rg16Snorm "rg16Snorm" 62 2 x 2 Snorm;
    Rg16Uint "rg16Uint" 63 2 x 2 Uint;
    Rg16Sint "rg16Sint" 64 2 x 2 Sint;
    Rg16Float "rg16Float" 65 2 x 2 Float;
    Rgba8Unorm "rgba8Unorm" 70 4 x 1 Unorm;
    Rgba8Snorm "rgba8Snorm" 72 4 x 1 Snorm;
    Rgba8Uint "rgba8Uint" 73 4 x 1 Uint;
    Rgba8Sint "rgba8Sint" 74 4 x 1 Sint;
    Bgra8Unorm "bgra8Unorm" 80 4 x 1 Unorm;
    Rg32Uint "rg32Uint" 103 2 x 4 Uint;
    Rg32Sint "rg32Sint" 104 2 x 4 Sint;
    Rg32Float "rg32Float" 105 2 x 4 Float;
    Rgba16Unorm "rgba16Unorm" 110 4 x 2 Unorm;
    Rgba16Snorm "rgba16Snorm" 112 4 x 2 Snorm;
    Rgba16Uint "rgba16Uint" 113 4 x 2 Uint;
    Rgba16Sint "rgba16Sint" 114 4 x 2 Sint;
    Rgba16Float "rgba16Float" 115 4 x 2 Float;
    Rgba32Uint "rgba32Uint" 123 4 x 4 Uint;
    Rgba32Sint "rgba32Sint" 124 4 x 4 Sint;
    Rgba32Float "rgba32Float" 125 4 x 4 Float;
}

impl Format {
    /// The format of a name, in any case of letters.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// The format of an `MTLPixelFormat`.
    pub fn numbered(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.number() == number)
    }

    /// Bytes of a texel.
    pub fn texel_bytes(self) -> usize {
        self.components() * self.component_bytes()
    }

    /// The place of component `n` in memory.
    fn place(self, n: usize) -> usize {
        match (self, n) {
            (Self::Bgra8Unorm, 0) => 2,
            (Self::Bgra8Unorm, 2) => 0,
            _ => n,
        }
    }

    fn bits(self) -> u32 {
        self.component_bytes() as u32 * 8
    }

    /// What a kernel sees of a texel's components as they lie in memory: bits of floats, or integers. Components that the format
    /// does not have are 0, the last one 1.
    pub(crate) fn decode(self, stored: [u32; 4]) -> [u32; 4] {
        let one = if self.encoding().is_float() { 1.0_f32.to_bits() } else { 1 };
        std::array::from_fn(|n| match n {
            n if n < self.components() => self.decode_one(stored[self.place(n)]),
            3 => one,
            _ => 0,
        })
    }

    fn decode_one(self, stored: u32) -> u32 {
        let bits = self.bits();
        let signed = (stored << (32 - bits)) as i32 >> (32 - bits);
        let largest = (u64::from(u32::MAX) >> (32 - bits)) as f64;
        match self.encoding() {
            Encoding::Unorm => ((f64::from(stored) / largest) as f32).to_bits(),
            Encoding::Snorm => ((f64::from(signed) / (largest / 2.0).floor()).max(-1.0) as f32).to_bits(),
            Encoding::Float if bits == 16 => f16::from_bits(stored as u16).to_f32().to_bits(),
            Encoding::Float | Encoding::Uint => stored,
            Encoding::Sint => signed as u32,
        }
    }

    /// The components of a texel as they lie in memory, of what a kernel writes.
    pub(crate) fn encode(self, value: [u32; 4]) -> [u32; 4] {
        let mut stored = [0; 4];
        for (n, value) in value.into_iter().enumerate().take(self.components()) {
            stored[self.place(n)] = self.encode_one(value);
        }
        stored
    }

    /// Numbers past the ends become the ends; those between two are rounded to the nearest, to the even one of two.
    fn encode_one(self, value: u32) -> u32 {
        let bits = self.bits();
        let mask = u32::MAX >> (32 - bits);
        let number = f32::from_bits(value);
        // NaN is no number between the ends: it becomes 0, as in Metal.
        let within = |low: f32| if number.is_nan() { 0.0 } else { f64::from(number.clamp(low, 1.0)) };
        match self.encoding() {
            Encoding::Unorm => (within(0.0) * f64::from(mask)).round_ties_even() as u32,
            Encoding::Snorm => (within(-1.0) * f64::from(mask >> 1)).round_ties_even() as i32 as u32 & mask,
            Encoding::Float if bits == 16 => u32::from(f16::from_f32(number).to_bits()),
            Encoding::Float => value,
            Encoding::Uint => value.min(mask),
            Encoding::Sint => {
                let largest = (mask >> 1) as i32;
                (value as i32).clamp(-largest - 1, largest) as u32 & mask
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: [f32; 4]) -> [u32; 4] {
        values.map(f32::to_bits)
    }

    #[test]
    fn texels_are_stored_as_metal_says() {
        use Format as F;
        for (format, written, stored) in [
            (F::Rgba8Unorm, floats([0.0, 0.5, 1.0, 2.0]), [0, 128, 255, 255]),
            (F::Bgra8Unorm, floats([1.0, 0.5, 0.0, f32::NAN]), [0, 128, 255, 0]),
            (F::Rg8Snorm, floats([-2.0, 0.5, 9.0, 9.0]), [0x81, 64, 0, 0]),
            (F::R16Unorm, floats([0.5, 9.0, 9.0, 9.0]), [0x8000, 0, 0, 0]),
            (F::Rg16Float, floats([1.5, -65536.0, 0.0, 0.0]), [0x3E00, 0xFC00, 0, 0]),
            (F::R32Float, floats([0.1, 0.0, 0.0, 0.0]), [0.1_f32.to_bits(), 0, 0, 0]),
            (F::Rgba8Uint, [0, 7, 255, 300], [0, 7, 255, 255]),
            (F::Rg16Sint, [-40_000_i32 as u32, 40_000, 0, 0], [0x8000, 0x7FFF, 0, 0]),
            (F::Rg32Sint, [u32::MAX, 5, 0, 0], [u32::MAX, 5, 0, 0]),
        ] {
            assert_eq!(format.encode(written), stored, "{format:?}");
        }
        assert_eq!(F::R8Unorm.decode([51, 0, 0, 0]), floats([0.2, 0.0, 0.0, 1.0]));
        assert_eq!(F::Rg8Snorm.decode([0x80, 0x7F, 0, 0]), floats([-1.0, 1.0, 0.0, 1.0]));
        assert_eq!(F::R8Sint.decode([0xFF, 0, 0, 0]), [u32::MAX, 0, 0, 1]);
        assert_eq!(F::Bgra8Unorm.decode([0, 0, 255, 255]), floats([1.0, 0.0, 0.0, 1.0]));
    }

    #[test]
    fn what_is_stored_is_read_back_and_every_format_has_a_name_and_a_number() {
        for &format in Format::ALL {
            assert_eq!(Format::named(format.name()), Some(format));
            assert_eq!(Format::numbered(format.number()), Some(format));
            let largest = u32::MAX >> (32 - format.component_bytes() * 8);
            for bits in [0, 1, 77, largest / 2, largest] {
                let nan = format.encoding() == Encoding::Float
                    && f32::from_bits(format.decode([bits; 4])[0]).is_nan();
                let smallest = format.encoding() == Encoding::Snorm && bits == largest / 2 + 1;
                if nan || smallest {
                    continue;
                }
                let mut stored = [0; 4];
                stored[..format.components()].fill(bits);
                assert_eq!(format.encode(format.decode(stored)), stored, "{format:?} {bits:#x}");
            }
        }
    }
}
