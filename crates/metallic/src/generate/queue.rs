//! Requests that wait: for their turn, or for their reader.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::sequence::Sequence;

/// Higher priorities first, then in order of arrival: those that were set aside came before those that never ran.
type Turn = (Reverse<i32>, u64);

/// Those that wait, found by their turn and by their number, so that nothing takes longer for there being many.
#[derive(Default)]
pub(super) struct Queue<'t> {
    turns: BTreeMap<Turn, Box<Sequence<'t>>>,
    /// Set aside with so much unread that they have no turn until some of it is read.
    unread: HashMap<u64, Box<Sequence<'t>>>,
    priorities: HashMap<u64, i32>,
}

impl<'t> Queue<'t> {
    pub(super) fn push(&mut self, sequence: Sequence<'t>) {
        self.priorities.insert(sequence.serial, sequence.priority);
        self.turns.insert((Reverse(sequence.priority), sequence.serial), Box::new(sequence));
    }

    /// Keeps a sequence until its reader has read.
    pub(super) fn push_unread(&mut self, sequence: Sequence<'t>) {
        self.unread.insert(sequence.serial, Box::new(sequence));
    }

    /// There is room for its events again.
    pub(super) fn has_read(&mut self, serial: u64) {
        if let Some(sequence) = self.unread.remove(&serial) {
            self.push(*sequence);
        }
    }

    /// The next to be let in.
    pub(super) fn first(&self) -> Option<&Sequence<'t>> {
        self.turns.first_key_value().map(|(_, sequence)| &**sequence)
    }

    pub(super) fn pop(&mut self) -> Option<Sequence<'t>> {
        let (_, sequence) = self.turns.pop_first()?;
        self.priorities.remove(&sequence.serial);
        Some(*sequence)
    }

    /// One that waits, whatever for.
    pub(super) fn get(&self, serial: u64) -> Option<&Sequence<'t>> {
        let turn = self.priorities.get(&serial).map(|priority| (Reverse(*priority), serial));
        turn.and_then(|turn| self.turns.get(&turn)).or_else(|| self.unread.get(&serial)).map(|boxed| &**boxed)
    }

    pub(super) fn remove(&mut self, serial: u64) -> Option<Sequence<'t>> {
        let turn = self.priorities.remove(&serial).map(|priority| (Reverse(priority), serial));
        turn.and_then(|turn| self.turns.remove(&turn))
            .or_else(|| self.unread.remove(&serial))
            .map(|boxed| *boxed)
    }

    /// All that wait.
    pub(super) fn drain(&mut self) -> Vec<Sequence<'t>> {
        self.priorities.clear();
        let turns = std::mem::take(&mut self.turns).into_values();
        turns.chain(self.unread.drain().map(|(_, sequence)| sequence)).map(|boxed| *boxed).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.turns.len() + self.unread.len()
    }

    /// Those that wait for their readers.
    pub(super) fn unread(&self) -> usize {
        self.unread.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}
