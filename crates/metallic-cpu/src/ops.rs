//! The small operations: rows picked, functions of elements, norms, rotations, and the best of a row.

use std::sync::{Mutex, PoisonError};

use metallic_core::quant::dequantize;
use metallic_core::{BackendError, Binary, Rope, RopePairs, Unary, sample};

use crate::exec::{Args, Value};
use crate::simd::{Gate, add, exp_in_place, gated as gated_by, rms_norm as norm_of, scale, silu_in_place};
use crate::{Processor, failed, simd};

/// Elements of a task of element-wise work.
pub(crate) const PART: usize = 8192;
/// With more than so many of a row wanted, all of it is sorted.
const FEW_BEST: usize = 64;

/// `(table, ids)`; zeros for a row that is not there. Returns the bytes read.
pub(crate) fn embed(args: &Args<'_>, out: &mut [f32]) -> Result<u64, BackendError> {
    let cols = args.cols(0);
    let rows = args.words(1).iter().map(|id| *id as usize).zip(out.chunks_exact_mut(cols));
    let mut read = 0;
    match args.value(0) {
        Value::Encoded(dtype, table) => {
            let row_bytes = dtype.bytes_for(cols).unwrap_or(0).max(1);
            for (id, out) in rows {
                match table.chunks_exact(row_bytes).nth(id) {
                    Some(row) => dequantize(dtype, row, out).map_err(failed)?,
                    None => out.fill(0.0),
                }
                read += row_bytes as u64;
            }
        }
        // The head is this table too.
        Value::Matrices([table]) => {
            for (id, out) in rows {
                if id < table.rows() {
                    table.row(id, out);
                } else {
                    out.fill(0.0);
                }
                read += table.row_bytes() as u64;
            }
        }
        Value::Matrices(_) | Value::Floats(_) | Value::Words(_) => return Err(failed("no table")),
    }
    Ok(read)
}

/// Rows of `x`, zeros for a row that is not there.
pub(crate) fn select_rows(x: &[f32], rows: &[u32], out: &mut [f32]) {
    let cols = out.len().checked_div(rows.len()).unwrap_or(0).max(1);
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(cols)) {
        match x.chunks_exact(cols).nth(*row as usize) {
            Some(x) => out.copy_from_slice(x),
            None => out.fill(0.0),
        }
    }
}

/// `(x [.., d], ids [.., k])`; NaN for an element that is not there.
pub(crate) fn gather(args: &Args<'_>, out: &mut [f32]) {
    let k = args.cols(1);
    let rows = args.rows(0).zip(args.words(1).chunks(k));
    for ((x, ids), out) in rows.zip(out.chunks_mut(k)) {
        let pick = |id: &u32| x.get(*id as usize).copied().unwrap_or(f32::NAN);
        out.iter_mut().zip(ids).for_each(|(out, id)| *out = pick(id));
    }
}

/// `out = f(x)`, where `f` works in place on some of the elements.
pub(crate) fn map(p: Processor<'_>, x: &[f32], out: &mut [f32], f: impl Fn(&mut [f32]) + Sync) {
    p.team.for_chunks(out, PART, |i, out| {
        out.copy_from_slice(&x[i * PART..][..out.len()]);
        f(out);
    });
}

/// `out = f(a, b)`, where `b` is as long as `a` or one row that serves every row of it, and `f` leaves its result in place
/// of `a`.
fn zip(p: Processor<'_>, [a, b]: [&[f32]; 2], out: &mut [f32], f: impl Fn(&mut [f32], &[f32]) + Sync) {
    let whole = a.len() == b.len();
    let part = if whole { PART } else { (PART / b.len().max(1)).max(1) * b.len().max(1) };
    p.team.for_chunks(out, part, |i, out| {
        out.copy_from_slice(&a[i * part..][..out.len()]);
        if whole {
            f(out, &b[i * part..][..out.len()]);
        } else {
            out.chunks_mut(b.len().max(1)).for_each(|row| f(row, b));
        }
    });
}

pub(crate) fn binary(p: Processor<'_>, f: Binary, operands: [&[f32]; 2], out: &mut [f32]) {
    zip(p, operands, out, |a, b| match f {
        Binary::Add => add(p.isa, b, a),
        Binary::Sub => a.iter_mut().zip(b).for_each(|(a, b)| *a -= b),
        Binary::Mul => a.iter_mut().zip(b).for_each(|(a, b)| *a *= b),
        Binary::Div => a.iter_mut().zip(b).for_each(|(a, b)| *a /= b),
        Binary::Min => a.iter_mut().zip(b).for_each(|(a, b)| *a = a.min(*b)),
        Binary::Max => a.iter_mut().zip(b).for_each(|(a, b)| *a = a.max(*b)),
    });
}

