//! One answer on its way through its format.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::toktrie::SimpleVob;
use llguidance::{TokenParser, panic_utils};

use super::close::{LONGEST, Rests, Shape, way};
use super::error::reason;
use super::vocabulary::Vocabulary;
use super::{ConstrainError, mask};
use crate::generate::{EngineError, Place, Restrict, Verdict};
use crate::text::ReasoningSplitter;

/// Near the end of the budget, the model chooses among so many tokens that leave room for the end.
const CANDIDATES: usize = 8;
/// Tokens that are tried for that, the likeliest first.
const TRIED: usize = 48;
/// By how much the logit of a token may be less than the best of them: it would be chosen once in some thousand times.
const LESS_LIKELY: f32 = 8.0;
/// Where there is no short way, it is looked for again after so many tokens.
const HOPELESS: usize = 15;

/// A [`Format`](super::Format) compiled for one request.
pub struct Constraint {
    parser: TokenParser,
    vocabulary: Arc<Vocabulary>,
    /// The tokens of the answer that the parser has seen.
    seen: Vec<u32>,
    /// What may follow them, once that is known.
    next: Option<SimpleVob>,
    /// Of an answer in JSON.
    json: Option<Json>,
    /// While the model thinks.
    thoughts: Option<ReasoningSplitter>,
    /// Tokens of its thoughts.
    thought: usize,
}

/// What is needed to end an answer in JSON in time.
#[derive(Clone)]
struct Json {
    shape: Shape,
    rests: Rests,
    /// Bytes by which a token may put off the end.
    growth: usize,
    /// Tokens that end the answer, once it must.
    plan: VecDeque<u32>,
    /// Tokens for which the end need not be looked for.
    rest: usize,
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        Constraint {
            parser: self.parser.deep_clone(),
            vocabulary: Arc::clone(&self.vocabulary),
            seen: self.seen.clone(),
            next: self.next.clone(),
            json: self.json.clone(),
            thoughts: self.thoughts.clone(),
            thought: self.thought,
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

impl Restrict for Constraint {
    fn wait_for(&mut self, thoughts: ReasoningSplitter) {
        self.thoughts = Some(thoughts).filter(ReasoningSplitter::is_thinking);
    }

    fn prepare(&mut self, place: &Place<'_>) {
        // What goes wrong here goes wrong again where it can be said.
        let _ = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(self.look_ahead(place)?)));
    }

    fn restrict(
        &mut self,
        place: &Place<'_>,
        logits: &[f32],
        row: &mut Vec<f32>,
    ) -> Result<Verdict, EngineError> {
        let verdict = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(self.next(place, logits, row))));
        Ok(verdict.map_err(|error| matcher(&error)).flatten()?)
    }
}

impl Constraint {
    pub(super) fn new(parser: TokenParser, vocabulary: Arc<Vocabulary>, growth: Option<usize>) -> Constraint {
        let json = growth.map(|growth| Json {
            shape: Shape::default(),
            rests: Rests::default(),
            growth,
            plan: VecDeque::new(),
            rest: 0,
        });
        Constraint { parser, vocabulary, seen: Vec::new(), next: None, json, thoughts: None, thought: 0 }
    }

