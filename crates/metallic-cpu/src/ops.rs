//! The small operations: element-wise functions and rotations.

use metallic_core::{Binary, Rope, RopePairs, Unary};

use crate::simd::{Isa, Team, add, silu_in_place};

/// Elements of a task of element-wise work.
const PART: usize = 8192;

pub(crate) fn unary(isa: Isa, team: &Team, f: Unary, x: &[f32], out: &mut [f32]) {
    team.for_chunks(out, PART, |i, out| {
        out.copy_from_slice(&x[i * PART..][..out.len()]);
        apply(isa, f, out);
    });
}

/// `x = f(x)`
pub(crate) fn apply(isa: Isa, f: Unary, x: &mut [f32]) {
    let each = |x: &mut [f32], f: fn(f32) -> f32| x.iter_mut().for_each(|x| *x = f(*x));
    match f {
        Unary::Silu => silu_in_place(isa, x),
        Unary::Gelu => each(x, |x| 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))),
        Unary::GeluTanh => each(x, |x| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044715 * x * x * x)).tanh())),
        Unary::Relu => each(x, |x| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
        Unary::Sigmoid => each(x, |x| 1.0 / (1.0 + (-x).exp())),
    }
}

/// The error function, to about 1e-7: the series near zero, a continued fraction beyond.
fn erf(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let magnitude = if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..40 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..30).rev().fold(a, |tail, n| a + f64::from(n) / 2.0 / tail);
        1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    (magnitude as f32).copysign(x)
}

/// `out = f(a, b)`, where `b` is as long as `a` or one row that serves every row of it.
pub(crate) fn binary(isa: Isa, f: Binary, a: &[f32], b: &[f32], out: &mut [f32]) {
    out.copy_from_slice(a);
    if b.is_empty() {
        return;
    }
    for out in out.chunks_mut(b.len()) {
        match f {
            Binary::Add => add(isa, &b[..out.len()], out),
            Binary::Sub => out.iter_mut().zip(b).for_each(|(out, b)| *out -= b),
            Binary::Div => out.iter_mut().zip(b).for_each(|(out, b)| *out /= b),
            Binary::Mul => out.iter_mut().zip(b).for_each(|(out, b)| *out *= b),
        }
    }
}

/// Sines and cosines of a step: `[tokens, pairs]` of `(cos, sin)`, for one table of frequencies.
#[derive(Default)]
pub(crate) struct Angles {
    turns: Vec<(f32, f32)>,
}

impl Angles {
    /// Computes the angles of these positions.
    pub(crate) fn set(&mut self, positions: &[u32], freqs: &[f32], magnitude: f32) {
        self.turns.clear();
        for position in positions {
            self.turns.extend(freqs.iter().map(|freq| {
                let (sin, cos) = (f64::from(*position) * f64::from(*freq)).sin_cos();
                (cos as f32 * magnitude, sin as f32 * magnitude)
            }));
        }
    }

    /// Rotates every head of one token's row.
    pub(crate) fn rotate(&self, rope: &Rope, pairs: usize, token: usize, row: &mut [f32]) {
        let turns = &self.turns[token * pairs..][..pairs];
        for head in row.chunks_exact_mut(rope.head_dim) {
            match rope.pairs {
                RopePairs::Halves => {
                    let (a, b) = head[..2 * pairs].split_at_mut(pairs);
                    for ((x, y), (cos, sin)) in a.iter_mut().zip(b).zip(turns) {
                        (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
                    }
                }
                RopePairs::Interleaved => {
                    for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(turns) {
                        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_accurate_on_both_branches() {
        for (x, y) in [(0.5, 0.520_499_9), (2.4, 0.999_311_5), (2.6, 0.999_764), (-1.0, -0.842_700_8)] {
            assert!((erf(x) - y).abs() < 2e-7, "erf({x}) = {}", erf(x));
        }
    }
}
