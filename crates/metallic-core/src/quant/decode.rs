//! One function a format: a block of bytes to its numbers.
//!
//! `q` is the stored level of an element, `d` and `m` are the scale and the minimum of its block. Each
//! function returns what its `DType` variant documents, with every product and sum rounded to `f32` in the
//! order written.

use half::slice::HalfFloatSliceExt;

/// Decodes a type whose elements stand alone.
pub(super) fn each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = decode(*bytes);
    }
}

/// Decodes a type in blocks of `N` bytes and `LEN` elements.
pub(super) fn blocks<const N: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; N], &mut [f32; LEN]),
) {
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, out);
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

fn f16(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

pub(super) fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// `[d: f16][q: 16 × 2 × 4 bit]`; byte `i` holds elements `i` (low) and `i + 16` (high).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16(block, 0);
    for (i, byte) in block[2..].iter().enumerate() {
        out[i] = (f32::from(byte & 15) - 8.0) * d;
        out[i + 16] = (f32::from(byte >> 4) - 8.0) * d;
    }
}

/// `[d: f16][m: f16][q as in Q4_0]`
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16(block, 0), f16(block, 2));
    for (i, byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 15) * d + m;
        out[i + 16] = f32::from(byte >> 4) * d + m;
    }
}

/// `[d: f16][fifth bits: u32, bit i of element i][low four bits as in Q4_0]`
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16(block, 0);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    for (i, byte) in block[6..].iter().enumerate() {
        out[i] = (f32::from((byte & 15) | fifth(high, i)) - 16.0) * d;
        out[i + 16] = (f32::from((byte >> 4) | fifth(high, i + 16)) - 16.0) * d;
    }
}

/// `[d: f16][m: f16][fifth bits][low four bits]`, as in Q5_0.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16(block, 0), f16(block, 2));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    for (i, byte) in block[8..].iter().enumerate() {
        out[i] = f32::from((byte & 15) | fifth(high, i)) * d + m;
        out[i + 16] = f32::from((byte >> 4) | fifth(high, i + 16)) * d + m;
    }
}

fn fifth(high: u32, i: usize) -> u8 {
    ((high >> i & 1) as u8) << 4
}

/// `[d: f16][q: 32 × i8]`
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = f32::from(*byte as i8) * d;
    }
}

/// `[scales: 16 × (4 bit scale, 4 bit min)][q: 256 × 2 bit][d: f16][dmin: f16]`
///
/// Each half of 128 elements has 32 bytes of `q`; its elements `32 * k + i` are at bits `2 * k` of byte `i`.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, q) = (&block[..16], &block[16..80]);
    let (d, dmin) = (f16(block, 80), f16(block, 82));
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(scales[sub] & 15), dmin * f32::from(scales[sub] >> 4));
        let (q, shift) = (&q[crumbs(sub)..][..16], shift(sub));
        for (byte, out) in q.iter().zip(out) {
            *out = scale * f32::from(byte >> shift & 3) - min;
        }
    }
}

/// `[third bits: 32 bytes, bit k of byte i of element 32 * k + i][q: as in Q2_K][scales: 16 × 6 bit][d: f16]`
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, q, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16(block, 108);
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        // Four low bits in nibbles of the first 8 bytes, two high bits in the last 4.
        let low = scales[sub % 8] >> (4 * (sub / 8)) & 15;
        let top = scales[8 + sub % 4] >> (2 * (sub / 4)) & 3;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        let (q, shift) = (&q[crumbs(sub)..][..16], shift(sub));
        let high = &high[sub % 2 * 16..][..16];
        for ((byte, high), out) in q.iter().zip(high).zip(out) {
            let level = (byte >> shift & 3) | (high >> (sub / 2) & 1) << 2;
            *out = scale * (f32::from(level) - 4.0);
        }
    }
}

/// Where the bytes of sub-block `sub` begin among the 64 bytes of 2-bit levels.
fn crumbs(sub: usize) -> usize {
    sub / 8 * 32 + sub % 2 * 16
}

/// At which bit of those bytes its levels are.
fn shift(sub: usize) -> usize {
    sub % 8 / 2 * 2
}

/// `[d: f16][dmin: f16][scales: 8 × (6 bit scale, 6 bit min)][q: 256 × 4 bit]`
///
/// Each 64 elements have 32 bytes of `q`: the first 32 in the low nibbles, the others in the high ones.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scales, q) = (&block[4..16], &block[16..]);
    let (d, dmin) = (f16(block, 0), f16(block, 2));
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(scales, sub);
        let (scale, min) = (d * scale, dmin * min);
        for (byte, out) in q[sub / 2 * 32..][..32].iter().zip(out) {
            *out = scale * f32::from(byte >> (sub % 2 * 4) & 15) - min;
        }
    }
}

/// `[d: f16][dmin: f16][scales as in Q4_K][fifth bits: 32 bytes, bit k of byte i of element 32 * k + i][q as in Q4_K]`
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scales, high, q) = (&block[4..16], &block[16..48], &block[48..]);
    let (d, dmin) = (f16(block, 0), f16(block, 2));
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(scales, sub);
        let (scale, min) = (d * scale, dmin * min);
        for ((byte, high), out) in q[sub / 2 * 32..][..32].iter().zip(high).zip(out) {
            let level = (byte >> (sub % 2 * 4) & 15) | (high >> sub & 1) << 4;
            *out = scale * f32::from(level) - min;
        }
    }
}

/// Scale and min of sub-block `sub` of 8: the first four in the low six bits of bytes 0..4 and 4..8, the
/// others with four bits in bytes 8..12 and two bits on top of the first ones.
fn scale_min(scales: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = if sub < 4 {
        (scales[sub] & 63, scales[sub + 4] & 63)
    } else {
        let low = scales[sub + 4];
        ((low & 15) | scales[sub - 4] >> 6 << 4, low >> 4 | scales[sub] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// `[low four bits: 128 bytes][high two bits: 64 bytes][scales: 16 × i8][d: f16]`
///
/// Each half of 128 elements has 64 bytes of low bits (first 64 elements in the low nibbles) and 32 bytes of
/// high bits (element `32 * k + i` at bits `2 * k` of byte `i`).
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16(block, 208);
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[sub] as i8);
        let low = &low[sub / 8 * 64 + sub % 4 * 16..][..16];
        let nibble = sub % 8 / 4 * 4;
        let high = &high[crumbs(sub)..][..16];
        for ((low, high), out) in low.iter().zip(high).zip(out) {
            let level = (low >> nibble & 15) | (high >> shift(sub) & 3) << 4;
            *out = scale * (f32::from(level) - 32.0);
        }
    }
}
