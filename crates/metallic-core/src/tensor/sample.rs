//! Drawing tokens so that every backend draws the same one.
//!
//! A draw is the best of `score = logit / temperature + noise`, with noise of the Gumbel distribution: the result has the
//! probabilities of the softmax, and no sum whose order could differ is involved. Everything that decides is made of
//! integer operations and of [`f32::mul_add`] (`fma`), which are exact to the last bit on every device.

use std::cmp::Ordering;

/// How a token is drawn from a row of logits. In this order, for the logit `x` of token `i` in row `r`:
///
/// 1. NaN becomes `-inf`, and what is larger than the largest number becomes that.
/// 2. Where `counts[r, i] > 0`: `x = fma(x, x > 0 ? 1 / repetition : repetition, -presence)`, then
///    `x = fma(-counts[r, i], frequency, x)`; `1 / repetition` is rounded to `f32` once.
/// 3. With `temperature` 0 the largest `x` wins.
/// 4. Only the `top_k` largest stay, unless `top_k` is 0.
/// 5. The largest `fma(x, 1 / temperature, gumbel(philox([i, r, draw, 0], seed)[0]))` wins; `1 / temperature` is rounded to
///    `f32` once. See [`philox`] and [`gumbel`].
///
/// Of equals the lowest index wins, in every comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// 0 takes the best token; else at least [`Sample::LEAST_TEMPERATURE`].
    pub temperature: f32,
    /// How many of the best tokens may be drawn; 0: all.
    pub top_k: usize,
    /// Makes tokens that came before less likely, by a factor; 1: off. More than 0.
    pub repetition: f32,
    /// Taken from the logit of every token that came before; 0: off.
    pub presence: f32,
    /// Taken from the logit of a token for each time it came before; 0: off.
    pub frequency: f32,
    /// Which sequence of random numbers.
    pub seed: u64,
    /// Which draw of that sequence: count it up from token to token.
    pub draw: u32,
}

impl Default for Sample {
    /// Plain sampling at temperature 1 with seed 0.
    fn default() -> Sample {
        Sample {
            temperature: 1.0,
            top_k: 0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            draw: 0,
        }
    }
}

impl Sample {
    /// The smallest temperature but 0.
    pub const LEAST_TEMPERATURE: f32 = 1e-6;

    /// Whether tokens that came before are treated differently, so that counts are needed.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Steps 1 and 2: the logit of a token that came `count` times before.
    pub fn penalised(&self, logit: f32, count: u32) -> f32 {
        let x = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
        if count == 0 {
            return x;
        }
        let factor = if x > 0.0 { 1.0 / self.repetition } else { self.repetition };
        (-(count as f32)).mul_add(self.frequency, x.mul_add(factor, -self.presence))
    }

    /// Step 5: the score of token `index` of row `row`, whose penalised logit is `x`.
    pub fn score(&self, x: f32, row: u32, index: u32) -> f32 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let bits = philox([index, row, self.draw, 0], key)[0];
        x.mul_add(1.0 / self.temperature, gumbel(bits))
    }

    /// All steps, of row `row` with these logits; `counts` is as long as they are, or empty.
    pub fn draw(&self, row: u32, logits: &[f32], counts: &[u32]) -> u32 {
        let count = |i: usize| counts.get(i).copied().unwrap_or(0);
        let mut candidates: Vec<(u32, f32)> =
            logits.iter().enumerate().map(|(i, x)| (i as u32, self.penalised(*x, count(i)))).collect();
        if self.temperature == 0.0 {
            return best(candidates.into_iter());
        }
        if (1..candidates.len()).contains(&self.top_k) {
            candidates.select_nth_unstable_by(self.top_k - 1, |a, b| by_rank(*a, *b));
            candidates.truncate(self.top_k);
        }
        best(candidates.into_iter().map(|(i, x)| (i, self.score(x, row, i))))
    }
}

