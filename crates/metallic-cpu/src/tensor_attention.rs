//! Attention of strided tensors: keys and values in one pass, a running softmax for each query.

use metallic_core::tensor::{Sdpa, View};

use crate::simd::{Isa, Team, axpy, dot_f32, exp_in_place, scale};
use crate::tensor_data::{Sink, Source};

/// Queries of a head that a task takes.
const QUERIES: usize = 16;
/// Keys that are decoded at a time.
const KEYS: usize = 64;

/// The greatest score so far, the sum of `exp(score - greatest)`, and the weighted sum of values.
struct Running {
    greatest: f32,
    total: f32,
    sum: Vec<f32>,
}

impl Running {
    fn new(d: usize, sink: Option<f32>) -> Running {
        // A sink is a score without a value.
        let (greatest, total) = sink.map_or((f32::NEG_INFINITY, 0.0), |sink| (sink, 1.0));
        Running { greatest, total, sum: vec![0.0; d] }
    }

    /// Takes more scores and the values that belong to them.
    fn add(&mut self, isa: Isa, scores: &mut [f32], values: &[f32]) {
        let greatest = scores.iter().copied().fold(self.greatest, f32::max);
        if greatest == f32::NEG_INFINITY {
            return;
        }
        if greatest > self.greatest {
            let factor = (self.greatest - greatest).exp();
            self.total *= factor;
            scale(isa, factor, &mut self.sum);
            self.greatest = greatest;
        }
        for score in scores.iter_mut() {
            *score -= greatest;
        }
        exp_in_place(isa, scores);
        let d = self.sum.len();
        for (weight, value) in scores.iter().zip(values.chunks(d)) {
            self.total += weight;
            axpy(isa, *weight, value, &mut self.sum);
        }
    }

    fn finish(&self, isa: Isa, out: &mut [f32]) {
        out.copy_from_slice(&self.sum);
        if self.total > 0.0 {
            scale(isa, 1.0 / self.total, out);
        }
    }
}

/// Bytes that attention takes at most: for each thread its queries, sums and results, and blocks of keys and values; a
/// sink for each head.
pub(crate) fn scratch(threads: usize, q: &View) -> usize {
    let tasks = threads.min(q.rows().div_ceil(QUERIES));
    let rows = tasks * (4 * QUERIES + 2 * KEYS);
    q.cols().saturating_mul(rows).saturating_add(q.shape()[0]).saturating_mul(size_of::<f32>())
}

/// `(q [heads, m, d], k, v [kv_heads, n, d], sinks?)`
pub(crate) fn attend((isa, team): (Isa, &Team), sdpa: &Sdpa, inputs: &[Source<'_>], out: Sink<'_>) {
    let [heads, m, d] = [0, 1, 2].map(|axis| inputs[0].view().shape()[axis]);
    if heads * m * d == 0 {
        return;
    }
    let sinks = inputs.get(3).map(Source::all);
    out.produce(team, QUERIES * d, |start, out| {
        // A task's queries may belong to two heads, or to more where a head has few.
        let (mut row, mut rest) = (start / d, out);
        while !rest.is_empty() {
            let (head, first) = (row / m, row % m);
            let count = (m - first).min(rest.len() / d);
            let (tile, after) = rest.split_at_mut(count * d);
            let sink = sinks.as_ref().map(|sinks| sinks[head]);
            attend_tile(isa, sdpa, inputs, (head, first, sink), tile);
            (row, rest) = (row + count, after);
        }
    });
}

/// Queries `first ..` of one head.
fn attend_tile(
    isa: Isa,
    sdpa: &Sdpa,
    inputs: &[Source<'_>],
    (head, first, sink): (usize, usize, Option<f32>),
    out: &mut [f32],
) {
    let [heads, m, d] = [0, 1, 2].map(|axis| inputs[0].view().shape()[axis]);
    let (kv_heads, n) = (inputs[1].view().shape()[0], inputs[1].view().shape()[1]);
    let kv_head = head / (heads / kv_heads);
    let mut queries = vec![0.0; out.len()];
    inputs[0].read((head * m + first) * d, &mut queries);
    let seen: Vec<_> = (first..first + out.len() / d).map(|i| sdpa.mask.visible(i, m, n)).collect();
    let mut running: Vec<Running> = seen.iter().map(|_| Running::new(d, sink)).collect();
    let from = seen.iter().map(|keys| keys.start).min().unwrap_or(0);
    let to = seen.iter().map(|keys| keys.end).max().unwrap_or(0);
    let (mut keys, mut values) = (vec![0.0; KEYS * d], vec![0.0; KEYS * d]);
    let mut scores = Vec::with_capacity(KEYS);
    for block in (from..to).step_by(KEYS) {
        let count = KEYS.min(to - block);
        let at = (kv_head * n + block) * d;
        inputs[1].read(at, &mut keys[..count * d]);
        inputs[2].read(at, &mut values[..count * d]);
        for ((q, seen), running) in queries.chunks(d).zip(&seen).zip(&mut running) {
            let (start, end) = (seen.start.max(block), seen.end.min(block + count));
            if start >= end {
                continue;
            }
            let range = (start - block) * d..(end - block) * d;
            scores.clear();
            scores.extend(keys[range.clone()].chunks(d).map(|key| {
                let score = dot_f32(isa, q, key) * sdpa.scale;
                sdpa.softcap.map_or(score, |cap| cap * (score / cap).tanh())
            }));
            running.add(isa, &mut scores, &values[range]);
        }
    }
    for (running, out) in running.iter().zip(out.chunks_mut(d)) {
        running.finish(isa, out);
    }
}
