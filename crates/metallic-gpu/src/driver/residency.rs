//! Which buffers the system keeps in the GPU's reach together. It takes a set away and brings it back as a whole: with
//! all of a model in one, a moment's pressure on memory costs the whole model.

/// Sets of a command queue at most.
const MOST: usize = 32;
/// A set holds this part of the budget.
const PART: u64 = 20;

/// Bytes of each set.
#[derive(Debug)]
pub(crate) struct Sets {
    cap: u64,
    held: Vec<u64>,
}

impl Sets {
    pub(crate) fn new(budget: Option<u64>) -> Sets {
        Sets { cap: budget.map_or(u64::MAX, |bytes| (bytes / PART).max(1)), held: Vec::new() }
    }

    /// The set for a buffer: one with room, or a new one, whose index is the number there were; at last the emptiest.
    pub(crate) fn place(&mut self, bytes: u64) -> usize {
        let room = |held: &u64| *held == 0 || held.saturating_add(bytes) <= self.cap;
        let emptiest = || (0..self.held.len()).min_by_key(|i| self.held[*i]).unwrap_or(0);
        let index = match self.held.iter().position(room) {
            Some(index) => index,
            None if self.held.len() < MOST => {
                self.held.push(0);
                self.held.len() - 1
            }
            None => emptiest(),
        };
        self.held[index] = self.held[index].saturating_add(bytes);
        index
    }

    pub(crate) fn leave(&mut self, index: usize, bytes: u64) {
        if let Some(held) = self.held.get_mut(index) {
            *held = held.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_fill_sets_up_to_a_part_of_the_budget() {
        let mut sets = Sets::new(Some(2000));
        let placed: Vec<usize> =
            [60, 60, 40, 500, 1, 40].into_iter().map(|bytes| sets.place(bytes)).collect();
        assert_eq!(placed, [0, 1, 0, 2, 1, 3], "a buffer over the cap is alone");
        sets.leave(2, 500);
        assert_eq!(sets.place(100), 2, "an empty set is used again");
        sets.leave(9, 1);
    }

    #[test]
    fn there_are_never_more_sets_than_a_queue_takes() {
        let mut sets = Sets::new(Some(2000));
        let placed: Vec<usize> = (0..100).map(|i| sets.place(200 + i)).collect();
        assert_eq!(placed.iter().max(), Some(&(MOST - 1)));
        assert_eq!(placed[MOST], 0, "then the emptiest takes it");
        assert_eq!(Sets::new(None).place(u64::MAX), 0);
    }
}
