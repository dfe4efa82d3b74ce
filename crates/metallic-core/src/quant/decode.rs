//! Bytes to numbers, with every product and sum rounded to `f32` in the order of ggml.

use half::slice::HalfFloatSliceExt;

use super::Block;
use crate::DType;

/// Decodes a type whose elements stand alone.
pub(super) fn each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = decode(*bytes);
    }
}

/// Decodes a quantised type.
#[inline(always)]
pub(super) fn blocks(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    for (bytes, out) in blocks.zip(out.chunks_exact_mut(dtype.block_len())) {
        Block { dtype, bytes }.decode(out);
    }
}

/// `f16` has an instruction for slices, which elements one by one would not use.
pub(super) fn f16s(bytes: &[u8], out: &mut [f32]) {
    let mut run = [half::f16::ZERO; 256];
    for (bytes, out) in bytes.chunks(512).zip(out.chunks_mut(256)) {
        let run = &mut run[..out.len()];
        for (bytes, element) in bytes.as_chunks().0.iter().zip(run.iter_mut()) {
            *element = half::f16::from_le_bytes(*bytes);
        }
        run.convert_to_f32_slice(out);
    }
}

pub(super) fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}
