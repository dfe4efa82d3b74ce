//! What followed the last time: an index of short runs of tokens, and the longest match that ends where the answer ends.

use std::collections::HashMap;

/// Places with the same short run that are looked at, the latest first.
const CANDIDATES: usize = 24;
/// A match need not be known to be longer.
const LONGEST: usize = 64;
/// Stands for no place.
const NOWHERE: u32 = u32::MAX;

/// A place where the same tokens stood before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The token at this index is the one that followed.
    pub(super) source: usize,
    /// How many tokens before it are the same, as far as that was looked at.
    pub(super) length: usize,
}

/// Where runs of `N` tokens ended, each with the place before it of the same run.
#[derive(Debug, Default)]
struct Runs<const N: usize> {
    last: HashMap<[u32; N], u32>,
    /// By end of the run; `NOWHERE` for the first of its kind.
    before: Vec<u32>,
}

impl<const N: usize> Runs<N> {
    /// Notes the run that ends at `end`, and all ends in order must have been noted before.
    fn note(&mut self, tokens: &[u32], end: usize) {
        let run = tokens[..end].last_chunk::<N>();
        let before = run.and_then(|run| self.last.insert(*run, end as u32));
        self.before.push(before.unwrap_or(NOWHERE));
    }

    /// The places before `end` where its run ended, the latest first.
    fn places(&self, end: usize) -> impl Iterator<Item = usize> + '_ {
        let before = move |end: usize| {
            self.before.get(end - 1).copied().filter(|place| *place != NOWHERE).map(|place| place as usize)
        };
        std::iter::successors(before(end), move |place| before(*place)).take(CANDIDATES)
    }
}

/// An index of a sequence's tokens that grows with it.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    long: Runs<4>,
    short: Runs<2>,
    /// Tokens that are in it.
    known: usize,
}

impl Lookup {
    /// The longest match of the end of `tokens` with at least `shortest` tokens; of equals the latest. `lead` is where the
    /// last one goes on, which may be further back than is looked. Between two calls tokens are only ever appended.
    pub(super) fn find(&mut self, tokens: &[u32], shortest: usize, lead: Option<Match>) -> Option<Match> {
        for end in self.known + 1..=tokens.len() {
            self.long.note(tokens, end);
            self.short.note(tokens, end);
        }
        self.known = self.known.max(tokens.len());
        let end = tokens.len();
        if end == 0 {
            return None;
        }
        let mut best = lead;
        let mut look = |places: &mut dyn Iterator<Item = usize>| {
            for source in places {
                let length = common_end(&tokens[..source], tokens);
                if best.is_none_or(|best| length > best.length) {
                    best = Some(Match { source, length });
                }
                if length >= LONGEST {
                    break;
                }
            }
            best
        };
        if look(&mut self.long.places(end)).is_none() {
            look(&mut self.short.places(end));
        }
        best.filter(|best| best.length >= shortest.max(2))
    }
}

/// How many tokens at the end of both are the same, up to [`LONGEST`].
fn common_end(a: &[u32], b: &[u32]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(LONGEST).take_while(|(a, b)| a == b).count()
}

/// The token that stood `index` places after `source`; where that is past the end, the guess goes on with itself.
pub(super) fn guessed(tokens: &[u32], source: usize, index: usize) -> Option<u32> {
    // Past the end stands what was guessed first, and so on: a period of `tokens.len() - source`.
    let period = tokens.len().checked_sub(source).filter(|period| *period > 0)?;
    tokens.get(source + index % period).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(tokens: &[u32], shortest: usize) -> Option<usize> {
        (1..tokens.len()).map(|end| common_end(&tokens[..end], tokens)).max().filter(|n| *n >= shortest)
    }

    #[test]
    fn what_followed_is_found_again_and_the_latest_of_equals_counts() {
        let mut lookup = Lookup::default();
        let tokens = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2];
        assert_eq!(lookup.find(&tokens, 2, None), Some(Match { source: 6, length: 2 }));
        assert_eq!(lookup.find(&tokens, 3, None), None, "three were asked for");
        let mut lookup = Lookup::default();
        assert_eq!(lookup.find(&[1, 2, 3], 2, None), None);
        assert_eq!(lookup.find(&[1, 2, 3, 1, 2], 2, None), Some(Match { source: 2, length: 2 }));
        assert_eq!(lookup.find(&[1, 2, 3, 1, 2, 3], 2, None), Some(Match { source: 3, length: 3 }));
        assert_eq!(lookup.find(&[], 2, None), None);
    }

    #[test]
    fn a_longer_match_goes_before_a_later_one() {
        let mut tokens: Vec<u32> = (0..40).collect();
        tokens.extend([100, 38, 39, 101]);
        tokens.extend(30..40);
        let found = Lookup::default().find(&tokens, 2, None);
        assert_eq!(found, Some(Match { source: 40, length: 10 }));
    }

    #[test]
    fn the_index_grows_with_the_sequence_and_finds_what_a_search_of_all_finds() {
        for period in [5_u32, 7, 50] {
            let tokens: Vec<u32> = (0..400_u32).map(|i| (i * i / 3 + i / period) % 11).collect();
            let (mut lookup, mut found) = (Lookup::default(), 0);
            for end in 1..tokens.len() {
                let best = lookup.find(&tokens[..end], 2, None);
                let wanted = longest(&tokens[..end], 2);
                // A short one may be further back than is looked, a long one is found.
                match (best, wanted) {
                    (Some(best), Some(wanted)) => {
                        assert!(best.length == wanted || best.length >= 4, "{best:?} {wanted}");
                        assert_eq!(common_end(&tokens[..best.source], &tokens[..end]), best.length);
                        found += 1;
                    }
                    (best, wanted) => assert_eq!(best.map(|best| best.length), wanted),
                }
            }
            assert!(found > 100, "{found}");
        }
    }

    #[test]
    fn a_lead_that_is_out_of_sight_is_kept() {
        let lead = Match { source: 3, length: 30 };
        let tokens = vec![7; 200];
        assert_eq!(Lookup::default().find(&[1, 2, 3, 4, 5], 2, Some(lead)), Some(lead));
        let found = Lookup::default().find(&tokens, 2, Some(lead));
        assert_eq!(found, Some(Match { source: 199, length: LONGEST }));
    }

    #[test]
    fn a_guess_past_the_end_goes_on_with_itself() {
        let tokens = [5, 6, 7, 5, 6, 7];
        let guess: Vec<_> = (0..7).filter_map(|index| guessed(&tokens, 3, index)).collect();
        assert_eq!(guess, [5, 6, 7, 5, 6, 7, 5]);
        assert_eq!(guessed(&tokens, 6, 0), None);
        assert_eq!(guessed(&tokens, 7, 0), None);
    }
}
