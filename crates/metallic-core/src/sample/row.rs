//! A row of logits in blocks: what is looked for or summed over all of it. Loops go over whole blocks without an end in the
//! middle, so that they become vector code for whatever they are compiled for.

use super::choose::{TINY, id_of, logit_of, number};
use super::{rank, weight};

/// Elements that are looked at together.
pub(super) const BLOCK: usize = 64;
/// Elements of a vector, more or less.
const LANES: usize = 16;

/// Nothing so far below the best weighs anything.
const DEEP: f32 = -22.0;

/// A row in which a token is possible.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) logits: &'a [f32],
    /// The largest number of each block.
    tops: &'a [f32],
    /// Its last block, where it is not whole: `-inf` behind the row's end.
    last: Option<[f32; BLOCK]>,
    /// The largest of all.
    pub(super) max: f32,
}

impl<'a> Row<'a> {
    /// `None` where no token is possible.
    #[inline(always)]
    pub(super) fn new(logits: &'a [f32], tops: &'a mut Vec<f32>) -> Option<Row<'a>> {
        let (whole, rest) = logits.as_chunks::<BLOCK>();
        tops.clear();
        tops.extend(whole.iter().map(largest));
        let mut last = None;
        if !rest.is_empty() {
            let block = last.insert([f32::NEG_INFINITY; BLOCK]);
            block[..rest.len()].copy_from_slice(rest);
            tops.push(largest(block));
        }
        let max = tops.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        (max > f32::NEG_INFINITY).then_some(Row { logits, tops, last, max })
    }

    /// Of each block its first id, its largest number, and its logits. A loop over it has its body in the function around it,
    /// and so its instructions; a closure would not.
    #[inline(always)]
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u32, f32, &[f32; BLOCK])> {
        let blocks = self.logits.as_chunks::<BLOCK>().0.iter().chain(&self.last);
        (0..).step_by(BLOCK).zip(self.tops).zip(blocks).map(|((first, top), block)| (first, *top, block))
    }

    /// What all weigh together.
    #[inline(always)]
    pub(super) fn weight(&self) -> u64 {
        let mut total = 0;
        for (_, top, block) in self.blocks() {
            if top - self.max >= DEEP {
                total += self.weight_above(block, f32::NEG_INFINITY);
            }
        }
        total
    }

    /// What those weigh together that come before one by their [`rank`].
    #[inline(always)]
    pub(super) fn weight_before(&self, ranked: u64) -> u64 {
        let (id, x) = (id_of(ranked), logit_of(ranked));
        let mut total = 0;
        for (first, top, block) in self.blocks() {
            if top < x {
                continue;
            }
            // Equals with lower ids come before.
            let above = if first + BLOCK as u32 <= id { below(x) } else { x };
            total += self.weight_above(block, above);
            if (first..first + BLOCK as u32).contains(&id) {
                let before = &block[..(id - first) as usize];
                let equals = before.iter().filter(|other| number(**other) == x).count();
                total += equals as u64 * u64::from(weight(x - self.max));
            }
        }
        total
    }

    /// What those of a block weigh that are larger than this.
    #[inline(always)]
    fn weight_above(&self, block: &[f32; BLOCK], above: f32) -> u64 {
        let mut sums = [0u64; LANES];
        for lanes in block.as_chunks::<LANES>().0 {
            for (sum, x) in sums.iter_mut().zip(lanes) {
                let x = number(*x);
                *sum += u64::from(if x > above { weight(x - self.max) } else { 0 });
            }
        }
        sums.into_iter().sum()
    }

    /// Adds what each token weighs to the bin of its place in an order, which is below [`super::WEIGHTLESS`] and larger for
    /// who comes later. Whoever weighs nothing is left out.
    #[inline(always)]
    pub(super) fn fill(&self, bins: &mut Vec<u64>, place: impl Fn(f32) -> u32) {
        bins.clear();
        bins.resize(BINS, 0);
        for (_, top, block) in self.blocks() {
            if top - self.max < DEEP {
                continue;
            }
            let (mut weights, mut places) = ([0; BLOCK], [0; BLOCK]);
            for i in 0..BLOCK {
                let x = number(block[i]);
                (weights[i], places[i]) = (weight(x - self.max), place(x));
            }
            for (place, weight) in places.into_iter().zip(weights) {
                if let Some(bin) = bins.get_mut(bin_of(place)) {
                    *bin += u64::from(weight);
                }
            }
        }
    }

    /// Gathers what `ranked` makes of tokens and numbers of those that `is` picks, whoever is impossible left out.
    #[inline(always)]
    pub(super) fn pick(
        &self,
        ranks: &mut Vec<u64>,
        is: impl Fn(f32) -> bool,
        ranked: impl Fn(u32, f32) -> u64,
    ) {
        ranks.clear();
        for (first, _, block) in self.blocks() {
            let mut picked = 0;
            for x in block {
                picked += u32::from(is(number(*x)));
            }
            if picked == 0 {
                continue;
            }
            for (x, id) in block.iter().zip(first..) {
                let x = number(*x);
                if is(x) && x > f32::NEG_INFINITY {
                    ranks.push(ranked(id, x));
                }
            }
        }
    }

    /// Gathers the `k` best of those that are at least `least`, in any order.
    #[inline(always)]
    pub(super) fn best(&self, k: usize, least: f32, spare: &mut Vec<f32>, ranks: &mut Vec<u64>) {
        ranks.clear();
        spare.clear();
        // Blocks have a best each, so that the k-th of those is no better than the k-th of all.
        let kth = k.checked_sub(1).filter(|kth| *kth < self.tops.len()).map(|kth| {
            spare.extend_from_slice(self.tops);
            *spare.select_nth_unstable_by(kth, |a, b| b.total_cmp(a)).1
        });
        let mut bar = below(kth.map_or(least, |kth| kth.max(least)));
        let full = k.saturating_mul(2).max(BLOCK);
        for (first, top, block) in self.blocks() {
            if top <= bar {
                continue;
            }
            for (lanes, at) in block.as_chunks::<LANES>().0.iter().zip((first..).step_by(LANES)) {
                if lanes.iter().map(|x| u32::from(*x > bar)).sum::<u32>() == 0 {
                    continue;
                }
                // Ids ascend: of equals at the bar the ones that stay came before.
                let better = lanes.iter().zip(at..).filter(|(x, _)| number(**x) > bar);
                ranks.extend(better.map(|(x, id)| rank(id, *x)));
            }
            // The worse half goes each time twice as many have come together.
            if ranks.len() >= full {
                bar = bar.max(logit_of(cut_to(ranks, k)));
            }
        }
        cut_to(ranks, k);
    }
}

/// Bins of [`Row::fill`].
const BINS: usize = 4096;

/// The bin of a place in an order.
#[inline(always)]
pub(super) fn bin_of(place: u32) -> usize {
    (place >> 16) as usize
}

/// Keeps the `k` largest, in any order, and says which of them is the smallest; 0 where all stay.
fn cut_to(ranks: &mut Vec<u64>, k: usize) -> u64 {
    if k == 0 || k >= ranks.len() {
        return 0;
    }
    let (_, smallest, _) = ranks.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    let smallest = *smallest;
    ranks.truncate(k);
    smallest
}

/// The number before this one, so that "larger than it" means "at least this".
#[inline(always)]
pub(super) fn below(x: f32) -> f32 {
    // Between it and 0 there are no numbers.
    if x == 0.0 { -TINY } else { x.next_down() }
}

/// The largest number of a block.
#[inline(always)]
fn largest(block: &[f32; BLOCK]) -> f32 {
    let larger = |x: f32, than: f32| if x > than { x } else { than };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for xs in block.as_chunks::<LANES>().0 {
        for (lane, x) in lanes.iter_mut().zip(xs) {
            *lane = larger(*x, *lane);
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = larger(lanes[i + half], lanes[i]);
        }
    }
    number(lanes[0])
}
