//! The meaning of every element type: bytes to `f32`, and the ways back.
//!
//! Blocks are little-endian. The formulas and their order of operations are those of ggml, so results are
//! the same to the last bit. This code says what a format means; backends have faster forms of their own.

mod block;
mod decode;
mod encode;
mod fit;
mod search;
#[cfg(test)]
mod tests;

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
    /// Rows of so many columns are no whole blocks, or are not all there.
    #[error("{elements} elements of {dtype} with an importance for each of {columns} columns; rows must be whole, and in blocks of {}", dtype.block_len())]
    Importance { dtype: DType, elements: usize, columns: usize },
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

/// Encodes `values` as `dtype`, each block by itself. Types of one scale a block are encoded as ggml's reference does, to
/// the byte; the others search for scales that lose little.
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
        | DType::MXFP4 => search(dtype, values, None, out),
        DType::I32 | DType::U32 | DType::U8 => {
            return Err(QuantError::Unsupported { dtype, action: "made from floating-point numbers" });
        }
    }
    Ok(())
}

/// Encodes rows of `importance.len()` columns as `dtype`, so that errors count by the importance of their column: the mean
/// square of what it is multiplied by. Numbers that are not in blocks, and those of `Q8_0`, are encoded as [`quantize`] does.
///
/// ```
/// use metallic_core::{DType, quant};
/// let mut out = [0; 18];
/// let mut importance = [0.1; 32];
/// importance[7] = 100.0;
/// quant::quantize_by_importance(DType::Q4_0, &[0.3; 32], &importance, &mut out)?;
/// # Ok::<(), quant::QuantError>(())
/// ```
pub fn quantize_by_importance(
    dtype: DType,
    values: &[f32],
    importance: &[f32],
    out: &mut [u8],
) -> Result<(), QuantError> {
    if !dtype.is_quantized() || dtype == DType::Q8_0 {
        return quantize(dtype, values, out);
    }
    check(dtype, values.len(), out.len())?;
    let columns = importance.len();
    if columns == 0 || !columns.is_multiple_of(dtype.block_len()) || !values.len().is_multiple_of(columns) {
        return Err(QuantError::Importance { dtype, elements: values.len(), columns });
    }
    search(dtype, values, Some(importance), out);
    Ok(())
}

/// Encodes one of the types in blocks.
fn search(dtype: DType, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    match dtype {
        DType::Q4_0 => encode::weighed(values, importance, out, search::q4_0),
        DType::Q4_1 => encode::weighed(values, importance, out, search::q4_1),
        DType::Q5_0 => encode::weighed(values, importance, out, search::q5_0),
        DType::Q5_1 => encode::weighed(values, importance, out, search::q5_1),
        DType::Q2K => encode::weighed(values, importance, out, search::q2_k),
        DType::Q3K => encode::weighed(values, importance, out, search::q3_k),
        DType::Q4K => encode::weighed(values, importance, out, search::q4_k),
        DType::Q5K => encode::weighed(values, importance, out, search::q5_k),
        DType::Q6K => encode::weighed(values, importance, out, search::q6_k),
        DType::IQ4NL => encode::weighed(values, importance, out, search::iq4_nl),
        DType::IQ4XS => encode::weighed(values, importance, out, search::iq4_xs),
        DType::MXFP4 => encode::weighed(values, importance, out, search::mxfp4),
        DType::Q8_0 => encode::blocks(values, out, encode::q8_0),
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32 | DType::U8 => {}
    }
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
