//! The stages on the host: selection instead of sorting, and no noise for tokens that cannot win.

use super::noise::gumbel_bound;
use super::weight::weight_at;
use super::{
    ChoiceError, Edit, LEAST_NOISE, MOST_NOISE, NO_CANDIDATE, Record, depth, gumbel, part, philox, weight,
};

/// `2⁻¹⁰⁰`: what is smaller counts as 0, so that no difference of logits is subnormal, which some devices take for 0.
pub(super) const TINY: f32 = f32::from_bits(27 << 23);

/// Elements that are looked at together.
const CHUNK: usize = 16;

/// Memory that choosing works in. One serves any number of rows, one after another.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    ranks: Vec<u64>,
}

/// A logit as every stage sees it: NaN is `-inf`, `inf` the largest number, what is smaller than `2⁻¹⁰⁰` is 0.
pub fn number(x: f32) -> f32 {
    if x.abs() < TINY {
        0.0
    } else if x.is_nan() {
        f32::NEG_INFINITY
    } else {
        x.min(f32::MAX)
    }
}

/// An integer in the order of [`number`]s.
pub fn key(x: f32) -> u32 {
    let bits = number(x).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// An integer in the order of tokens: the larger logit is larger, of equals the lower id.
pub fn rank(id: u32, logit: f32) -> u64 {
    u64::from(key(logit)) << 32 | u64::from(!id)
}

fn id_of(rank: u64) -> u32 {
    !(rank as u32)
}

fn logit_of(rank: u64) -> f32 {
    let key = (rank >> 32) as u32;
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

/// The token that comes first by [`rank`]; `None` where none is possible.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let best = largest(logits)?;
    let is_best = |x: &f32| number(*x) == best;
    let chunk = logits.chunks(CHUNK).position(|chunk| any(chunk, is_best))?;
    let at = chunk * CHUNK;
    logits[at..].iter().position(is_best).map(|i| (at + i) as u32)
}

/// Whether one of them is such. All are looked at: without an end in the middle it becomes vector code.
fn any(chunk: &[f32], is: impl Fn(&f32) -> bool) -> bool {
    chunk.iter().map(|x| u32::from(is(x))).sum::<u32>() > 0
}

/// The `k` first by [`rank`] with their logits, best first; fewer where not so many are possible.
pub fn top_k(logits: &[f32], k: usize, scratch: &mut Scratch) -> impl Iterator<Item = (u32, f32)> {
    let ranks = &mut scratch.ranks;
    keep_best(logits, k, ranks);
    ranks.truncate(k);
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.iter().map(|rank| (id_of(*rank), logit_of(*rank)))
}

/// Chooses the token of row `row` of packed choices (see [`Choices`](super::Choices)) by its logits; `None` where no token is
/// possible.
pub fn choose(
    words: &[u32],
    row: usize,
    logits: &[f32],
    scratch: &mut Scratch,
) -> Result<Option<u32>, ChoiceError> {
    let (record, edits) = Record::read(words, row)?;
    let Scratch { logits: copy, ranks } = scratch;
    if edits.is_empty() {
        return Ok(of_logits(&record, logits, ranks));
    }
    copy.clear();
    copy.extend_from_slice(logits);
    for &[id, count, bias] in edits {
        if let Some(x) = copy.get_mut(id as usize) {
            *x = record.edited(*x, Edit { id, count, bias: f32::from_bits(bias) });
        }
    }
    Ok(of_logits(&record, copy, ranks))
}

fn of_logits(record: &Record, logits: &[f32], ranks: &mut Vec<u64>) -> Option<u32> {
    if record.inverse_temperature == 0.0 {
        return argmax(logits);
    }
    let max = largest(logits)?;
    let cut = (1..logits.len()).contains(&(record.top_k as usize));
    if !cut && record.typical == 0 && record.top_p == 0 {
        let mut draw = Draw::new(record, max);
        draw.offer_all(logits);
        return draw.chosen();
    }
    // All of top-p's weight, where some that weigh little are not gathered.
    let mut total = None;
    if cut {
        keep_best(logits, record.top_k as usize, ranks);
    } else if record.typical != 0 {
        keep_best(logits, logits.len(), ranks);
    } else {
        total = Some(gather_part(logits, max, record.top_p, ranks));
    }
    let mut max = max;
    if record.typical != 0 {
        keep_typical(logits, max, record.typical, ranks);
        max = ranks.iter().max().map(|rank| logit_of(*rank))?;
    }
    if record.top_p != 0 {
        let weigh = |rank: u64| weight(logit_of(rank) - max);
        let total = total.unwrap_or_else(|| mass(ranks, weigh));
        keep_mass(ranks, part(total, record.top_p), weigh);
    }
    let mut draw = Draw::new(record, max);
    for rank in ranks.iter() {
        draw.offer(id_of(*rank), logit_of(*rank));
    }
    draw.chosen()
}

/// The largest [`number`]; `None` where all are `-inf`.
fn largest(logits: &[f32]) -> Option<f32> {
    let (chunks, rest) = logits.as_chunks::<CHUNK>();
    let mut lanes = [f32::NEG_INFINITY; CHUNK];
    let larger = |x: f32, than: f32| if x > than { x } else { than };
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*x, *lane);
        }
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |most, x| larger(*x, most));
    (largest > f32::NEG_INFINITY).then(|| number(largest))
}

