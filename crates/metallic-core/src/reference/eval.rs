//! The naive meaning of every operation that needs nothing but its inputs.

use super::ops;
use super::value::Value;
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

    pub(super) fn cols(&self, index: usize) -> usize {
        self.types[index].shape.cols().max(1)
    }

    pub(super) fn rows(&self, index: usize) -> std::slice::Chunks<'a, f32> {
        self.x(index).chunks(self.cols(index))
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
    match *op {
        Op::Argmax => Value::Words(args.rows(0).map(|row| ops::ranked(row)[0]).collect()),
        Op::TopK { k } => {
            let best = |row: &[f32]| ops::ranked(row).into_iter().take(k);
            Value::Words(args.rows(0).flat_map(best).collect())
        }
        Op::Sample => {
            let mut scratch = sample::Scratch::default();
            let choose = |(row, logits): (usize, &[f32])| {
                let chosen = sample::choose(args.words(1), row, logits, &mut scratch);
                chosen.ok().flatten().unwrap_or(sample::NO_CANDIDATE)
            };
            Value::Words(args.rows(0).enumerate().map(choose).collect())
        }
        ref op => Value::Floats(floats(op, args)),
    }
}

fn floats(op: &Op, args: &Args<'_>) -> Vec<f32> {
    let x = |index: usize| args.x(index);
    match *op {
        Op::Embed(_) | Op::SelectRows => {
            let cols = args.cols(0);
            // A row that is not there can only be named by a token that was never chosen.
            let row = |id: &u32| x(0).get(*id as usize * cols..(*id as usize + 1) * cols);
            args.words(1).iter().flat_map(|id| row(id).map_or(vec![0.0; cols], <[f32]>::to_vec)).collect()
        }
        Op::Slice { start, len } => args.rows(0).flat_map(|row| &row[start..start + len]).copied().collect(),
        Op::Gather => {
            let ids = args.words(1).chunks(args.cols(1));
            args.rows(0).zip(ids).flat_map(|(row, ids)| ids.iter().map(|id| pick(row, *id))).collect()
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
            let n = args.out.shape.cols().max(1);
            let weighted = |(row, weights): (&[f32], &[f32])| {
                let at = |i: usize| {
                    row.chunks(n)
                        .zip(weights)
                        .map(|(part, w)| f64::from(part[i]) * f64::from(*w))
                        .sum::<f64>()
                };
                (0..n).map(|i| at(i) as f32).collect::<Vec<_>>()
            };
            args.rows(0).zip(args.rows(1)).flat_map(weighted).collect()
        }
        Op::Rope(rope) => {
            let mut out = x(0).to_vec();
            for (row, position) in out.chunks_mut(args.cols(0)).zip(args.words(1)) {
                ops::rope(&rope, row, *position, x(2));
            }
            out
        }
        Op::Sdpa(spec) => sdpa(&spec, args),
        Op::Project(spec) => project(&spec, args),
        Op::GatedProject { norm, act } => gated(norm, act, args),
        // Not floats, or not pure: the caller has taken care of them.
        Op::Argmax
        | Op::TopK { .. }
        | Op::Sample
        | Op::Tokens
        | Op::Positions
        | Op::OutputRows
        | Op::Choices
        | Op::Weight(_)
        | Op::KvWrite { .. }
        | Op::Attention(_)
        | Op::ShortConv { .. }
        | Op::Recurrence(_)
        | Op::Qkv(_) => Vec::new(),
    }
}

fn pick(row: &[f32], id: u32) -> f32 {
    row.get(id as usize).copied().unwrap_or(f32::NAN)
}

/// `x · Wᵀ`, with one matrix or one for each of the outer axes.
fn linear(args: &Args<'_>) -> Vec<f32> {
    let k = args.cols(1);
    let rank = args.types[1].shape.dims().len();
    if rank == 2 {
        return product(args.x(0), args.x(1), k, args.threads);
    }
    let matrix = args.len(1, rank - 2) * k;
    let outer: usize = (0..rank - 2).map(|axis| args.len(1, axis)).product();
    let batch = args.x(0).len() / outer.max(1);
    let pairs = args.x(0).chunks(batch.max(1)).zip(args.x(1).chunks(matrix.max(1)));
    pairs.flat_map(|(x, w)| product(x, w, k, args.threads)).collect()
}

/// Rows of `x` by rows of `w`, both of `k`; rows of `w` are spread over threads.
fn product(x: &[f32], w: &[f32], k: usize, threads: usize) -> Vec<f32> {
    let (rows, n) = (x.len() / k, w.len() / k);
    let part = n.div_ceil(threads).max(1);
    let one = |w: &[f32]| -> Vec<f32> {
        x.chunks(k).flat_map(|x| w.chunks(k).map(|w| ops::dot(x, w) as f32).collect::<Vec<_>>()).collect()
    };
    let columns: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let workers: Vec<_> = w.chunks(part * k).map(|w| scope.spawn(move || one(w))).collect();
        workers.into_iter().map(|w| w.join().unwrap_or_default()).collect()
    });
    let mut y = Vec::with_capacity(rows * n);
    for row in 0..rows {
        for column in &columns {
            let width = column.len() / rows;
            y.extend_from_slice(&column[row * width..][..width]);
        }
    }
    y
}

fn expert_linear(args: &Args<'_>) -> Vec<f32> {
    let (n, k) = (args.len(1, 1), args.cols(1));
    let mut y = Vec::new();
    for (row, ids) in args.rows(0).zip(args.words(2).chunks(args.cols(2))) {
        for (choice, id) in ids.iter().enumerate() {
            let x = if row.len() == k { row } else { &row[choice * k..][..k] };
            let matrix = args.x(1).chunks(n * k).nth(*id as usize);
            let Some(w) = matrix else {
                y.extend(std::iter::repeat_n(f32::NAN, n));
                continue;
            };
            y.extend(w.chunks(k).map(|w| ops::dot(x, w) as f32));
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

pub(super) fn project(spec: &Project, args: &Args<'_>) -> Vec<f32> {
    let at = spec.inputs();
    let k = args.cols(0);
    let x = normed(spec.norm, args);
    let rows = x.len() / k;
    let parts: Vec<Vec<f32>> =
        (0..spec.parts).map(|p| product(&x, args.x(at.weights + p), k, args.threads)).collect();
    let mut y = Vec::new();
    for row in 0..rows {
        for (p, part) in parts.iter().enumerate() {
            let width = part.len() / rows;
            let bias = at.biases.map(|b| args.x(b + p));
            y.extend((0..width).map(|i| part[row * width + i] + bias.map_or(0.0, |b| b[i])));
        }
    }
    if let Some(residual) = at.residual {
        y.iter_mut().zip(args.x(residual)).for_each(|(y, r)| *y += r);
    }
    y
}

fn gated(norm: Option<f32>, act: Unary, args: &Args<'_>) -> Vec<f32> {
    let x = normed(norm, args);
    let at = 1 + usize::from(norm.is_some());
    let linear = |index: usize| product(&x, args.x(index), args.cols(0), args.threads);
    linear(at).iter().zip(&linear(at + 1)).map(|(g, u)| ops::unary(act, *g) * u).collect()
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
