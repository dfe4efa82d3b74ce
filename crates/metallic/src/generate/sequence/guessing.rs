//! What a sequence guesses ahead.

use super::super::speculate::{Guess, Guessing};
use super::Sequence;

impl Sequence<'_> {
    /// What it has to be asked for guesses; `None` where it makes none, or has more to compute than its last token.
    pub(in crate::generate) fn guessing(&mut self) -> Option<Guessing<'_>> {
        let goes_on = self.outcome.is_none() && self.goes_on_by_one();
        // The last token that it may have is chosen by the row of the one before.
        let room = self.room().saturating_sub(1);
        let Self { serial, tokens, prompt_len, sampler, guess, .. } = self;
        let guess = guess.as_mut().filter(|_| goes_on && room > 0)?;
        Some(Guessing { guess, serial: *serial, tokens, prompt_len: *prompt_len, sampler, room })
    }

    /// Whether all it has to compute is the last token of its answer so far.
    pub(in crate::generate) fn goes_on_by_one(&self) -> bool {
        self.pending() == 1 && self.is_answer(self.computed) && self.hidden.is_none()
    }

    /// What it has guessed for the step under way.
    pub(in crate::generate) fn draft(&self) -> &[u32] {
        self.guess.as_ref().map_or(&[], |guess| &guess.draft)
    }

    /// Guesses of it that were right.
    pub(in crate::generate) fn right_guesses(&self) -> usize {
        self.guess.as_ref().map_or(0, |guess| guess.accepted)
    }

    /// Drops its guesses: the step they were for is over, or will not be.
    pub(in crate::generate) fn forget_guesses(&mut self) {
        self.guess.iter_mut().for_each(Guess::clear);
    }
}
