//! What is asked of an engine and what it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{EngineError, Sampling};

/// A prompt to continue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Token ids to continue.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; without it the answer may fill the context.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Text that ends the answer and is not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer and are not part of it, besides the engine's end tokens.
    pub stop_tokens: Vec<u32>,
    /// Goes on after the engine's end tokens, which become ordinary tokens.
    pub ignore_eos: bool,
    /// Reports log-probabilities: of each token, and of this many of the best.
    pub logprobs: Option<usize>,
}

impl Request {
    /// A request with default sampling that ends where the model ends it.
    pub fn new(prompt: Vec<u32>) -> Self {
        Self { prompt, ..Self::default() }
    }
}

/// A token and its probability by the model, before any sampling stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Logprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// One generated token.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that became certain with it: whole characters, and nothing that may belong to a stop string.
    pub text: String,
    /// Its own log-probability, where the request asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// The best tokens at its place, best first, as many as the request asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<Logprob>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended it, or a stop token or stop string came up.
    Stop,
    /// `max_tokens` were generated, or the context or the cache's budget is full.
    Length,
    /// The caller cancelled, or the engine was dropped.
    Cancelled,
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// The last of the text: what had been held back because it might have become a stop string. Usually empty.
    pub text: String,
    /// What it cost.
    pub stats: RequestStats,
}

/// What an answer consists of: tokens, then one end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token was generated.
    Token(Token),
    /// The answer is complete.
    Finished(Finished),
}

/// What one request cost. Times are wall times in seconds; rates are 0 where there is nothing to divide.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestStats {
    /// From submission until the engine took it up.
    pub queued_s: f64,
    /// From submission until the first token.
    pub ttft_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache already.
    pub cached_tokens: usize,
    /// From being taken up until the first token.
    pub prefill_s: f64,
    /// Prompt tokens computed per second of `prefill_s`.
    pub prefill_tps: f64,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// From the first token until the last.
    pub decode_s: f64,
    /// Tokens after the first per second of `decode_s`.
    pub decode_tps: f64,
    /// Device operations of the steps it took part in, which other requests may have shared.
    pub dispatches: u64,
    /// Times work was handed to the device in those steps.
    pub submissions: u64,
    /// Buffers the device had to allocate in those steps.
    pub allocations: u64,
    /// Bytes of intermediates, in the step that used most.
    pub arena_bytes: u64,
    /// Bytes of weights and cache read in those steps.
    pub bytes_read: u64,
    /// Bytes written to the cache and to results in those steps.
    pub bytes_written: u64,
    /// Kernels that were ready in those steps.
    pub cache_hits: u64,
    /// Kernels that had to be made in those steps.
    pub cache_misses: u64,
    /// How often it was set aside for lack of cache and computed again.
    pub preemptions: usize,
    /// The seed its tokens were drawn with.
    pub seed: u64,
}

/// An answer in full.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// The tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// The text; empty without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub stats: RequestStats,
}

/// An answer as it comes: an iterator of events that ends with [`Event::Finished`] or an error.
/// Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    events: Receiver<Result<Event, EngineError>>,
    canceller: Canceller,
    ended: bool,
}

impl Generation {
    /// Asks the engine to stop. Tokens already made still come, then the end with [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// A handle that cancels from elsewhere, such as a signal handler.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The next event, if it comes within `timeout`; `None` if not, and once the answer [has ended](Self::has_ended).
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<Event, EngineError>> {
        if self.ended {
            return None;
        }
        let event = match self.events.recv_timeout(timeout) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Err(EngineError::Gone),
        };
        self.ended = !matches!(event, Ok(Event::Token(_)));
        Some(event)
    }

    /// Whether its last event was taken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Waits for the whole answer.
    pub fn complete(self) -> Result<Completion, EngineError> {
        let (mut tokens, mut text) = (Vec::new(), String::new());
        for event in self {
            match event? {
                Event::Token(token) => {
                    tokens.push(token.id);
                    text.push_str(&token.text);
                }
                Event::Finished(Finished { reason, text: rest, stats }) => {
                    text.push_str(&rest);
                    return Ok(Completion { tokens, text, reason, stats });
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
        let event = self.events.recv().unwrap_or(Err(EngineError::Gone));
        self.ended = !matches!(event, Ok(Event::Token(_)));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Cancels one request.
#[derive(Clone, Debug)]
pub struct Canceller {
    flag: Arc<AtomicBool>,
}

impl Canceller {
    /// Asks the engine to stop; it does so before its next step.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }
}

/// The engine's end of a [`Generation`].
#[derive(Debug)]
pub(super) struct Outlet {
    events: Sender<Result<Event, EngineError>>,
    cancelled: Arc<AtomicBool>,
}

impl Outlet {
    pub(super) fn pair() -> (Outlet, Generation) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let flag = Arc::new(AtomicBool::new(false));
        let outlet = Outlet { events: sender, cancelled: Arc::clone(&flag) };
        (outlet, Generation { events: receiver, canceller: Canceller { flag }, ended: false })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// A receiver that is gone has set the flag, so a failed send needs no answer here.
    pub(super) fn send(&self, event: Result<Event, EngineError>) {
        let _ = self.events.send(event);
    }
}
