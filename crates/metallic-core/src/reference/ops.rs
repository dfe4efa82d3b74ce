//! The formulas, row by row, as plain as they can be written. Sums are kept in `f64`.

use crate::sample::rank;
use crate::{Binary, Rope, RopePairs, Unary};

/// `Σ a_i b_i`. Eight partial sums, so that the specification is not too slow to compare whole models with.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            sums[i] += f64::from(*a) * f64::from(*b);
        }
    }
    sums.iter().sum()
}

/// `x / sqrt(mean(x²) + eps) * w` over each of `groups` parts of a row; `w` is as long as the row, or as a part.
pub(super) fn rms_norm(x: &[f32], w: &[f32], eps: f32, groups: usize) -> Vec<f32> {
    let mut w = w.iter().cycle();
    let mut out = Vec::with_capacity(x.len());
    for part in x.chunks((x.len() / groups).max(1)) {
        let inverse = 1.0 / (dot(part, part) / part.len() as f64 + f64::from(eps)).sqrt();
        out.extend(part.iter().zip(&mut w).map(|(x, w)| (f64::from(*x) * inverse * f64::from(*w)) as f32));
    }
    out
}

/// `(x - mean) / sqrt(mean((x - mean)²) + eps) * w + b`
pub(super) fn layer_norm(x: &[f32], w: &[f32], b: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
    let bias = |i: usize| b.map_or(0.0, |b| f64::from(b[i]));
    let one = |(i, x): (usize, &f32)| ((f64::from(*x) - mean) * inverse * f64::from(w[i]) + bias(i)) as f32;
    x.iter().enumerate().map(one).collect()
}

/// `cap * tanh(x / cap)`
pub(super) fn softcap(x: f64, cap: f32) -> f64 {
    let cap = f64::from(cap);
    cap * (x / cap).tanh()
}

/// How the scores of one query with its keys are made.
pub(super) struct Scores {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) sink: Option<f32>,
}

impl Scores {
    /// `softmax(scores) · values`, each value of `d` numbers.
    pub(super) fn attend<'a>(
        &self,
        q: &[f32],
        keys: impl Iterator<Item = &'a [f32]>,
        values: impl Iterator<Item = &'a [f32]>,
        d: usize,
    ) -> Vec<f32> {
        let score = |key: &[f32]| {
            let score = dot(q, key) * f64::from(self.scale);
            self.softcap.map_or(score, |cap| softcap(score, cap))
        };
        let scores: Vec<f64> = keys.map(score).chain(self.sink.map(f64::from)).collect();
        let mut sum = vec![0f64; d];
        for (p, value) in softmax(&scores).iter().zip(values) {
            sum.iter_mut().zip(value).for_each(|(sum, v)| *sum += p * f64::from(*v));
        }
        sum.iter().map(|x| *x as f32).collect()
    }
}

/// The indices of a row, best first, by the order tokens are chosen in.
pub(super) fn ranked(row: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by_key(|index| std::cmp::Reverse(rank(*index, row[*index as usize])));
    order
}

/// `exp(x - max) / Σ exp(x - max)`; a row of nothing but `-inf` gives zeros.
pub(super) fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return vec![0.0; x.len()];
    }
    let exps: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

pub(super) fn unary(f: Unary, x: f32) -> f32 {
    let x = f64::from(x);
    let y = match f {
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Unary::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Unary::Relu => x.max(0.0),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Exp => x.exp(),
        // ln(1 + exp(x)) without overflow.
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    };
    y as f32
}

/// The error function: its power series near zero, the continued fraction of `erfc` beyond.
pub(super) fn erf(x: f64) -> f64 {
    let a = x.abs();
    let magnitude = if a < 3.0 {
        // 2/√π Σ (-1)ⁿ x^(2n+1) / (n! (2n+1))
        let mut term = a;
        let mut sum = a;
        for n in 1..80 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        // erfc(x) = exp(-x²)/√π · 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …
        let fraction = (1..60).rev().fold(a, |tail, n| a + f64::from(n) / 2.0 / tail);
        1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    magnitude.copysign(x)
}

pub(super) fn binary(f: Binary, a: f32, b: f32) -> f32 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
    }
}

/// Rotates every head of one token's row.
pub(super) fn rope(rope: &Rope, row: &mut [f32], position: u32, freqs: &[f32]) {
    let half = freqs.len();
    for head in row.chunks_mut(rope.head_dim) {
        for (i, freq) in freqs.iter().enumerate() {
            let (a, b) = match rope.pairs {
                RopePairs::Halves => (i, i + half),
                RopePairs::Interleaved => (2 * i, 2 * i + 1),
            };
            let angle = f64::from(position) * f64::from(*freq);
            let (sin, cos) = angle.sin_cos();
            let (x, y, m) = (f64::from(head[a]), f64::from(head[b]), f64::from(rope.magnitude));
            head[a] = ((x * cos - y * sin) * m) as f32;
            head[b] = ((x * sin + y * cos) * m) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_known_values_on_both_branches() {
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.5204998778130465),
            (1.0, 0.8427007929497149),
            (2.9, 0.9999589021219005),
            (3.5, 0.9999992569016276),
            (-1.0, -0.8427007929497149),
        ] {
            assert!((erf(x) - y).abs() < 1e-12, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn a_fully_masked_row_gives_zeros() {
        assert_eq!(softmax(&[f64::NEG_INFINITY; 3]), vec![0.0; 3]);
    }
}
