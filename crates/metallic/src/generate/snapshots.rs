//! Recurrent states as they were at the end of known prefixes, in slots of their own: a prompt that begins the same way goes
//! on from there.

use std::collections::HashMap;

use metallic_core::{CacheUse, Program};

use super::EngineConfig;
use super::pool::Chain;

/// Most states kept.
const MOST: usize = 32;
/// Bytes they may always have.
const LEAST_BYTES: usize = 256 << 20;

/// States kept, the longest unused going first where there are too many.
#[derive(Debug)]
pub(super) struct Snapshots {
    /// Slots before this one belong to sequences.
    first: usize,
    limit: usize,
    /// Slots of ours that the program has.
    reserved: usize,
    /// Slot and last use of the state after each prefix.
    kept: HashMap<Chain, (u32, u64)>,
    clock: u64,
    /// States that were looked for and found, and those that were not.
    found: u64,
    missed: u64,
}

impl Snapshots {
    /// Room for states of a quarter of the cache's bytes.
    pub(super) fn new(config: &EngineConfig) -> Snapshots {
        let bytes = (config.kv_budget_bytes / 4).max(LEAST_BYTES);
        let fitting = bytes.checked_div(config.states.sequence_bytes()).unwrap_or(0);
        let limit = if config.prefix_cache { fitting.min(MOST) } else { 0 };
        Snapshots {
            first: config.max_sequences,
            limit,
            reserved: 0,
            kept: HashMap::new(),
            clock: 0,
            found: 0,
            missed: 0,
        }
    }

    /// Whether the state after a prefix is known.
    pub(super) fn has(&self, prefix: Chain) -> bool {
        self.kept.contains_key(&prefix)
    }

    /// The slot of the state after a prefix, for a sequence that goes on from it.
    pub(super) fn find(&mut self, prefix: Chain) -> Option<u32> {
        let found = self.touch(prefix);
        self.found += u64::from(found.is_some());
        self.missed += u64::from(found.is_none());
        found
    }

    /// What it holds and has done so far.
    pub(super) fn usage(&self) -> CacheUse {
        let (entries, limit) = (self.kept.len(), Some(self.limit));
        CacheUse {
            name: "states",
            entries,
            limit,
            hits: self.found,
            misses: self.missed,
            ..CacheUse::default()
        }
    }

    /// The slot of the state after a prefix, which counts as used now.
    fn touch(&mut self, prefix: Chain) -> Option<u32> {
        self.clock += 1;
        let (slot, used) = self.kept.get_mut(&prefix)?;
        *used = self.clock;
        Some(*slot)
    }

    /// Keeps the state in `slot`, which is that after `prefix`, in place of that after `instead`. What there is no memory for is
    /// not kept: the prefix is computed again.
    pub(super) fn keep(
        &mut self,
        program: &mut dyn Program,
        slot: u32,
        prefix: Chain,
        instead: Option<Chain>,
    ) {
        if self.touch(prefix).is_some() {
            return;
        }
        let given_up = instead.and_then(|old| self.kept.remove(&old)).map(|(slot, _)| slot);
        let Some(to) = given_up.or_else(|| self.room(program)) else { return };
        if program.copy_slot(slot, to).is_ok() {
            self.kept.insert(prefix, (to, self.clock));
        } else {
            // A slot whose contents nobody knows.
            self.limit = self.kept.len();
        }
    }

    fn room(&mut self, program: &mut dyn Program) -> Option<u32> {
        let used = self.kept.len();
        if used < self.limit && used == self.reserved {
            let wanted = (2 * used).clamp(1, self.limit);
            match program.reserve_slots(self.first + wanted) {
                Ok(()) => self.reserved = wanted,
                Err(_) => self.limit = used,
            }
        }
        if used < self.limit {
            let taken: Vec<u32> = self.kept.values().map(|(slot, _)| *slot).collect();
            let ours = self.first as u32..(self.first + self.reserved) as u32;
            return ours.into_iter().find(|slot| !taken.contains(slot));
        }
        let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used).map(|(prefix, _)| *prefix)?;
        self.kept.remove(&oldest).map(|(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use metallic_core::{DType, State, StateLayout};

    use super::super::pool::tests::{Memory, chain};
    use super::*;

    /// Two sequences, and room for three states of theirs.
    fn snapshots() -> Snapshots {
        let states = StateLayout::new(DType::F32, vec![Some(State::Recurrent(LEAST_BYTES / 12))]);
        Snapshots::new(&EngineConfig::new(64, 9, states).max_sequences(2))
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_is_kept_stays_as_it_was() {
        let (mut snapshots, mut program) = (snapshots(), Memory { room: 9, ..Memory::default() });
        program.slots = vec![0; 2];
        for name in 1..=3 {
            program.slots[1] = name;
            snapshots.keep(&mut program, 1, chain(u64::from(name)), None);
        }
        assert!(snapshots.find(chain(1)).is_some());
        program.slots[0] = 4;
        snapshots.keep(&mut program, 0, chain(4), None);
        let found = |snapshots: &mut Snapshots, name| snapshots.find(chain(name)).map(|slot| slot as usize);
        assert_eq!(found(&mut snapshots, 2), None, "it was not used since");
        for name in [1, 3, 4] {
            let slot = found(&mut snapshots, name).unwrap();
            assert!(slot >= 2, "those of sequences are not ours");
            assert_eq!(u64::from(program.slots[slot]), name);
        }
        program.slots[0] = 5;
        snapshots.keep(&mut program, 0, chain(5), Some(chain(4)));
        assert!(!snapshots.has(chain(4)) && snapshots.has(chain(1)) && snapshots.has(chain(3)));
        assert_eq!(program.slots.len(), 5, "three and no more");
    }

    #[test]
    fn without_memory_nothing_is_kept() {
        let (mut snapshots, mut program) = (snapshots(), Memory { room: 2, ..Memory::default() });
        program.slots = vec![7; 2];
        snapshots.keep(&mut program, 0, chain(1), None);
        assert!(!snapshots.has(chain(1)));
        program.room = 9;
        let none = EngineConfig::new(64, 9, StateLayout::new(DType::F32, vec![Some(State::Recurrent(8))]));
        let mut off = Snapshots::new(&none.prefix_cache(false));
        off.keep(&mut program, 0, chain(1), None);
        assert!(!off.has(chain(1)));
    }
}