    /// Whether a text is, from its beginning to its end, one that the format allows.
    pub fn accepts(&self, text: &str) -> Result<bool, ConstrainError> {
        let mut copy = self.clone();
        let tokens = self.vocabulary.trie.greedy_tokenize(text.as_bytes());
        if self.vocabulary.trie.decode_raw(&tokens) != text.as_bytes() {
            return Ok(false);
        }
        let accepted = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            for &token in &tokens {
                if !copy.parser.validate_token(token)? {
                    return Ok(false);
                }
                copy.parser.consume_token(token)?;
            }
            Ok(copy.parser.is_accepting())
        }));
        accepted.map_err(|error| matcher(&error))
    }

    fn next(
        &mut self,
        place: &Place<'_>,
        logits: &[f32],
        row: &mut Vec<f32>,
    ) -> Result<Verdict, ConstrainError> {
        let answer = &place.tokens[place.prompt_len.min(place.tokens.len())..];
        if self.is_thinking(answer) {
            row.clear();
            row.extend_from_slice(logits);
            // An answer that ends here is none.
            for &stop in place.stop_tokens {
                row.get_mut(stop as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
            }
            return Ok(Verdict::Next);
        }
        self.follow(&answer[self.thought.min(answer.len())..])?;
        let Some(mut allowed) = self.allowed(place.stop_tokens)? else { return Ok(Verdict::End) };
        self.keep_room(place, logits, &mut allowed);
        mask::write(allowed.as_slice(), logits, row);
        Ok(Verdict::Next)
    }

    fn look_ahead(&mut self, place: &Place<'_>) -> Result<(), ConstrainError> {
        let answer = &place.tokens[place.prompt_len.min(place.tokens.len())..];
        if !self.is_thinking(answer) {
            self.follow(&answer[self.thought.min(answer.len())..])?;
            self.mask()?;
        }
        Ok(())
    }

    /// Follows the thoughts to their end.
    fn is_thinking(&mut self, answer: &[u32]) -> bool {
        while let Some(thoughts) = self.thoughts.as_mut().filter(|thoughts| thoughts.is_thinking()) {
            let Some(&token) = answer.get(self.thought) else { return true };
            // A mark is known by its id.
            let bytes = self.vocabulary.trie.token(token);
            let text = if self.vocabulary.trie.is_special_token(token) { &[] } else { bytes };
            thoughts.push_token(token, &String::from_utf8_lossy(text));
            self.thought += 1;
        }
        self.thoughts = None;
        false
    }

    /// Takes in the answer so far. Usually it is one token longer than before; where it is not what was seen, the parser goes back.
    fn follow(&mut self, answer: &[u32]) -> Result<(), ConstrainError> {
        let same = self.seen.iter().zip(answer).take_while(|(a, b)| a == b).count();
        if same < self.seen.len() {
            self.parser.rollback(self.seen.len() - same).map_err(|error| matcher(&error))?;
            self.seen.truncate(same);
            self.next = None;
            if let Some(json) = &mut self.json {
                json.plan.clear();
                json.rest = 0;
                json.shape = Shape::default();
                self.parser.final_bytes().iter().for_each(|byte| json.shape.push(*byte));
            }
        }
        for &token in &answer[same..] {
            self.parser.consume_token(token).map_err(|error| matcher(&error))?;
            self.seen.push(token);
            self.next = None;
            if let Some(json) = &mut self.json {
                self.vocabulary.trie.token(token).iter().for_each(|byte| json.shape.push(*byte));
                if json.plan.pop_front().is_some_and(|planned| planned != token) {
                    json.plan.clear();
                }
            }
        }
        self.parser.check_stop().map_err(|error| matcher(&error))?;
        Ok(())
    }

    /// The tokens that the matcher lets follow.
    fn mask(&mut self) -> Result<(), ConstrainError> {
        if self.next.is_none() {
            self.next = Some(if self.parser.stopped() {
                // Stopped for any other reason it has said so.
                self.vocabulary.trie.alloc_token_set()
            } else {
                let complete = self.parser.is_accepting();
                match self.parser.compute_mask() {
                    Ok(allowed) => allowed,
                    Err(_) if complete => self.vocabulary.trie.alloc_token_set(),
                    Err(error) => return Err(matcher(&error)),
                }
            });
        }
        Ok(())
    }

    /// The tokens that may come next; `None` where nothing may.
    fn allowed(&mut self, stop_tokens: &[u32]) -> Result<Option<SimpleVob>, ConstrainError> {
        // Whatever a grammar says, JSON has an end only where a value stands.
        let is_whole = self.json.as_ref().is_none_or(|json| json.shape.is_whole());
        let complete = self.parser.is_accepting() && is_whole;
        self.mask()?;
        let Some(mut allowed) = self.next.clone() else { return Ok(None) };
        for &end in &self.vocabulary.ends {
            allowed.disallow_token(end);
        }
        if complete && self.json.is_some() {
            // White space after the last brace is nothing to wait for.
            allowed.sub(&self.vocabulary.spaces);
        }
        let size = allowed.len();
        for &stop in stop_tokens.iter().filter(|id| (**id as usize) < size) {
            allowed.set(stop as usize, complete);
        }
        if self.json.as_ref().is_some_and(|json| json.shape.is_long_number()) {
            let mut without = allowed.clone();
            without.sub(&self.vocabulary.digits);
            // Where digits must come they do, and where the number may end it does.
            if complete || !without.is_zero() {
                allowed = without;
            } else {
                // After zeros, some must have another digit before they may end.
                let mut last = allowed.clone();
                last.and(&self.vocabulary.last_digits);
                if !last.is_zero() {
                    allowed = last;
                }
            }
        }
        match (allowed.is_zero(), complete || (self.parser.stopped() && is_whole)) {
            (false, _) => Ok(Some(allowed)),
            (true, true) => Ok(None),
            (true, false) => Err(matcher(&"no token of the vocabulary continues it")),
        }
    }

    /// Sees to it that JSON is complete when the budget is spent: from where it must end the tokens are those of a short way to the
    /// end, and shortly before, tokens that would leave too little room for it are banned.
    fn keep_room(&mut self, place: &Place<'_>, logits: &[f32], allowed: &mut SimpleVob) {
        let Some(json) = &mut self.json else { return };
        if json.plan.is_empty() {
            if json.rest > 0 || place.room > LONGEST + json.growth {
                json.rest = json.rest.saturating_sub(1);
                return;
            }
            let Some(bytes) = rest_of(&mut self.parser, json, &[]) else {
                json.rest = HOPELESS;
                return;
            };
            // A byte is a token at most: so many more tokens cannot make the way too long.
            let spare = |len: usize| place.room.saturating_sub(len + 1 + json.growth);
            if self.vocabulary.has_bytes && bytes.is_ascii() && spare(bytes.len()) > 0 {
                json.rest = spare(bytes.len()) / (json.growth + 1);
                return;
            }
            let Some(end) = self.vocabulary.tokens(&bytes) else {
                json.rest = HOPELESS;
                return;
            };
            if spare(end.len()) > 0 {
                json.rest = spare(end.len()) / (json.growth + 1);
                return;
            }
            if end.len() > place.room {
                // Only the model can still make it, with tokens longer than those of the way.
                return;
            }
            if place.room > end.len() + 1 {
                let chosen = self.candidates(place.room, logits, allowed);
                if !chosen.is_zero() {
                    *allowed = chosen;
                    return;
                }
            }
            if let Some(json) = &mut self.json {
                json.plan = end.into();
            }
        }
        let planned = self.json.as_ref().and_then(|json| json.plan.front());
        if let Some(&token) = planned.filter(|token| allowed.is_allowed(**token)) {
            *allowed = self.vocabulary.trie.singleton_token_set(token);
        }
    }

    /// Of the likeliest tokens those after which the answer can still be ended.
    fn candidates(&mut self, room: usize, logits: &[f32], allowed: &SimpleVob) -> SimpleVob {
        let mut chosen = self.vocabulary.trie.alloc_token_set();
        let Some(json) = &mut self.json else { return chosen };
        let likely = likeliest(logits, allowed);
        let mut best = None;
        for (logit, token) in likely {
            if best.is_some_and(|(found, best)| found == CANDIDATES || logit < best - LESS_LIKELY) {
                break;
            }
            let is_stop = self.vocabulary.trie.is_special_token(token);
            let fits = is_stop
                || rest_of(&mut self.parser, json, self.vocabulary.trie.token(token))
                    .is_some_and(|bytes| self.vocabulary.fits(&bytes, room.saturating_sub(2)));
            if fits {
                chosen.allow_token(token);
                best = Some(best.map_or((1, logit), |(found, best)| (found + 1, best)));
            }
        }
        chosen
    }
}

