//! The stages on the host: selection instead of sorting, and as little as possible of what cannot matter.
//!
//! Functions are inlined into [`choose`], which is inlined itself: who calls it decides for which instructions it is compiled.

use super::draw::{Draw, least};
use super::row::{Row, bin_of};
use super::weight::weight_at;
use super::{ChoiceError, Edit, Record, depth, part, weight};

/// `2⁻¹⁰⁰`: what is smaller counts as 0, so that no difference of logits is subnormal, which some devices take for 0.
pub(super) const TINY: f32 = f32::from_bits(27 << 23);

/// Elements that are looked at together.
const CHUNK: usize = 16;

/// Draws from more than top-p leaves before it is found out what that is.
const GUESSES: usize = 2;

/// Memory that choosing works in. One serves any number of rows, one after another.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    ranks: Vec<u64>,
    tops: Vec<f32>,
    spare: Vec<f32>,
    bins: Vec<u64>,
}

/// A logit as every stage sees it: NaN is `-inf`, `inf` the largest number, what is smaller than `2⁻¹⁰⁰` is 0.
#[inline(always)]
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
#[inline(always)]
pub fn key(x: f32) -> u32 {
    let bits = number(x).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// An integer in the order of tokens: the larger logit is larger, of equals the lower id.
#[inline(always)]
pub fn rank(id: u32, logit: f32) -> u64 {
    u64::from(key(logit)) << 32 | u64::from(!id)
}

#[inline(always)]
pub(super) fn id_of(rank: u64) -> u32 {
    !(rank as u32)
}

#[inline(always)]
pub(super) fn logit_of(rank: u64) -> f32 {
    let key = (rank >> 32) as u32;
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

/// The token that comes first by [`rank`]; `None` where none is possible.
#[inline(always)]
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let best = largest(logits)?;
    let is_best = |x: &f32| number(*x) == best;
    let chunk = logits.chunks(CHUNK).position(|chunk| any(chunk, is_best))?;
    let at = chunk * CHUNK;
    logits[at..].iter().position(is_best).map(|i| (at + i) as u32)
}

/// Whether one of them is such. All are looked at: without an end in the middle it becomes vector code.
#[inline(always)]
fn any(chunk: &[f32], is: impl Fn(&f32) -> bool) -> bool {
    chunk.iter().map(|x| u32::from(is(x))).sum::<u32>() > 0
}

/// The largest [`number`]; `None` where all are `-inf`.
#[inline(always)]
fn largest(logits: &[f32]) -> Option<f32> {
    // Several vectors, so that none waits for the comparison before it.
    const WIDE: usize = 4 * CHUNK;
    let (chunks, rest) = logits.as_chunks::<WIDE>();
    let mut lanes = [f32::NEG_INFINITY; WIDE];
    let larger = |x: f32, than: f32| if x > than { x } else { than };
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*x, *lane);
        }
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |most, x| larger(*x, most));
    (largest > f32::NEG_INFINITY).then(|| number(largest))
}

/// The `k` first by [`rank`] with their logits, best first; fewer where not so many are possible.
pub fn top_k(logits: &[f32], k: usize, scratch: &mut Scratch) -> impl Iterator<Item = (u32, f32)> {
    let Scratch { ranks, tops, spare, .. } = scratch;
    match Row::new(logits, tops) {
        Some(row) => row.best(k, f32::NEG_INFINITY, spare, ranks),
        None => ranks.clear(),
    }
    ranks.truncate(k);
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.iter().map(|rank| (id_of(*rank), logit_of(*rank)))
}

/// Chooses the token of row `row` of packed choices (see [`Choices`](super::Choices)) by its logits; `None` where no token is
/// possible.
#[inline(always)]
pub fn choose(
    words: &[u32],
    row: usize,
    logits: &[f32],
    scratch: &mut Scratch,
) -> Result<Option<u32>, ChoiceError> {
    let (record, edits) = Record::read(words, row)?;
    let mut copy = std::mem::take(&mut scratch.logits);
    let logits = if edits.is_empty() {
        logits
    } else {
        copy.clear();
        copy.extend_from_slice(logits);
        for &[id, count, bias] in edits {
            if let Some(x) = copy.get_mut(id as usize) {
                *x = record.edited(*x, Edit { id, count, bias: f32::from_bits(bias) });
            }
        }
        &copy
    };
    let chosen = of_logits(&record, logits, scratch);
    scratch.logits = copy;
    Ok(chosen)
}

