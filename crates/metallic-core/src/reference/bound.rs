//! How far a device may be off the formulas: what rounding explains of an operation's result, element by element.
//!
//! The bound of a result has two parts: what the operation's own arithmetic in 32 bits may do to it, and what the bounds of its inputs
//! become on their way through. Sums of `n` products are allowed `16 + 2√n` roundings of `‖x‖·‖w‖`: sums in any order stay far inside,
//! and a factor that is wrong by a hundredth is far outside. Where products round their inputs to 8 or 16 bits, which they do by design,
//! such errors are independent, and a result is allowed eight times their standard deviation.

use std::ops::Range;

use super::Operand;
use crate::op::source_ops;
use crate::{Attention, Binary, DType, KvRows, Op, Rope, Sizes, Tapped, TensorType, Unary};

/// Half a unit in the last place of an `F32`.
const U: f32 = f32::EPSILON / 2.0;
/// Elements of a row that share a scale where activations become bytes.
const GROUP: usize = 32;
/// Standard deviations of independent errors that count as explained.
const SIGMAS: f32 = 8.0;

/// What products round activations to before they multiply, where that is by design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductInputs {
    /// Nothing: 32 bits.
    #[default]
    Exact,
    /// 16 bits, and the weights as well.
    Halves,
    /// 8 bits with a scale for up to 32 neighbours, where the matrix is quantised.
    Bytes,
}

/// An operation with what it was computed from.
pub(super) struct Computed<'a> {
    pub(super) op: Op,
    pub(super) out: TensorType,
    pub(super) sizes: Sizes,
    pub(super) operands: &'a [Operand<'a>],
    /// By operand; empty where it is exact.
    pub(super) bounds: Vec<&'a [f32]>,
    pub(super) value: &'a Tapped,
}

/// Half a unit in the last place relative to a number of this type.
pub(super) fn unit(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f32::EPSILON * 4096.0,
        DType::BF16 => f32::EPSILON * 32768.0,
        _ => U,
    }
}

