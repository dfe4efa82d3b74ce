//! Guessing ahead: tokens that may follow are put into the same step as the last one, and those count that the model would have
//! chosen.
//!
//! A step with guesses gives a row for each. The sampler chooses by the first as ever; if that is what was guessed, the second row
//! is what the next step would have given, and so on. The random numbers of a token depend on its place alone, so
//! answers are the same with guesses and without, token by token, at any temperature. Guesses that were wrong leave keys and
//! values behind that are written over; a recurrent state cannot be taken back, so models with one do not guess.

mod adapt;
mod draft;
mod guess;
mod lookup;
mod options;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use self::adapt::{Costs, Odds, Plan, plan, plan_rounds};
pub use self::draft::Draft;
use self::draft::{Ask, Drafter};
pub(super) use self::guess::Guess;
use self::guess::{USUAL_OF_DRAFTS, USUAL_OF_MATCHES};
pub use self::options::{DraftOptions, LookupOptions, Speculation};
use super::EngineError;
use super::hook::panic_message;
use super::sample::Sampler;
use crate::telemetry::tell;

/// How much the last place counts in what guessing promises.
const FRESH: f64 = 0.1;
/// By so much the promise must exceed what there is.
const GAIN: f64 = 1.03;
/// The part of the time an answer may still take that a smaller model may need to know it.
const WORTH: f64 = 0.25;

/// A sequence that waits for its next token, and may guess further ones.
pub(super) struct Guessing<'s> {
    pub(super) guess: &'s mut Guess,
    pub(super) serial: u64,
    /// Prompt and answer.
    pub(super) tokens: &'s [u32],
    pub(super) prompt_len: usize,
    pub(super) sampler: &'s Sampler,
    /// Most tokens that may be guessed.
    pub(super) room: usize,
}

/// What an engine knows of guessing.
pub(super) struct Speculator {
    is_adaptive: bool,
    /// How right guesses are in general.
    all: Odds,
    /// What steps take that wait for the one before, and those that are handed over early.
    alone: Costs,
    chased: Costs,
    /// Tokens and seconds of a step that waits and guesses, on the whole.
    promise: (f64, f64),
    drafter: Option<Drafter>,
    /// Who guessed has failed.
    is_broken: bool,
    /// When a step last ended.
    ended: Option<Instant>,
    /// Tokens guessed, and how many of them were right.
    pub(super) drafted: u64,
    pub(super) accepted: u64,
}

impl Speculator {
    pub(super) fn new(speculation: &Speculation, draft: Option<Draft>) -> Self {
        let is_draft = matches!(speculation, Speculation::Draft(_));
        Self {
            is_adaptive: speculation.limits().1,
            all: Odds::of_all(if is_draft { USUAL_OF_DRAFTS } else { USUAL_OF_MATCHES }),
            alone: Costs::default(),
            chased: Costs::default(),
            promise: (0.0, 0.0),
            drafter: draft.map(Drafter::new),
            is_broken: false,
            ended: None,
            drafted: 0,
            accepted: 0,
        }
    }

