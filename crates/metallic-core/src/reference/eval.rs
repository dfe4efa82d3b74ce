//! The naive meaning of every operation that needs nothing but its inputs.

use super::ops;
use super::value::Value;
use crate::op::{source_ops, state_ops};
use crate::sample;
use crate::{Op, OpClass, Project, Sdpa, Sizes, TensorType, Unary};

/// An operation's inputs, with their types as this step has them.
pub(super) struct Args<'a> {
    pub(super) values: Vec<&'a Value>,
    pub(super) types: Vec<TensorType>,
    pub(super) out: TensorType,
    pub(super) sizes: Sizes,
    pub(super) threads: usize,
}

impl<'a> Args<'a> {
    pub(super) fn x(&self, index: usize) -> &'a [f32] {
        self.values[index].floats()
    }

    pub(super) fn words(&self, index: usize) -> &'a [u32] {
        self.values[index].words()
    }

    fn cols(&self, index: usize) -> usize {
        self.types[index].shape.cols()
    }

    /// Rows of an input; there may be some without columns.
    fn rows(&self, index: usize) -> impl Iterator<Item = &'a [f32]> {
        let (x, cols) = (self.x(index), self.cols(index));
        (0..self.types[index].shape.rows(self.sizes)).map(move |row| &x[row * cols..][..cols])
    }

    fn len(&self, index: usize, axis: usize) -> usize {
        self.types[index].shape.dims().get(axis).map_or(1, |dim| self.sizes.of(*dim))
    }

    fn each(&self, f: impl Fn(f32) -> f32) -> Vec<f32> {
        self.x(0).iter().map(|x| f(*x)).collect()
    }

    fn both(&self, f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
        self.x(0).iter().zip(self.x(1).iter().cycle()).map(|(a, b)| f(*a, *b)).collect()
    }
}

/// The result of an operation of [`OpClass::Pure`]; nothing for others.
pub(super) fn evaluate(op: &Op, args: &Args<'_>) -> Value {
    debug_assert_eq!(op.class(), OpClass::Pure);
    let x = |index: usize| args.x(index);
    Value::Floats(match *op {
        Op::Argmax => return Value::Words(args.rows(0).map(|row| ops::ranked(row)[0]).collect()),
        Op::TopK { k } => {
            let best = |row: &[f32]| ops::ranked(row).into_iter().take(k);
            return Value::Words(args.rows(0).flat_map(best).collect());
        }
        Op::Sample => {
            let mut scratch = sample::Scratch::default();
            let choose = |(row, logits): (usize, &[f32])| {
                let chosen = sample::choose(args.words(1), row, logits, &mut scratch);
                chosen.ok().flatten().unwrap_or(sample::NO_CANDIDATE)
            };
            return Value::Words(args.rows(0).enumerate().map(choose).collect());
        }
        Op::Embed(_) | Op::SelectRows => {
            let cols = args.cols(0);
            // A row that is not there can only be named by a token that was never chosen.
            let row = |id: &u32| x(0).get(*id as usize * cols..(*id as usize + 1) * cols);
            args.words(1).iter().flat_map(|id| row(id).map_or(vec![0.0; cols], <[f32]>::to_vec)).collect()
        }
        Op::Slice { start, len } => args.rows(0).flat_map(|row| &row[start..start + len]).copied().collect(),
        Op::Gather => {
            let pick = |row: &[f32], id: u32| row.get(id as usize).copied().unwrap_or(f32::NAN);
            let ids = args.words(1).chunks(args.cols(1));
            args.rows(0).zip(ids).flat_map(|(row, ids)| ids.iter().map(move |id| pick(row, *id))).collect()
        }
        Op::Cast(_) => x(0).to_vec(),
        Op::Unary(f) => args.each(|x| ops::unary(f, x)),
        Op::Binary(f) => args.both(|a, b| ops::binary(f, a, b)),
        Op::Scalar { op, value, reversed: false } => args.each(|x| ops::binary(op, x, value)),
        Op::Scalar { op, value, reversed: true } => args.each(|x| ops::binary(op, value, x)),
        Op::Softcap(cap) => args.each(|x| ops::softcap(f64::from(x), cap) as f32),
        Op::Gated(act) => args.both(|gate, up| ops::unary(act, gate) * up),
        Op::RmsNorm { eps, groups } => {
            args.rows(0).flat_map(|row| ops::rms_norm(row, x(1), eps, groups)).collect()
        }
        Op::LayerNorm { eps } => {
            let bias = (args.values.len() > 2).then(|| x(2));
            args.rows(0).flat_map(|row| ops::layer_norm(row, x(1), bias, eps)).collect()
        }
        Op::Softmax => {
            let row = |row: &[f32]| ops::softmax(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
            args.rows(0).flat_map(row).map(|x| x as f32).collect()
        }
        Op::Linear => linear(args),
        Op::ExpertLinear => expert_linear(args),
        Op::Combine => {
            let n = args.out.shape.cols();
            let weighted = |(row, weights): (&[f32], &[f32])| {
                let part = |i: usize, c: usize| f64::from(row[c * n + i]) * f64::from(weights[c]);
                let sum = |i: usize| (0..weights.len()).map(|c| part(i, c)).sum::<f64>() as f32;
                (0..n).map(sum).collect::<Vec<_>>()
            };
            args.rows(0).zip(args.rows(1)).flat_map(weighted).collect()
        }
        Op::Rope(rope) => {
            let mut out = x(0).to_vec();
            for (row, position) in out.chunks_mut(args.cols(0).max(1)).zip(args.words(1)) {
                ops::rope(&rope, row, *position, x(2));
            }
            out
        }
        Op::Sdpa(spec) => sdpa(&spec, args),
        Op::Project(spec) => project(&spec, args),
        Op::GatedProject { norm, act } => gated(norm, act, args),
        source_ops!() | state_ops!() => Vec::new(),
    })
}

/// `x · Wᵀ`, with one matrix or one for each of the outer axes.
fn linear(args: &Args<'_>) -> Vec<f32> {
    let (k, rank) = (args.cols(1), args.types[1].shape.dims().len());
    let (rows, n) = (args.types[0].shape.rows(args.sizes), args.len(1, rank - 2));
    let outer: usize = (0..rank - 2).map(|axis| args.len(1, axis)).product();
    let rows = rows / outer.max(1);
    let one = |i: usize| {
        let (x, w) = (&args.x(0)[i * rows * k..], &args.x(1)[i * n * k..]);
        product(&x[..rows * k], &w[..n * k], [rows, n, k], args.threads)
    };
    (0..outer).flat_map(one).collect()
}

/// `rows` rows of `x` by `n` rows of `w`, both of `k`; rows of `w` are spread over threads.
fn product(x: &[f32], w: &[f32], [rows, n, k]: [usize; 3], threads: usize) -> Vec<f32> {
    if k == 0 {
        return vec![0.0; rows * n];
    }
    let part = n.div_ceil(threads).max(1);
    let one = |w: &[f32]| -> Vec<f32> {
        x.chunks(k).flat_map(|x| w.chunks(k).map(|w| ops::dot(x, w) as f32).collect::<Vec<_>>()).collect()
    };
    let columns: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let workers: Vec<_> = w.chunks(part * k).map(|w| scope.spawn(move || one(w))).collect();
        workers.into_iter().map(|w| w.join().unwrap_or_default()).collect()
    });
    side_by_side(&columns, rows)
}