impl Computed<'_> {
    fn x(&self, index: usize) -> &[f32] {
        self.operands[index].floats()
    }

    /// The bound of an element of an input, whose rows may serve all.
    fn b(&self, index: usize, at: usize) -> f32 {
        let bounds = self.bounds[index];
        if bounds.is_empty() { 0.0 } else { bounds[at % bounds.len()] }
    }

    fn cols(&self, index: usize) -> usize {
        self.operands[index].ty.shape.cols().max(1)
    }

    fn each(&self, bound: impl Fn(usize, f32) -> f32) -> Vec<f32> {
        self.value.floats().iter().enumerate().map(|(at, y)| bound(at, *y)).collect()
    }

    /// The bound of each element of the result; empty for indices and receipts, which are exact.
    pub(super) fn bound(&self, products: ProductInputs) -> Vec<f32> {
        let mut bounds = self.before_storing(products);
        // Both sides round: they may come to stand a whole step apart.
        let stored = 2.0 * unit(self.out.dtype);
        // Below its normal numbers a half has a fixed step.
        let tiny = if self.out.dtype == DType::F16 { 6e-8 } else { f32::MIN_POSITIVE };
        for (bound, y) in bounds.iter_mut().zip(self.value.floats()) {
            *bound += stored * y.abs() + tiny;
        }
        bounds
    }

    fn before_storing(&self, products: ProductInputs) -> Vec<f32> {
        match self.op {
            Op::Argmax | Op::TopK { .. } | Op::Sample | Op::KvWrite { .. } | source_ops!() => Vec::new(),
            Op::Embed(_) => self.by_rows(|_, row| {
                let top = largest(row);
                row.iter().map(|_| 8.0 * U * top).collect()
            }),
            Op::SelectRows => {
                let cols = self.cols(0);
                let rows = self.operands[1].words();
                self.each(|at, _| self.b(0, rows[at / cols] as usize * cols + at % cols))
            }
            Op::Slice { start, len } => {
                let cols = self.cols(0);
                self.each(|at, _| self.b(0, at / len.max(1) * cols + start + at % len.max(1)))
            }
            Op::Gather => {
                let (cols, picked) = (self.cols(0), self.cols(1));
                let ids = self.operands[1].words();
                self.each(|at, _| self.b(0, at / picked * cols + ids[at] as usize))
            }
            Op::Cast(_) => self.each(|at, _| self.b(0, at)),
            Op::Unary(f) => self.each(|at, y| unary(f, self.x(0)[at], self.b(0, at), y)),
            Op::Binary(f) => {
                let b = self.x(1);
                let right = |at: usize| b[at % b.len().max(1)];
                self.each(|at, y| {
                    binary(f, (self.x(0)[at], self.b(0, at)), (right(at), self.b(1, at % b.len().max(1))), y)
                })
            }
            Op::Scalar { op, value, reversed } => self.each(|at, y| {
                let (x, scalar) = ((self.x(0)[at], self.b(0, at)), (value, 0.0));
                if reversed { binary(op, scalar, x, y) } else { binary(op, x, scalar, y) }
            }),
            Op::Softcap(_) => {
                self.each(|at, y| self.b(0, at) + 64.0 * U * y.abs() + 8.0 * U * self.x(0)[at].abs())
            }
            Op::Gated(act) => self.each(|at, y| {
                let (gate, up) = (self.x(0)[at], self.x(1)[at]);
                let acted = if up == 0.0 { 0.0 } else { y / up };
                unary(act, gate, self.b(0, at), acted) * (up.abs() + self.b(1, at))
                    + acted.abs() * self.b(1, at)
                    + 4.0 * U * y.abs()
            }),
            Op::RmsNorm { eps, groups } => self.rms_norm(eps, groups),
            Op::LayerNorm { eps } => self.layer_norm(eps),
            Op::Softmax => self.by_rows(|row, y| {
                let x = &self.x(0)[row.clone()];
                let off = row.clone().map(|at| self.b(0, at)).fold(0.0, f32::max);
                let relative = 2.0 * off + (64.0 + 4.0 * largest(x)) * U + sum_units(y.len()) * U;
                y.iter().map(|y| relative * y.abs()).collect()
            }),
            Op::Linear => self.linear(products),
            Op::ExpertLinear => self.expert_linear(products),
            Op::Combine => self.combine(),
            Op::Rope(rope) => self.rope(&rope),
            // Sums over what was kept, whose parts are not looked at one by one.
            Op::Attention(_)
            | Op::Sdpa(_)
            | Op::ShortConv { .. }
            | Op::Recurrence(_)
            | Op::Project(_)
            | Op::GatedProject { .. }
            | Op::Qkv(_) => {
                let top = largest(self.value.floats());
                let off = self.bounds.iter().flat_map(|bounds| bounds.iter()).copied().fold(0.0, f32::max);
                self.each(|_, _| 4096.0 * U * top + 64.0 * off)
            }
        }
    }

    /// Row by row of the result: the places of a row, and its numbers.
    fn by_rows(&self, bound: impl Fn(Range<usize>, &[f32]) -> Vec<f32>) -> Vec<f32> {
        let cols = self.out.shape.cols().max(1);
        let rows = self.value.floats().chunks(cols).enumerate();
        rows.flat_map(|(row, y)| bound(row * cols..row * cols + y.len(), y)).collect()
    }

    /// Bounds of some elements of an input.
    fn bounds_of(&self, index: usize, range: Range<usize>) -> Vec<f32> {
        range.map(|at| self.b(index, at)).collect()
    }

    fn rms_norm(&self, eps: f32, groups: usize) -> Vec<f32> {
        let (w, len) = (self.x(1), (self.cols(0) / groups.max(1)).max(1));
        let parts = self.x(0).chunks(len).zip(self.value.floats().chunks(len)).enumerate();
        let part = |(part, (x, y)): (usize, (&[f32], &[f32]))| {
            let bounds = self.bounds_of(0, part * len..part * len + x.len());
            let length = norm(x);
            let inverse = 1.0 / (length * length / len as f32 + eps).sqrt();
            let relative = norm(&bounds) / length.max(f32::MIN_POSITIVE) + sum_units(len) * U;
            let one = |(i, (y, b)): (usize, (&f32, &f32))| {
                let w = w[(part * len + i) % w.len().max(1)];
                (inverse * w * b).abs() + y.abs() * (relative + 8.0 * U)
            };
            y.iter().zip(&bounds).enumerate().map(one).collect::<Vec<_>>()
        };
        parts.flat_map(part).collect()
    }

    fn layer_norm(&self, eps: f32) -> Vec<f32> {
        let w = self.x(1);
        self.by_rows(|row, y| {
            let x = &self.x(0)[row.clone()];
            let bounds = self.bounds_of(0, row);
            let n = x.len().max(1) as f32;
            let mean = x.iter().sum::<f32>() / n;
            let spread = x.iter().map(|x| (x - mean).powi(2)).sum::<f32>().sqrt();
            let inverse = 1.0 / (spread * spread / n + eps).sqrt();
            // The mean is a sum of numbers that may be far larger than their spread.
            let shift = bounds.iter().sum::<f32>() / n + sum_units(x.len()) * U * (norm(x) / n.sqrt());
            let relative = norm(&bounds) / spread.max(f32::MIN_POSITIVE) + sum_units(x.len()) * U;
            let one = |(i, (x, b)): (usize, (&f32, &f32))| {
                let scaled = (inverse * w[i % w.len().max(1)]).abs();
                scaled * (b + shift + 4.0 * U * x.abs() + (x - mean).abs() * relative) + 8.0 * U * y[i].abs()
            };
            x.iter().zip(&bounds).enumerate().map(one).collect()
        })
    }

    fn linear(&self, products: ProductInputs) -> Vec<f32> {
        let (ty, w) = (self.operands[1].ty, self.x(1));
        let k = self.cols(1);
        let rank = ty.shape.dims().len();
        let n = ty.shape.dims().get(rank.wrapping_sub(2)).map_or(1, |dim| self.sizes.of(*dim)).max(1);
        let lengths: Vec<f32> = w.chunks(k).map(norm).collect();
        let outer = (lengths.len() / n).max(1);
        let rows = self.x(0).chunks(k).enumerate();
        let per_matrix = (self.x(0).len() / k / outer).max(1);
        let row = |(row, x): (usize, &[f32])| {
            let bounds = self.bounds_of(0, row * k..row * k + x.len());
            let allowed = Allowance::new(x, &bounds, self.rounded(products, 1));
            let first = row / per_matrix * n;
            lengths[first..first + n].iter().map(move |length| allowed.of(*length)).collect::<Vec<_>>()
        };
        rows.flat_map(row).collect()
    }

    fn expert_linear(&self, products: ProductInputs) -> Vec<f32> {
        let (k, ids) = (self.cols(1), self.operands[2].words());
        let n = self.operands[1].ty.shape.dims().get(1).map_or(1, |dim| self.sizes.of(*dim)).max(1);
        let lengths: Vec<f32> = self.x(1).chunks(k).map(norm).collect();
        let (choices, x_cols) = (self.cols(2), self.cols(0));
        let chosen = |(at, id): (usize, &u32)| {
            let (row, choice) = (at / choices, at % choices);
            let start = row * x_cols + if x_cols == k { 0 } else { choice * k };
            let bounds = self.bounds_of(0, start..start + k);
            let allowed = Allowance::new(&self.x(0)[start..start + k], &bounds, self.rounded(products, 1));
            let first = *id as usize * n;
            let lengths = lengths.get(first..first + n).unwrap_or(&[]);
            lengths.iter().map(|length| allowed.of(*length)).collect::<Vec<_>>()
        };
        ids.iter().enumerate().flat_map(chosen).collect()
    }

    /// What becomes of the activations that meet the matrix at `index`.
    fn rounded(&self, products: ProductInputs, index: usize) -> ProductInputs {
        let plain = !self.operands[index].ty.dtype.is_quantized();
        if products == ProductInputs::Bytes && plain { ProductInputs::Exact } else { products }
    }

    fn combine(&self) -> Vec<f32> {
        let (n, choices) = (self.out.shape.cols().max(1), self.cols(1));
        self.each(|at, _| {
            let (row, i) = (at / n, at % n);
            let part = |c: usize| {
                let (x, w) = ((row * choices + c) * n + i, row * choices + c);
                let (x, bx, w, bw) = (self.x(0)[x].abs(), self.b(0, x), self.x(1)[w].abs(), self.b(1, w));
                w * bx + x * bw + sum_units(choices) * U * x * w
            };
            (0..choices).map(part).sum()
        })
    }

    fn rope(&self, rope: &Rope) -> Vec<f32> {
        let (cols, dim) = (self.cols(0), rope.head_dim.max(1));
        let positions = self.operands[1].words();
        let heads = self.x(0).chunks(dim).enumerate();
        let head = |(head, x): (usize, &[f32])| {
            let position = positions.get(head * dim / cols).copied().unwrap_or(0) as f32;
            let off = self.bounds_of(0, head * dim..head * dim + x.len()).into_iter().fold(0.0, f32::max);
            // An angle is a product of the position in 32 bits: its rounding turns the pair.
            let turned = (16.0 + 2.0 * position) * U * largest(x);
            vec![2.0 * (off + turned) * rope.magnitude.abs().max(1.0); x.len()]
        };
        heads.flat_map(head).collect()
    }
}

