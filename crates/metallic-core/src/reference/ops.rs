//! The formulas, row by row, as plain as they can be written. Sums are kept in `f64`.

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

/// `x / sqrt(mean(x²) + eps) * w`
pub(super) fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let mean = dot(x, x) / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(w).map(|(x, w)| (f64::from(*x) * inverse * f64::from(*w)) as f32).collect()
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
