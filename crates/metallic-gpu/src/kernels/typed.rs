//! What kernels of several element types have in common.

use metallic_core::{Binary, Unary};

use crate::error::GpuError;

/// Loads and stores of four elements, see the file.
pub(crate) const VECTORS: (&str, &str) = ("vectors.metal", include_str!("vectors.metal"));
/// Functions of one number, see the file. [`FUNCTIONS`] goes before.
pub(crate) const ACTIVATION: (&str, &str) = ("activation.metal", include_str!("activation.metal"));

macro_rules! function_codes {
    ($($name:ident = $code:literal),+ $(,)?) => {
        $(pub(crate) const $name: u32 = $code;)+
        /// The codes of functions, as the MSL sees them.
        pub(crate) const FUNCTIONS: (&str, &str) = (
            "functions.metal",
            concat!($("constant constexpr uint F_", stringify!($name), " = ", $code, ";\n"),+),
        );
    };
}

function_codes! {
    SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3, SIGMOID = 4,
    ADD = 5, SUB = 6, SUB_FROM = 7, MUL = 8, DIV = 9, DIV_INTO = 10, SOFTCAP = 11, EXP = 12, SOFTPLUS = 13,
    MIN = 14, MAX = 15,
}

/// The code of a function of one number, for a function constant.
pub(crate) fn unary_code(f: Unary) -> u32 {
    match f {
        Unary::Silu => SILU,
        Unary::Gelu => GELU,
        Unary::GeluTanh => GELU_TANH,
        Unary::Relu => RELU,
        Unary::Sigmoid => SIGMOID,
        Unary::Exp => EXP,
        Unary::Softplus => SOFTPLUS,
    }
}

pub(crate) fn binary_code(f: Binary) -> u32 {
    match f {
        Binary::Add => ADD,
        Binary::Sub => SUB,
        Binary::Mul => MUL,
        Binary::Div => DIV,
        Binary::Min => MIN,
        Binary::Max => MAX,
    }
}

/// The code of `f(x, value)`, or of `f(value, x)` where it is reversed.
pub(crate) fn scalar_code(f: Binary, reversed: bool) -> u32 {
    match (f, reversed) {
        (Binary::Sub, true) => SUB_FROM,
        (Binary::Div, true) => DIV_INTO,
        (f, _) => binary_code(f),
    }
}

pub(crate) fn count(op: &'static str, n: usize) -> Result<u32, GpuError> {
    u32::try_from(n).map_err(|_| GpuError::unsupported(op, format!("{n} elements, at most {}", u32::MAX)))
}

#[cfg(test)]
pub(crate) mod tests {
    use metallic_core::DType;
    use metallic_core::quant::{dequantize, quantize};

    use super::super::harness::Data;

    pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
    /// One, around a simdgroup, past its reach of 128, and past a threadgroup's.
    pub(crate) const LENGTHS: [u32; 6] = [1, 31, 33, 257, 1025, 4097];

    pub(crate) fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap()];
        quantize(dtype, values, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn data(dtype: DType, values: &[f32]) -> Data {
        Data::Bytes(bytes(dtype, values))
    }

    pub(crate) fn room(dtype: DType, elements: usize) -> Data {
        Data::Room(dtype.bytes_for(elements).unwrap())
    }

    pub(crate) fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / dtype.block_bytes()];
        dequantize(dtype, bytes, &mut values).unwrap();
        values
    }

    /// Numbers as a type holds them.
    pub(crate) fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
        floats(dtype, &bytes(dtype, values))
    }

    /// Half a step of a type around 1.
    pub(crate) fn unit(dtype: DType) -> f64 {
        match dtype {
            DType::F16 => 1.0 / 2048.0,
            DType::BF16 => 1.0 / 256.0,
            _ => 1e-6,
        }
    }

    /// `n` numbers between `-size` and `size` that differ from their neighbours.
    pub(crate) fn waves(n: u32, size: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.7 + 0.3).sin() * size).collect()
    }

    /// Each number is within half a step of its type, and `absolute`, of what it should be.
    pub(crate) fn assert_near(dtype: DType, found: &[f32], expected: &[f64], absolute: f64, what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (f64::from(*found) - expected).abs();
            assert!(
                off <= absolute + unit(dtype) * expected.abs(),
                "{what} of {dtype}, element {i}: {found} instead of {expected}"
            );
        }
    }
}