/// What a product may be off, by the length of the row of its matrix.
struct Allowance {
    per_length: f32,
}

impl Allowance {
    fn new(x: &[f32], bounds: &[f32], products: ProductInputs) -> Allowance {
        let length = norm(x);
        let accumulated = norm(bounds) + sum_units(x.len()) * U * length;
        let spread = |deviation: f32| SIGMAS * deviation / (x.len().max(1) as f32).sqrt();
        // Activations and weights round apart.
        let halves = unit(DType::F16) * length * std::f32::consts::SQRT_2;
        let rounded = match products {
            ProductInputs::Exact => 0.0,
            ProductInputs::Halves => spread(halves / 3f32.sqrt()).min(2.0 * halves),
            ProductInputs::Bytes => {
                let step = |group: &[f32]| group.len() as f32 * (largest(group) / 127.0).powi(2);
                let steps = x.chunks(GROUP).map(step).sum::<f32>().sqrt();
                spread(steps / 12f32.sqrt()).min(steps / 2.0)
            }
        };
        Allowance { per_length: accumulated + rounded }
    }

    fn of(&self, length: f32) -> f32 {
        self.per_length * length
    }
}

/// What attention may be off, by its queries and the keys and values it sees: `rows` are those of one sequence, from its first position.
pub(super) fn attention(a: &Attention, queries: &Seen<'_>, rows: &KvRows, halves: bool) -> Vec<f32> {
    let (k_cols, v_cols) = (a.kv_heads * a.head_dim, a.kv_heads * a.value_dim);
    let lengths: Vec<f32> = rows.keys.chunks(a.head_dim.max(1)).map(norm).collect();
    let tops: Vec<f32> = rows.values.chunks(a.value_dim.max(1)).map(largest).collect();
    debug_assert!(k_cols > 0 && v_cols > 0);
    let mut bounds = Vec::new();
    for i in 0..queries.tokens {
        let last = queries.past + i;
        let first = a.window.map_or(0, |w| (last + 1).saturating_sub(w));
        for head in 0..a.heads {
            let shared = head / (a.heads / a.kv_heads.max(1)).max(1);
            let most = |of: &[f32]| (first..=last).map(|j| of[j * a.kv_heads + shared]).fold(0f32, f32::max);
            let at = (i * a.heads + head) * a.head_dim;
            let q = norm(&queries.q[at..at + a.head_dim]);
            let off =
                if queries.bounds.is_empty() { 0.0 } else { norm(&queries.bounds[at..at + a.head_dim]) };
            let rounding = if halves { unit(DType::F16) } else { 0.0 };
            let score = a.scale.abs() * most(&lengths) * (off + q * (sum_units(a.head_dim) * U + rounding));
            let relative = 2.0 * score + (64.0 + sum_units(last + 1 - first)) * U + 2.0 * rounding;
            bounds.extend(std::iter::repeat_n(relative * most(&tops), a.value_dim));
        }
    }
    bounds
}