#[inline(always)]
fn of_logits(record: &Record, logits: &[f32], scratch: &mut Scratch) -> Option<u32> {
    if record.inverse_temperature == 0.0 {
        return argmax(logits);
    }
    let Scratch { ranks, tops, spare, bins, .. } = scratch;
    let row = Row::new(logits, tops)?;
    let mut max = row.max;
    if (1..logits.len()).contains(&(record.top_k as usize)) {
        // The weight of the improbable counts where shares of it are asked for.
        let shares = record.typical != 0 || record.top_p != 0;
        let floor = if shares { f32::NEG_INFINITY } else { least(record, max) };
        row.best(record.top_k as usize, floor, spare, ranks);
        if record.typical != 0 {
            let mean = mean_of(ranks, max);
            keep_typical(logits, max, (record.typical, mean), ranks);
            max = ranks.iter().max().map(|rank| logit_of(*rank))?;
        }
    } else if record.typical != 0 {
        let typical = Typical::of(&row, record.typical, bins, ranks);
        max = typical.max(&row)?;
        if record.top_p == 0 {
            let mut draw = Draw::new(record, max);
            draw.offer_row(&row, |id, x| typical.keeps(id, x));
            return draw.chosen();
        }
        row.pick(ranks, |_| true, rank);
        ranks.retain(|rank| typical.keeps(id_of(*rank), logit_of(*rank)));
    } else if record.top_p != 0 {
        return part_of_row(record, &row, bins, ranks);
    } else {
        let mut draw = Draw::new(record, max);
        draw.offer_row(&row, |_, _| true);
        return draw.chosen();
    }
    if record.top_p != 0 {
        let weigh = |rank: u64| weight(logit_of(rank) - max);
        let enough = part(mass(ranks, weigh), record.top_p);
        keep_mass(ranks, enough, weigh);
    }
    let mut draw = Draw::new(record, max);
    for rank in ranks.iter() {
        draw.offer(id_of(*rank), logit_of(*rank));
    }
    draw.chosen()
}

/// Draws from the part of a row that top-p leaves. Whoever wins a draw from more than that is the choice if it is of that part,
/// which takes one sum to find out and is more likely than not.
#[inline(always)]
fn part_of_row(record: &Record, row: &Row<'_>, bins: &mut Vec<u64>, ranks: &mut Vec<u64>) -> Option<u32> {
    let max = row.max;
    let total = row.weight();
    let enough = part(total, record.top_p);
    // Even if all weighed this and were left out, enough would remain.
    let light = (total - enough) / row.logits.len() as u64;
    // A little further down: whoever is left out weighs no more, however this logarithm is rounded.
    let bar = number(max + (((light.max(1) as f32).ln() - 21.49) - 0.01));
    let mut after = 0;
    for _ in 0..GUESSES {
        let mut draw = Draw::new(record, max).above(bar.max(logit_of(after)));
        draw.offer_row(row, |id, x| rank(id, x) > after);
        let id = draw.chosen()?;
        let winner = rank(id, *row.logits.get(id as usize)?);
        if row.weight_before(winner) < enough {
            return Some(id);
        }
        after = winner;
    }
    let place = |x: f32| depth(x - max);
    row.fill(bins, place);
    let (bin, before) = bin_with(bins, enough);
    row.pick(ranks, |x| bin_of(place(x)) == bin, rank);
    keep_mass(ranks, enough - before, |rank| weight(logit_of(rank) - max));
    let last = ranks.iter().min().copied()?;
    let mut draw = Draw::new(record, max).above(logit_of(last));
    draw.offer_row(row, |id, x| rank(id, x) >= last);
    draw.chosen()
}

/// The bin in which so much weight is reached, and what those before it weigh.
#[inline(always)]
fn bin_with(bins: &[u64], enough: u64) -> (usize, u64) {
    let mut before = 0;
    for (bin, weight) in bins.iter().enumerate() {
        if before + weight >= enough {
            return (bin, before);
        }
        before += weight;
    }
    (bins.len(), before)
}

/// Keeps the shortest beginning, in falling order of `ranks`, that weighs `enough`, in any order: by halves.
#[inline(always)]
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

#[inline(always)]
fn mass(ranks: &[u64], weigh: impl Fn(u64) -> u32) -> u64 {
    ranks.iter().map(|rank| u64::from(weigh(*rank))).sum()
}