/// `act(gate) * up`
pub(crate) fn gated(p: Processor<'_>, act: Unary, operands: [&[f32]; 2], out: &mut [f32]) {
    let [gate, up] = operands;
    match gate_of(act) {
        Some(act) => zip(p, [up, gate], out, |up, gate| gated_by(p.isa, act, gate, up)),
        None => zip(p, [gate, up], out, |gate, up| {
            apply(p, act, gate);
            gate.iter_mut().zip(up).for_each(|(gate, up)| *gate *= up);
        }),
    }
}

/// The gate that kernels have for an activation.
pub(crate) fn gate_of(act: Unary) -> Option<Gate> {
    match act {
        Unary::Silu => Some(Gate::Silu),
        Unary::GeluTanh => Some(Gate::GeluTanh),
        Unary::Gelu | Unary::Relu | Unary::Sigmoid | Unary::Exp | Unary::Softplus => None,
    }
}

/// `x = f(x)`
pub(crate) fn apply(p: Processor<'_>, f: Unary, x: &mut [f32]) {
    let each = |x: &mut [f32], f: fn(f32) -> f32| x.iter_mut().for_each(|x| *x = f(*x));
    match f {
        Unary::Silu => silu_in_place(p.isa, x),
        Unary::Gelu => each(x, |x| 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))),
        Unary::GeluTanh => each(x, |x| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044715 * x * x * x)).tanh())),
        Unary::Relu => each(x, |x| if x > 0.0 || x.is_nan() { x } else { 0.0 }),
        Unary::Sigmoid => each(x, |x| 1.0 / (1.0 + (-x).exp())),
        Unary::Exp => exp_in_place(p.isa, x),
        // ln(1 + exp(x)) without overflow.
        Unary::Softplus => each(x, |x| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }),
    }
}

/// `x = f(x, value)`, or `f(value, x)` where it is reversed.
pub(crate) fn scalar(p: Processor<'_>, f: Binary, value: f32, reversed: bool, x: &mut [f32]) {
    match (f, reversed) {
        (Binary::Add, _) => x.iter_mut().for_each(|x| *x += value),
        (Binary::Mul, _) => scale(p.isa, value, x),
        (Binary::Sub, false) => x.iter_mut().for_each(|x| *x -= value),
        (Binary::Sub, true) => x.iter_mut().for_each(|x| *x = value - *x),
        (Binary::Div, false) => x.iter_mut().for_each(|x| *x /= value),
        (Binary::Div, true) => x.iter_mut().for_each(|x| *x = value / *x),
        (Binary::Min, _) => x.iter_mut().for_each(|x| *x = x.min(value)),
        (Binary::Max, _) => x.iter_mut().for_each(|x| *x = x.max(value)),
    }
}

/// How rows are normalised by [`metallic_core::Op::RmsNorm`].
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    /// As long as a row, or as a part of it.
    pub(crate) w: &'a [f32],
    pub(crate) eps: f32,
    /// Elements of a part.
    pub(crate) part: usize,
}

impl Norm<'_> {
    /// One row.
    pub(crate) fn row(&self, p: Processor<'_>, x: &[f32], out: &mut [f32]) {
        let mut weights = self.w.chunks(self.part.max(1)).cycle();
        for (x, out) in x.chunks(self.part.max(1)).zip(out.chunks_mut(self.part.max(1))) {
            norm_of(p.isa, x, weights.next().unwrap_or(&[]), self.eps, out);
        }
    }

    /// Rows of `cols`.
    pub(crate) fn rows(&self, p: Processor<'_>, cols: usize, x: &[f32], out: &mut [f32]) {
        let cols = cols.max(1);
        p.team.for_chunks(out, cols, |row, out| self.row(p, &x[row * cols..][..cols], out));
    }
}

/// `(x, w, b?)`
pub(crate) fn layer_norm(p: Processor<'_>, args: &Args<'_>, eps: f32, out: &mut [f32]) {
    let (x, w, b, cols) = (args.floats(0), args.floats(1), args.floats(2), args.cols(0));
    p.team.for_chunks(out, cols, |row, out| {
        let x = &x[row * cols..][..cols];
        // In f64: the variance of numbers far from zero is a small difference of large ones.
        let n = x.len() as f64;
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
        for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
            *out = ((f64::from(*x) - mean) * inverse) as f32 * w;
        }
        out.iter_mut().zip(b).for_each(|(out, b)| *out += b);
    });
}

