//! `MPSDataType`: elements as they lie in memory, and as the numbers that are computed with.

use crate::problem::{Rule, refuse};

/// A type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataType {
    F32,
    F16,
    I32,
    U32,
    Bool,
}

const FLOAT: u32 = 0x1000_0000;
const SIGNED: u32 = 0x2000_0000;
const ALTERNATE: u32 = 0x8000_0000;

impl DataType {
    /// By its number.
    ///
    /// # Panics
    /// On another one: what MPS knows and this does not must not pass for what it is not.
    pub(crate) fn of(number: u32) -> DataType {
        const KNOWN: [DataType; 5] =
            [DataType::F32, DataType::F16, DataType::I32, DataType::U32, DataType::Bool];
        KNOWN.into_iter().find(|known| known.number() == number).unwrap_or_else(|| {
            refuse(Rule::Descriptor, format!("elements of MPSDataType {number:#x}: here are {KNOWN:?}"));
            DataType::F32
        })
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            DataType::F32 => FLOAT | 32,
            DataType::F16 => FLOAT | 16,
            DataType::I32 => SIGNED | 32,
            DataType::U32 => 32,
            DataType::Bool => ALTERNATE | 8,
        }
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F16 => 2,
            DataType::Bool => 1,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, DataType::F32 | DataType::F16)
    }

    /// Elements as numbers.
    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let words = || bytes.as_chunks::<4>().0.iter().copied();
        match self {
            DataType::F32 => words().map(f32::from_ne_bytes).collect(),
            DataType::F16 => {
                let halfs = bytes.as_chunks::<2>().0.iter().copied();
                halfs.map(|bytes| from_half(u16::from_ne_bytes(bytes))).collect()
            }
            DataType::I32 => words().map(|bytes| i32::from_ne_bytes(bytes) as f32).collect(),
            DataType::U32 => words().map(|bytes| u32::from_ne_bytes(bytes) as f32).collect(),
            DataType::Bool => bytes.iter().map(|byte| f32::from(u8::from(*byte != 0))).collect(),
        }
    }

    /// Numbers as elements: rounded to the nearest, ties to even.
    pub(crate) fn encode(self, numbers: &[f32]) -> Vec<u8> {
        match self {
            DataType::F32 => numbers.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            DataType::F16 => numbers.iter().flat_map(|x| to_half(*x).to_ne_bytes()).collect(),
            DataType::I32 => numbers.iter().flat_map(|x| (*x as i32).to_ne_bytes()).collect(),
            DataType::U32 => numbers.iter().flat_map(|x| (*x as u32).to_ne_bytes()).collect(),
            DataType::Bool => numbers.iter().map(|x| u8::from(*x != 0.0)).collect(),
        }
    }

    /// A number as this type holds it.
    pub(crate) fn rounded(self, number: f32) -> f32 {
        match self {
            DataType::F32 => number,
            DataType::F16 => from_half(to_half(number)),
            DataType::I32 => number as i32 as f32,
            DataType::U32 => number as u32 as f32,
            DataType::Bool => f32::from(u8::from(number != 0.0)),
        }
    }
}

fn from_half(bits: u16) -> f32 {
    let (sign, exponent, fraction) =
        (u32::from(bits >> 15) << 31, u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match exponent {
        // Below the normal numbers: a multiple of 2^-24.
        0 => f32::from_bits(sign | (fraction as f32 * (1.0 / 16_777_216.0)).to_bits()),
        31 => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

fn to_half(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, size) = ((bits >> 16) as u16 & 0x8000, bits & 0x7FFF_FFFF);
    if size > 0x7F80_0000 {
        return sign | 0x7E00;
    }
    // From halfway between the largest half and the next power of two on.
    if size >= 0x477F_F000 {
        return sign | 0x7C00;
    }
    if size < 0x3880_0000 {
        // Multiples of 2^-24; an `f32` of this size plus a half holds no finer ones, and rounds to even.
        let sum = f32::from_bits(size) + 0.5;
        return sign | (sum.to_bits() - 0.5_f32.to_bits()) as u16;
    }
    let even = size >> 13 & 1;
    sign | ((size + 0xFFF + even) >> 13).wrapping_sub(112 << 10) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back_and_numbers_between_go_to_the_nearest() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7C00 != 0x7C00 || bits % 0x400 == 0) {
            assert_eq!(to_half(from_half(bits)), bits);
        }
        assert!(from_half(0x7E00).is_nan() && from_half(to_half(f32::NAN)).is_nan());
        for (number, half) in [
            (1.0 + 1.0 / 2048.0, 1.0),
            (1.0 + 3.0 / 2048.0, 1.0 + 2.0 / 1024.0),
            (65519.0, 65504.0),
            (65520.0, f32::INFINITY),
            (3e-8, 5.960_464_5e-8),
            (2.9e-8, 0.0),
            (-1e9, f32::NEG_INFINITY),
        ] {
            assert_eq!(from_half(to_half(number)), half, "{number}");
        }
    }

    #[test]
    fn types_are_told_by_their_numbers() {
        assert_eq!(DataType::of(0x1000_0010), DataType::F16);
        assert_eq!(DataType::of(0x8000_0008), DataType::Bool);
        assert!(std::panic::catch_unwind(|| DataType::of(0x9000_0010)).is_err(), "bfloats");
    }
}
