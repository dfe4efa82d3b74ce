//! An answer as it comes, and the engine's end of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use serde::Serialize;

use super::EngineError;
use super::channel::{Receiver, Sender, channel};
use super::inbox::Inbox;
use super::request::{Event, FinishReason, Finished, PromptToken, RequestStats, StopMatch};
use crate::text::ReasoningSplitter;

/// An answer in full.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// The tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// The text; empty without a tokenizer.
    pub text: String,
    /// What the model thought before it answered, where the request asked to tell it apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// What stopped it, where something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopMatch>,
    /// The prompt's tokens, where their log-probabilities were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<PromptToken>,
    /// What it cost.
    pub stats: RequestStats,
}

/// An answer as it comes: an iterator of events that ends with [`Event::Finished`] or an error, and a [`Stream`] of the
/// same for programs that await it. Dropping it cancels the request.
///
/// Events wait to be read, but not without end: while [too many](super::EngineConfig::max_unread) are unread the answer pauses, and
/// that of nobody else.
#[derive(Debug)]
pub struct Generation {
    events: Receiver<Result<Event, EngineError>>,
    canceller: Canceller,
    ended: bool,
    reasoning: Option<ReasoningSplitter>,
}

impl Generation {
    pub(super) fn tell_apart(&mut self, reasoning: Option<ReasoningSplitter>) {
        self.reasoning = reasoning;
    }

    /// Asks the engine to stop. Tokens already made still come, then the end with [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// A handle that cancels from elsewhere, such as another thread.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The next event, if it comes within `timeout`; `None` if not, and once the answer [has ended](Self::has_ended).
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<Event, EngineError>> {
        if self.ended {
            return None;
        }
        match self.events.recv_timeout(timeout) {
            Poll::Pending => None,
            Poll::Ready(event) => Some(self.taken(event)),
        }
    }

    /// Notes the end. A line that ends without one was cut.
    fn taken(&mut self, event: Option<Result<Event, EngineError>>) -> Result<Event, EngineError> {
        let mut event = event.unwrap_or(Err(EngineError::Gone));
        self.ended = !matches!(event, Ok(Event::Token(_) | Event::Prompt(_)));
        if self.events.made_room() {
            self.canceller.call.inbox.note(self.canceller.call.serial);
        }
        match (&mut event, &mut self.reasoning) {
            (Ok(Event::Token(token)), Some(splitter)) => {
                let piece = splitter.push_token(token.id, &token.text);
                (token.text, token.reasoning) = (piece.answer, piece.reasoning);
            }
            (Ok(Event::Finished(finished)), Some(splitter)) => {
                let (last, rest) = (splitter.push(&finished.text), splitter.finish());
                finished.text = last.answer + &rest.answer;
                finished.reasoning = last.reasoning + &rest.reasoning;
            }
            _ => {}
        }
        event
    }

    /// Whether its last event was taken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Waits for the whole answer.
    pub fn complete(self) -> Result<Completion, EngineError> {
        let (mut tokens, mut text, mut reasoning) = (Vec::new(), String::new(), String::new());
        let mut prompt = Vec::new();
        for event in self {
            match event? {
                Event::Prompt(tokens) => prompt = tokens,
                Event::Token(token) => {
                    tokens.push(token.id);
                    text.push_str(&token.text);
                    reasoning.push_str(&token.reasoning);
                }
                Event::Finished(Finished { reason, stop, text: rest, reasoning: thoughts, stats }) => {
                    text.push_str(&rest);
                    reasoning.push_str(&thoughts);
                    return Ok(Completion { tokens, text, reasoning, reason, stop, prompt, stats });
                }
            }
        }
        Err(EngineError::Gone)
    }
}

impl Iterator for Generation {
    type Item = Result<Event, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.events.recv();
        Some(self.taken(event))
    }
}

impl Stream for Generation {
    type Item = Result<Event, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.events.poll(context).map(|event| Some(self.taken(event)))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // Of one that has ended nothing is left to cancel.
        if !self.ended {
            self.cancel();
        }
    }
}

/// What the two ends of an answer share besides its events.
#[derive(Debug)]
struct Call {
    cancelled: AtomicBool,
    serial: u64,
    inbox: Arc<Inbox>,
}

/// Cancels one request.
#[derive(Clone, Debug)]
pub struct Canceller {
    call: Arc<Call>,
}

impl Canceller {
    /// Asks the engine to stop; it does so before its next step.
    pub fn cancel(&self) {
        if !self.call.cancelled.swap(true, Ordering::AcqRel) {
            self.call.inbox.note(self.call.serial);
        }
    }
}

/// The engine's end of a [`Generation`].
#[derive(Debug)]
pub(super) struct Outlet {
    events: Sender<Result<Event, EngineError>>,
    call: Arc<Call>,
}

impl Outlet {
    /// Both ends of the answer to the request of this number.
    pub(super) fn pair(serial: u64, inbox: Arc<Inbox>) -> (Outlet, Generation) {
        let (events, receiver) = channel();
        let call = Arc::new(Call { cancelled: AtomicBool::new(false), serial, inbox });
        let canceller = Canceller { call: Arc::clone(&call) };
        let generation = Generation { events: receiver, canceller, ended: false, reasoning: None };
        (Outlet { events, call }, generation)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.call.cancelled.load(Ordering::Acquire)
    }

    /// Whether so many events are unread that there should be no more for now. Whoever reads them notes it in the inbox.
    pub(super) fn is_full(&self, limit: usize) -> bool {
        self.events.is_full(limit)
    }

    pub(super) fn send(&self, event: Result<Event, EngineError>) {
        self.events.send(event);
    }
}
