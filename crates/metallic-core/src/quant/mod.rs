//! The meaning of every element type: bytes to `f32`, and the plain ways back.
//!
//! Blocks are little-endian. The formulas and their order of operations are those of ggml, so results are
//! the same to the last bit. This code says what a format means; backends have faster forms of their own.

mod block;
mod decode;
mod encode;

pub use block::Block;

use crate::DType;

/// What a level of `IQ4_NL` and `IQ4_XS` stands for.
pub const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// What a level of `MXFP4` stands for: twice the numbers that two bits of exponent and one of mantissa make.
pub const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Why elements could not be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum QuantError {
    /// The type holds no real numbers, or there is no encoder for it.
    #[error("{dtype} cannot be {action}")]
    Unsupported { dtype: DType, action: &'static str },
    /// The two slices do not belong together; bytes are needed for begun blocks as well.
    #[error("{elements} elements of {dtype} in {found} bytes; needed are {needed_bytes} bytes, in whole blocks of {} elements", dtype.block_len())]
    Length { dtype: DType, elements: usize, found: usize, needed_bytes: usize },
}

/// Decodes `bytes`, `out.len()` elements of `dtype`.
///
/// ```
/// use metallic_core::{DType, quant};
/// let mut out = [0.0; 2];
/// quant::dequantize(DType::BF16, &[0x80, 0x3f, 0x00, 0xc0], &mut out)?;
/// assert_eq!(out, [1.0, -2.0]);
/// # Ok::<(), quant::QuantError>(())
/// ```
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check(dtype, out.len(), bytes.len())?;
    macro_rules! by_type {
        ($($quantized:ident)*) => {
            match dtype {
                DType::F32 => decode::each(bytes, out, f32::from_le_bytes),
                DType::F16 => decode::f16s(bytes, out),
                DType::BF16 => decode::each(bytes, out, decode::bf16),
                $(DType::$quantized => decode::blocks(DType::$quantized, bytes, out),)*
                DType::I32 | DType::U32 | DType::U8 => {
                    let action = "turned into floating-point numbers";
                    return Err(QuantError::Unsupported { dtype, action });
                }
            }
        };
    }
    by_type!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K IQ4NL IQ4XS MXFP4);
    Ok(())
}

/// Encodes `values` as `dtype`, each block by itself and each number to the nearest level, as ggml's
/// reference does. The k-quants, whose good encoders search, have none here.
pub fn quantize(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    check(dtype, values.len(), out.len())?;
    match dtype {
        DType::F32 => encode::each(values, out, f32::to_le_bytes),
        DType::F16 => encode::f16s(values, out),
        DType::BF16 => encode::each(values, out, encode::bf16),
        DType::Q4_0 => encode::blocks(values, out, encode::q4_0),
        DType::Q4_1 => encode::blocks(values, out, encode::q4_1),
        DType::Q5_0 => encode::blocks(values, out, encode::q5_0),
        DType::Q5_1 => encode::blocks(values, out, encode::q5_1),
        DType::Q8_0 => encode::blocks(values, out, encode::q8_0),
        DType::Q2K
        | DType::Q3K
        | DType::Q4K
        | DType::Q5K
        | DType::Q6K
        | DType::IQ4NL
        | DType::IQ4XS
        | DType::MXFP4
        | DType::I32
        | DType::U32
        | DType::U8 => {
            return Err(QuantError::Unsupported { dtype, action: "made from floating-point numbers" });
        }
    }
    Ok(())
}

/// `2^(e - 128)`, the scale of an `MXFP4` block.
pub fn mxfp4_scale(e: u8) -> f32 {
    let e = u32::from(e);
    // The two smallest are below what has an exponent of its own.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

/// `elements` elements fill whole blocks that take `bytes` bytes.
fn check(dtype: DType, elements: usize, bytes: usize) -> Result<(), QuantError> {
    if dtype.bytes_for(elements) == Some(bytes) {
        return Ok(());
    }
    let needed_bytes = elements.div_ceil(dtype.block_len()).saturating_mul(dtype.block_bytes());
    Err(QuantError::Length { dtype, elements, found: bytes, needed_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_searching_encoders_are_refused_by_name() {
        for dtype in [DType::I32, DType::U32, DType::U8] {
            let error = dequantize(dtype, &vec![0; dtype.block_bytes()], &mut [0.0]).unwrap_err();
            assert!(error.to_string().starts_with(dtype.name()), "{error}");
        }
        for dtype in
            [DType::I32, DType::U32, DType::Q2K, DType::Q3K, DType::Q4K, DType::Q5K, DType::Q6K, DType::MXFP4]
        {
            let (values, mut bytes) = (vec![0.0; dtype.block_len()], vec![0; dtype.block_bytes()]);
            let error = quantize(dtype, &values, &mut bytes).unwrap_err();
            assert_eq!(error, QuantError::Unsupported { dtype, action: "made from floating-point numbers" });
        }
    }

    #[test]
    fn slices_that_do_not_belong_together_are_refused() {
        for dtype in DType::all() {
            let (elements, bytes) = (2 * dtype.block_len(), 2 * dtype.block_bytes());
            let mut out = vec![0.0; elements];
            for len in [0, bytes - 1, bytes + 1] {
                let error = dequantize(dtype, &vec![0; len], &mut out).unwrap_err();
                assert!(
                    matches!(error, QuantError::Length { needed_bytes, .. } if needed_bytes == bytes),
                    "{error}"
                );
            }
        }
        let error = dequantize(DType::Q8_0, &[0; 17], &mut [0.0; 16]).unwrap_err();
        assert!(error.to_string().contains("blocks of 32"), "{error}");
    }

    #[test]
    fn nothing_is_nothing() {
        for dtype in DType::all().filter(|dtype| !matches!(dtype, DType::I32 | DType::U32 | DType::U8)) {
            assert_eq!(dequantize(dtype, &[], &mut []), Ok(()));
        }
    }

    #[test]
    fn a_block_of_zeros_or_of_one_value_survives() {
        for dtype in [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0] {
            for value in [0.0, 1.0, -0.5] {
                let values = [value; 32];
                let mut bytes = vec![0; dtype.block_bytes()];
                quantize(dtype, &values, &mut bytes).unwrap();
                let mut out = [f32::NAN; 32];
                dequantize(dtype, &bytes, &mut out).unwrap();
                let error = out.iter().map(|v| (v - value).abs()).fold(0.0, f32::max);
                assert!(error < 1e-3, "{dtype} {value}: {error}");
            }
        }
    }

    #[test]
    fn halves_beyond_the_last_full_run_are_converted() {
        let values: Vec<f32> = (0..300_i16).map(|i| f32::from(i - 150)).collect();
        for dtype in [DType::F16, DType::BF16] {
            let mut bytes = vec![0; 600];
            quantize(dtype, &values, &mut bytes).unwrap();
            let mut out = vec![0.0; 300];
            dequantize(dtype, &bytes, &mut out).unwrap();
            assert_eq!(out, values, "{dtype}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_encode_without_panic() {
        let mut values = [1.0; 32];
        (values[3], values[7], values[9]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        for dtype in
            [DType::F16, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0]
        {
            let mut bytes = vec![0; dtype.bytes_for(32).unwrap()];
            quantize(dtype, &values, &mut bytes).unwrap();
        }
    }
}
