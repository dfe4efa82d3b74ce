//! The step loop: which tokens of which sequences run next, and what becomes of the results.

mod telling;

use std::collections::VecDeque;

use metallic_core::sample::NO_CANDIDATE;
use metallic_core::{BLOCK_TOKENS, Fed, Program, RunStats, SequenceSpan, Step, Wanted};
use metallic_telemetry::tracing::debug_span;
use metallic_telemetry::{Event, Preemption, SPANS, emit};

use super::cache::{KvCache, Table};
use super::engine::{EngineConfig, EngineStats, STEP_TOKENS};
use super::flight::{Flight, Inputs, Member, share_tokens};
use super::sample::Scratch;
use super::sequence::{Outcome, Sequence, Submission};
use super::snapshots::Snapshots;
use super::{Detokenize, EngineError, FinishReason};
use crate::model::{CHOSEN, HIDDEN, LOGITS};
use crate::telemetry::tell::{self, UnderWay};
use telling::Teller;

/// All sequences, the program and its cache.
pub(super) struct Scheduler<'t> {
    program: Box<dyn Program>,
    config: EngineConfig,
    text: Option<&'t dyn Detokenize>,
    cache: KvCache,
    /// Recurrent states nobody has.
    free_slots: Vec<u32>,
    snapshots: Snapshots,
    /// In order of arrival; preempted sequences stand before those that never ran.
    waiting: VecDeque<Sequence<'t>>,
    /// In order of arrival: the last is the youngest.
    running: Vec<Sequence<'t>>,
    /// Tokens each running sequence brings to this step.
    shares: Vec<usize>,
    /// A step that was submitted before the one ahead of it was finished.
    chasing: Option<Flight>,
    inputs: Inputs,
    scratch: Scratch,
    teller: Teller,
    steps: u64,
    computed_tokens: u64,
    preemptions: u64,
}

impl<'t> Scheduler<'t> {
    pub(super) fn new(
        mut program: Box<dyn Program>,
        config: EngineConfig,
        text: Option<&'t dyn Detokenize>,
    ) -> Result<Self, EngineError> {
        let slots = if config.states.is_recurrent() { config.max_sequences } else { 0 };
        program.reserve_slots(slots)?;
        Ok(Self {
            program,
            text,
            cache: KvCache::new(&config.states, config.block_limits(), config.at_once(usize::MAX).near),
            free_slots: (0..slots as u32).rev().collect(),
            snapshots: Snapshots::new(&config),
            config,
            waiting: VecDeque::new(),
            running: Vec::new(),
            shares: Vec::new(),
            chasing: None,
            inputs: Inputs::default(),
            scratch: Scratch::default(),
            teller: Teller::default(),
            steps: 0,
            computed_tokens: 0,
            preemptions: 0,
        })
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        let mut sequence = Sequence::new(submission, &self.config.end_tokens, self.text);
        sequence.stops_at_borders = self.config.prefix_cache && self.config.states.is_recurrent();
        self.waiting.push_back(sequence);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.chasing.is_none()
    }

