//! What is asked of an engine and what it answers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use super::channel::{Receiver, Sender, channel};
use super::hook::Hook;
use super::{EngineError, Sampling};
use crate::adapter::AdapterShare;
use crate::text::ReasoningSplitter;

/// How an answer is made.
///
/// ```
/// use metallic::{Options, Sampling};
///
/// let options = Options::default().max_tokens(64).sampling(Sampling::greedy()).stop(["\n\n".to_owned()]);
/// assert_eq!(options.max_tokens, Some(64));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Options {
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
    /// How much of the model's adapters is taken, of those not named nothing; `None`: of each as much as it was loaded with.
    pub adapters: Option<Vec<AdapterShare>>,
}

metallic_core::setters!(Options {
    max_tokens: impl Into<Option<usize>>,
    sampling: Sampling,
    stop: impl Into<Vec<String>>,
    stop_tokens: impl Into<Vec<u32>>,
    ignore_eos: bool,
    logprobs: impl Into<Option<usize>>,
    adapters: impl Into<Option<Vec<AdapterShare>>>,
});

/// A prompt to continue.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Request {
    /// Token ids to continue.
    pub prompt: Vec<u32>,
    /// How the answer is made.
    pub options: Options,
    /// Shows the hook the logits after every token of the prompt too; what it changes there changes nothing.
    pub prompt_logits: bool,
    /// Tells the model's thoughts from its answer, in [`Token::reasoning`] and [`Completion::reasoning`].
    pub reasoning: Option<ReasoningSplitter>,
    pub(super) hook: Option<Hook>,
    pub(super) hidden: Option<HiddenSink>,
}

/// A function of rows.
type TakesRows = dyn FnMut(&[f32]) + Send;

/// Takes hidden states, row by row, on the engine's thread.
pub(super) struct HiddenSink(pub(super) Box<TakesRows>);

impl std::fmt::Debug for HiddenSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HiddenSink")
    }
}

impl Request {
    /// A request with default sampling that ends where the model ends it.
    pub fn new(prompt: impl Into<Vec<u32>>) -> Self {
        Self { prompt: prompt.into(), ..Self::default() }
    }

    /// Runs `hook` on the engine's thread before each choice, with the tokens so far, prompt and answer, and the logits of
    /// the next, which it may change: a grammar bans what it does not allow with `-inf`. Sampling comes after it;
    /// log-probabilities stay those of the model. While it runs everybody waits. A panic in it ends this request alone.
    ///
    /// ```
    /// use metallic::generate::Request;
    ///
    /// let even_only = Request::new([1, 2, 3]).hook(|_, logits| {
    ///     logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    /// });
    /// # drop(even_only);
    /// ```
    #[must_use]
    pub fn hook(mut self, hook: impl FnMut(&[u32], &mut [f32]) + Send + 'static) -> Self {
        self.hook = Some(Hook::new(Box::new(hook)));
        self
    }
}

metallic_core::setters!(Request {
    prompt: impl Into<Vec<u32>>,
    options: Options,
    prompt_logits: bool,
    reasoning: impl Into<Option<ReasoningSplitter>>,
} options {
    max_tokens: impl Into<Option<usize>>,
    sampling: Sampling,
    stop: impl Into<Vec<String>>,
    stop_tokens: impl Into<Vec<u32>>,
    ignore_eos: bool,
    logprobs: impl Into<Option<usize>>,
    adapters: impl Into<Option<Vec<AdapterShare>>>,
});

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
    /// Text that is part of the model's thoughts and not of its answer, where the request asked to tell them apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
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
    /// The last of the thoughts, where the request asked to tell them apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
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
    /// What the model thought before it answered, where the request asked to tell it apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub stats: RequestStats,
}

/// An answer as it comes: an iterator of events that ends with [`Event::Finished`] or an error, and a [`Stream`] of the
/// same for programs that await it. Dropping it cancels the request.
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

    /// A handle that cancels from elsewhere, such as a signal handler.
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
        self.ended = !matches!(event, Ok(Event::Token(_)));
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
        for event in self {
            match event? {
                Event::Token(token) => {
                    tokens.push(token.id);
                    text.push_str(&token.text);
                    reasoning.push_str(&token.reasoning);
                }
                Event::Finished(Finished { reason, text: rest, reasoning: thoughts, stats }) => {
                    text.push_str(&rest);
                    reasoning.push_str(&thoughts);
                    return Ok(Completion { tokens, text, reasoning, reason, stats });
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
        let (sender, receiver) = channel();
        let flag = Arc::new(AtomicBool::new(false));
        let outlet = Outlet { events: sender, cancelled: Arc::clone(&flag) };
        let canceller = Canceller { flag };
        (outlet, Generation { events: receiver, canceller, ended: false, reasoning: None })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn send(&self, event: Result<Event, EngineError>) {
        self.events.send(event);
    }
}
