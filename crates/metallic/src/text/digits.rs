//! Numbers cut into groups of three from the right, as thousands are written.
//!
//! The patterns that say so look ahead to the end of the number from each of its digits. Here a number is walked through
//! once, so that a megabyte of digits costs a megabyte of steps.

use std::ops::Range;

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};

/// The patterns of `tokenizer.json` files that mean this, and how they differ.
const KNOWN: &[(&str, &str, Ends)] = &[
    (r"\d{1,3}(?=(?:\d{3})*\b)", r"\d+", Ends::Word),
    (r"(?=(\d{3})+(?!\d))", r"\d+", Ends::Divides),
    (THOUSANDS, r"\p{N}+", Ends::Number),
];

/// Groups of three from the right, whatever follows the number.
pub(super) const THOUSANDS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Every number counts.
    Number,
    /// A number that runs into a word does not count.
    Word,
    /// Groups are no matches: the text is only divided before them.
    Divides,
}

#[derive(Debug)]
pub(super) struct Digits {
    run: Regex,
    /// A character of a word, as Oniguruma has it.
    word: Regex,
    ends: Ends,
}

impl Digits {
    /// The grouping that `pattern` means; `None` where it means something else.
    pub(super) fn new(pattern: &str) -> Option<Self> {
        let (_, run, ends) = KNOWN.iter().find(|k| k.0 == pattern)?;
        Some(Self { run: Regex::new(run).ok()?, word: Regex::new(r"[\w\p{N}]").ok()?, ends: *ends })
    }

    /// Cuts `text` into groups (true) and what lies between (false); together they cover it.
    pub(super) fn cut(&self, text: &str, mut emit: impl FnMut(Range<usize>, bool)) {
        let mut done = 0;
        for run in self.run.find_iter(text) {
            let after = Input::new(text).span(run.end()..text.len()).anchored(Anchored::Yes);
            if self.ends == Ends::Word && self.word.is_match(after) {
                continue;
            }
            let digits = &text[run.range()];
            let mut left = digits.chars().count();
            for (at, _) in digits.char_indices() {
                let at = run.start() + at;
                let begins = left.is_multiple_of(3) || (at == run.start() && self.ends != Ends::Divides);
                if begins && done < at {
                    // The first cut of a number ends the text before it, the others a group.
                    emit(done..at, self.ends != Ends::Divides && done >= run.start());
                    done = at;
                }
                left -= 1;
            }
            if self.ends != Ends::Divides {
                emit(done..run.end(), true);
                done = run.end();
            }
        }
        if done < text.len() {
            emit(done..text.len(), false);
        }
    }
}
