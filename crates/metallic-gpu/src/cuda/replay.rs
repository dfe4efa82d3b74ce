//! Lists that were submitted before, as recordings.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::Kept;
use super::api::{Event, Replay};
use crate::command::CommandList;

/// Recordings at most; of more the longest unused go.
const MOST: usize = 512;

/// A list that can be run in one call, and all it uses.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) replay: Replay,
    /// Where its commands are timed: the moments before each and after the last, as of the replay before.
    pub(super) marks: Vec<Event>,
    #[expect(dead_code, reason = "what it uses stays as long as it does")]
    pub(super) kept: Kept,
}

/// Lists by what they are, which ends with them.
#[derive(Debug, Default)]
pub(super) struct Replays {
    known: HashMap<usize, Known>,
    clock: u64,
}

#[derive(Debug)]
struct Known {
    list: Weak<()>,
    used: u64,
    recorded: Option<Arc<Recorded>>,
}

impl Replays {
    fn entry(&mut self, list: &CommandList) -> Option<&mut Known> {
        self.clock += 1;
        let (identity, clock) = (list.identity(), self.clock);
        // An address may be another list's by now.
        let same = |known: &Known| known.list.upgrade().is_some_and(|list| Arc::ptr_eq(&list, identity));
        let known = self.known.get_mut(&(Arc::as_ptr(identity) as usize)).filter(|known| same(known))?;
        known.used = clock;
        Some(known)
    }

    /// The recording of a list.
    pub(super) fn find(&mut self, list: &CommandList) -> Option<Arc<Recorded>> {
        self.entry(list)?.recorded.clone()
    }

    /// Whether a list comes for the second time; from now on it does.
    pub(super) fn seen(&mut self, list: &CommandList) -> bool {
        if self.entry(list).is_some() {
            return true;
        }
        self.insert(list, None);
        false
    }

    /// Keeps the recording of a list.
    pub(super) fn keep(&mut self, list: &CommandList, recorded: Arc<Recorded>) {
        self.insert(list, Some(recorded));
    }

    /// Lets go of what was made of lists that are gone.
    pub(super) fn forget_gone(&mut self) {
        self.known.retain(|_, known| known.list.strong_count() > 0);
    }

    fn insert(&mut self, list: &CommandList, recorded: Option<Arc<Recorded>>) {
        self.forget_gone();
        if self.known.len() >= MOST
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.used).map(|(key, _)| *key)
        {
            self.known.remove(&oldest);
        }
        self.clock += 1;
        let identity = list.identity();
        let known = Known { list: Arc::downgrade(identity), used: self.clock, recorded };
        self.known.insert(Arc::as_ptr(identity) as usize, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, Region};
    use crate::gpu::BufferId;

    fn list(value: u8) -> CommandList {
        let mut list = CommandList::new();
        list.push(Command::Fill { to: Region::whole(BufferId(1), 4), value });
        list
    }

    #[test]
    fn a_list_is_known_from_its_second_time_on_until_it_changes_or_goes() {
        let (mut replays, mut first, second) = (Replays::default(), list(1), list(1));
        assert!(!replays.seen(&first));
        assert!(replays.seen(&first) && replays.find(&first).is_none(), "known, and not recorded");
        assert!(!replays.seen(&second), "an equal list is another one");
        first.push(Command::Fill { to: Region::whole(BufferId(2), 4), value: 0 });
        assert!(!replays.seen(&first), "what was changed is another list");
    }

    #[test]
    fn lists_that_are_gone_make_room() {
        let mut replays = Replays::default();
        for value in 0..3 * MOST {
            assert!(!replays.seen(&list(value as u8)));
        }
        assert!(replays.known.len() <= MOST);
        let kept: Vec<CommandList> = (0..2 * MOST).map(|value| list(value as u8)).collect();
        for list in &kept {
            assert!(!replays.seen(list));
        }
        assert!(replays.known.len() <= MOST);
        assert!(replays.seen(&kept[2 * MOST - 1]) && !replays.seen(&kept[0]), "the longest unused went");
    }
}
