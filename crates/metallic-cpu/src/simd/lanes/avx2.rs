//! AVX2 with FMA and F16C: sixteen lanes are two registers.

#[allow(clippy::wildcard_imports, reason = "intrinsics carry their own prefix")]
use std::arch::x86_64::*;

use super::{Lanes, quad, sums};
use crate::simd::activations::QGroup;
use crate::simd::format::Format;

pub(in crate::simd) struct Avx2;

/// Half `h` of vector `j` of a group: 8 rows × 4 k as unsigned bytes.
///
/// # Safety
/// AVX2; `w` is valid for `Q::GROUP_BYTES`; `j < 8`, `h < 2`.
#[inline(always)]
unsafe fn unpack<Q: Format>(w: *const u8, j: usize, h: usize) -> __m256i {
    // SAFETY: every offset below is less than `GROUP_BYTES` for its `BITS` (caller).
    unsafe {
        if Q::BITS == 8 {
            return _mm256_loadu_si256(w.add(64 * j + 32 * h).cast());
        }
        let nibbles = _mm256_loadu_si256(w.add(64 * (j / 2) + 32 * h).cast());
        let nibbles = if j.is_multiple_of(2) { nibbles } else { _mm256_srli_epi16::<4>(nibbles) };
        let low = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
        if Q::BITS == 4 {
            let Some(table) = Q::TABLE else { return low };
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            return _mm256_shuffle_epi8(table, low);
        }
        // Plane bytes hold bit `j` of 8 vectors, or bits `2c, 2c + 1` of 4 vectors; bring them to bit 4.
        let (plane, from, mask) = if Q::BITS == 5 { (0, j, 0x10) } else { (j / 4, j % 4 * 2, 0x30) };
        let high = _mm256_loadu_si256(w.add(256 + 64 * plane + 32 * h).cast());
        let high = match from {
            0 => _mm256_slli_epi16::<4>(high),
            1 => _mm256_slli_epi16::<3>(high),
            2 => _mm256_slli_epi16::<2>(high),
            3 => _mm256_slli_epi16::<1>(high),
            4 => high,
            5 => _mm256_srli_epi16::<1>(high),
            6 => _mm256_srli_epi16::<2>(high),
            _ => _mm256_srli_epi16::<3>(high),
        };
        _mm256_or_si256(_mm256_and_si256(high, _mm256_set1_epi8(mask)), low)
    }
}

/// Whether values, less 128, are signed bytes: 8 bits are in use.
#[inline(always)]
fn wide<Q: Format>() -> bool {
    Q::OFFSET == 128
}

/// The sum of 16 signed bytes.
///
/// # Safety
/// SSE2.
#[inline(always)]
pub(super) unsafe fn sum_bytes(bytes: __m128i) -> i32 {
    // SAFETY: SSE2 by the caller.
    unsafe {
        // As unsigned bytes 128 higher, which one instruction sums by eights.
        let eights = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
        let both = _mm_add_epi32(eights, _mm_shuffle_epi32::<0b1110>(eights));
        _mm_cvtsi128_si32(both) - 16 * 128
    }
}

/// The end of `sums`, from eight lanes on.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub(super) unsafe fn sums_of_eights(x: [__m256; 4]) -> [f32; 4] {
    // SAFETY: AVX2 by the caller; four f32 are written to four.
    unsafe {
        let mut four = [_mm_setzero_ps(); 4];
        for i in 0..4 {
            four[i] = _mm_add_ps(_mm256_castps256_ps128(x[i]), _mm256_extractf128_ps::<1>(x[i]));
        }
        let pairs = (_mm_hadd_ps(four[0], four[1]), _mm_hadd_ps(four[2], four[3]));
        let mut out = [0.0; 4];
        _mm_storeu_ps(out.as_mut_ptr(), _mm_hadd_ps(pairs.0, pairs.1));
        out
    }
}

