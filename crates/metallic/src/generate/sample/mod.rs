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
//! 8. temperature
//! 9. one draw
//!
//! The same seed and logits give the same tokens on every platform.

mod config;
mod filters;
mod random;

pub use config::Sampling;
pub use filters::{
    Candidate, argmax, bias, draw, drop_impossible, exp, load, min_p, penalise, temperature, top_k, top_p,
    typical,
};
pub use random::Random;

use super::{EngineError, Logprob};
use filters::sum_exp;

/// Memory that sampling works in. One serves any number of samplers, one after another.
#[derive(Debug, Default)]
pub struct Scratch {
    candidates: Vec<Candidate>,
    counts: Vec<u32>,
}

/// The parameters of one request and its random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: Random,
    seed: u64,
}

impl Sampler {
    /// A sampler that begins the sequence of its seed, or of `fallback_seed` where the parameters name none.
    pub fn new(sampling: Sampling, fallback_seed: u64) -> Self {
        let seed = sampling.seed.unwrap_or(fallback_seed);
        Self { sampling, random: Random::new(seed), seed }
    }

    /// The seed it began with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether it takes the best token by the logits as they are.
    pub fn is_argmax(&self) -> bool {
        let sampling = &self.sampling;
        sampling.temperature == 0.0 && sampling.logit_bias.is_empty() && !sampling.has_penalties()
    }

    /// Chooses the token that follows `history` (prompt and answer so far), given a row of logits.
    pub fn sample(
        &mut self,
        scratch: &mut Scratch,
        logits: &[f32],
        history: &[u32],
    ) -> Result<u32, EngineError> {
        let chosen = self.choose(scratch, logits, history);
        chosen.ok_or_else(|| EngineError::NoCandidate {
            vocab: logits.len(),
            nan: logits.iter().filter(|x| x.is_nan()).count(),
        })
    }

    fn choose(&mut self, scratch: &mut Scratch, logits: &[f32], history: &[u32]) -> Option<u32> {
        let sampling = &self.sampling;
        if self.is_argmax() {
            return argmax(logits.iter().copied());
        }
        let candidates = &mut scratch.candidates;
        load(candidates, logits);
        bias(candidates, sampling);
        if sampling.has_penalties() {
            penalise(candidates, sampling, history, &mut scratch.counts);
        }
        if sampling.temperature == 0.0 {
            return argmax(candidates.iter().map(|c| c.logit));
        }
        drop_impossible(candidates);
        top_k(candidates, sampling.top_k);
        typical(candidates, sampling.typical);
        top_p(candidates, sampling.top_p);
        min_p(candidates, sampling.min_p);
        temperature(candidates, sampling.temperature);
        draw(candidates, &mut self.random)
    }
}

/// Log-probabilities by the model itself, before any stage of sampling: of `id`, and of the `top` best tokens.
/// Logits that are not numbers count as impossible.
pub fn logprobs(scratch: &mut Scratch, logits: &[f32], id: u32, top: usize) -> (f32, Vec<Logprob>) {
    let candidates = &mut scratch.candidates;
    load(candidates, logits);
    let chosen = candidates.get(id as usize).map_or(f32::NEG_INFINITY, |c| c.logit);
    let log_total = log_sum_exp(logits);
    let logprob = |logit: f32| (f64::from(logit.min(f32::MAX)) - log_total) as f32;
    drop_impossible(candidates);
    let mut best = Vec::new();
    if top > 0 {
        top_k(candidates, top);
        best.extend(candidates.iter().map(|c| Logprob { id: c.id, logprob: logprob(c.logit) }));
    }
    (logprob(chosen), best)
}

/// `ln Σ e^x` over the logits that are numbers, in f64.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let numbers =
        || logits.iter().map(|x| if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) }).map(f64::from);
    let max = numbers().fold(f64::NEG_INFINITY, f64::max);
    max + sum_exp(numbers(), max).ln()
}
