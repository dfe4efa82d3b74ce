//! The merge loop that byte-pair encoding and SentencePiece share: the best adjacent pair is joined until no pair joins.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

/// A run of the text that is one token so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// Token of this run; [`Symbol::NO_ID`] when the vocabulary has none.
    pub id: u32,
    /// First byte in the word.
    pub start: u32,
    /// Bytes; 0 once the run has been joined to its left neighbour.
    pub len: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// The id of a run that is no token.
    pub(super) const NO_ID: u32 = u32::MAX;

    pub(super) fn new(id: u32, start: usize, len: usize) -> Self {
        Self { id, start: start as u32, len: len as u32, prev: NONE, next: NONE }
    }
}

/// Two neighbours that may be joined; the smallest is joined first, the leftmost of equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// Bytes of both together: differs from the present length once either has changed.
    len: u32,
    id: u32,
}

/// Buffers of the merge loop, kept between words.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Scratch {
    /// Joins `symbols` for as long as `pair(left, right)` names a (priority, token).
    ///
    /// `O(n log n)`: a megabyte without a space is one word.
    pub(super) fn merge(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let count = self.symbols.len() as u32;
        self.heap.clear();
        for i in 0..count {
            self.symbols[i as usize].prev = if i == 0 { NONE } else { i - 1 };
            self.symbols[i as usize].next = if i + 1 == count { NONE } else { i + 1 };
        }
        for left in 1..count {
            self.propose(left - 1, &pair);
        }
        while let Some(Reverse(best)) = self.heap.pop() {
            let left = self.symbols[best.left as usize];
            if left.len == 0 || left.next == NONE {
                continue;
            }
            let right = self.symbols[left.next as usize];
            if left.len + right.len != best.len {
                continue;
            }
            self.symbols[left.next as usize].len = 0;
            let joined = &mut self.symbols[best.left as usize];
            joined.id = best.id;
            joined.len = best.len;
            joined.next = right.next;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = best.left;
            }
            self.propose(best.left, &pair);
            if left.prev != NONE {
                self.propose(left.prev, &pair);
            }
        }
        self.symbols.retain(|s| s.len > 0);
    }

    fn propose(&mut self, left: u32, pair: &impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let l = &self.symbols[left as usize];
        if l.next == NONE {
            return;
        }
        let r = &self.symbols[l.next as usize];
        if let Some((priority, id)) = pair(l, r) {
            self.heap.push(Reverse(Candidate { priority, left, len: l.len + r.len, id }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pair_is_joined_first_and_the_leftmost_of_equals() {
        // "aaab": aa (priority 1), ab (priority 0).
        let symbols =
            vec![Symbol::new(0, 0, 1), Symbol::new(0, 1, 1), Symbol::new(0, 2, 1), Symbol::new(1, 3, 1)];
        let mut scratch = Scratch { symbols, ..Scratch::default() };
        scratch.merge(|l, r| match (l.id, r.id) {
            (0, 0) => Some((1, 2)),
            (0, 1) => Some((0, 3)),
            _ => None,
        });
        let ids: Vec<u32> = scratch.symbols.iter().map(|s| s.id).collect();
        assert_eq!(ids, [2, 3]);
        scratch.symbols = (0..5).map(|i| Symbol::new(0, i, 1)).collect();
        scratch.merge(|l, r| ((l.id, r.id) == (0, 0)).then_some((1, 2)));
        let ids: Vec<u32> = scratch.symbols.iter().map(|s| s.id).collect();
        assert_eq!(ids, [2, 2, 0]);
    }
}
