//! Who is let in, and who is set aside for whom.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use metallic_core::BLOCK_TOKENS;
use metallic_telemetry::{Event, Phase, Preemption, emit};

use super::super::EngineError;
use super::super::cache::Table;
use super::super::hook::panic_message;
use super::super::sequence::{Sequence, Submission};
use super::super::speculate::Guess;
use super::Scheduler;

impl<'t> Scheduler<'t> {
    pub(in crate::generate) fn submit(&mut self, submission: Submission) {
        let guesses = submission.request.options.speculation.unwrap_or(true);
        let (end_tokens, text) = (&self.config.end_tokens, self.text);
        self.totals.requests += 1;
        // A decoder is code of whoever brought the text. A request that it breaks down on is dropped, which cuts its line.
        let made = catch_unwind(AssertUnwindSafe(|| Sequence::new(submission, end_tokens, text)));
        let mut sequence = match made {
            Ok(sequence) => sequence,
            Err(panic) => {
                let message = panic_message(panic.as_ref());
                return crate::telemetry::tell::fault("request", &EngineError::Panicked { message });
            }
        };
        sequence.guess = Guess::new(&self.config.speculation).filter(|_| guesses);
        sequence.stops_at_borders = self.config.prefix_cache && self.config.states.is_recurrent();
        if let Some(deadline) = sequence.deadline {
            self.deadlines.insert((deadline, sequence.serial));
        }
        if self.is_idle() {
            self.ends.begin((self.clock)());
        }
        self.queue.push(sequence);
    }

    /// Lets waiting sequences in, by priority and then first come first served, while the cache has room for all their tokens, for
    /// what the running ones still have to compute, and for one more block of each: so that prefill is not begun in vain.
    pub(super) fn admit(&mut self) {
        while let Some((serial, priority)) = self.queue.first().map(|next| (next.serial, next.priority)) {
            if self.blocked == Some((serial, self.cache.room_mark())) && !self.has_victim(priority) {
                return;
            }
            if self.running.len() >= self.config.max_sequences && !self.set_aside_for(priority) {
                return;
            }
            let Some(sequence) = self.queue.pop() else { return };
            if let Some(sequence) = self.let_in(sequence) {
                self.queue.push(sequence);
                if !self.set_aside_for(priority) {
                    self.blocked = Some((serial, self.cache.room_mark()));
                    return;
                }
            }
        }
    }

    /// Whether somebody could be let in now: then a step must not be handed over without them.
    pub(super) fn may_admit(&self) -> bool {
        let Some(next) = self.queue.first() else { return false };
        let full = self.running.len() >= self.config.max_sequences;
        let blocked = self.blocked == Some((next.serial, self.cache.room_mark()));
        !(full || blocked) || self.has_victim(next.priority)
    }

    /// Lets a sequence in, or gives it back where there is no room for it.
    fn let_in(&mut self, mut sequence: Sequence<'t>) -> Option<Sequence<'t>> {
        let root = self.cache.root(&sequence.mix);
        let shares = self.config.prefix_cache && sequence.may_share();
        let known = |prefix| !sequence.stops_at_borders || self.snapshots.has(prefix);
        let (mut table, chain) = if shares {
            self.cache.take_prefix(root, &sequence.tokens, known)
        } else {
            (Table::default(), root)
        };
        sequence.computed = table.len() * BLOCK_TOKENS;
        let awaited = if shares { self.computed_by_others(&sequence, self.running.len()) } else { None };
        sequence.awaits = awaited;
        let others = self.running.iter().map(|s| (&s.table, s.tokens_to_come()));
        if !self.running.is_empty() && !self.cache.has_room(&table, sequence.tokens_to_come(), others) {
            self.cache.give_back(&mut table);
            (sequence.computed, sequence.awaits) = (0, None);
            return Some(sequence);
        }
        // It may have been paused before it was set aside.
        sequence.paused = sequence.outlet.is_full(self.config.max_unread);
        sequence.slot = self.free_slots.pop().unwrap_or(0);
        let state = self.snapshots.find(chain).filter(|_| table.len() > 0);
        let copied = state.map(|state| self.program.copy_slot(state, sequence.slot));
        if sequence.stops_at_borders && !matches!(copied, Some(Ok(()))) {
            self.cache.give_back(&mut table);
            sequence.admit(Table::default(), root);
        } else {
            sequence.admit(table, chain);
        }
        self.totals.prefix_tokens += sequence.computed as u64;
        sequence.tell(Phase::Started, "");
        self.running.push(sequence);
        self.wait_for(self.running.len() - 1, awaited);
        None
    }

    /// Who is set aside for a sequence of this priority: one whose reader does not read, or the youngest of the lowest priority
    /// below.
    fn victim_for(&self, priority: i32) -> Option<usize> {
        let (index, victim) = self.least_wanted()?;
        (victim.paused || victim.priority < priority).then_some(index)
    }

    fn has_victim(&self, priority: i32) -> bool {
        self.victim_for(priority).is_some()
    }

    /// Whoever is missed least: paused, of the lowest priority, the youngest.
    pub(super) fn least_wanted(&self) -> Option<(usize, &Sequence<'t>)> {
        let running = self.running.iter().enumerate();
        running.max_by_key(|(index, s)| (s.paused, Reverse(s.priority), *index))
    }

    fn set_aside_for(&mut self, priority: i32) -> bool {
        let Some(index) = self.victim_for(priority) else { return false };
        self.set_aside(index);
        true
    }

    /// Gives the blocks of a running sequence back; it is computed again later.
    pub(super) fn set_aside(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        self.give_slot_back(sequence.slot);
        let (id, tokens) = (sequence.serial, sequence.computed as u64);
        self.speculator.keep(|serial| serial != id);
        emit(|| Event::Preemption(Preemption { id, tokens }));
        sequence.preempt(&mut self.cache);
        self.totals.preemptions += 1;
        // Asked anew, because only of a line that is full it is told when there is room.
        if sequence.outlet.is_full(self.config.max_unread) {
            self.queue.push_unread(sequence);
        } else {
            self.queue.push(sequence);
        }
    }

    pub(super) fn give_slot_back(&mut self, slot: u32) {
        if self.config.states.is_recurrent() {
            self.free_slots.push(slot);
        }
    }
}
