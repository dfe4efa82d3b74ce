//! Choosing the next token.
//!
//! The stages run in this order, and each sees what the one before left:
//!
//! 1. logit bias
//! 2. repetition, presence and frequency penalties
//! 3. temperature 0: the best token, and the rest is skipped
//! 4. top-k
//! 5. typical
//! 6. top-p
//! 7. min-p
//! 8. one draw at the temperature
//!
//! [`metallic_core::sample`] defines them to the bit; here a request's [`Sampling`] is packed for it. The same seed and logits
//! give the same tokens on every device and platform.

mod config;
mod logprobs;

pub use config::Sampling;
pub(super) use logprobs::log_sum_exp;
pub use logprobs::{exp, logprobs};

use metallic_core::sample::{self, Choices, Edit};

use super::EngineError;

/// Memory that sampling works in. One serves any number of samplers, one after another.
#[derive(Debug, Default)]
pub struct Scratch {
    rows: sample::Scratch,
    choices: Choices,
    /// Tokens, and whether they are of the answer.
    window: Vec<(u32, bool)>,
    edits: Vec<Edit>,
}

/// How the tokens of one request are chosen.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    seed: u64,
}

impl Sampler {
    /// A sampler with the seed of its parameters, or with `fallback_seed` where they name none.
    pub fn new(sampling: Sampling, fallback_seed: u64) -> Self {
        let seed = sampling.seed.unwrap_or(fallback_seed);
        Self { sampling, seed }
    }

    /// The seed of its random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether every stage is one that devices have: the host alone keeps typical tokens.
    pub fn is_for_device(&self) -> bool {
        self.sampling.temperature == 0.0 || self.sampling.typical >= 1.0
    }

    /// Whether what is chosen depends on the tokens before it.
    pub fn has_penalties(&self) -> bool {
        self.sampling.has_penalties()
    }

    /// Chooses the token that follows `history` (prompt and answer so far), given a row of logits. `draw` counts the tokens of
    /// the answer so far: which random numbers are taken depends on nothing else.
    pub fn sample(
        &self,
        scratch: &mut Scratch,
        logits: &[f32],
        history: &[u32],
        draw: u64,
    ) -> Result<u32, EngineError> {
        let mut choices = std::mem::take(&mut scratch.choices);
        choices.clear();
        self.pack(scratch, history, draw, &mut choices)?;
        let chosen = metallic_cpu::choose(choices.words(), 0, logits, &mut scratch.rows)?;
        scratch.choices = choices;
        chosen.ok_or_else(|| EngineError::no_candidate(logits))
    }

    /// Appends how the token that follows `history` is chosen.
    pub fn pack(
        &self,
        scratch: &mut Scratch,
        history: &[u32],
        draw: u64,
        choices: &mut Choices,
    ) -> Result<(), EngineError> {
        self.gather_edits(history, draw, scratch);
        Ok(choices.push(&self.sampling.choice(self.seed, draw), &scratch.edits)?)
    }

    /// The tokens with a bias and, where there are penalties, those of the window, in ascending order. The last `answered` of the history
    /// are the answer: presence and frequency count these alone.
    fn gather_edits(&self, history: &[u32], answered: u64, scratch: &mut Scratch) {
        let Sampling { logit_bias, penalty_window, repetition_penalty, .. } = &self.sampling;
        let Scratch { window, edits, .. } = scratch;
        window.clear();
        if self.sampling.has_penalties() {
            let prompt = history.len().saturating_sub(usize::try_from(answered).unwrap_or(usize::MAX));
            let least = if *repetition_penalty == 1.0 { prompt } else { 0 };
            let from = history.len().saturating_sub(*penalty_window).max(least);
            window.extend(history.iter().enumerate().skip(from).map(|(i, &id)| (id, i >= prompt)));
            window.sort_unstable();
        }
        edits.clear();
        edits.extend(window.chunk_by(|a, b| a.0 == b.0).map(|same| {
            let bias = logit_bias.get(&same[0].0).copied().unwrap_or(0.0);
            let said = same.iter().filter(|(_, is_answer)| *is_answer).count();
            let count = if said == 0 { Edit::REPEATED } else { said as u32 };
            Edit { id: same[0].0, count, bias }
        }));
        let others =
            logit_bias.iter().filter(|(id, _)| window.binary_search_by_key(*id, |token| token.0).is_err());
        edits.extend(others.map(|(&id, &bias)| Edit { id, count: 0, bias }));
        edits.sort_unstable_by_key(|edit| edit.id);
    }
}