/// Larger first, then the lower index; NaN counts as `-inf`. The order of [`super::TensorOp::Argmax`] and
/// [`super::TensorOp::TopK`].
pub fn by_rank(a: (u32, f32), b: (u32, f32)) -> Ordering {
    let number = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
    number(b.1).partial_cmp(&number(a.1)).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The index that comes first by [`by_rank`]; 0 where there is none.
fn best(candidates: impl Iterator<Item = (u32, f32)>) -> u32 {
    candidates.min_by(|a, b| by_rank(*a, *b)).map_or(0, |(index, _)| index)
}

/// Philox4x32-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*): 128 random bits as a function of a counter
/// and a key, alike on every device and in any order.
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

/// A number strictly between 0 and 1, of the upper 23 bits: `(bits / 2⁹ + ½) / 2²³`, which is exact.
pub fn uniform(bits: u32) -> f32 {
    ((bits >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// `-ln(-ln(uniform(bits)))`: noise of the Gumbel distribution, between -2.9 and 16.7.
pub fn gumbel(bits: u32) -> f32 {
    -ln(-ln(uniform(bits)))
}

/// The natural logarithm of a normal number above 0, within 1e-7 of it: `x = 2ᵉ (1 + r)` with `-⅓ ≤ r < ⅓`, then a polynomial
/// by Horner's rule, each step one `fma`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_numbers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u32::MAX;
        assert_eq!(philox([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let found = philox(counter, [0xa409_3822, 0x299f_31d0]);
        assert_eq!(found, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn the_logarithm_is_within_a_ten_millionth() {
        for i in 0..200_000 {
            let x = f32::from_bits(0x3300_0000 + i * 5_000);
            let (found, exact) = (f64::from(ln(x)), f64::from(x).ln());
            assert!((found - exact).abs() <= 1e-7 * exact.abs().max(1.0), "ln({x}) = {found}, not {exact}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn noise_is_finite_at_both_ends() {
        assert!(uniform(0) > 0.0 && uniform(u32::MAX) < 1.0);
        assert!((-2.9..-2.7).contains(&gumbel(0)), "{}", gumbel(0));
        assert!((16.6..16.7).contains(&gumbel(u32::MAX)), "{}", gumbel(u32::MAX));
    }

    #[test]
    fn draws_have_the_probabilities_of_the_softmax() {
        const DRAWS: u32 = 20_000;
        let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY, f32::NAN];
        let total: f32 = logits[..3].iter().map(|x| (x / 0.7).exp()).sum();
        let mut counts = [0u32; 5];
        for draw in 0..DRAWS {
            let sample = Sample { temperature: 0.7, seed: 9, draw, ..Sample::default() };
            counts[sample.draw(3, &logits, &[]) as usize] += 1;
        }
        assert_eq!(counts[3..], [0, 0]);
        for (x, count) in logits.iter().zip(counts).take(3) {
            let (found, expected) = (count as f32 / DRAWS as f32, (x / 0.7).exp() / total);
            assert!((found - expected).abs() < 0.012, "{found} of {expected}");
        }
    }

    #[test]
    fn penalties_lower_what_came_before_and_nothing_else() {
        let sample = Sample { repetition: 2.0, presence: 0.5, frequency: 0.25, ..Sample::default() };
        assert_eq!(sample.penalised(3.0, 0), 3.0);
        assert_eq!(sample.penalised(3.0, 2), 0.5);
        assert_eq!(sample.penalised(-3.0, 1), -6.75);
        assert_eq!(sample.penalised(f32::INFINITY, 0), f32::MAX);
    }

    #[test]
    fn of_equals_the_lowest_index_wins() {
        let greedy = Sample { temperature: 0.0, ..Sample::default() };
        assert_eq!(greedy.draw(0, &[f32::NAN, 1.0, 1.0], &[]), 1);
        assert_eq!(greedy.draw(0, &[f32::NAN, f32::NEG_INFINITY], &[]), 0);
        let one = Sample { top_k: 1, ..Sample::default() };
        assert_eq!(one.draw(0, &[0.5, 2.0, 2.0], &[]), 1);
    }
}