/// Gathers the `k` best of those that are possible, in any order. Each time twice as many have come together the worse half
/// goes: once a good bar is set, a token costs one comparison.
fn keep_best(logits: &[f32], k: usize, ranks: &mut Vec<u64>) {
    ranks.clear();
    let full = k.saturating_mul(2).max(64);
    let mut bar = f32::NEG_INFINITY;
    for (chunk, at) in logits.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        if !any(chunk, |x| *x > bar) {
            continue;
        }
        for (x, id) in chunk.iter().zip(at..) {
            // Ids ascend: of equals at the bar the ones that stay came before.
            if number(*x) > bar {
                ranks.push(rank(id, *x));
            }
        }
        if ranks.len() >= full {
            bar = logit_of(cut_to(ranks, k));
        }
    }
    cut_to(ranks, k);
}

/// Keeps the `k` largest, in any order, and says which of them is the smallest.
fn cut_to(ranks: &mut Vec<u64>, k: usize) -> u64 {
    if k == 0 || k >= ranks.len() {
        return 0;
    }
    let (_, smallest, _) = ranks.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let smallest = *smallest;
    ranks.truncate(k);
    smallest
}

/// Gathers the best, in any order, without some that weigh too little to be among those with `share` of the weight. Returns
/// the weight of all.
fn gather_part(logits: &[f32], max: f32, share: u32, ranks: &mut Vec<u64>) -> u64 {
    // `inf` and what is nearly 0 have the depth of their numbers without becoming them.
    let weigh = |x: &f32| weight(*x - max);
    let (chunks, rest) = logits.as_chunks::<CHUNK>();
    let of_chunk = |chunk: &[f32; CHUNK]| chunk.each_ref().map(weigh).into_iter().map(u64::from).sum::<u64>();
    let total =
        chunks.iter().map(of_chunk).sum::<u64>() + rest.iter().map(|x| u64::from(weigh(x))).sum::<u64>();
    // Even if all weighed this and were left out, enough would remain.
    let light = (total - part(total, share)) / logits.len() as u64;
    // A little further down: whoever is left out weighs no more, however this logarithm is rounded.
    let bar = ((light.max(1) as f32).ln() - 21.49) - 0.01;
    ranks.clear();
    for (chunk, at) in logits.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        if !any(chunk, |x| *x - max >= bar) {
            continue;
        }
        let near = chunk.iter().zip(at..).filter(|(x, _)| number(**x) - max >= bar);
        ranks.extend(near.map(|(x, id)| rank(id, *x)));
    }
    total
}

/// Keeps the shortest beginning, in falling order of `ranks`, that weighs `enough`, in any order: by halves.
fn keep_mass(ranks: &mut Vec<u64>, enough: u64, weigh: impl Fn(u64) -> u32) {
    // The beginning up to `low` weighs `before`, which is too little; the one up to `high` is enough.
    let (mut low, mut high, mut before) = (0, ranks.len(), 0);
    while high - low > 1 {
        let half = (high - low) / 2;
        let part = &mut ranks[low..high];
        part.select_nth_unstable_by(half, |a, b| b.cmp(a));
        let upper = before + mass(&part[..half], &weigh);
        if upper >= enough {
            high = low + half;
        } else {
            (low, before) = (low + half, upper);
        }
    }
    ranks.truncate(high);
}