impl Lanes for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    const INT_BLOCK: usize = 2;
    const FLOAT_BLOCK: usize = 3;
    const CHAINS: usize = 2;
    const PANEL_ROWS: usize = 3;
    const PANEL_WIDE: bool = false;
    const FMA: bool = true;
    const SIGNED: bool = true;

    inlined! {
        fn splat(x: f32) -> Self::F { [_mm256_set1_ps(x); 2] }
        fn load(p: *const f32) -> Self::F { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
        fn load_f16(p: *const u8) -> Self::F {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))]
        }
        fn load_bf16(p: *const u8) -> Self::F {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
        fn load_i8(p: *const u8) -> Self::F {
            let bytes = _mm_loadu_si128(p.cast());
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
            ]
        }
        fn store(x: Self::F, p: *mut f32) {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
        fn store_f16(x: Self::F, p: *mut u8) {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        }
        fn add(a: Self::F, b: Self::F) -> Self::F { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn mul(a: Self::F, b: Self::F) -> Self::F { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn sums(x: [Self::F; 4]) -> [f32; 4] {
            let mut eights = [_mm256_setzero_ps(); 4];
            for i in 0..4 {
                eights[i] = _mm256_add_ps(x[i][0], x[i][1]);
            }
            sums_of_eights(eights)
        }
        fn to_float(x: Self::I) -> Self::F { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
        fn tops(x: *const f32) -> [u32; 2] {
            let mut tops = [0; 2];
            for half in 0..2 {
                let low = _mm256_loadu_si256(x.add(16 * half).cast());
                let high = _mm256_loadu_si256(x.add(16 * half + 8).cast());
                let magnitude = _mm256_set1_epi32(0x7fff_ffff);
                let top = _mm256_max_epu32(_mm256_and_si256(low, magnitude), _mm256_and_si256(high, magnitude));
                let four = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
                let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b1110>(four));
                tops[half] = _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32::<1>(two))) as u32;
            }
            tops
        }
        fn quantize16(x: *const f32, inverse: f32, out: *mut i8) -> i32 {
            let inverse = _mm256_set1_ps(inverse);
            let low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
            let high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(8)), inverse));
            // Packing keeps the two 128-bit halves apart; the permutation puts quarters in order.
            let words = _mm256_permute4x64_epi64::<0b1101_1000>(_mm256_packs_epi32(low, high));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.cast(), bytes);
            sum_bytes(bytes)
        }
        fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<Q: Format, const T: usize>(w: *const u8, x: &[*const QGroup; T]) -> [[Self::I; 2]; T] {
        // SAFETY: features and pointers by the caller.
        unsafe {
            let zero = _mm256_setzero_si256();
            let ones = _mm256_set1_epi16(1);
            let mut acc = [[[zero; 2]; 2]; T];
            // Values of 8 bits are taken as signed below, which is their offset of 128.
            if Q::OFFSET != 0 && !wide::<Q>() && !Self::leaves_offset::<Q>() {
                let (low, high) = (i32::from(-Q::OFFSET) & 0xffff, i32::from(-Q::OFFSET) << 16);
                for t in 0..T {
                    let sums = _mm256_set1_epi32(sums(x[t]));
                    if Q::SPLIT {
                        acc[t][0] = [_mm256_madd_epi16(_mm256_set1_epi32(low), sums); 2];
                        acc[t][1] = [_mm256_madd_epi16(_mm256_set1_epi32(high), sums); 2];
                    } else {
                        acc[t][0] = [_mm256_madd_epi16(_mm256_set1_epi32(low | high), sums); 2];
                    }
                }
            }
            // How many products of pairs fit in 16 bits: 2 · 127 · (2^BITS - 1) each, or the largest of a table.
            let run = match Q::BITS {
                _ if wide::<Q>() => 1,
                4 if !Q::SPLIT && Q::TABLE.is_none() => 8,
                4 | 5 => 4,
                6 => 2,
                _ => 1,
            };
            let mut pairs = [[zero; 2]; T];
            macro_rules! step {
                ($($j:literal)*) => {$(
                    for h in 0..2 {
                        let v = unpack::<Q>(w, $j, h);
                        for t in 0..T {
                            let quad = _mm256_set1_epi32(quad(x[t], $j));
                            let product = if wide::<Q>() {
                                let v = _mm256_xor_si256(v, _mm256_set1_epi8(-128));
                                _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(quad, v))
                            } else {
                                _mm256_maddubs_epi16(v, quad)
                            };
                            pairs[t][h] = if $j % run == 0 {
                                product
                            } else {
                                _mm256_add_epi16(pairs[t][h], product)
                            };
                            if $j % run == run - 1 {
                                let half = if Q::SPLIT { $j / 4 } else { 0 };
                                let wide = _mm256_madd_epi16(pairs[t][h], ones);
                                acc[t][half][h] = _mm256_add_epi32(acc[t][half][h], wide);
                            }
                        }
                    }
                )*};
            }
            step!(0 1 2 3 4 5 6 7);
            acc
        }
    }
}
