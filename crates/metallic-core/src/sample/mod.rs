//! The choice of the next token, defined once: the same logits give the same token on every device.
//!
//! Everything that decides is made of integer operations, of [`f32::mul_add`] (`fma`) and of single sums, differences and
//! products, which are exact to the last bit everywhere; no sum of floats whose order could differ is involved. Probabilities
//! are integers, see [`weight()`], so that their sums are the same in any order.
//!
//! The stages, for the logit `x` of token `i` of a row; `m` is the largest logit that is left when a stage begins:
//!
//! 1. [`number`]: NaN is `-inf`, `inf` the largest number, and what is smaller than `2⁻¹⁰⁰` is 0.
//! 2. Edits, see [`Record::edited`]: a bias, then the penalties of tokens that came before. Only a bias of `-inf` makes a
//!    token impossible, and nothing makes an impossible one possible.
//! 3. With temperature 0 the largest `x` is the choice.
//! 4. top-k: the `k` first by [`rank`] stay.
//! 5. typical: tokens are ordered by `|depth(x - m) - mean|`, the mean weighted by `weight(x - m)` and rounded down, then by
//!    id; the shortest beginning stays that holds `typical` of the weight.
//! 6. top-p: the shortest beginning in the order of [`rank`] stays that holds `top_p` of the weight.
//! 7. min-p: `x ≥ number(m + ln(min_p))` stays.
//! 8. The choice is the largest `fma(x - m, 1 / temperature, gumbel(bits))`: noise of the Gumbel distribution makes this a
//!    draw by the probabilities of the softmax. `bits` is word `i mod 4` of `philox([i / 4, 0, draw], seed)`.
//!
//! Of equals the lowest id comes first, in every comparison. A row in which no token is possible has no choice.

mod choose;
mod draw;
mod noise;
mod packed;
mod row;
#[cfg(test)]
mod tests;
mod weight;

pub use choose::{Scratch, argmax, choose, key, number, rank, top_k};
pub use noise::{LEAST_NOISE, LN_SERIES, MOST_NOISE, gumbel, ln, philox, uniform};
pub use packed::{Choices, EDIT, HEADER, Record};
pub use weight::{EXP_SERIES, OCTAVE, WEIGHTLESS, depth, part, weight};

/// What stands for a token on a device where a row has no choice.
pub const NO_CANDIDATE: u32 = u32::MAX;

/// How one token is chosen; the stages are those of [the module](self).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// 0 takes the best token; else at least [`Choice::LEAST_TEMPERATURE`].
    pub temperature: f32,
    /// Keeps so many of the best tokens; 0: all.
    pub top_k: u32,
    /// Keeps the most typical tokens with this share of the probability; above 0, 1: all.
    pub typical: f32,
    /// Keeps the best tokens with this share of the probability; above 0, 1: all.
    pub top_p: f32,
    /// Keeps tokens at least this share as probable as the best; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that came before; 1: off. It and its inverse are normal
    /// numbers above 0.
    pub repetition: f32,
    /// Taken from the logit of every token that came before.
    pub presence: f32,
    /// Taken from the logit of a token for each time it came before.
    pub frequency: f32,
    /// Which sequence of random numbers.
    pub seed: u64,
    /// Which draw of that sequence: how many tokens were drawn before.
    pub draw: u64,
}

impl Default for Choice {
    /// The model's own distribution: temperature 1 and nothing else, seed 0.
    fn default() -> Choice {
        Choice {
            temperature: 1.0,
            top_k: 0,
            typical: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            draw: 0,
        }
    }
}

impl Choice {
    /// The smallest temperature but 0.
    pub const LEAST_TEMPERATURE: f32 = 1e-6;

    /// The best token, and nothing else.
    pub fn greedy() -> Choice {
        Choice { temperature: 0.0, ..Choice::default() }
    }

    /// Whether tokens that came before are treated differently, so that their counts are needed.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Holds every parameter to its range.
    pub fn validate(&self) -> Result<(), ChoiceError> {
        let (t, r) = (self.temperature, self.repetition);
        let share = |p: f32| p > 0.0 && p <= 1.0;
        let warm = t == 0.0 || (t.is_finite() && t >= Choice::LEAST_TEMPERATURE);
        let factor = r > 0.0 && r.is_normal() && r.recip().is_normal();
        let finite = "a finite number";
        in_ranges([
            ("temperature", t, warm, "0, or from 0.000001"),
            ("typical", self.typical, share(self.typical), "above 0 and at most 1"),
            ("top_p", self.top_p, share(self.top_p), "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1"),
            ("repetition", r, factor, "a normal number above 0, and its inverse too"),
            ("presence", self.presence, self.presence.is_finite(), finite),
            ("frequency", self.frequency, self.frequency.is_finite(), finite),
        ])
    }
}

/// Parameters by name and value: whether each is in its range, and what that is.
fn in_ranges(
    parameters: impl IntoIterator<Item = (&'static str, f32, bool, &'static str)>,
) -> Result<(), ChoiceError> {
    match parameters.into_iter().find(|(.., in_range, _)| !in_range) {
        Some((name, found, _, needed)) => Err(ChoiceError::Parameter { name, found, needed }),
        None => Ok(()),
    }
}

/// What one token's logit gets before any stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edit {
    /// The token.
    pub id: u32,
    /// How often it came before, for the penalties; [`Edit::REPEATED`] where presence and frequency do not count it.
    pub count: u32,
    /// Added to its logit; `-inf` bans it.
    pub bias: f32,
}

impl Edit {
    /// The count of a token that came before and gets the penalty of repetition alone.
    pub const REPEATED: u32 = u32::MAX;
}

/// Why a choice is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ChoiceError {
    /// A parameter outside its range.
    #[error("{name} is {found}, needed is {needed}")]
    Parameter { name: &'static str, found: f32, needed: &'static str },
    /// Edits that are not in ascending order of their tokens, each once.
    #[error("edits are in ascending order of their tokens; token {id} comes after {before}")]
    Order { id: u32, before: u32 },
    /// A row that the packed words do not hold, to the end of its record or of its edits.
    #[error("row {row} of packed choices needs {needed} words, there are {found}")]
    Words { row: usize, needed: usize, found: usize },
    /// More edits than a record can point to.
    #[error("{found} words of packed choices, at most {}", u32::MAX)]
    TooMany { found: usize },
}
