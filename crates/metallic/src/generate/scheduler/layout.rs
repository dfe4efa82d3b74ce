//! Sharing a step out among those that run, and handing it to the device.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use metallic_core::{BLOCK_TOKENS, Fed, SequenceSpan, Step, Wanted};
use metallic_telemetry::SPANS;
use metallic_telemetry::tracing::debug_span;

use super::super::EngineError;
use super::super::config::STEP_TOKENS;
use super::super::flight::{Budget, Due, Flight, Inputs, Member, share_tokens};
use super::super::hook::panic_message;
use super::super::sequence::Sequence;
use super::Scheduler;
use crate::model::{CHOSEN, HIDDEN, LOGITS};
use crate::telemetry::tell::UnderWay;

/// Most tokens that are left of a prompt whose answer begins soon.
const SHORT_PROMPT: usize = 128;

impl Scheduler<'_> {
    /// Submits the next step of all that run.
    pub(super) fn begin(&mut self) -> Option<Flight> {
        for sequence in &mut self.running {
            sequence.paused = sequence.outlet.is_full(self.config.max_unread);
        }
        self.admit();
        self.look_again();
        self.share_out();
        self.make_room();
        self.guess_ahead();
        let begun = (self.clock)();
        let shares = self.running.iter().zip(&self.shares).filter(|(_, share)| **share > 0);
        let mut members: Vec<Member> = shares.map(|(s, share)| s.member(*share)).collect();
        if members.is_empty() {
            return None;
        }
        let mut rows = 0;
        for member in &mut members {
            member.first_row = rows;
            rows += member.rows;
        }
        let chooses = self.may_choose(&members);
        let mut flight = Flight::new(members, chooses, begun);
        match self.launch(&mut flight) {
            Ok(()) => Some(flight),
            Err(error) => {
                self.failed(&flight, &error);
                None
            }
        }
    }

    /// Decides how many tokens each running sequence brings to the next step.
    fn share_out(&mut self) {
        self.dues.clear();
        self.dues.extend(self.running.iter().map(|s| {
            let idle = s.paused || s.awaits.is_some() || s.outcome.is_some();
            let tokens = if idle { 0 } else { s.due() };
            Due { tokens, answers: s.is_answering(), rank: (Reverse(s.priority), s.pending()) }
        }));
        // Whoever is waited for comes when those who wait would. They stand after it.
        for (i, sequence) in self.running.iter().enumerate().rev() {
            let Some(awaited) = sequence.awaits else { continue };
            if let Some(other) = self.running.iter().position(|s| s.serial == awaited.serial) {
                self.dues[other].rank = self.dues[other].rank.min(self.dues[i].rank);
            }
        }
        let answers = self.dues.iter().filter(|due| due.answers && due.tokens > 0).count();
        // However fast prompts are, who waits for the next token of an answer does not wait for a very long piece of one.
        let usual = if answers > 0 { STEP_TOKENS.max(2 * answers) } else { usize::MAX };
        let step = self.config.step_tokens.min(usual);
        let crowd = self.running.iter().zip(&self.dues).filter(|(s, due)| {
            // Who waits for another's blocks goes on with them in a moment.
            let comes = !due.answers && (due.tokens > 0 || s.awaits.is_some());
            comes && s.pending() <= SHORT_PROMPT
        });
        let prompts = self.pace.piece(answers, crowd.count(), self.config.step_stretch);
        share_tokens(&self.dues, Budget { step, prompts }, &mut self.shares);
    }

    /// Whether the device may choose the tokens of these, and is better at it.
    pub(super) fn may_choose(&self, members: &[Member]) -> bool {
        let by_device = |m: &Member| self.sequence(m.serial).is_some_and(Sequence::is_chosen_by_device);
        self.program.chooses() && members.iter().all(|m| m.rows == 0 || by_device(m))
    }

    /// Submits the step after `flight`, whose tokens are those that one chooses. Only where every sequence goes on by one token
    /// and nobody waits to be let in: others need the results first.
    pub(super) fn chase(&mut self, flight: &Flight) -> Option<Flight> {
        let (begun, unread) = ((self.clock)(), self.config.max_unread);
        let has_part = |s: &Sequence<'_>| flight.members.iter().any(|m| m.serial == s.serial);
        let all = |running: &[Sequence<'_>]| running.iter().all(|s| has_part(s) || s.outlet.is_full(unread));
        let may_chase = flight.chooses && self.program.depth() > 1 && all(&self.running);
        if !may_chase || self.may_admit() || self.waits_to_guess(flight) {
            return None;
        }
        let mut members = Vec::with_capacity(flight.members.len());
        for member in &flight.members {
            let sequence = self.running.iter_mut().find(|s| s.serial == member.serial);
            // Sequences that are gone leave the step to the others.
            let Some(sequence) = sequence.filter(|s| s.outcome.is_none()) else { continue };
            // A state that is to be kept must not have gone on.
            let border =
                sequence.stops_at_borders && (sequence.computed + member.share).is_multiple_of(BLOCK_TOKENS);
            if member.rows != 1 || border || !sequence.may_be_chased() {
                return None;
            }
            sequence.paused = sequence.outlet.is_full(unread);
            if sequence.room() < 2 || sequence.paused {
                // The token that is being chosen is its last, or the last for now.
                continue;
            }
            let tokens = sequence.computed + member.share + 1;
            self.cache.extend(&mut sequence.table, tokens, self.program.as_mut())?;
            let (fed, ahead) = (Some(member.first_row as u32), member.share);
            members.push(Member { share: 1, answers: true, first_row: members.len(), fed, ahead, ..*member });
        }
        if members.is_empty() {
            return None;
        }
        // Whatever fails, the next step without haste says which sequence it was.
        let mut flight = Flight::new(members, true, begun);
        match self.launch(&mut flight) {
            Ok(()) => Some(flight),
            Err(error) => {
                self.broken = Some(error).filter(|error| matches!(error, EngineError::Panicked { .. }));
                None
            }
        }
    }

    /// Lays a step out and submits it.
    pub(super) fn launch(&mut self, flight: &mut Flight) -> Result<(), EngineError> {
        let _span = debug_span!(target: SPANS, "lay_out").entered();
        self.launches += 1;
        let (tokens, told) = self.submit_step(flight)?;
        self.totals.steps += 1;
        self.totals.computed_tokens += tokens as u64;
        flight.told = told;
        Ok(())
    }

    /// How many tokens it has, and what there is to tell of it.
    pub(super) fn submit_step(&mut self, flight: &Flight) -> Result<(usize, Option<UnderWay>), EngineError> {
        let Inputs { tokens, fed, positions, outputs, choices, adapters } = &mut self.inputs;
        tokens.clear();
        fed.clear();
        positions.clear();
        outputs.clear();
        choices.clear();
        adapters.clear();
        let mut sequences = Vec::with_capacity(flight.members.len());
        let mut decoding = 0;
        for member in &flight.members {
            let Some(sequence) = self.running.iter().find(|s| s.serial == member.serial) else { continue };
            let start = tokens.len();
            let past = sequence.computed + member.ahead;
            let own = member.share - member.drafts;
            decoding += usize::from(own == 1 && sequence.is_answer(past));
            if let Some(row) = member.fed {
                fed.push(Fed { token: start as u32, row });
                tokens.push(0);
            } else {
                tokens.extend_from_slice(&sequence.tokens[past..past + own]);
                tokens.extend_from_slice(&sequence.draft()[..member.drafts]);
            }
            (0..member.share).for_each(|_| adapters.extend_from_slice(&sequence.mix));
            positions.extend((past..past + member.share).map(|p| p as u32));
            let (table, slot) = (&sequence.table, sequence.slot);
            let (blocks, near) = (&table.far[..], &table.near[..]);
            sequences.push(SequenceSpan { tokens: start..tokens.len(), past, blocks, near, slot });
            outputs.extend((tokens.len() - member.rows..tokens.len()).map(|row| row as u32));
            if flight.chooses && member.rows > 0 {
                sequence.pack_choices(usize::from(member.fed.is_some()), &mut self.scratch, choices)?;
            }
        }
        let hidden = self.running.iter().any(Sequence::wants_hidden);
        let (choices, wanted) = match (flight.chooses, hidden) {
            (true, _) => (choices.words(), Wanted::only(CHOSEN)),
            (false, false) => (&[][..], Wanted::only(LOGITS)),
            (false, true) => (&[][..], Wanted::only(LOGITS).and(HIDDEN)),
        };
        let sequences = &sequences;
        let step = Step { tokens, fed, positions, sequences, outputs, choices, adapters, wanted };
        let told = self.teller.steps.begin(self.program.as_mut(), &step, decoding);
        let submit = || debug_span!(target: SPANS, "submit").in_scope(|| self.program.submit(&step));
        guarded(submit)??;
        Ok((tokens.len(), told))
    }

    /// Takes the blocks the step writes to, oldest sequence first; when they run out the least wanted is set aside.
    pub(super) fn make_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            let tokens = sequence.computed + self.shares[i];
            if self.cache.extend(&mut sequence.table, tokens, self.program.as_mut()).is_some() {
                i += 1;
            } else if self.running.len() > 1 {
                let Some((victim, _)) = self.least_wanted() else { return };
                self.shares.remove(victim);
                self.set_aside(victim);
                i -= usize::from(victim < i);
            } else {
                self.running[i].outcome = Some(Err(self.no_room(i)));
                self.shares[i] = 0;
                return;
            }
        }
    }

    /// Why a sequence that has the cache to itself cannot have another block.
    pub(super) fn no_room(&self, i: usize) -> EngineError {
        match self.cache.growth_error() {
            Some(error) => error.clone().into(),
            None => self.config.over_budget(self.running[i].computed + self.shares[i]),
        }
    }
}

/// What a program does, or how it panicked.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|panic| EngineError::Panicked { message: panic_message(panic.as_ref()) })
}