/// The tokens of a row whose surprise is nearest its mean, the entropy, until they hold a share of the weight (locally typical
/// sampling, Meister et al.).
struct Typical {
    max: f32,
    mean: Mean,
    /// By [`strangeness`], the last that stays.
    last: u64,
}

impl Typical {
    #[inline(always)]
    fn of(row: &Row<'_>, share: u32, bins: &mut Vec<u64>, ranks: &mut Vec<u64>) -> Typical {
        let max = row.max;
        let mut mean = Moments::default();
        for (_, _, block) in row.blocks() {
            mean.add(block, max);
        }
        let mean = mean.mean();
        let enough = part(mean.total, share);
        row.fill(bins, |x| mean.strangeness(x - max));
        let (bin, before) = bin_with(bins, enough);
        let in_bin = |x: f32| bin_of(mean.strangeness(x - max)) == bin;
        row.pick(ranks, in_bin, |id, x| mean.rank(id, x - max));
        let weigh = |rank: u64| row.logits.get(id_of(rank) as usize).map_or(0, |x| weight(number(*x) - max));
        keep_mass(ranks, enough - before, weigh);
        Typical { max, mean, last: ranks.iter().min().copied().unwrap_or(0) }
    }

    #[inline(always)]
    fn keeps(&self, id: u32, x: f32) -> bool {
        self.mean.rank(id, x - self.max) >= self.last
    }

    /// The largest that stays.
    #[inline(always)]
    fn max(&self, row: &Row<'_>) -> Option<f32> {
        let mut max = f32::NEG_INFINITY;
        for (first, top, block) in row.blocks() {
            if top <= max {
                continue;
            }
            for (x, id) in block.iter().zip(first..) {
                let x = number(*x);
                if x > max && self.keeps(id, x) {
                    max = x;
                }
            }
        }
        (max > f32::NEG_INFINITY).then_some(max)
    }
}

/// The mean of depths, by their weights, and what those are together.
#[derive(Clone, Copy)]
struct Mean {
    depth: u32,
    total: u64,
}

impl Mean {
    /// How far the surprise of a logit, given by its distance from the largest, is from the mean.
    #[inline(always)]
    fn strangeness(&self, distance: f32) -> u32 {
        depth(distance).abs_diff(self.depth)
    }

    /// An integer in the order of typical tokens: less strange is larger, of equals the lower id.
    #[inline(always)]
    fn rank(&self, id: u32, distance: f32) -> u64 {
        u64::from(!self.strangeness(distance)) << 32 | u64::from(!id)
    }
}

/// Sums that a [`Mean`] is made of.
#[derive(Default)]
struct Moments {
    total: u64,
    moment: u128,
}

impl Moments {
    /// Adds numbers, the largest of all being `max`.
    #[inline(always)]
    fn add(&mut self, logits: &[f32], max: f32) {
        // A product is less than 2⁵⁹, so that sixteen of them have room.
        for chunk in logits.chunks(CHUNK) {
            let (mut total, mut moment) = (0, 0);
            for x in chunk {
                let depth = depth(number(*x) - max);
                let weight = u64::from(weight_at(depth));
                total += weight;
                moment += weight * u64::from(depth);
            }
            self.total += total;
            self.moment += u128::from(moment);
        }
    }

    #[inline(always)]
    fn mean(&self) -> Mean {
        Mean { depth: (self.moment / u128::from(self.total.max(1))) as u32, total: self.total }
    }
}

#[inline(always)]
fn mean_of(ranks: &[u64], max: f32) -> Mean {
    let mut moments = Moments::default();
    for rank in ranks {
        moments.add(&[logit_of(*rank)], max);
    }
    moments.mean()
}

/// Keeps the typical of these.
#[inline(always)]
fn keep_typical(logits: &[f32], max: f32, (share, mean): (u32, Mean), ranks: &mut Vec<u64>) {
    for ranked in ranks.iter_mut() {
        *ranked = mean.rank(id_of(*ranked), logit_of(*ranked) - max);
    }
    let weigh = |rank: u64| logits.get(id_of(rank) as usize).map_or(0, |x| weight(number(*x) - max));
    keep_mass(ranks, part(mean.total, share), weigh);
    for kept in ranks.iter_mut() {
        let id = id_of(*kept);
        *kept = logits.get(id as usize).map_or(0, |x| rank(id, *x));
    }
}
