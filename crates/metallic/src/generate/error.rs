//! What a request or an engine can fail with.

use std::fmt::Display;
use std::time::Duration;

use metallic_core::BackendError;
use metallic_core::sample::ChoiceError;

/// Why a request was refused or broke off.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is nothing to continue.
    #[error("the prompt is empty, it needs at least one token")]
    EmptyPrompt,
    /// The prompt does not leave room for an answer.
    #[error("the prompt has {tokens} tokens, the context holds {context} and must leave room for one more")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// An id is not in the vocabulary.
    #[error("token {index} of the prompt is {id}, the vocabulary has {vocab} tokens")]
    TokenOutOfRange {
        /// Which token of the prompt.
        index: usize,
        /// Its id.
        id: u32,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// A parameter lies outside its range.
    #[error("{name} is {found}, it must be {needed}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        needed: &'static str,
    },
    /// No adapter of this name was loaded.
    #[error("no adapter `{name}` was loaded with the model; there are: {}", if known.is_empty() { "none" } else { known })]
    Adapter {
        /// The adapter asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// Stop strings need text, and this engine yields ids only.
    #[error("stop strings need a tokenizer, and this engine has none; use stop tokens")]
    NoTokenizer,
    /// The request would not fit even if it were alone.
    #[error(
        "the request needs a cache for {tokens} tokens ({needed_bytes} bytes), the budget is {budget_bytes} bytes; \
         shorten it or raise the budget"
    )]
    KvBudget {
        /// Tokens the cache would have to hold.
        tokens: usize,
        /// Bytes of the blocks for them.
        needed_bytes: usize,
        /// Bytes the cache may take.
        budget_bytes: usize,
    },
    /// As many requests wait as may.
    #[error("{waiting} requests wait already and {limit} may; come again in {} s", retry_after.as_secs().max(1))]
    Busy {
        /// Requests that wait.
        waiting: usize,
        /// How many may.
        limit: usize,
        /// When there may be room, as things went of late.
        retry_after: Duration,
    },
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The program's result is not one row of logits for each token asked for.
    #[error("the program gave {found} logits, {needed} were expected")]
    Output {
        /// Values found.
        found: usize,
        /// Values expected.
        needed: usize,
    },
    /// There is no token to choose.
    #[error("none of the {vocab} logits is a number to choose by{}", nan.map(|n| format!(": {n} are NaN, the rest are -inf")).unwrap_or_default())]
    NoCandidate {
        /// Logits in the row.
        vocab: usize,
        /// How many of them are NaN, where the host has seen them.
        nan: Option<usize>,
    },
    /// A choice that is none, though its parameters were found valid.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// There is not one window of text to measure.
    #[error("the text has {tokens} tokens, one window needs {window}")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// The engine's thread could not be started.
    #[error("the engine's thread could not be started: {reason}")]
    Thread {
        /// What the system said.
        reason: String,
    },
    /// A defect: something panicked while this request was served. Others are served on.
    #[error("serving the request broke down: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The request's own code between logits and token panicked.
    #[error("the request's hook panicked: {message}")]
    Hook {
        /// The panic's message.
        message: String,
    },
    /// The answer could not be held to its format.
    #[error("the answer could not be held to its format: {reason}")]
    Constraint {
        /// Why.
        reason: String,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Gone,
}

impl EngineError {
    /// A [`EngineError::Parameter`].
    pub(crate) fn parameter(name: &'static str, found: impl Display, needed: &'static str) -> Self {
        Self::Parameter { name, found: format!("{found}"), needed }
    }

    /// An [`EngineError::NoCandidate`] of these logits.
    pub(crate) fn no_candidate(logits: &[f32]) -> Self {
        Self::NoCandidate { vocab: logits.len(), nan: Some(logits.iter().filter(|x| x.is_nan()).count()) }
    }
}
