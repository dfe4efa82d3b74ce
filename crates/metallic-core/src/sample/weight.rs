//! Probabilities as integers, so that their sums are the same in any order.

/// A factor of 2 in probability, as [`depth`] counts.
pub const OCTAVE: u32 = 1 << 23;

/// The [`depth`] from which on nothing is told apart and nothing weighs anything: the last `f32` below 32 octaves.
pub const WEIGHTLESS: u32 = 32 * OCTAVE - 16;

/// How far below the best a logit is, `d ≤ 0` being its distance: `floor(-d · log₂ e · 2²³)`, at most [`WEIGHTLESS`]. The
/// factor is rounded to `f32`, and so is the product. NaN counts as `-inf`, and what is above 0 as 0.
#[inline(always)]
pub fn depth(d: f32) -> u32 {
    let depth = (d * -12_102_203.0).min(WEIGHTLESS as f32).max(0.0);
    // A conversion that bounds its result becomes no vector code. Less than ½ is taken off, by less than any fraction of an
    // `f32` falls short of 1; the sum with 1.5 · 2⁵² rounds to a whole number and leaves it in the lowest bits.
    ((f64::from(depth) - (0.5 - 1.0 / 33_554_432.0)) + 6_755_399_441_055_744.0).to_bits() as u32
}

/// `2³¹ e^d`, rounded, for `d ≤ 0`: exactly `2³¹` at 0, never more for less, within `2⁻²⁴` of itself and 1 of the formula.
#[inline(always)]
pub fn weight(d: f32) -> u32 {
    weight_at(depth(d))
}

/// The weight at a [`depth`]: a polynomial in the fraction of an octave by Horner's rule on integers, of which the upper
/// halves of products stay, then a shift by whole octaves.
#[inline(always)]
pub(super) fn weight_at(depth: u32) -> u32 {
    let fraction = u64::from(depth << 9);
    let [most, rest @ ..] = EXP_SERIES;
    let p = rest.iter().fold(most, |p, c| c - ((u64::from(p) * fraction) >> 32) as u32);
    p >> (depth / OCTAVE)
}

/// `p` of `2^-f = p₀ - f (p₁ - f (p₂ - ..))` times `2³¹`, highest power first: interpolated so that octaves meet.
pub const EXP_SERIES: [u32; 7] =
    [245_557, 2_770_966, 20_607_270, 119_182_990, 515_881_527, 1_488_522_222, 2_147_483_648];

/// `ceil(total · share / 2³²)`: what a share of the weight is. At least 1 where neither is 0.
#[inline(always)]
pub fn part(total: u64, share: u32) -> u64 {
    let (high, low, share) = (total >> 32, total & 0xffff_ffff, u64::from(share));
    high * share + (low * share).div_ceil(1 << 32)
}
