//! The last two stages: what is improbable goes, then the largest score wins. No noise is made for tokens that cannot win.

use super::choose::{id_of, number};
use super::noise::{gumbel_bound, philox_block};
use super::row::Row;
use super::{LEAST_NOISE, MOST_NOISE, NO_CANDIDATE, Record, gumbel, philox, rank};

pub(super) struct Draw<'r> {
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
    #[inline(always)]
    pub(super) fn new(record: &'r Record, max: f32) -> Self {
        let bounding = record.inverse_temperature * (1.0 - 1e-6);
        Self { record, max, least: least(record, max), bounding, bar: LEAST_NOISE, best: 0 }
    }

    /// The same, and nothing below `least` stays.
    #[inline(always)]
    pub(super) fn above(self, least: f32) -> Self {
        Self { least: self.least.max(least), ..self }
    }

    /// At least the score of a logit and a noise that is at most this. Rounding is covered: by `bounding` where the product is
    /// large, else by what noise is bounded with.
    #[inline(always)]
    fn bound(&self, logit: f32, noise: f32) -> f32 {
        (logit - self.max) * self.bounding + noise
    }

    /// Offers the tokens of a row that `keeps` does.
    #[inline(always)]
    pub(super) fn offer_row(&mut self, row: &Row<'_>, keeps: impl Fn(u32, f32) -> bool) {
        let Record { draw, seed, .. } = *self.record;
        for (first, top, block) in row.blocks() {
            if top < self.least || self.bound(top, MOST_NOISE) < self.bar {
                continue;
            }
            let words = philox_block(first / 4, draw, seed);
            let needed = self.bits_for(top);
            let mut enough = 0;
            for bits in words.as_flattened() {
                enough += u32::from(*bits >= needed);
            }
            if enough == 0 {
                continue;
            }
            for (i, x) in block.iter().enumerate() {
                let (bits, id, x) = (words[i % 4][i / 4], first + i as u32, number(*x));
                if bits >= needed && self.may_win(x, bits) && keeps(id, x) {
                    self.weigh_in(id, x, bits);
                }
            }
        }
    }

    /// Random bits below these are too little noise for a logit to win.
    #[inline(always)]
    fn bits_for(&self, logit: f32) -> u32 {
        // A little less, so that whoever is left out loses however either side is rounded.
        let noise = self.bar - (logit - self.max) * self.bounding - 2e-3;
        // A noise is at least `n` where `u ≥ exp(-e⁻ⁿ)`, and that is more than `1 - e⁻ⁿ`. A power of two between whole
        // exponents lies below the line that floats have there.
        let exponent = (127.0 - noise * std::f32::consts::LOG2_E).clamp(0.0, 127.0);
        let rare = f32::from_bits((exponent * 8_388_608.0) as u32);
        // Noise is made of the upper 23 bits.
        (!((rare * 4_294_967_296.0) as u32)).saturating_sub(1024)
    }

    /// Offers a token by its number.
    #[inline(always)]
    pub(super) fn offer(&mut self, id: u32, logit: f32) {
        if self.bound(logit, MOST_NOISE) >= self.bar {
            let Record { draw: [low, high], seed, .. } = *self.record;
            let bits = philox([id / 4, 0, low, high], seed)[id as usize % 4];
            if self.may_win(logit, bits) {
                self.weigh_in(id, logit, bits);
            }
        }
    }

    #[inline(always)]
    fn may_win(&self, logit: f32, bits: u32) -> bool {
        logit >= self.least && self.bound(logit, gumbel_bound(bits)) >= self.bar
    }

    #[inline(always)]
    fn weigh_in(&mut self, id: u32, logit: f32, bits: u32) {
        let score = (logit - self.max).mul_add(self.record.inverse_temperature, gumbel(bits));
        let ranked = rank(id, score);
        if ranked > self.best {
            (self.best, self.bar) = (ranked, self.bar.max(score));
        }
    }

    #[inline(always)]
    pub(super) fn chosen(&self) -> Option<u32> {
        Some(id_of(self.best)).filter(|id| *id != NO_CANDIDATE)
    }
}

/// What min-p leaves, where this is the largest logit.
#[inline(always)]
pub(super) fn least(record: &Record, max: f32) -> f32 {
    number(max + record.ln_min_p)
}