/// Queries of one sequence.
pub(super) struct Seen<'a> {
    pub(super) q: &'a [f32],
    /// Empty where they are exact.
    pub(super) bounds: &'a [f32],
    pub(super) tokens: usize,
    pub(super) past: usize,
}

/// What storing as `dtype` may change where numbers differ by next to nothing before: a whole step, row by row of `x`.
pub(super) fn stored(dtype: DType, x: &[f32]) -> Vec<f32> {
    if dtype != DType::Q8_0 {
        return x
            .iter()
            .map(|x| 2.0 * unit(dtype) * x.abs() + if dtype == DType::F16 { 6e-8 } else { 0.0 })
            .collect();
    }
    let step = |group: &[f32]| vec![largest(group) / 127.0 * 1.01; group.len()];
    x.chunks(GROUP).flat_map(step).collect()
}

/// Roundings that a sum of so many products may have seen.
fn sum_units(n: usize) -> f32 {
    16.0 + 2.0 * (n as f32).sqrt()
}

fn norm(x: &[f32]) -> f32 {
    let mut sums = [0f64; 8];
    for part in x.chunks(8) {
        part.iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(*x) * f64::from(*x));
    }
    sums.iter().sum::<f64>().sqrt() as f32
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |top, x| x.abs().max(top))
}

fn unary(f: Unary, x: f32, off: f32, y: f32) -> f32 {
    let own = match f {
        Unary::Relu => 0.0,
        // An exponential rounds its argument before it.
        Unary::Exp => (64.0 + 4.0 * x.abs()) * U * y.abs(),
        Unary::Silu | Unary::Gelu | Unary::GeluTanh | Unary::Sigmoid | Unary::Softplus => {
            64.0 * U * y.abs()
                + 16.0 * U * x.abs().min(64.0)
                + if f == Unary::Softplus { 16.0 * U } else { 0.0 }
        }
    };
    let slope = match f {
        Unary::Exp => 1.1 * y.abs(),
        Unary::Relu | Unary::Sigmoid | Unary::Softplus => 1.0,
        Unary::Silu | Unary::Gelu | Unary::GeluTanh => 1.2,
    };
    own + slope * off
}

fn binary(f: Binary, (a, off_a): (f32, f32), (b, off_b): (f32, f32), y: f32) -> f32 {
    let inherited = match f {
        Binary::Add | Binary::Sub => off_a + off_b,
        Binary::Mul => a.abs() * off_b + b.abs() * off_a + off_a * off_b,
        Binary::Div if b == 0.0 => 0.0,
        Binary::Div => (off_a + y.abs() * off_b) / b.abs(),
        Binary::Min | Binary::Max => off_a.max(off_b),
    };
    inherited + 4.0 * U * y.abs()
}