/// `Σ_c weights[c] * part_c`: `(x [tokens, c * n], weights [tokens, c])`
pub(crate) fn combine(p: Processor<'_>, args: &Args<'_>, out: &mut [f32]) {
    let (x, weights, choices) = (args.floats(0), args.floats(1), args.cols(1));
    let n = args.out.shape.cols().max(1);
    p.team.for_chunks(out, n, |row, out| {
        out.fill(0.0);
        let parts = x[row * choices * n..][..choices * n].chunks_exact(n);
        for (part, weight) in parts.zip(&weights[row * choices..][..choices]) {
            simd::axpy(p.isa, *weight, part, out);
        }
    });
}

/// The indices of the `k` largest numbers of each row of `cols`, largest first.
pub(crate) fn top_k(p: Processor<'_>, x: &[f32], cols: usize, out: &mut [u32]) {
    let rows = x.len() / cols.max(1);
    let k = out.len().checked_div(rows).unwrap_or(0).max(1);
    p.team.for_chunks(out, k, |row, out| {
        let row = &x[row * cols..][..cols];
        if k <= FEW_BEST { few_best(row, out) } else { many_best(row, out) }
    });
}

/// NaN counts as `-inf`.
fn number(x: f32) -> f32 {
    if x.is_nan() { f32::NEG_INFINITY } else { x }
}

fn few_best(row: &[f32], out: &mut [u32]) {
    let (mut len, mut least) = (0, f32::NEG_INFINITY);
    for (index, x) in (0..).zip(row) {
        let better = *x > least;
        if len == out.len() && !better {
            continue;
        }
        let at = out[..len].partition_point(|i| number(row[*i as usize]) >= number(*x));
        len = out.len().min(len + 1);
        out.copy_within(at..len - 1, at + 1);
        out[at] = index;
        least = number(row[out[len - 1] as usize]);
    }
}

fn many_best(row: &[f32], out: &mut [u32]) {
    let of = |index: &u32| number(row[*index as usize]);
    let by_rank = |a: &u32, b: &u32| of(b).partial_cmp(&of(a)).unwrap_or(a.cmp(b)).then(a.cmp(b));
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    if out.len() < order.len() {
        order.select_nth_unstable_by(out.len() - 1, by_rank);
        order.truncate(out.len());
    }
    order.sort_unstable_by(by_rank);
    out.copy_from_slice(&order);
}

/// A token from each row of logits; [`sample::NO_CANDIDATE`] from a row without a number. `scratches` has one for each thread in
/// the end.
pub(crate) fn choose(p: Processor<'_>, args: &Args<'_>, scratches: &Scratches, out: &mut [u32]) {
    let (x, choices, cols) = (args.floats(0), args.words(1), args.cols(0));
    let lock = || scratches.lock().unwrap_or_else(PoisonError::into_inner);
    p.team.for_chunks(out, 1, |row, out| {
        let mut scratch = lock().pop().unwrap_or_default();
        let chosen = simd::choose(p.isa, choices, row, &x[row * cols..][..cols], &mut scratch);
        lock().push(scratch);
        out[0] = chosen.ok().flatten().unwrap_or(sample::NO_CANDIDATE);
    });
}

/// Memory that choosing works in, kept between steps.
pub(crate) type Scratches = Mutex<Vec<sample::Scratch>>;

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

    /// One token's row with every head rotated.
    pub(crate) fn rotated(
        &self,
        p: Processor<'_>,
        rope: &Rope,
        (pairs, token): (usize, usize),
        x: &[f32],
        out: &mut [f32],
    ) {
        if rope.pairs != RopePairs::Halves {
            out.copy_from_slice(x);
            return self.rotate(rope, pairs, token, out);
        }
        let turns = &self.turns[token * pairs..][..pairs];
        for (x, out) in x.chunks_exact(rope.head_dim).zip(out.chunks_exact_mut(rope.head_dim)) {
            let ((a, rest), (a_out, rest_out)) = (x.split_at(pairs), out.split_at_mut(pairs));
            let ((b, rest), (b_out, rest_out)) = (rest.split_at(pairs), rest_out.split_at_mut(pairs));
            simd::rotate(p.isa, turns, (a, b), (a_out, b_out));
            rest_out.copy_from_slice(rest);
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
