//! The stages of sampling, each a small function on a buffer of candidates.
//!
//! A stage leaves the candidates in an order that depends on their logits and ids alone, never on how a sort went,
//! so sums and draws come out alike everywhere. [`exp`] is made of additions and multiplications for the same reason.

use std::cmp::Ordering;

use super::{Random, Sampling};

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its logit. Finite in every stage after [`drop_impossible`].
    pub logit: f32,
}

impl Candidate {
    /// Best first; of equals the lowest id first.
    fn rank(self, other: Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Fills the buffer with one candidate per logit, in order of id: NaN becomes `-inf`, `inf` the largest number,
/// `-0` becomes 0 so that the two are equals.
pub fn load(candidates: &mut Vec<Candidate>, logits: &[f32]) {
    candidates.clear();
    candidates.extend(logits.iter().zip(0..).map(|(&logit, id)| {
        let logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) + 0.0 };
        Candidate { id, logit }
    }));
}

/// Adds the biases. Candidates must be in order of id, as [`load`] leaves them.
pub fn bias(candidates: &mut [Candidate], sampling: &Sampling) {
    for (&id, &bias) in &sampling.logit_bias {
        if let Some(candidate) = candidates.get_mut(id as usize) {
            candidate.logit = (candidate.logit + bias).min(f32::MAX);
        }
    }
}

/// Lowers the logits of tokens in the window: `x / r` or `x * r` by sign, then `- presence - count * frequency`.
/// Candidates must be in order of id; `counts` is scratch.
pub fn penalise(candidates: &mut [Candidate], sampling: &Sampling, history: &[u32], counts: &mut Vec<u32>) {
    let window = &history[history.len().saturating_sub(sampling.penalty_window)..];
    counts.clear();
    counts.extend_from_slice(window);
    counts.sort_unstable();
    for same in counts.chunk_by(|a, b| a == b) {
        let Some(candidate) = candidates.get_mut(same[0] as usize) else { continue };
        let repetition = sampling.repetition_penalty;
        let x = candidate.logit;
        let x = if x > 0.0 { x / repetition } else { x * repetition };
        let x = x - sampling.presence_penalty - same.len() as f32 * sampling.frequency_penalty;
        candidate.logit = x.min(f32::MAX);
    }
}

/// Drops candidates that cannot be chosen.
pub fn drop_impossible(candidates: &mut Vec<Candidate>) {
    candidates.retain(|c| c.logit > f32::NEG_INFINITY);
}

/// The best candidate; of equals the one with the lowest id. NaN and `-inf` are no candidates.
pub fn argmax(logits: impl IntoIterator<Item = f32>) -> Option<u32> {
    let mut best = None;
    let mut most = f32::NEG_INFINITY;
    for (logit, id) in logits.into_iter().zip(0..) {
        if logit > most {
            (best, most) = (Some(id), logit);
        }
    }
    best
}

/// Keeps the `k` best, best first; `k` = 0 keeps all as they are.
pub fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 {
        return;
    }
    if k < candidates.len() {
        keep_best(candidates, k);
    }
    candidates.sort_unstable_by(|a, b| a.rank(*b));
}

/// One pass that gathers better candidates at the front and, each time the gathering is full, halves it to the `k` best:
/// once a good bar is set, a candidate costs one comparison.
fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    let full = (2 * k).max(64);
    let mut kept = 0;
    let mut bar: Option<Candidate> = None;
    for i in 0..candidates.len() {
        let candidate = candidates[i];
        if bar.is_some_and(|bar| candidate.rank(bar).is_gt()) {
            continue;
        }
        candidates[kept] = candidate;
        kept += 1;
        if kept == full {
            let (_, worst, _) = candidates[..kept].select_nth_unstable_by(k - 1, |a, b| a.rank(*b));
            bar = Some(*worst);
            kept = k;
        }
    }
    if kept > k {
        candidates[..kept].select_nth_unstable_by(k - 1, |a, b| a.rank(*b));
    }
    candidates.truncate(k);
}

/// Locally typical sampling (Meister et al.): keeps the candidates whose surprise is nearest the entropy, nearest first,
/// until they hold `p` of the probability.
pub fn typical(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.len() < 2 {
        return;
    }
    let softmax = Softmax::of(candidates);
    // Surprise minus entropy: the logarithm of the total cancels.
    let mean: f64 = candidates.iter().map(|&c| softmax.weight(c) / softmax.total * softmax.shifted(c)).sum();
    let strangeness = |c: Candidate| (softmax.shifted(c) - mean).abs();
    keep_mass(candidates, &softmax, p, |a, b| {
        strangeness(*a).total_cmp(&strangeness(*b)).then(a.id.cmp(&b.id))
    });
}

