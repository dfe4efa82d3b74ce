//! Input that comes in pieces, read as though it were all there.
//!
//! Readers are `async` functions that wait for one character after another. That makes them plain recursive descent, and what they
//! give cannot depend on where the text was cut: they never see the cuts.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use super::ToolPiece;

/// What is not a call after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad;

#[derive(Debug, Default)]
struct State {
    input: String,
    at: usize,
    ended: bool,
    pieces: Vec<ToolPiece>,
    /// What was read since the last thing that is certain; a call that fails becomes text again.
    raw: String,
    /// Whitespace that belongs to a mark if one follows.
    gap: String,
    /// Nothing but whitespace came before, or since the last call.
    fresh: bool,
    calls: usize,
}

impl State {
    fn push_text(&mut self, text: &str) {
        for c in text.chars() {
            if c.is_whitespace() {
                self.gap.push(c);
                continue;
            }
            if self.calls > 0 && self.fresh {
                self.gap.clear();
            }
            self.fresh = false;
            let gap = std::mem::take(&mut self.gap);
            if let Some(ToolPiece::Text(last)) = self.pieces.last_mut() {
                last.push_str(&gap);
                last.push(c);
            } else {
                self.pieces.push(ToolPiece::Text(format!("{gap}{c}")));
            }
        }
    }
}

/// A place in the input, and where pieces go.
#[derive(Clone, Debug)]
pub(super) struct Cursor(Arc<Mutex<State>>);

impl Cursor {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { fresh: true, ..State::default() })))
    }

    /// A panic elsewhere cannot leave the state half changed: every change is one call.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More input.
    pub(super) fn feed(&self, text: &str) {
        let mut state = self.state();
        let at = std::mem::take(&mut state.at);
        state.input.drain(..at);
        state.input.push_str(text);
    }

    /// No more input.
    pub(super) fn end(&self) {
        self.state().ended = true;
    }

    /// What became certain.
    pub(super) fn pieces(&self) -> Vec<ToolPiece> {
        std::mem::take(&mut self.state().pieces)
    }

    /// The next character, which stays; `None` at the end.
    pub(super) async fn peek(&self) -> Option<char> {
        poll_fn(|_| {
            let state = self.state();
            match state.input[state.at..].chars().next() {
                None if !state.ended => Poll::Pending,
                next => Poll::Ready(next),
            }
        })
        .await
    }

    /// Takes the character that [`peek`](Self::peek) gave.
    pub(super) fn bump(&self) {
        let mut state = self.state();
        if let Some(c) = state.input[state.at..].chars().next() {
            state.at += c.len_utf8();
            state.raw.push(c);
        }
    }

    /// Takes the next character.
    pub(super) async fn next(&self) -> Option<char> {
        let next = self.peek().await;
        self.bump();
        next
    }

    /// Puts back what was read last.
    pub(super) fn unread(&self, text: &str) {
        let mut state = self.state();
        let at = state.at;
        if state.input[..at].ends_with(text) {
            state.at = at - text.len();
        } else {
            state.input.insert_str(at, text);
        }
        let keep = state.raw.len().saturating_sub(text.len());
        state.raw.truncate(keep);
    }

    /// Skips whitespace.
    pub(super) async fn spaces(&self) {
        while self.peek().await.is_some_and(char::is_whitespace) {
            self.bump();
        }
    }

    /// Takes `c` if it is next.
    pub(super) async fn take(&self, c: char) -> bool {
        let is_next = self.peek().await == Some(c);
        if is_next {
            self.bump();
        }
        is_next
    }

    /// Takes `c`, which must be next.
    pub(super) async fn need(&self, c: char) -> Result<(), Bad> {
        if self.take(c).await { Ok(()) } else { Err(Bad) }
    }

    /// Takes the longest of `marks` that stands here, and says which.
    pub(super) async fn mark(&self, marks: &[&str]) -> Option<usize> {
        let mut held = String::new();
        let mut best = None;
        loop {
            if let Some(i) = marks.iter().position(|m| !m.is_empty() && **m == held) {
                best = Some((i, held.len()));
            }
            let goes_on = |c: char| {
                marks.iter().any(|m| m.strip_prefix(held.as_str()).is_some_and(|rest| rest.starts_with(c)))
            };
            // At a complete mark that no other continues, what comes next need not be known.
            if best.is_some() && !marks.iter().any(|m| m.len() > held.len() && m.starts_with(held.as_str())) {
                break;
            }
            match self.peek().await.filter(|&c| goes_on(c)) {
                Some(c) => {
                    self.bump();
                    held.push(c);
                }
                None => break,
            }
        }
        let taken = best.map_or(0, |(_, len)| len);
        self.unread(&held[taken..]);
        best.map(|(i, _)| i)
    }

    /// Reads up to the first of `marks`, which is taken; it must come within `limit` bytes.
    pub(super) async fn until(&self, marks: &[&str], limit: usize) -> Result<(String, usize), Bad> {
        let mut text = String::new();
        loop {
            if let Some(i) = self.mark(marks).await {
                return Ok((text, i));
            }
            match self.next().await {
                Some(c) if text.len() < limit => text.push(c),
                _ => return Err(Bad),
            }
        }
    }

    /// Whether nothing but whitespace came before, or since the last call.
    pub(super) fn is_fresh(&self) -> bool {
        self.state().fresh
    }

    /// Forgets what was read: it is certain.
    pub(super) fn settle(&self) {
        self.state().raw.clear();
    }

    /// What was read since the last certain thing is text.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        let raw = std::mem::take(&mut state.raw);
        state.push_text(&raw);
    }

    /// The end of the input: whitespace that was held back is text, unless it follows a call.
    pub(super) fn finish(&self) {
        self.give_up();
        let mut state = self.state();
        let gap = std::mem::take(&mut state.gap);
        if !gap.is_empty() && (state.calls == 0 || !state.fresh) {
            match state.pieces.last_mut() {
                Some(ToolPiece::Text(last)) => last.push_str(&gap),
                _ => state.pieces.push(ToolPiece::Text(gap)),
            }
        }
    }
}

