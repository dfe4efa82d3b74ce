//! Prompts that begin alike and come together: one computes what they begin with, the others wait for it.

use super::super::sequence::{Awaited, Sequence};
use super::Scheduler;

impl<'t> Scheduler<'t> {
    /// Who among the first `before` that run computes the most of what this one begins with and has not got yet. Whoever is
    /// waited for stands before those who wait, so no two wait for each other.
    pub(super) fn computed_by_others(&self, sequence: &Sequence<'t>, before: usize) -> Option<Awaited> {
        let others = self.running[..before].iter().rev();
        others.filter_map(|other| other.computes_for(sequence)).max_by_key(|awaited| awaited.tokens)
    }

    /// Notes for whom a running sequence waits; the other keeps its state where the two part.
    pub(super) fn wait_for(&mut self, index: usize, awaited: Option<Awaited>) {
        self.running[index].awaits = awaited;
        if let Some(Awaited { serial, tokens }) = awaited
            && let Some(other) = self.running.iter_mut().find(|s| s.serial == serial)
        {
            other.branch_at(tokens);
        }
    }

    /// Lets those go on whose beginning is there, or is no longer being computed.
    pub(super) fn look_again(&mut self) {
        for index in 0..self.running.len() {
            let Some(awaited) = self.running[index].awaits else { continue };
            let comes = |s: &Sequence<'_>| {
                let goes_on = !s.paused && s.outcome.is_none();
                s.serial == awaited.serial && goes_on && s.computed < awaited.tokens
            };
            if !self.running[..index].iter().any(comes) {
                self.take_known(index);
                let awaited = self.computed_by_others(&self.running[index], index);
                self.wait_for(index, awaited);
            }
        }
    }

    /// Gives a sequence the blocks that have become known of what it begins with.
    fn take_known(&mut self, index: usize) {
        let sequence = &mut self.running[index];
        let root = self.cache.root(&sequence.mix);
        let known = |prefix| !sequence.stops_at_borders || self.snapshots.has(prefix);
        let (mut table, chain) = self.cache.take_prefix(root, &sequence.tokens, known);
        let mut better = table.len() > sequence.table.len();
        if better && sequence.stops_at_borders {
            let state = self.snapshots.find(chain);
            better = state.is_some_and(|state| self.program.copy_slot(state, sequence.slot).is_ok());
        }
        if better {
            let before = sequence.computed;
            let mut old = std::mem::take(&mut sequence.table);
            sequence.go_on_from(table, chain);
            self.totals.prefix_tokens += (sequence.computed - before) as u64;
            self.cache.give_back(&mut old);
        } else {
            self.cache.give_back(&mut table);
        }
    }
}
