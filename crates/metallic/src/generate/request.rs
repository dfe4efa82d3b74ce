//! What is asked of an engine and what it answers.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Sampling;
use super::hook::Hook;
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
    /// Most tokens to generate; without it the answer may fill the context. 0 computes the prompt and generates nothing.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Text that ends the answer and is not part of it. Special tokens in it count as such, though they are no text of an answer.
    pub stop: Vec<String>,
    /// Tokens that end the answer and are not part of it, besides the engine's end tokens.
    pub stop_tokens: Vec<u32>,
    /// Goes on after the engine's end tokens, which become ordinary tokens.
    pub ignore_eos: bool,
    /// Reports log-probabilities: of each token, and of this many of the best.
    pub logprobs: Option<usize>,
    /// Reports log-probabilities of the prompt's own tokens, and of this many of the best at each place, in [`Event::Prompt`].
    /// All of the prompt is computed for them, whatever the cache knows.
    pub prompt_logprobs: Option<usize>,
    /// Those of higher priority are let in first and computed first, and where there is no room for both the lower is set aside.
    pub priority: i32,
    /// When the answer ends, however far it is, with [`FinishReason::Deadline`]; a request that still waits ends as well.
    pub deadline: Option<Instant>,
    /// How much of the model's adapters is taken, of those not named nothing; `None`: of each as much as it was loaded with.
    pub adapters: Option<Vec<AdapterShare>>,
    /// Whether tokens are guessed ahead, which changes nothing but the speed; `None`: as the engine was set up.
    pub speculation: Option<bool>,
}

metallic_core::setters!(Options {
    max_tokens: impl Into<Option<usize>>,
    sampling: Sampling,
    stop: impl Into<Vec<String>>,
    stop_tokens: impl Into<Vec<u32>>,
    ignore_eos: bool,
    logprobs: impl Into<Option<usize>>,
    prompt_logprobs: impl Into<Option<usize>>,
    priority: i32,
    deadline: impl Into<Option<Instant>>,
    adapters: impl Into<Option<Vec<AdapterShare>>>,
    speculation: impl Into<Option<bool>>,
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
    /// Tells the model's thoughts from its answer, in [`Token::reasoning`] and
    /// [`Completion::reasoning`](super::Completion::reasoning).
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
        self.hook.get_or_insert_default().set_call(Box::new(hook));
        self
    }

    /// Holds the answer to a format: tokens that it does not allow are never chosen, and where it is complete the answer ends. It
    /// sees what a [`hook`](Self::hook) has left. Where [thoughts](Self::reasoning) are told apart, they are free. Tokens that end the answer are allowed where the format may end; stop strings still
    /// cut it wherever they come.
    #[cfg(feature = "constrain")]
    #[must_use]
    pub fn constraint(mut self, constraint: crate::constrain::Constraint) -> Self {
        self.hook.get_or_insert_default().set_format(Box::new(constraint));
        self
    }

    /// Makes its format and its splitter of thoughts known to each other, once both are set.
    pub(super) fn join_parts(&mut self) {
        if let (Some(hook), Some(thoughts)) = (&mut self.hook, &self.reasoning) {
            hook.wait_for(thoughts);
        }
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
    prompt_logprobs: impl Into<Option<usize>>,
    priority: i32,
    deadline: impl Into<Option<Instant>>,
    adapters: impl Into<Option<Vec<AdapterShare>>>,
    speculation: impl Into<Option<bool>>,
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

/// A token of the prompt and its probability by the model, given those before it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PromptToken {
    /// Its id.
    pub id: u32,
    /// Its log-probability; `None` of the first, before which there is nothing.
    pub logprob: Option<f32>,
    /// The best tokens at its place, best first, as many as the request asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<Logprob>,
}

impl PromptToken {
    pub(super) fn new(id: u32, logprob: Option<f32>) -> Self {
        Self { id, logprob, top_logprobs: Vec::new() }
    }
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
    /// Its [deadline](Options::deadline) has come.
    Deadline,
}

/// What ended an answer that [stopped](FinishReason::Stop).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMatch {
    /// One of the request's stop strings.
    Text(String),
    /// One of the request's stop tokens, or one with which the model ends an answer.
    Token(u32),
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// What stopped it, where something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopMatch>,
    /// The last of the text: what had been held back because it might have become a stop string. Usually empty.
    pub text: String,
    /// The last of the thoughts, where the request asked to tell them apart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// What it cost.
    pub stats: RequestStats,
}

/// What an answer consists of: what was asked about the prompt, tokens, then one end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The tokens of the prompt, all at once and before any other event, where their
    /// [log-probabilities](Options::prompt_logprobs) were asked for.
    Prompt(Vec<PromptToken>),
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
    /// Tokens that were guessed ahead in steps it took part in.
    pub drafted_tokens: usize,
    /// How many of them were right: each saved a step.
    pub accepted_tokens: usize,
    /// The seed its tokens were drawn with.
    pub seed: u64,
}