    pub(super) fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            held_blocks: self.cache.held().far,
            near_blocks: self.cache.held().near,
            cached_blocks: self.cache.idle().far,
            reserved_blocks: self.cache.reserved().far,
            block_limit: self.config.block_limits().far,
            steps: self.steps,
            computed_tokens: self.computed_tokens,
            preemptions: self.preemptions,
        }
    }

    /// Runs one step, if there is anything to do. While the device has it, the next one is laid out and handed over where that
    /// needs none of its results.
    pub(super) fn step(&mut self) {
        let flight = match self.chasing.take() {
            Some(flight) => Some(flight),
            None => self.begin(),
        };
        let Some(flight) = flight else {
            self.sweep();
            return self.tell();
        };
        self.chasing = self.chase(&flight);
        match self.finish() {
            Ok(cost) => self.complete(flight, cost),
            Err(error) => {
                // With it went what came after.
                self.chasing = None;
                self.apart(&flight, &error.into());
            }
        }
        self.sweep();
        self.tell();
    }

    /// Submits the next step of all that run.
    fn begin(&mut self) -> Option<Flight> {
        self.admit();
        let pending = self.running.iter().map(Sequence::due);
        // Who waits for the next token of an answer does not wait for a long piece of somebody's prompt.
        let answers = pending.clone().filter(|due| *due == 1).count();
        let usual = if answers > 0 { STEP_TOKENS.max(2 * answers) } else { usize::MAX };
        let most = self.config.step_tokens.min(usual);
        share_tokens(pending, most, &mut self.shares);
        self.make_room();
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
        let mut flight = Flight { chooses: self.may_choose(&members), members, told: None };
        match self.launch(&mut flight) {
            Ok(()) => Some(flight),
            Err(error) => {
                self.apart(&flight, &error);
                None
            }
        }
    }

    /// Whether the device may choose the tokens of these: then it need not be waited for before the next step.
    fn may_choose(&self, members: &[Member]) -> bool {
        let by_device = |m: &Member| self.sequence(m.serial).is_some_and(Sequence::is_chosen_by_device);
        self.program.depth() > 1 && members.iter().all(|m| m.rows == 0 || by_device(m))
    }

    fn sequence(&self, serial: u64) -> Option<&Sequence<'t>> {
        self.running.iter().find(|s| s.serial == serial)
    }

    /// Submits the step after `flight`, whose tokens are those that one chooses. Only where every sequence goes on by one token
    /// and nobody waits to be let in: others need the results first.
    fn chase(&mut self, flight: &Flight) -> Option<Flight> {
        let full = self.running.len() == self.config.max_sequences;
        let all = self.running.iter().all(|s| flight.members.iter().any(|m| m.serial == s.serial));
        if !flight.chooses || !all || !(self.waiting.is_empty() || full) {
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
            if sequence.room() < 2 {
                // The token that is being chosen is its last.
                continue;
            }
            let tokens = sequence.computed + member.share + 1;
            self.cache.extend(&mut sequence.table, tokens, self.program.as_mut())?;
            let (fed, ahead) = (Some(member.first_row as u32), member.share);
            members.push(Member { share: 1, first_row: members.len(), fed, ahead, ..*member });
        }
        if members.is_empty() {
            return None;
        }
        // Whatever fails, the next step without haste says which sequence it was.
        let mut flight = Flight { members, chooses: true, told: None };
        self.launch(&mut flight).ok().map(|()| flight)
    }

    /// Lays a step out and submits it.
    fn launch(&mut self, flight: &mut Flight) -> Result<(), EngineError> {
        let _span = debug_span!(target: SPANS, "lay_out").entered();
        let (tokens, told) = self.submit_step(flight)?;
        self.steps += 1;
        self.computed_tokens += tokens as u64;
        flight.told = told;
        Ok(())
    }

    /// How many tokens it has, and what there is to tell of it.
    fn submit_step(&mut self, flight: &Flight) -> Result<(usize, Option<UnderWay>), EngineError> {
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
            decoding += usize::from(member.share == 1 && sequence.is_answer(past));
            match member.fed {
                Some(row) => {
                    fed.push(Fed { token: start as u32, row });
                    tokens.push(0);
                }
                None => tokens.extend_from_slice(&sequence.tokens[past..past + member.share]),
            }
            (0..member.share).for_each(|_| adapters.extend_from_slice(&sequence.mix));
            positions.extend((past..past + member.share).map(|p| p as u32));
            let (table, slot) = (&sequence.table, sequence.slot);
            let (blocks, near) = (&table.far[..], &table.near[..]);
            sequences.push(SequenceSpan { tokens: start..tokens.len(), past, blocks, near, slot });
            outputs.extend((tokens.len() - member.rows..tokens.len()).map(|row| row as u32));
            if flight.chooses && member.rows > 0 {
                sequence.pack_choice(usize::from(member.fed.is_some()), &mut self.scratch, choices)?;
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
        debug_span!(target: SPANS, "submit").in_scope(|| self.program.submit(&step))?;
        Ok((tokens.len(), told))
    }

    /// Runs each sequence of a step that failed by itself, so that only those that fail by themselves end.
    fn apart(&mut self, flight: &Flight, error: &EngineError) {
        tell::fault("step", error);
        if let [member] = flight.members[..] {
            return self.fail(member, error);
        }
        for member in &flight.members {
            let Some(sequence) = self.running.iter_mut().find(|s| s.serial == member.serial) else {
                continue;
            };
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
    fn alone(&mut self, serial: u64, end: usize) {
        let lacks = |s: &&mut Sequence<'_>| s.serial == serial && s.outcome.is_none() && s.computed < end;
        while let Some(sequence) = self.running.iter_mut().find(lacks) {
            let member = sequence.member((end - sequence.computed).min(self.config.step_tokens));
            let tokens = sequence.computed + member.share;
            if self.cache.extend(&mut sequence.table, tokens, self.program.as_mut()).is_none() {
                return;
            }
            let mut flight =
                Flight { chooses: self.may_choose(&[member]), members: vec![member], told: None };
            let run = self.launch(&mut flight).and_then(|()| Ok(self.finish()?));
            match run {
                Ok(cost) => self.complete(flight, cost),
                Err(error) => self.fail(member, &error),
            }
        }
    }

    fn fail(&mut self, member: Member, error: &EngineError) {
        if let Some(sequence) = self.running.iter_mut().find(|s| s.serial == member.serial) {
            sequence.outcome = Some(Err(error.clone()));
        }
    }

    /// Takes the results of a step into the sequences that made it. Tokens past an end are dropped; their places in the cache
    /// are written again.
    fn absorb(&mut self, flight: &Flight, cost: &RunStats) {
        let vocab = self.config.vocab_size;
        let rows: usize = flight.members.iter().map(|m| m.rows).sum();
        let (found, needed) = if flight.chooses {
            (self.program.ids(CHOSEN).len(), rows)
        } else {
            (self.program.output(LOGITS).len(), rows * vocab)
        };
        // A program may leave its last result in place when a step asks for none.
        let wrong = (rows > 0 && found != needed).then_some(EngineError::Output { found, needed });
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
            sequence.advance(member.share, cost);
            if self.config.prefix_cache {
                sequence.share_full_blocks(&mut self.cache);
                sequence.keep_state(&mut self.snapshots, self.program.as_mut());
            }
            self.cache.free_unseen(&mut sequence.table, sequence.computed);
            for row in member.first_row..member.first_row + member.rows {
                if sequence.wants_hidden() {
                    let hidden = self.program.output(HIDDEN);
                    let width = hidden.len() / rows;
                    sequence.take_hidden(&hidden[row * width..][..width]);
                } else if !flight.chooses {
                    let logits = &self.program.output(LOGITS)[row * vocab..][..vocab];
                    sequence.take_row(logits, &mut self.scratch);
                } else if self.program.ids(CHOSEN)[row] == NO_CANDIDATE {
                    sequence.outcome = Some(Err(EngineError::NoCandidate { vocab, nan: None }));
                } else {
                    sequence.take_chosen(self.program.ids(CHOSEN)[row]);
                }
            }
        }
    }

    /// Ends the requests that were cancelled.
    pub(super) fn sweep_cancelled(&mut self) {
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            if sequence.outlet.is_cancelled() {
                sequence.outcome = Some(Ok(FinishReason::Cancelled));
            }
        }
        self.sweep();
    }

    /// Ends every request the same way.
    pub(super) fn end_all(&mut self, outcome: &Outcome) {
        if self.chasing.take().is_some() {
            // Nobody wants its results; the device has to be done with it all the same.
            let _ = self.program.finish();
        }
        for mut sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            self.cache.give_back(&mut sequence.table);
            sequence.end(outcome.clone());
        }
    }

    /// Tells every caller of a failure without touching the cache, which may be in any state.
    pub(super) fn abandon(&mut self, error: &EngineError) {
        for sequence in self.running.drain(..).chain(self.waiting.drain(..)) {
            sequence.tell_end(&Err(error.clone()));
            sequence.outlet.send(Err(error.clone()));
        }
    }

    /// Lets waiting sequences in, first come first served, while the cache has room for all their tokens, for what the
    /// running ones still have to compute, and for one more block of each: so that prefill is not begun in vain.
    fn admit(&mut self) {
        while self.running.len() < self.config.max_sequences
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            let root = self.cache.root(&sequence.mix);
            let known = |prefix| !sequence.stops_at_borders || self.snapshots.has(prefix);
            let (mut table, chain) = if self.config.prefix_cache && sequence.may_share() {
                self.cache.take_prefix(root, &sequence.tokens, known)
            } else {
                (Table::default(), root)
            };
            let others = self.running.iter().map(|s| (&s.table, s.tokens.len()));
            if !self.running.is_empty() && !self.cache.has_room(&table, sequence.tokens.len(), others) {
                self.cache.give_back(&mut table);
                self.waiting.push_front(sequence);
                return;
            }
            sequence.slot = self.free_slots.pop().unwrap_or(0);
            let state = self.snapshots.find(chain).filter(|_| table.len() > 0);
            let copied = state.map(|state| self.program.copy_slot(state, sequence.slot));
            if sequence.stops_at_borders && !matches!(copied, Some(Ok(()))) {
                self.cache.give_back(&mut table);
                sequence.admit(Table::default(), root);
            } else {
                sequence.admit(table, chain);
            }
            self.teller.admitted(&sequence);
            self.running.push(sequence);
        }
    }

    /// Takes the blocks the step writes to, oldest sequence first; when they run out the youngest is set aside.
    fn make_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            let tokens = sequence.computed + self.shares[i];
            if self.cache.extend(&mut sequence.table, tokens, self.program.as_mut()).is_some() {
                i += 1;
            } else if self.running.len() > 1 {
                self.preempt_youngest();
            } else {
                self.running[i].outcome = Some(Err(self.no_room(i)));
                self.shares[i] = 0;
                return;
            }
        }
    }

    fn preempt_youngest(&mut self) {
        if let Some(mut youngest) = self.running.pop() {
            self.shares.pop();
            self.give_slot_back(youngest.slot);
            let (id, tokens) = (youngest.serial, youngest.computed as u64);
            emit(|| Event::Preemption(Preemption { id, tokens }));
            youngest.preempt(&mut self.cache);
            self.preemptions += 1;
            self.waiting.push_front(youngest);
        }
    }

    fn give_slot_back(&mut self, slot: u32) {
        if self.config.states.is_recurrent() {
            self.free_slots.push(slot);
        }
    }

    /// Why a sequence that has the cache to itself cannot have another block.
    fn no_room(&self, i: usize) -> EngineError {
        match self.cache.growth_error() {
            Some(error) => error.clone().into(),
            None => self.config.over_budget(self.running[i].computed + self.shares[i]),
        }
    }

    /// Takes out the sequences that have ended: all their blocks are given back before any caller hears of it.
    fn sweep(&mut self) {
        let ended = |s: &mut Sequence<'_>| s.outcome.is_some();
        let mut done: Vec<Sequence<'_>> = self.running.extract_if(.., ended).collect();
        for sequence in &done {
            self.give_slot_back(sequence.slot);
        }
        for mut sequence in std::mem::take(&mut self.waiting) {
            if ended(&mut sequence) { done.push(sequence) } else { self.waiting.push_back(sequence) }
        }
        for sequence in &mut done {
            self.cache.give_back(&mut sequence.table);
        }
        for mut sequence in done {
            if let Some(outcome) = sequence.outcome.take() {
                sequence.end(outcome);
            }
        }
    }
}

/// Tokens a cache of so many blocks holds.
pub(super) fn tokens_in(blocks: usize) -> usize {
    blocks.saturating_mul(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests;
