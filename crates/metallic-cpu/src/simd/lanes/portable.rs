//! Plain arrays: for every other processor, in a shape the compiler turns into its vectors.

use half::{bf16, f16};

use super::Lanes;
use crate::simd::activations::QGroup;
use crate::simd::format::Format;

pub(in crate::simd) struct Portable;

/// Vector `j` (of 8) of a group: 16 rows × 4 k as unsigned bytes.
///
/// # Safety
/// `w` is valid for `Q::GROUP_BYTES`; `j < 8`.
#[inline(always)]
unsafe fn unpack<Q: Format>(w: *const u8, j: usize) -> [u8; 64] {
    // SAFETY: every offset below is less than `GROUP_BYTES` for its `BITS` (caller).
    unsafe {
        if Q::BITS == 8 {
            return w.add(64 * j).cast::<[u8; 64]>().read();
        }
        let mut v = w.add(64 * (j / 2)).cast::<[u8; 64]>().read();
        let shift = j % 2 * 4;
        for b in &mut v {
            *b = (*b >> shift) & 15;
        }
        if Q::BITS == 4 {
            return Q::TABLE.map_or(v, |table| v.map(|q| table[usize::from(q)]));
        }
        // Plane bytes hold bit `j` of 8 vectors, or bits `2c, 2c + 1` of 4 vectors.
        let (plane, from, mask) = if Q::BITS == 5 { (0, j, 1) } else { (j / 4, j % 4 * 2, 3) };
        let high = w.add(256 + 64 * plane).cast::<[u8; 64]>().read();
        for (b, h) in v.iter_mut().zip(high) {
            *b |= ((h >> from) & mask) << 4;
        }
        v
    }
}

impl Lanes for Portable {
    type F = [f32; 16];
    type I = [i32; 16];
    const INT_BLOCK: usize = 4;
    const FLOAT_BLOCK: usize = 4;
    const CHAINS: usize = 2;
    const PANEL_ROWS: usize = if cfg!(target_arch = "aarch64") { 3 } else { 1 };
    const PANEL_WIDE: bool = false;
    // Without the instruction, a fused multiply-add is a slow library call.
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    const SIGNED: bool = false;

    inlined! {
        fn splat(x: f32) -> Self::F { [x; 16] }
        fn load(p: *const f32) -> Self::F { p.cast::<[f32; 16]>().read_unaligned() }
        fn load_f16(p: *const u8) -> Self::F {
            let mut out = [0.0; 16];
            for (out, bytes) in out.iter_mut().zip(p.cast::<[[u8; 2]; 16]>().read()) {
                *out = widen(u16::from_le_bytes(bytes));
            }
            out
        }
        fn load_bf16(p: *const u8) -> Self::F {
            let mut out = [0.0; 16];
            for (out, bytes) in out.iter_mut().zip(p.cast::<[[u8; 2]; 16]>().read()) {
                *out = bf16::from_le_bytes(bytes).to_f32();
            }
            out
        }
        fn load_i8(p: *const u8) -> Self::F {
            let mut out = [0.0; 16];
            for (out, byte) in out.iter_mut().zip(p.cast::<[i8; 16]>().read()) {
                *out = f32::from(byte);
            }
            out
        }
        fn store(x: Self::F, p: *mut f32) { p.cast::<[f32; 16]>().write_unaligned(x) }
        fn store_f16(x: Self::F, p: *mut u8) {
            let mut bytes = [[0; 2]; 16];
            for (bytes, x) in bytes.iter_mut().zip(x) {
                *bytes = f16::from_f32(x).to_le_bytes();
            }
            p.cast::<[[u8; 2]; 16]>().write(bytes)
        }
        fn add(a: Self::F, b: Self::F) -> Self::F {
            let mut sum = a;
            for i in 0..16 {
                sum[i] += b[i];
            }
            sum
        }
        fn mul(a: Self::F, b: Self::F) -> Self::F {
            let mut product = a;
            for i in 0..16 {
                product[i] *= b[i];
            }
            product
        }
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
            let mut sum = c;
            for i in 0..16 {
                sum[i] = if Self::FMA { a[i].mul_add(b[i], sum[i]) } else { a[i] * b[i] + sum[i] };
            }
            sum
        }
        fn sums(x: [Self::F; 4]) -> [f32; 4] {
            x.map(|mut x| {
                for width in [8, 4] {
                    for i in 0..width {
                        x[i] += x[i + width];
                    }
                }
                (x[0] + x[1]) + (x[2] + x[3])
            })
        }
        fn to_float(x: Self::I) -> Self::F {
            let mut out = [0.0; 16];
            for (out, x) in out.iter_mut().zip(x) {
                *out = x as f32;
            }
            out
        }
        fn prefetch(_p: *const u8) {}
    }

    #[inline(always)]
    unsafe fn dot<Q: Format, const T: usize>(w: *const u8, x: &[*const QGroup; T]) -> [[Self::I; 2]; T] {
        let mut acc = [[[0; 16]; 2]; T];
        for t in 0..T {
            // SAFETY: `x` points to records (caller).
            let sums = unsafe { (*x[t]).sums.map(i32::from) };
            let offset = if Self::leaves_offset::<Q>() { 0 } else { i32::from(Q::OFFSET) };
            if Q::SPLIT {
                acc[t] = [[-offset * sums[0]; 16], [-offset * sums[1]; 16]];
            } else {
                acc[t][0] = [-offset * (sums[0] + sums[1]); 16];
            }
        }
        for j in 0..8 {
            // SAFETY: `w` is valid for a group (caller) and `j < 8`.
            let v = unsafe { unpack::<Q>(w, j) };
            let half = if Q::SPLIT { j / 4 } else { 0 };
            for t in 0..T {
                // SAFETY: `x` points to records (caller).
                let values = unsafe { &(*x[t]).values };
                let a = [values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3]];
                let a = a.map(i32::from);
                for (sum, v) in acc[t][half].iter_mut().zip(v.as_chunks::<4>().0) {
                    let v = v.map(i32::from);
                    *sum += v[0] * a[0] + v[1] * a[1] + v[2] * a[2] + v[3] * a[3];
                }
            }
        }
        acc
    }
}

/// An f16 as f32, without branches: half's own conversion asks for processor features at every call.
#[inline(always)]
pub(in crate::simd) fn widen(h: u16) -> f32 {
    let bits = u32::from(h);
    let magnitude = (bits & 0x7fff) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, for subnormals too.
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7f80_0000;
    let value = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_as_half_says() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (widen(h), f16::from_bits(h).to_f32());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{h:#06x}: {ours} {theirs}");
            assert_eq!(ours.is_sign_negative(), theirs.is_sign_negative());
        }
    }
}