    /// Gives the guesses of each that is worth guessing for, among `sequences` that go on by a token; `most` tokens together. A smaller
    /// model has `spare` seconds to see what it does not know yet.
    pub(super) fn guess(&mut self, sequences: usize, guessing: &mut [Guessing<'_>], most: usize, spare: f64) {
        if self.is_broken {
            return;
        }
        let chances: Vec<Vec<f64>> = guessing.iter().map(|g| g.guess.chances(&self.all, g.room)).collect();
        let guesses = if self.is_adaptive {
            self.plan(sequences, chances, most).map_or_else(Vec::new, |plan| plan.guesses)
        } else {
            let mut left = most;
            let take = |chances: &Vec<f64>| {
                let count = chances.len().min(left);
                left -= count;
                count
            };
            chances.iter().map(take).collect()
        };
        let mut counts: Vec<usize> = guesses.into_iter().take(guessing.len()).collect();
        counts.resize(guessing.len(), 0);
        if self.drafter.is_none() {
            for (guessing, count) in guessing.iter_mut().zip(counts) {
                guessing.guess.look_up(guessing.tokens, count);
            }
            return;
        }
        let mut trials = vec![false; guessing.len()];
        for ((guessing, count), is_trial) in guessing.iter_mut().zip(&mut counts).zip(&mut trials) {
            guessing.guess.clear();
            match *count {
                0 => (*count, *is_trial) = (guessing.guess.trial(guessing.room), true),
                _ => guessing.guess.pays(),
            }
        }
        self.draft(guessing, &counts, spare);
        for (guessing, is_trial) in guessing.iter_mut().zip(trials) {
            if is_trial && !guessing.guess.draft.is_empty() {
                guessing.guess.tried();
            }
        }
    }

    /// Has the smaller model guess.
    fn draft(&mut self, guessing: &mut [Guessing<'_>], counts: &[usize], spare: f64) {
        let rounds = counts.iter().copied().max().unwrap_or(0);
        let step = if self.is_adaptive { self.alone.of(guessing.len()) } else { None };
        let step = step.unwrap_or(f64::INFINITY);
        let Some(drafter) = self.drafter.as_mut().filter(|_| rounds > 0) else { return };
        let asks = guessing.iter().zip(counts).map(|(guessing, most)| {
            let Guessing { serial, tokens, prompt_len, sampler, room, .. } = *guessing;
            Ask { serial, tokens, prompt_len, sampler, most: *most, worth: WORTH * room as f64 * step }
        });
        let asks: Vec<Ask<'_>> = asks.collect();
        let spare = if self.is_adaptive { spare } else { f64::INFINITY };
        let drafts = catch_unwind(AssertUnwindSafe(|| drafter.draft(&asks, rounds, spare)));
        match drafts
            .unwrap_or_else(|panic| Err(EngineError::Panicked { message: panic_message(panic.as_ref()) }))
        {
            Ok(drafts) => {
                for (guessing, draft) in guessing.iter_mut().zip(drafts) {
                    guessing.guess.draft = draft;
                }
            }
            Err(error) => {
                // Answers do not need it.
                tell::warn("speculation", || {
                    format!("the draft model failed and is no longer asked: {error}")
                });
                (self.drafter, self.is_broken) = (None, true);
            }
        }
    }

    fn plan(&self, sequences: usize, mut chances: Vec<Vec<f64>>, most: usize) -> Option<Plan> {
        // Those that do not guess bring a token each.
        chances.resize(sequences.max(chances.len()), Vec::new());
        // As long as nothing is known of what waiting takes, it seems cheap.
        let known = self.alone.of(chances.len()).is_some();
        let costs = if known { &self.alone } else { &self.chased };
        match &self.drafter {
            None => plan(costs, &chances, most),
            // So does a round of guesses.
            Some(drafter) => {
                let round = drafter.costs.of(chances.len()).unwrap_or(0.0);
                plan_rounds(costs, round, &chances)
            }
        }
    }

    /// Learns from the tokens that were chosen, and looks where the sequences end now. `guessing` are those among
    /// `sequences` that may guess.
    pub(super) fn learn(&mut self, sequences: usize, guessing: &mut [Guessing<'_>], most: usize) {
        let mut chances = Vec::with_capacity(guessing.len());
        for guessing in guessing.iter_mut() {
            guessing.guess.learn(&mut self.all);
            guessing.guess.look(guessing.tokens);
            chances.push(guessing.guess.chances(&self.all, guessing.room));
        }
        // What steps that are handed over early take was measured only where there are any.
        if self.chased.of(sequences).is_some()
            && let Some(Plan { tokens, seconds, .. }) = self.plan(sequences, chances, most)
        {
            let (t, s) = self.promise;
            let fresh = if s == 0.0 { 1.0 } else { FRESH };
            self.promise = (t + fresh * (tokens - t), s + fresh * (seconds - s));
        }
    }

    /// Whether the next step is to wait for this one, so that it can guess, although it could be handed over now.
    pub(super) fn waits(&self, sequences: usize) -> bool {
        if !self.is_adaptive || self.is_broken {
            return !self.is_broken;
        }
        let Some(chased) = self.chased.of(sequences) else { return false };
        let (tokens, seconds) = self.promise;
        seconds > 0.0 && tokens / seconds > GAIN * sequences as f64 / chased
    }

    /// Notes what a step took that had nothing but next tokens and guesses, so many together.
    pub(super) fn took(&mut self, tokens: usize, (begun, now): (Instant, Instant), was_chased: bool) {
        let since = self.ended.map_or(begun, |ended| ended.max(begun));
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        if was_chased {
            self.chased.note(tokens, seconds);
            self.alone.pass();
        } else {
            self.alone.note(tokens, seconds);
        }
        self.ended = Some(now);
    }

    /// Notes that a step has ended that says nothing of what others take.
    pub(super) fn passed(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// Lets go what is kept for sequences that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(u64) -> bool) {
        if let Some(drafter) = &mut self.drafter {
            drafter.keep(is_there);
        }
    }

    /// Sequences of which a smaller model keeps something.
    #[cfg(test)]
    pub(super) fn drafted_for(&self) -> Vec<u64> {
        self.drafter.as_ref().map_or_else(Vec::new, Drafter::held_for)
    }

    /// Blocks of a smaller model's cache that sequences have.
    pub(super) fn draft_blocks(&self) -> usize {
        self.drafter.as_ref().map_or(0, Drafter::held_blocks)
    }
}

/// How an engine guesses whose model keeps such states, with a draft model or without.
pub(super) fn settled(
    speculation: &Speculation,
    is_recurrent: bool,
    draft: Option<&Draft>,
) -> Result<Speculation, EngineError> {
    speculation.validate()?;
    if matches!(speculation, Speculation::Draft(_)) != draft.is_some() {
        let (found, needed) = match draft {
            None => ("without a draft model", "given one"),
            Some(_) => ("with a draft model", "set to use it"),
        };
        return Err(EngineError::parameter("an engine that guesses ahead", found, needed));
    }
    if speculation.is_on() && is_recurrent {
        tell::warn("speculation", || {
            "it is off: the model has recurrent layers, whose states cannot be taken back".to_owned()
        });
        return Ok(Speculation::Off);
    }
    Ok(speculation.clone())
}
