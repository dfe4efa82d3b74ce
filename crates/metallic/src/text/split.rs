//! Splitting text with the regular expressions of pre-tokenizers.

use std::ops::Range;
use std::time::Instant;

use fancy_regex::Regex as LookingRegex;
use regex_automata::meta::Regex as LinearRegex;
use regex_automata::{Anchored, Input, util::syntax};

use super::TextError;
use super::bounds::{self, Patience};
use super::digits::Digits;

/// How nearly every pattern ends: a run of spaces leaves its last one to the word that follows.
const SPACE_RUN: &str = r"|\s+(?!\S)|\s+";

/// Steps back that one search may take. A search that finds nothing takes one for each byte.
const BACKTRACKS: usize = 10_000_000;

/// Name of the group that stands in for [`SPACE_RUN`].
const RUN: &str = "metallic_space_run";

/// What happens to the matches of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// How a text is split by a pattern.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule<'p> {
    pub behavior: Behavior,
    /// What does not match counts as a match, and the other way round.
    pub invert: bool,
    pub patience: &'p Patience,
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    source: String,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    Literal,
    /// Groups of digits.
    Digits(Box<Digits>),
    /// No look-around. Pattern 1, where there is one, is `\s+` standing in for [`SPACE_RUN`]: [`space_run`] applies that rule,
    /// so that a megabyte of spaces costs a megabyte of steps and no backtracking stack.
    Linear(LinearRegex),
    /// Everything else, with a bound on backtracking.
    Looking(LookingRegex),
}

impl Pattern {
    pub(super) fn literal(text: &str) -> Self {
        Self { source: text.into(), engine: Engine::Literal }
    }

    pub(super) fn regex(source: &str) -> Result<Self, TextError> {
        if let Some(digits) = Digits::new(source) {
            return Ok(Self { source: source.into(), engine: Engine::Digits(Box::new(digits)) });
        }
        bounds::check(source).map_err(|reason| failed(source, &reason))?;
        let rest = source.strip_suffix(SPACE_RUN);
        let parts = rest.map_or(vec![source], |rest| vec![rest, r"\s+"]);
        // Like Oniguruma, for which these patterns are written: `^` and `$` mean lines.
        let linear = LinearRegex::builder()
            .syntax(syntax::Config::new().multi_line(true))
            .configure(LinearRegex::config().nfa_size_limit(Some(16 << 20)))
            .build_many(&parts);
        let engine = match linear {
            Ok(regex) if !has_possessive(source) => Engine::Linear(regex),
            _ => {
                let pattern =
                    rest.map_or(format!("(?m){source}"), |rest| format!(r"(?m)(?:{rest})|(?<{RUN}>\s+)"));
                let regex = fancy_regex::RegexBuilder::new(&pattern)
                    .backtrack_limit(BACKTRACKS)
                    .delegate_size_limit(16 << 20)
                    .build();
                Engine::Looking(regex.map_err(|e| failed(source, &e))?)
            }
        };
        Ok(Self { source: source.into(), engine })
    }

    /// The first match at or after `at`.
    fn find(&self, text: &str, at: usize) -> Result<Option<Range<usize>>, TextError> {
        match &self.engine {
            Engine::Literal => {
                let found = text[at..].find(&self.source);
                Ok(found.map(|i| at + i..at + i + self.source.len()))
            }
            Engine::Digits(_) => Ok(None),
            Engine::Linear(regex) => {
                // Most matches begin where the last one ended; an anchored search need not look for the beginning.
                let input = Input::new(text).span(at..text.len());
                let anchored = input.clone().anchored(Anchored::Yes);
                let Some(found) = regex.search(&anchored).or_else(|| regex.search(&input)) else {
                    return Ok(None);
                };
                let is_run = found.pattern().as_usize() == 1;
                Ok(Some(if is_run { space_run(text, found.range()) } else { found.range() }))
            }
            Engine::Looking(regex) => {
                let found = regex.captures_from_pos(text, at).map_err(|e| failed(&self.source, &e))?;
                Ok(found.and_then(|c| match c.name(RUN) {
                    Some(run) => Some(space_run(text, run.range())),
                    None => c.get(0).map(|m| m.range()),
                }))
            }
        }
    }

    /// Cuts `text` into the matches (true) and what lies between (false); together they cover it.
    fn cut(
        &self,
        text: &str,
        patience: &Patience,
        mut emit: impl FnMut(Range<usize>, bool),
    ) -> Result<(), TextError> {
        if let Engine::Digits(digits) = &self.engine {
            digits.cut(text, emit);
            return Ok(());
        }
        let (mut done, mut at) = (0, 0);
        if matches!(self.engine, Engine::Literal) && self.source.is_empty() {
            emit(0..text.len(), false);
            return Ok(());
        }
        while at <= text.len() {
            let began = matches!(self.engine, Engine::Looking(_)).then(Instant::now);
            let found = self.find(text, at)?;
            if let Some(began) = began {
                let end = found.as_ref().map_or(text.len(), |found| found.end);
                patience.spend(&self.source, began, end - at)?;
            }
            let Some(found) = found else { break };
            if done < found.start {
                emit(done..found.start, false);
            }
            done = found.end;
            // An empty match divides the text without taking any of it.
            at = found.end;
            if found.is_empty() {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            } else {
                emit(found, true);
            }
        }
        if done < text.len() {
            emit(done..text.len(), false);
        }
        Ok(())
    }