/// The tokens to try, the likeliest first.
fn likeliest(logits: &[f32], allowed: &SimpleVob) -> Vec<(f32, u32)> {
    let (mut likely, mut best) = (Vec::new(), f32::NEG_INFINITY);
    for (at, (chunk, word)) in logits.chunks(32).zip(allowed.as_slice()).enumerate() {
        let least = best - 2.0 * LESS_LIKELY;
        // Most chunks have none: a sum needs no branches.
        if *word == 0 || chunk.iter().map(|logit| u32::from(*logit >= least)).sum::<u32>() == 0 {
            continue;
        }
        for (bit, logit) in chunk.iter().enumerate().filter(|(bit, _)| word >> bit & 1 == 1) {
            if *logit >= best - 2.0 * LESS_LIKELY {
                best = best.max(*logit);
                likely.push((*logit, (32 * at + bit) as u32));
            }
        }
    }
    let by_logit = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0);
    if likely.len() > TRIED {
        likely.select_nth_unstable_by(TRIED, by_logit);
        likely.truncate(TRIED);
    }
    likely.sort_unstable_by(by_logit);
    likely
}

fn matcher(error: &dyn std::fmt::Display) -> ConstrainError {
    ConstrainError::Matcher { reason: reason(error) }
}

/// The bytes of a short way to the end after `more`.
fn rest_of(parser: &mut TokenParser, json: &mut Json, more: &[u8]) -> Option<Vec<u8>> {
    let Json { shape, rests, .. } = json;
    parser.parser.with_recognizer(|matcher| way(matcher, shape, more, rests))
}

impl From<ConstrainError> for EngineError {
    fn from(error: ConstrainError) -> EngineError {
        let reason = match error {
            ConstrainError::Matcher { reason } => reason,
            other => other.to_string(),
        };
        EngineError::Constraint { reason }
    }
}
