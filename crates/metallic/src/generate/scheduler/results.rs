//! What becomes of a step's results, and of a step that failed.

use std::ops::Range;

use metallic_core::sample::NO_CANDIDATE;
use metallic_core::{Program, RunStats};

use super::super::EngineError;
use super::super::flight::{Flight, Member};
use super::super::sample::Scratch;
use super::super::sequence::Sequence;
use super::Scheduler;
use super::layout::guarded;
use crate::model::{CHOSEN, HIDDEN, LOGITS};
use crate::telemetry::tell;

impl Scheduler<'_> {
    /// Runs each sequence of a step that failed by itself, so that only those that fail by themselves end.
    pub(super) fn apart(&mut self, flight: &Flight, error: &EngineError) {
        tell::fault("step", error);
        if let [member] = flight.members[..]
            && member.drafts == 0
        {
            return self.fail(member, error);
        }
        for member in &flight.members {
            let Some(sequence) = self.running.iter_mut().find(|s| s.serial == member.serial) else {
                continue;
            };
            sequence.forget_guesses();
            let end = (sequence.computed + member.share).min(sequence.tokens.len());
            if self.config.states.is_recurrent() {
                // Keys and values are written again where they were. A recurrent state may have gone on, and only its
                // beginning is known.
                sequence.restart(&mut self.cache);
            }
            self.alone(member.serial, end);
        }
    }

    /// Computes the tokens of a sequence before `end` in steps of its own. Where the cache has no room for them, the next step
    /// of all makes it.
    pub(super) fn alone(&mut self, serial: u64, end: usize) {
        let lacks = |s: &&mut Sequence<'_>| s.serial == serial && s.outcome.is_none() && s.computed < end;
        while let Some(sequence) = self.running.iter_mut().find(lacks) {
            let member = sequence.member((end - sequence.computed).min(self.config.step_tokens));
            let tokens = sequence.computed + member.share;
            if self.cache.extend(&mut sequence.table, tokens, self.program.as_mut()).is_none() {
                return;
            }
            let chooses = self.may_choose(&[member]);
            let mut flight = Flight::new(vec![member], chooses, (self.clock)());
            match self.launch(&mut flight).and_then(|()| self.finish()) {
                Ok(cost) => self.complete(flight, cost),
                Err(error @ EngineError::Panicked { .. }) => return self.failed(&flight, &error),
                Err(error) => self.fail(member, &error),
            }
        }
    }

    pub(super) fn fail(&mut self, member: Member, error: &EngineError) {
        if let Some(sequence) = self.running.iter_mut().find(|s| s.serial == member.serial) {
            sequence.outcome = Some(Err(error.clone()));
        }
    }

    /// Takes the results of a step into the sequences that made it. Tokens past an end are dropped; their places in the cache
    /// are written again.
    pub(super) fn absorb(&mut self, flight: &Flight, cost: &RunStats) {
        let vocab = self.config.vocab_size;
        let rows: usize = flight.members.iter().map(|m| m.rows).sum();
        let (found, needed) = if flight.chooses {
            (self.program.ids(CHOSEN).len(), rows)
        } else {
            (self.program.output(LOGITS).len(), rows * vocab)
        };
        // A program may leave its last result in place when a step asks for none.
        let wrong = (rows > 0 && found != needed).then_some(EngineError::Output { found, needed });
        if wrong.is_none() {
            self.restrict_rows(flight);
        }
        for member in &flight.members {
            let Some(sequence) = self.running.iter_mut().find(|s| s.serial == member.serial) else {
                continue;
            };
            if sequence.outcome.is_some() {
                continue;
            }
            if let Some(error) = &wrong {
                sequence.outcome = Some(Err(error.clone()));
                continue;
            }
            sequence.advance(member.share - member.drafts, cost);
            let (before, right_before) = (sequence.tokens.len(), sequence.right_guesses());
            let of = member.first_row..member.first_row + member.rows;
            let rows = Rows { of, all: rows, vocab, drafts: member.drafts };
            let (program, scratch) = (&*self.program, &mut self.scratch);
            // What follows is the request's own: its hook, its sampling, its text.
            let taken = guarded(|| rows.take(flight.chooses, program, sequence, scratch));
            self.totals.generated_tokens += (sequence.tokens.len() - before) as u64;
            if let Err(error) = taken {
                sequence.outcome = Some(Err(error));
                self.scratch = Scratch::default();
            }
            self.speculator.accepted += (sequence.right_guesses() - right_before) as u64;
            sequence.forget_guesses();
            // Only what is certain by now.
            if self.config.prefix_cache {
                sequence.share_full_blocks(&mut self.cache);
                sequence.keep_state(&mut self.snapshots, self.program.as_mut());
            }
            self.cache.free_unseen(&mut sequence.table, sequence.computed);
        }
    }
}

/// Rows of a step's results that belong to one sequence.
struct Rows {
    of: Range<usize>,
    /// Rows of all sequences together.
    all: usize,
    vocab: usize,
    /// How many of them follow guesses.
    drafts: usize,
}

impl Rows {
    fn take(self, chooses: bool, program: &dyn Program, sequence: &mut Sequence<'_>, scratch: &mut Scratch) {
        let Rows { of, all, vocab, drafts } = self;
        let first = of.start;
        for row in of {
            let is_over = sequence.outcome.is_some() || row > first && sequence.pending() > 0;
            if drafts > 0 && is_over {
                // The rows that are left follow a guess that was wrong, or an end.
                return;
            }
            if sequence.wants_hidden() {
                let hidden = program.output(HIDDEN);
                let width = hidden.len() / all;
                sequence.take_hidden(&hidden[row * width..][..width]);
            } else if !chooses {
                sequence.take_row(&program.output(LOGITS)[row * vocab..][..vocab], scratch);
            } else if program.ids(CHOSEN)[row] == NO_CANDIDATE {
                sequence.outcome = Some(Err(EngineError::NoCandidate { vocab, nan: None }));
            } else {
                sequence.take_chosen(program.ids(CHOSEN)[row]);
            }
        }
    }
}
