//! Guessing ahead: which sequences bring guesses to a step, and what is learnt from it.

use super::super::flight::{Flight, Member};
use super::super::sequence::Sequence;
use super::super::speculate::Guessing;
use super::Scheduler;

/// Most guesses of a step: each has a row of logits.
const STEP_GUESSES: usize = 128;

impl Scheduler<'_> {
    /// Lets the sequences of a step guess, where all that run go on by a token: as long as there are prompts to compute, steps have
    /// work enough.
    pub(super) fn guess_ahead(&mut self) {
        if !self.config.speculation.is_on() {
            return;
        }
        let Self { running, shares, speculator, config, pace, .. } = self;
        let sequences = shares.iter().filter(|share| **share > 0).count();
        let goes_on = |s: &Sequence<'_>| s.paused || s.outcome.is_some() || s.goes_on_by_one();
        if sequences == 0 || !running.iter().all(goes_on) {
            return;
        }
        let most = config.step_tokens.saturating_sub(sequences).min(STEP_GUESSES);
        let may = running.iter_mut().zip(&*shares).filter(|(_, share)| **share > 0);
        let mut guessing: Vec<Guessing<'_>> = may.filter_map(|(s, _)| s.guessing()).collect();
        if guessing.is_empty() || most == 0 {
            return;
        }
        let spare = pace.spare(sequences, config.step_stretch);
        speculator.guess(sequences, &mut guessing, most, spare);
        self.make_room_for_guesses();
    }

    /// Takes the blocks that guesses write to; where there are none, a sequence goes without. Nobody is set aside for them.
    fn make_room_for_guesses(&mut self) {
        let vocab = self.config.vocab_size;
        for (sequence, share) in self.running.iter_mut().zip(&mut self.shares) {
            let Some(guess) = sequence.guess.as_mut().filter(|guess| !guess.draft.is_empty()) else {
                continue;
            };
            // A smaller model may know tokens that this one does not.
            let known = guess.draft.iter().take_while(|id| (**id as usize) < vocab).count();
            guess.draft.truncate(known);
            let end = sequence.computed + *share + known;
            if self.cache.extend(&mut sequence.table, end, self.program.as_mut()).is_none() {
                sequence.forget_guesses();
                continue;
            }
            *share += known;
            guess.drafted += known;
            self.speculator.drafted += known as u64;
        }
    }

    /// Whether the step after `flight` is to wait for it, so that it can guess.
    pub(super) fn waits_to_guess(&self, flight: &Flight) -> bool {
        self.config.speculation.is_on()
            && self.running.iter().any(|s| s.guess.is_some())
            && self.speculator.waits(flight.members.len())
    }

    /// Learns from a step whose results were taken what such steps take and how right guesses were.
    pub(super) fn learn(&mut self, flight: &Flight) {
        if !self.config.speculation.is_on() {
            return;
        }
        let now = (self.clock)();
        let goes_on = |member: &Member| member.share - member.drafts == 1 && member.rows == 1 + member.drafts;
        let tokens = flight.members.iter().map(|member| member.share).sum();
        if flight.members.iter().all(goes_on) {
            let was_chased = flight.members.iter().any(|member| member.fed.is_some());
            self.speculator.took(tokens, (flight.begun, now), was_chased);
        } else {
            self.speculator.passed(now);
        }
        let Self { running, speculator, config, .. } = self;
        let sequences = running.iter().filter(|s| s.outcome.is_none()).count();
        let most = config.step_tokens.saturating_sub(sequences).min(STEP_GUESSES);
        let mut guessing: Vec<Guessing<'_>> = running.iter_mut().filter_map(Sequence::guessing).collect();
        if !guessing.is_empty() {
            speculator.learn(sequences, &mut guessing, most);
        }
    }
}