/// Where characters go that a reader has understood.
pub(super) trait Sink: Send {
    fn put(&mut self, c: char);

    fn put_all(&mut self, text: &str) {
        text.chars().for_each(|c| self.put(c));
    }
}

impl Sink for String {
    fn put(&mut self, c: char) {
        self.push(c);
    }
}

/// For what is read and not wanted.
pub(super) struct Nowhere;

impl Sink for Nowhere {
    fn put(&mut self, _: char) {}
}

/// A call as it is read. Arguments wait until the name is known.
pub(super) struct Call<'c> {
    cursor: &'c Cursor,
    name: Option<String>,
    index: Option<usize>,
    held: String,
}

impl<'c> Call<'c> {
    pub(super) fn new(cursor: &'c Cursor) -> Self {
        Self { cursor, name: None, index: None, held: String::new() }
    }

    /// The name, which is told with the arguments: until then the call may turn out to be none.
    pub(super) fn may_be(&mut self, name: &str) {
        self.name.get_or_insert_with(|| name.to_owned());
    }

    pub(super) fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Whether the call has been told of and cannot be taken back.
    pub(super) fn is_begun(&self) -> bool {
        self.index.is_some()
    }

    /// Tells the name, if there is one.
    pub(super) fn begin(&mut self) {
        let Some(name) = self.name.clone().filter(|_| self.index.is_none()) else { return };
        let mut state = self.cursor.state();
        let index = state.calls;
        state.calls += 1;
        state.gap.clear();
        state.raw.clear();
        state.pieces.push(ToolPiece::Begin { index, name });
        self.index = Some(index);
        drop(state);
        let held = std::mem::take(&mut self.held);
        self.put_all(&held);
    }

    /// The call is complete.
    pub(super) fn end(&mut self) -> Result<(), Bad> {
        self.begin();
        let index = self.index.ok_or(Bad)?;
        let mut state = self.cursor.state();
        state.pieces.push(ToolPiece::End { index });
        state.raw.clear();
        state.fresh = true;
        Ok(())
    }
}

impl Sink for Call<'_> {
    fn put(&mut self, c: char) {
        let Some(index) = self.index else {
            self.held.push(c);
            return;
        };
        let mut state = self.cursor.state();
        state.raw.clear();
        if let Some(ToolPiece::Arguments { json, .. }) = state.pieces.last_mut() {
            json.push(c);
        } else {
            state.pieces.push(ToolPiece::Arguments { index, json: c.to_string() });
        }
    }
}