    /// Appends the pieces of `text[span]`, as ranges of `text`.
    pub(super) fn split(
        &self,
        text: &str,
        span: Range<usize>,
        Rule { behavior, invert, patience }: Rule<'_>,
        out: &mut Vec<Range<usize>>,
    ) -> Result<(), TextError> {
        let first = out.len();
        let mut before: Option<bool> = None; // Was the piece before a match?
        self.cut(&text[span.clone()], patience, |piece, is_match| {
            let piece = span.start + piece.start..span.start + piece.end;
            let is_match = is_match != invert;
            let joins = match behavior {
                Behavior::Removed if is_match => {
                    before = Some(true);
                    return;
                }
                Behavior::Removed | Behavior::Isolated => false,
                Behavior::MergedWithPrevious => is_match && before == Some(false),
                Behavior::MergedWithNext => !is_match && before == Some(true),
                Behavior::Contiguous => before == Some(is_match),
            };
            before = Some(is_match);
            match out[first..].last_mut() {
                Some(last) if joins => last.end = piece.end,
                _ => out.push(piece),
            }
        })
    }

    /// Replaces every match by `with`; `None` where that makes more than `limit` bytes.
    pub(super) fn replace(
        &self,
        text: &str,
        with: &str,
        limit: usize,
        patience: &Patience,
    ) -> Result<Option<String>, TextError> {
        let mut out = String::with_capacity(text.len());
        let mut fits = true;
        self.cut(text, patience, |piece, is_match| {
            let piece = if is_match { with } else { &text[piece] };
            fits &= piece.len() <= limit - out.len();
            if fits {
                out.push_str(piece);
            }
        })?;
        Ok(fits.then_some(out))
    }
}

/// The part of a run of whitespace that [`SPACE_RUN`] matches: without its last character, if a word follows.
fn space_run(text: &str, mut run: Range<usize>) -> Range<usize> {
    let last = text[run.clone()].chars().next_back().map_or(0, char::len_utf8);
    if run.end < text.len() && run.len() > last {
        run.end -= last;
    }
    run
}

/// Whether a pattern has a quantifier that never gives back (`?+`, `*+`, `++`), which the linear engine would read as
/// two quantifiers.
fn has_possessive(pattern: &str) -> bool {
    let (mut escaped, mut in_class, mut quantified) = (false, 0, false);
    for c in pattern.chars() {
        let was_quantified = std::mem::take(&mut quantified);
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class += 1,
            ']' if in_class > 0 => in_class -= 1,
            '+' if in_class == 0 && was_quantified => return true,
            '?' | '*' | '+' if in_class == 0 => quantified = true,
            _ => {}
        }
    }
    false
}

fn failed(pattern: &str, reason: &dyn std::fmt::Display) -> TextError {
    TextError::Pattern { pattern: pattern.into(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'a>(pattern: &Pattern, behavior: Behavior, text: &'a str) -> Vec<&'a str> {
        let mut out = Vec::new();
        let rule = Rule { behavior, invert: false, patience: &Patience::default() };
        pattern.split(text, 0..text.len(), rule, &mut out).unwrap();
        out.into_iter().map(|r| &text[r]).collect()
    }

    #[test]
    fn a_run_of_spaces_leaves_its_last_to_the_next_word() {
        let source = r"'s| ?\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+";
        let fast = Pattern::regex(source).unwrap();
        assert!(matches!(fast.engine, Engine::Linear(_)));
        let slow =
            Pattern { source: source.into(), engine: Engine::Looking(LookingRegex::new(source).unwrap()) };
        for text in ["a   b", "a \t\n b", "  ", "\n\nx", "a\u{3000}\u{3000}b", "a\t\tb  ", "", "it's  . "] {
            assert_eq!(
                pieces(&fast, Behavior::Isolated, text),
                pieces(&slow, Behavior::Isolated, text),
                "{text:?}"
            );
        }
        assert_eq!(pieces(&fast, Behavior::Isolated, "a   b"), ["a", "  ", " b"]);
    }

    #[test]
    fn matches_go_where_the_behavior_says() {
        let dash = Pattern::literal("-");
        let text = "the-final--countdown";
        assert_eq!(pieces(&dash, Behavior::Removed, text), ["the", "final", "countdown"]);
        assert_eq!(pieces(&dash, Behavior::Isolated, text), ["the", "-", "final", "-", "-", "countdown"]);
        assert_eq!(pieces(&dash, Behavior::MergedWithPrevious, text), ["the-", "final-", "-", "countdown"]);
        assert_eq!(pieces(&dash, Behavior::MergedWithNext, text), ["the", "-final", "-", "-countdown"]);
        assert_eq!(pieces(&dash, Behavior::Contiguous, text), ["the", "-", "final", "--", "countdown"]);
    }

    #[test]
    fn patterns_that_look_around_work_and_broken_ones_are_errors() {
        let thousands = Pattern::regex(r"\d{1,3}(?=(?:\d{3})*\b)").unwrap();
        assert_eq!(pieces(&thousands, Behavior::Isolated, "x 1234567"), ["x ", "1", "234", "567"]);
        let possessive = Pattern::regex(r"\p{L}++|\s+(?!\S)|\s+").unwrap();
        assert!(matches!(possessive.engine, Engine::Looking(_)));
        assert_eq!(pieces(&possessive, Behavior::Isolated, "a   b  "), ["a", "  ", " ", "b", "  "]);
        assert_eq!(pieces(&possessive, Behavior::Isolated, &" ".repeat(3 << 20)).len(), 1);
        assert!(matches!(Pattern::regex(r"[?+*+]\?+|x{1,2}").unwrap().engine, Engine::Linear(_)));
        assert!(matches!(Pattern::regex("(unclosed"), Err(TextError::Pattern { .. })));
        assert!(matches!(Pattern::regex("((a{1000}){1000}){1000}"), Err(TextError::Pattern { .. })));
    }
}
