//! AVX-512 with VNNI: sixteen lanes are one register.

#[allow(clippy::wildcard_imports, reason = "intrinsics carry their own prefix")]
use std::arch::x86_64::*;

use super::avx2::{sum_bytes, sums_of_eights};
use super::{Lanes, quad, sums};
use crate::simd::activations::QGroup;
use crate::simd::format::Format;

pub(in crate::simd) struct Avx512;

/// Vector `j` (of 8) of a group: 16 rows × 4 k as unsigned bytes.
///
/// # Safety
/// AVX-512 BW; `w` is valid for `Q::GROUP_BYTES`; `j < 8`.
#[inline(always)]
unsafe fn unpack<Q: Format>(w: *const u8, j: usize) -> __m512i {
    // SAFETY: every offset below is less than `GROUP_BYTES` for its `BITS` (caller).
    unsafe {
        if Q::BITS == 8 {
            return _mm512_loadu_si512(w.add(64 * j).cast());
        }
        let nibbles = _mm512_loadu_si512(w.add(64 * (j / 2)).cast());
        let nibbles = if j.is_multiple_of(2) { nibbles } else { _mm512_srli_epi16::<4>(nibbles) };
        let low = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
        if Q::BITS == 4 {
            let Some(table) = Q::TABLE else { return low };
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            return _mm512_shuffle_epi8(table, low);
        }
        // Plane bytes hold bit `j` of 8 vectors, or bits `2c, 2c + 1` of 4 vectors; bring them to bit 4.
        let (plane, from, mask) = if Q::BITS == 5 { (0, j, 0x10) } else { (j / 4, j % 4 * 2, 0x30) };
        let high = _mm512_loadu_si512(w.add(256 + 64 * plane).cast());
        let high = match from {
            0 => _mm512_slli_epi16::<4>(high),
            1 => _mm512_slli_epi16::<3>(high),
            2 => _mm512_slli_epi16::<2>(high),
            3 => _mm512_slli_epi16::<1>(high),
            4 => high,
            5 => _mm512_srli_epi16::<1>(high),
            6 => _mm512_srli_epi16::<2>(high),
            _ => _mm512_srli_epi16::<3>(high),
        };
        // (high & mask) | low
        _mm512_ternarylogic_epi32::<0xEA>(high, _mm512_set1_epi8(mask), low)
    }
}

impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    const INT_BLOCK: usize = 8;
    const FLOAT_BLOCK: usize = 4;
    const CHAINS: usize = 4;
    const PANEL_ROWS: usize = 6;
    const PANEL_WIDE: bool = true;
    const FMA: bool = true;
    const SIGNED: bool = false;

    inlined! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        fn load_f16(p: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn load_bf16(p: *const u8) -> __m512 {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
        fn load_i8(p: *const u8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
        }
        fn store(x: __m512, p: *mut f32) { _mm512_storeu_ps(p, x) }
        fn store_f16(x: __m512, p: *mut u8) {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn sums(x: [__m512; 4]) -> [f32; 4] {
            let mut eights = [_mm256_setzero_ps(); 4];
            for i in 0..4 {
                eights[i] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm512_extractf32x8_ps::<1>(x[i]));
            }
            sums_of_eights(eights)
        }
        fn to_float(x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        fn tops(x: *const f32) -> [u32; 2] {
            let magnitude = _mm512_set1_epi32(0x7fff_ffff);
            let low = _mm512_and_si512(_mm512_loadu_si512(x.cast()), magnitude);
            let high = _mm512_and_si512(_mm512_loadu_si512(x.add(16).cast()), magnitude);
            // Both at once: the eight of the first half, then the eight of the second.
            let low = _mm256_max_epu32(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64::<1>(low));
            let high = _mm256_max_epu32(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64::<1>(high));
            let tops = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let tops = _mm512_max_epu32(tops, _mm512_shuffle_i32x4::<0b10_11_00_01>(tops, tops));
            let tops = _mm512_max_epu32(tops, _mm512_shuffle_epi32::<0b01_00_11_10>(tops));
            let tops = _mm512_max_epu32(tops, _mm512_shuffle_epi32::<0b10_11_00_01>(tops));
            let second = _mm512_extracti32x4_epi32::<2>(tops);
            [_mm_cvtsi128_si32(_mm512_castsi512_si128(tops)) as u32, _mm_cvtsi128_si32(second) as u32]
        }
        fn quantize16(x: *const f32, inverse: f32, out: *mut i8) -> i32 {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse));
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(scaled));
            _mm_storeu_si128(out.cast(), bytes);
            sum_bytes(bytes)
        }
        fn prefetch(p: *const u8) { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<Q: Format, const T: usize>(w: *const u8, x: &[*const QGroup; T]) -> [[__m512i; 2]; T] {
        // SAFETY: features and pointers by the caller.
        unsafe {
            let zero = _mm512_setzero_si512();
            let mut acc = [[zero; 2]; T];
            if Q::OFFSET != 0 && !Self::leaves_offset::<Q>() {
                // -OFFSET times the sum of the group (both 16-bit halves) or of each half.
                let (low, high) = (i32::from(-Q::OFFSET) & 0xffff, i32::from(-Q::OFFSET) << 16);
                for t in 0..T {
                    let sums = _mm512_set1_epi32(sums(x[t]));
                    if Q::SPLIT {
                        acc[t][0] = _mm512_dpwssd_epi32(zero, _mm512_set1_epi32(low), sums);
                        acc[t][1] = _mm512_dpwssd_epi32(zero, _mm512_set1_epi32(high), sums);
                    } else {
                        acc[t][0] = _mm512_dpwssd_epi32(zero, _mm512_set1_epi32(low | high), sums);
                    }
                }
            }
            macro_rules! step {
                ($($j:literal)*) => {$(
                    let v = unpack::<Q>(w, $j);
                    for t in 0..T {
                        let half = if Q::SPLIT { $j / 4 } else { 0 };
                        let quad = _mm512_set1_epi32(quad(x[t], $j));
                        acc[t][half] = _mm512_dpbusd_epi32(acc[t][half], v, quad);
                    }
                )*};
            }
            step!(0 1 2 3 4 5 6 7);
            acc
        }
    }
}
