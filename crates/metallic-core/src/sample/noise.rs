//! Random numbers as a function of where they stand, and the noise made of them.

use super::row::BLOCK;

/// Philox4x32-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*): 128 random bits as a function of a counter
/// and a key, alike on every device and in any order.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut k, mut l] = key;
    for _ in 0..10 {
        let (x, y) = (0xd251_1f53 * u64::from(a), 0xcd9e_8d57 * u64::from(c));
        (a, b, c, d) = ((y >> 32) as u32 ^ b ^ k, y as u32, (x >> 32) as u32 ^ d ^ l, x as u32);
        (k, l) = (k.wrapping_add(0x9e37_79b9), l.wrapping_add(0xbb67_ae85));
    }
    [a, b, c, d]
}

/// Philox of counters `[first, 0, draw]`, `[first + 1, 0, draw]`, …: word `w` of the `i`-th at `[w][i]`.
#[inline(always)]
pub(super) fn philox_block(first: u32, draw: [u32; 2], key: [u32; 2]) -> Words {
    let mut words: Words = [[0; BLOCK / 4]; 4];
    let [a, b, c, d] = &mut words;
    for i in 0..BLOCK / 4 {
        (a[i], c[i], d[i]) = (first.wrapping_add(i as u32), draw[0], draw[1]);
    }
    let [mut k, mut l] = key;
    for _ in 0..10 {
        for i in 0..BLOCK / 4 {
            let (x, y) = (0xd251_1f53 * u64::from(a[i]), 0xcd9e_8d57 * u64::from(c[i]));
            (a[i], b[i], c[i], d[i]) =
                ((y >> 32) as u32 ^ b[i] ^ k, y as u32, (x >> 32) as u32 ^ d[i] ^ l, x as u32);
        }
        (k, l) = (k.wrapping_add(0x9e37_79b9), l.wrapping_add(0xbb67_ae85));
    }
    words
}

/// Words that the noise of a block is made of: of token `i` word `[i % 4][i / 4]`.
pub(super) type Words = [[u32; BLOCK / 4]; 4];

/// A number strictly between 0 and 1, of the upper 23 bits: `(bits / 2⁹ + ½) / 2²³`, which is exact.
#[inline(always)]
pub fn uniform(bits: u32) -> f32 {
    ((bits >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// `-ln(-ln(uniform(bits)))`: noise of the Gumbel distribution, from [`LEAST_NOISE`] to [`MOST_NOISE`].
#[inline(always)]
pub fn gumbel(bits: u32) -> f32 {
    -ln(-ln(uniform(bits)))
}

/// No noise is less.
pub const LEAST_NOISE: f32 = -3.0;
/// No noise is more.
pub const MOST_NOISE: f32 = 16.75;

/// At least `gumbel(bits)`, and less than 0.7 above it where that is large: `-ln(1 - u) ≤ n ln 2`, where `1 - u` has `n - 1`
/// leading zeros.
#[inline(always)]
pub(super) fn gumbel_bound(bits: u32) -> f32 {
    // The 9 lowest bits set end the zeros of the largest noise.
    (1 + (!bits | 511).leading_zeros()) as f32 * std::f32::consts::LN_2 + 1e-4
}

/// The natural logarithm of a normal number above 0, within 1e-7 of it: `x = 2ᵉ (1 + r)` with `-⅓ ≤ r < ⅓`, then a polynomial
/// by Horner's rule, each step one `fma`.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // 0x3f2aaaab is ⅔: what is subtracted from the exponent leaves a mantissa of ⅔ to 4/3.
    let e = (bits.wrapping_sub(0x3f2a_aaab) as i32) >> 23;
    let r = f32::from_bits(bits.wrapping_sub((e << 23) as u32)) - 1.0;
    let p = LN_SERIES.iter().rev().fold(0.0f32, |p, c| p.mul_add(r, *c));
    let inner = r.mul_add(p, -0.5);
    (e as f32).mul_add(std::f32::consts::LN_2, (r * r).mul_add(inner, r))
}

/// `p` of `ln(1 + r) = r - r²/2 + r³ p(r)`, lowest power first: interpolated at Chebyshev nodes of `±⅓`.
pub const LN_SERIES: [f32; 8] = [
    0.333_333_2,
    -0.249_999_88,
    0.200_037_8,
    -0.166_701_4,
    0.141_183_1,
    -0.123_461_9,
    0.134_257_5,
    -0.121_255_81,
];