/// Nucleus sampling: keeps the best candidates, best first, until they hold `p` of the probability.
pub fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.len() < 2 {
        return;
    }
    let softmax = Softmax::of(candidates);
    keep_mass(candidates, &softmax, p, |a, b| a.rank(*b));
}

/// Keeps the candidates at least `p` times as probable as the best.
pub fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        let max = max_logit(candidates);
        candidates.retain(|c| exp(f64::from(c.logit) - max) >= f64::from(p));
    }
}

/// Divides the logits by `t` > 0, after moving the best to 0 so that no `t` is too small.
pub fn temperature(candidates: &mut [Candidate], t: f32) {
    let max = max_logit(candidates);
    for candidate in candidates {
        candidate.logit = ((f64::from(candidate.logit) - max) / f64::from(t)) as f32;
    }
}

/// Draws one candidate by its probability; `None` if there is none. One random number is used.
pub fn draw(candidates: &[Candidate], random: &mut Random) -> Option<u32> {
    let softmax = Softmax::of(candidates);
    let mut left = random.next_f64() * softmax.total;
    let mut last = None;
    for &candidate in candidates {
        let weight = softmax.weight(candidate);
        if weight > 0.0 {
            last = Some(candidate.id);
        }
        if left < weight {
            break;
        }
        left -= weight;
    }
    last
}

/// Keeps the shortest beginning, in the given order, that holds `p` of the probability: at least one candidate.
/// Sorts in pieces of growing size and stops early: the nucleus is usually a handful of a large vocabulary.
fn keep_mass(
    candidates: &mut Vec<Candidate>,
    softmax: &Softmax,
    p: f32,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    let enough = f64::from(p) * softmax.total;
    let (mut done, mut piece, mut mass) = (0, 64, 0.0);
    while done < candidates.len() {
        let rest = &mut candidates[done..];
        let piece_len = piece.min(rest.len());
        if piece_len < rest.len() {
            rest.select_nth_unstable_by(piece_len - 1, &order);
        }
        rest[..piece_len].sort_unstable_by(&order);
        for (i, &candidate) in rest[..piece_len].iter().enumerate() {
            mass += softmax.weight(candidate);
            if mass >= enough {
                candidates.truncate(done + i + 1);
                return;
            }
        }
        done += piece_len;
        piece *= 4;
    }
}

/// `e^(x - max)` and its sum, which is at least 1 where there is a candidate.
struct Softmax {
    max: f64,
    total: f64,
}

impl Softmax {
    fn of(candidates: &[Candidate]) -> Self {
        let max = max_logit(candidates);
        let total = sum_exp(candidates.iter().map(|c| f64::from(c.logit)), max);
        Self { max, total }
    }

    fn shifted(&self, candidate: Candidate) -> f64 {
        f64::from(candidate.logit) - self.max
    }

    fn weight(&self, candidate: Candidate) -> f64 {
        exp(self.shifted(candidate))
    }
}

fn max_logit(candidates: &[Candidate]) -> f64 {
    f64::from(candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max))
}

/// `e^x` for `x` ≤ 0 to the last digit or two; 0 below -708. Free of branches, so that loops over it become vector code.
pub fn exp(x: f64) -> f64 {
    // ln 2 in two parts: the first has so few digits that its multiples are exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding it rounds to whole numbers and leaves them in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    let bounded = x.max(-708.0);
    let shifted = bounded * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (bounded - k * LN_2_HIGH) - k * LN_2_LOW; // |r| ≤ ln 2 / 2
    let mut series = 0.0;
    for factor in INVERSE_FACTORIALS.iter().rev() {
        series = series * r + factor;
    }
    let power_of_two = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x >= -708.0 { series * power_of_two } else { 0.0 }
}

/// `1 / n!` from 0 on: the series of `e^r`.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut table = [1.0; 14];
    let mut n = 1;
    while n < table.len() {
        table[n] = table[n - 1] / n as f64;
        n += 1;
    }
    table
};

/// `Σ e^(x - max)`, summed in order.
pub(crate) fn sum_exp(values: impl Iterator<Item = f64>, max: f64) -> f64 {
    let mut values = values.fuse();
    let mut total = 0.0;
    loop {
        // A batch of its own, because a sum in order keeps the loop around it from becoming vector code.
        let mut batch = [f64::NEG_INFINITY; 32];
        let filled = batch.iter_mut().zip(&mut values).map(|(place, x)| *place = x).count();
        for x in &mut batch {
            *x = exp(*x - max);
        }
        total += batch[..filled].iter().sum::<f64>();
        if filled < batch.len() {
            return total;
        }
    }
}
