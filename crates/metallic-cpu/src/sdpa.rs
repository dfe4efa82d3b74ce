//! Attention over keys and values that are given: in one pass, with a running softmax for each query.

use std::ops::Range;

use metallic_core::Sdpa;

use crate::Processor;
use crate::exec::Args;
use crate::simd::{Isa, axpy, dot_f32, exp_in_place, scale};

/// Queries of a head that a task takes.
const QUERIES: usize = 16;
/// Keys that meet all of them while they are warm.
const KEYS: usize = 64;

/// What a query has seen: the greatest score, and the sum of `exp(score - greatest)`.
struct Running {
    greatest: f32,
    total: f32,
    /// The keys it may see.
    keys: Range<usize>,
}

impl Running {
    /// Takes more scores and the values that belong to them.
    fn add(&mut self, isa: Isa, scores: &mut [f32], values: &[f32], sums: &mut [f32]) {
        let greatest = scores.iter().copied().fold(self.greatest, f32::max);
        if greatest > self.greatest {
            let factor = (self.greatest - greatest).exp();
            self.total *= factor;
            scale(isa, factor, sums);
            self.greatest = greatest;
        }
        // Not from `-inf`, which is no distance from itself.
        let base = if greatest == f32::NEG_INFINITY { 0.0 } else { greatest };
        for score in &mut *scores {
            *score -= base;
        }
        exp_in_place(isa, scores);
        for (weight, value) in scores.iter().zip(values.chunks_exact(sums.len())) {
            self.total += weight;
            axpy(isa, *weight, value, sums);
        }
    }
}

/// `(q [heads, m, d], k, v [kv_heads, n, d], sinks?)`
pub(crate) fn attend(p: Processor<'_>, spec: &Sdpa, args: &Args<'_>, out: &mut [f32]) {
    let d = args.cols(0);
    let m = rows_of_head(args, 0);
    p.team.for_chunks(out, QUERIES * d, |task, out| {
        // A task's queries may belong to two heads, or to more where a head has few.
        let (mut row, mut rest) = (task * QUERIES, out);
        while !rest.is_empty() {
            let count = (m - row % m).min(rest.len() / d);
            let (tile, after) = rest.split_at_mut(count * d);
            attend_tile(p.isa, spec, args, row, tile);
            (row, rest) = (row + count, after);
        }
    });
}

/// The middle axis.
fn rows_of_head(args: &Args<'_>, index: usize) -> usize {
    args.shape(index).dims().get(1).map_or(1, |dim| args.sizes.of(*dim)).max(1)
}

/// Queries `first ..` of one head, counted over all heads.
fn attend_tile(isa: Isa, spec: &Sdpa, args: &Args<'_>, first: usize, out: &mut [f32]) {
    let [m, n] = [0, 1].map(|index| rows_of_head(args, index));
    let (d, head) = (args.cols(0), first / m);
    let heads = |index: usize| args.sizes.of(args.shape(index).leading());
    let kv_head = head / (heads(0) / heads(1).max(1)).max(1);
    let [keys, values] = [1, 2].map(|index| &args.floats(index)[kv_head * n * d..][..n * d]);
    let queries = &args.floats(0)[first * d..][..out.len()];
    // A sink is a score without a value.
    let sink = args.floats(3).get(head).filter(|sink| **sink != f32::NEG_INFINITY);
    let (greatest, total) = sink.map_or((f32::NEG_INFINITY, 0.0), |sink| (*sink, 1.0));
    let running = |query: usize| Running { greatest, total, keys: spec.mask.visible(query, m, n) };
    let mut seen: Vec<Running> = (first % m..first % m + out.len() / d).map(running).collect();
    let from = seen.iter().map(|seen| seen.keys.start).min().unwrap_or(0);
    let to = seen.iter().map(|seen| seen.keys.end).max().unwrap_or(0);
    let mut scores = Vec::with_capacity(KEYS);
    out.fill(0.0);
    for block in (from..to).step_by(KEYS) {
        for ((q, seen), sums) in queries.chunks_exact(d).zip(&mut seen).zip(out.chunks_exact_mut(d)) {
            let (start, end) = (seen.keys.start.max(block), seen.keys.end.min(block + KEYS));
            if start >= end {
                continue;
            }
            scores.clear();
            scores.extend(keys[start * d..end * d].chunks_exact(d).map(|key| {
                let score = dot_f32(isa, q, key) * spec.scale;
                spec.softcap.map_or(score, |cap| cap * (score / cap).tanh())
            }));
            seen.add(isa, &mut scores, &values[start * d..end * d], sums);
        }
    }
    for (seen, sums) in seen.iter().zip(out.chunks_exact_mut(d)) {
        scale(isa, if seen.total == 0.0 { 0.0 } else { 1.0 / seen.total }, sums);
    }
}