fn mass(ranks: &[u64], weigh: impl Fn(u64) -> u32) -> u64 {
    ranks.iter().map(|rank| u64::from(weigh(*rank))).sum()
}

/// Keeps the tokens whose surprise is nearest its mean, the entropy, until they hold `share` of the weight (locally typical
/// sampling, Meister et al.).
fn keep_typical(logits: &[f32], max: f32, share: u32, ranks: &mut Vec<u64>) {
    let (mut total, mut moment) = (0, 0u128);
    for rank in ranks.iter_mut() {
        let depth = depth(logit_of(*rank) - max);
        let weight = u64::from(weight_at(depth));
        total += weight;
        moment += u128::from(weight * u64::from(depth));
        *rank = u64::from(depth) << 32 | *rank & 0xffff_ffff;
    }
    let mean = (moment / u128::from(total.max(1))) as u32;
    for rank in ranks.iter_mut() {
        let strangeness = ((*rank >> 32) as u32).abs_diff(mean);
        *rank = u64::from(!strangeness) << 32 | *rank & 0xffff_ffff;
    }
    let weigh = |rank: u64| logits.get(id_of(rank) as usize).map_or(0, |x| weight(number(*x) - max));
    keep_mass(ranks, part(total, share), weigh);
    for kept in ranks.iter_mut() {
        let id = id_of(*kept);
        *kept = logits.get(id as usize).map_or(0, |x| rank(id, *x));
    }
}

/// The last two stages.
struct Draw<'r> {
    record: &'r Record,
    /// The largest logit.
    max: f32,
    /// Logits below it do not stay.
    least: f32,
    /// A little less than `1 / temperature`: bounds on scores are made with it.
    bounding: f32,
    /// The best score so far, at least that of the least noise on the largest logit.
    bar: f32,
    /// It and its token.
    best: u64,
}

impl<'r> Draw<'r> {
    fn new(record: &'r Record, max: f32) -> Self {
        let bounding = record.inverse_temperature * (1.0 - 1e-6);
        Self { record, max, least: number(max + record.ln_min_p), bounding, bar: LEAST_NOISE, best: 0 }
    }

    fn noise(&self, id: u32) -> [u32; 4] {
        let [low, high] = self.record.draw;
        philox([id / 4, 0, low, high], self.record.seed)
    }

    /// At least the score of a logit and a noise that is at most this. Rounding is covered: by `bounding` where the product is
    /// large, else by what noise is bounded with.
    fn bound(&self, logit: f32, noise: f32) -> f32 {
        (logit - self.max) * self.bounding + noise
    }

    fn offer_all(&mut self, logits: &[f32]) {
        for (four, at) in logits.chunks(4).zip((0..).step_by(4)) {
            let best = four.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x));
            if best < self.least || self.bound(best, MOST_NOISE) < self.bar {
                continue;
            }
            let noise = self.noise(at);
            for ((x, bits), id) in four.iter().zip(noise).zip(at..) {
                self.weigh_in(id, number(*x), bits);
            }
        }
    }

    fn offer(&mut self, id: u32, logit: f32) {
        if self.bound(logit, MOST_NOISE) >= self.bar {
            let noise = self.noise(id);
            self.weigh_in(id, logit, noise[id as usize % 4]);
        }
    }

    fn weigh_in(&mut self, id: u32, logit: f32, bits: u32) {
        if logit < self.least || self.bound(logit, gumbel_bound(bits)) < self.bar {
            return;
        }
        let score = (logit - self.max).mul_add(self.record.inverse_temperature, gumbel(bits));
        let ranked = rank(id, score);
        if ranked > self.best {
            (self.best, self.bar) = (ranked, self.bar.max(score));
        }
    }

    fn chosen(&self) -> Option<u32> {
        Some(id_of(self.best)).filter(|id| *id != NO_CANDIDATE)
    }
}
