//! The end of an answer in JSON, found before it is needed.
//!
//! The matcher says what may come next, not what must still come. Here it is led along a short way to the end, byte by byte and
//! without consequences: objects and arrays are closed as soon as they may be, and within strings and numbers the shortest
//! rest is searched for, state by state of the matcher's automaton.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::toktrie::Recognizer;

/// Ways that are longer are given up.
pub(super) const LONGEST: usize = 4096;
/// Bytes of a number that doubles tell from its neighbours, and its sign and point.
const LONG_NUMBER: usize = 20;
/// States that are looked at for one string or number.
const STATES: usize = 2048;

/// How far a text in JSON is.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Bytes of the number or the word it is in; 0 outside.
    scalar: usize,
    /// The outermost value is complete.
    complete: bool,
}

impl Shape {
    /// Whether it is in a number that has digits enough: more say nothing to a reader of doubles.
    pub(super) fn is_long_number(&self) -> bool {
        self.scalar > LONG_NUMBER
    }

    /// Whether a whole value stands there, as far as brackets and quotes tell.
    pub(super) fn is_whole(&self) -> bool {
        self.complete || (self.depth == 0 && self.scalar > 0)
    }

    pub(super) fn push(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    self.complete = self.depth == 0;
                }
                _ => {}
            }
            return;
        }
        let in_scalar = byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if self.scalar > 0 && !in_scalar && self.depth == 0 {
            self.complete = true;
        }
        self.scalar = if in_scalar { self.scalar + 1 } else { 0 };
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.complete = self.depth == 0;
            }
            _ => {}
        }
    }
}

/// Rests of strings and numbers, by the state of the automaton: where in a text each begins.
#[derive(Clone, Default)]
pub(super) struct Rests {
    known: HashMap<StateID, (Arc<[u8]>, usize)>,
}

/// Bytes that end a text of this shape after `more`, `None` where no short way is found or `more` may not come.
pub(super) fn way(
    matcher: &mut ParserRecognizer<'_>,
    shape: &Shape,
    more: &[u8],
    rests: &mut Rests,
) -> Option<Vec<u8>> {
    matcher.trie_started("close");
    let found = walk(matcher, shape.clone(), more, rests);
    matcher.trie_finished();
    found
}

fn walk(
    matcher: &mut ParserRecognizer<'_>,
    mut shape: Shape,
    more: &[u8],
    rests: &mut Rests,
) -> Option<Vec<u8>> {
    for &byte in more {
        if !matcher.try_push_byte(byte) {
            return None;
        }
        shape.push(byte);
    }
    let mut way = Vec::new();
    while !shape.complete {
        let from = way.len();
        if shape.in_string && !shape.escaped {
            way.extend_from_slice(rests.find(matcher, b"\"")?);
            way.push(b'"');
        } else if shape.scalar > 0 {
            way.extend_from_slice(rests.find(matcher, b"}],")?);
            // What was found is passed first, and only then what may follow it is seen.
            for &byte in &way[from..] {
                matcher.try_push_byte(byte).then_some(())?;
                shape.push(byte);
            }
            way.push(first(matcher, b"}],")?);
            matcher.try_push_byte(*way.last()?).then_some(())?;
            shape.push(*way.last()?);
            continue;
        } else if shape.escaped {
            way.push(first(matcher, b"nrtbf\\\"")?);
        } else {
            way.push(first(matcher, b"}]:\"0123456789-ntf,[{ ")?);
        }
        for &byte in &way[from..] {
            matcher.try_push_byte(byte).then_some(())?;
            shape.push(byte);
        }
        if way.len() > LONGEST {
            return None;
        }
    }
    Some(way)
}

/// The first of the bytes that may come.
fn first(matcher: &mut ParserRecognizer<'_>, bytes: &[u8]) -> Option<u8> {
    bytes.iter().copied().find(|byte| matcher.byte_allowed(*byte))
}

impl Rests {
    /// The shortest bytes after which one of `ends` may come, within one string or number.
    fn find(&mut self, matcher: &mut ParserRecognizer<'_>, ends: &[u8]) -> Option<&[u8]> {
        let state = matcher.lexer_state();
        if !self.known.contains_key(&state) {
            let found: Arc<[u8]> = search(matcher, ends)?.into();
            // Each state on the way has a part of it to go.
            for from in 0..=found.len() {
                self.known.entry(matcher.lexer_state()).or_insert_with(|| (Arc::clone(&found), from));
                if let Some(byte) = found.get(from) {
                    matcher.try_push_byte(*byte).then_some(())?;
                }
            }
            matcher.pop_bytes(found.len());
        }
        self.known.get(&state).map(|(text, from)| &text[*from..])
    }
}

/// Looks through the states of one string or number, the nearest first.
fn search(matcher: &mut ParserRecognizer<'_>, ends: &[u8]) -> Option<Vec<u8>> {
    let mut seen = HashSet::from([matcher.lexer_state()]);
    let mut queue = VecDeque::from([Vec::new()]);
    // What was pushed so far; the next path mostly goes on from there.
    let mut pushed: Vec<u8> = Vec::new();
    let mut found = None;
    while let Some(path) = queue.pop_front() {
        let same = pushed.iter().zip(&path).take_while(|(a, b)| a == b).count();
        matcher.pop_bytes(pushed.len() - same);
        pushed.truncate(same);
        for &byte in &path[same..] {
            if matcher.try_push_byte(byte) {
                pushed.push(byte);
            }
        }
        // After a backslash, a mark is a character and no end.
        let escaped = path.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1;
        if pushed == path && !escaped && ends.iter().any(|end| matcher.byte_allowed(*end)) {
            found = Some(path);
            break;
        }
        let mut grow = |matcher: &mut ParserRecognizer<'_>, byte: u8| {
            let allowed = matcher.try_push_byte(byte);
            if allowed {
                if seen.insert(matcher.lexer_state()) {
                    queue.push_back([&path[..], &[byte]].concat());
                }
                matcher.pop_bytes(1);
            }
            allowed
        };
        let is_plain = |byte: &u8| escaped || (*byte != b'\\' && !ends.contains(byte));
        let plain = (b' '..=b'~').filter(is_plain).fold(false, |any, byte| grow(matcher, byte) | any);
        if !plain {
            // Other bytes than those of plain text only where nothing else may come.
            [b'\\'].into_iter().chain(0x80..=0xf4).for_each(|byte| {
                grow(matcher, byte);
            });
        }
        if seen.len() > STATES {
            break;
        }
    }
    matcher.pop_bytes(pushed.len());
    found
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn a_value_is_whole_where_it_may_end() {
        for (text, whole) in [
            ("", false),
            (" ", false),
            ("[", false),
            ("{\"a\": [1, \"]\"]", false),
            ("{\"a\": [1, \"]\"]}", true),
            ("\"a", false),
            ("\"a\\\"", false),
            ("\"a\\\\\"", true),
            ("12", true),
            (" null\n", true),
            ("[] ", true),
        ] {
            let mut shape = Shape::default();
            text.bytes().for_each(|byte| shape.push(byte));
            assert_eq!(shape.is_whole(), whole, "{text}");
        }
    }
}