/// Matrices of so many rows as one.
fn side_by_side(parts: &[Vec<f32>], rows: usize) -> Vec<f32> {
    let row = |(part, row): (&Vec<f32>, usize)| {
        let width = part.len() / rows;
        part[row * width..][..width].to_vec()
    };
    (0..rows).flat_map(|index| parts.iter().map(move |part| (part, index))).flat_map(row).collect()
}

fn expert_linear(args: &Args<'_>) -> Vec<f32> {
    let (n, k) = (args.len(1, 1), args.cols(1));
    let mut y = Vec::new();
    for (row, ids) in args.rows(0).zip(args.words(2).chunks(args.cols(2))) {
        for (choice, id) in ids.iter().enumerate() {
            let x = if row.len() == k { row } else { &row[choice * k..][..k] };
            let at = *id as usize * n * k;
            match args.x(1).get(at..at + n * k).filter(|_| (*id as usize) < args.len(1, 0)) {
                Some(w) => y.extend(product(x, w, [1, n, k], 1)),
                None => y.extend(std::iter::repeat_n(f32::NAN, n)),
            }
        }
    }
    y
}

/// The first input, normalised where `norm` says so.
fn normed(norm: Option<f32>, args: &Args<'_>) -> Vec<f32> {
    match norm {
        Some(eps) => args.rows(0).flat_map(|row| ops::rms_norm(row, args.x(1), eps, 1)).collect(),
        None => args.x(0).to_vec(),
    }
}

/// Rows as long as those of the first input, by the matrix at `index`.
fn by_matrix(x: &[f32], index: usize, args: &Args<'_>) -> Vec<f32> {
    let rows = args.types[0].shape.rows(args.sizes);
    product(x, args.x(index), [rows, args.len(index, 0), args.cols(0)], args.threads)
}

pub(super) fn project(spec: &Project, args: &Args<'_>) -> Vec<f32> {
    let (at, x) = (spec.inputs(), normed(spec.norm, args));
    let part = |p: usize| {
        let mut y = by_matrix(&x, at.weights + p, args);
        let bias = at.biases.map_or(&[0.0][..], |first| args.x(first + p));
        y.iter_mut().zip(bias.iter().cycle()).for_each(|(y, b)| *y += b);
        y
    };
    let parts: Vec<Vec<f32>> = (0..spec.parts).map(part).collect();
    let mut y = side_by_side(&parts, args.types[0].shape.rows(args.sizes));
    if let Some(residual) = at.residual {
        y.iter_mut().zip(args.x(residual)).for_each(|(y, r)| *y += r);
    }
    y
}

fn gated(norm: Option<f32>, act: Unary, args: &Args<'_>) -> Vec<f32> {
    let x = normed(norm, args);
    let at = 1 + usize::from(norm.is_some());
    let [gate, up] = [at, at + 1].map(|index| by_matrix(&x, index, args));
    gate.iter().zip(&up).map(|(g, u)| ops::unary(act, *g) * u).collect()
}

fn sdpa(spec: &Sdpa, args: &Args<'_>) -> Vec<f32> {
    let [heads, m, d] = [0, 1, 2].map(|axis| args.len(0, axis));
    let (kv_heads, n) = (args.len(1, 0), args.len(1, 1));
    let row = |index: usize, at: usize| &args.x(index)[at * d..][..d];
    let mut out = Vec::with_capacity(heads * m * d);
    for head in 0..heads {
        let group = head / (heads / kv_heads);
        let sink = args.values.get(3).map(|sinks| sinks.floats()[head]);
        for i in 0..m {
            let scores = ops::Scores { scale: spec.scale, softcap: spec.softcap, sink };
            let seen = spec.mask.visible(i, m, n);
            let keys = seen.clone().map(|j| row(1, group * n + j));
            let values = seen.map(|j| row(2, group * n + j));
            out.extend(scores.attend(row(0, head * m + i), keys, values, d));
        }
    }
    out
}
