//! The pieces of an answer.

use metallic::Tokenizer;
use metallic::generate::{Logprob, PromptToken, RequestStats, Token};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delta {
    /// The tokens of the prompt; only where their log-probabilities were asked for.
    Prompt(Vec<TokenDelta>),
    /// A token of the text that follows; only where log-probabilities were asked for.
    Token(TokenDelta),
    /// What the model thinks.
    Reasoning(String),
    /// What the model says.
    Text(String),
    /// The model calls a tool.
    ToolBegin { index: usize, id: String, name: String },
    /// More of the JSON of a call's arguments.
    ToolArguments { index: usize, json: String },
    /// The call is complete.
    ToolEnd { index: usize },
    /// The answer is complete.
    Finished(Finish),
}

/// A token as text and bytes, and how probable it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenText {
    pub(crate) id: u32,
    /// Its text; what is not UTF-8 alone is replaced.
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
    /// The first token of a prompt has none.
    pub(crate) logprob: Option<f32>,
}

impl TokenText {
    pub(crate) fn new(tokenizer: &Tokenizer, id: u32, logprob: Option<f32>) -> Self {
        let bytes = tokenizer.token_bytes(id).map(std::borrow::Cow::into_owned).unwrap_or_default();
        Self { id, text: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob: logprob.map(finite) }
    }
}

/// JSON has no infinity. The API writes this for tokens that cannot be.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// A generated token and the best ones at its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenDelta {
    pub(crate) token: TokenText,
    pub(crate) top: Vec<TokenText>,
}

impl TokenDelta {
    /// The token with its log-probabilities, where it has some.
    pub(crate) fn of(tokenizer: &Tokenizer, token: &Token) -> Option<Self> {
        token.logprob.map(|logprob| Self::new(tokenizer, token.id, Some(logprob), &token.top_logprobs))
    }

    /// A token of the prompt.
    pub(crate) fn of_prompt(tokenizer: &Tokenizer, token: &PromptToken) -> Self {
        Self::new(tokenizer, token.id, token.logprob, &token.top_logprobs)
    }

    fn new(tokenizer: &Tokenizer, id: u32, logprob: Option<f32>, top: &[Logprob]) -> Self {
        let top = top.iter().map(|best| TokenText::new(tokenizer, best.id, Some(best.logprob)));
        Self { token: TokenText::new(tokenizer, id, logprob), top: top.collect() }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Stop,
    Length,
    ToolCalls,
}

impl Reason {
    /// As the OpenAI API calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finish {
    pub(crate) reason: Reason,
    /// The stop text that came up, where one did.
    pub(crate) stop: Option<String>,
    pub(crate) usage: Usage,
}

/// What an answer has cost, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Of the prompt, what was in the cache.
    pub(crate) cached: usize,
    pub(crate) generated: usize,
    /// Of those generated, thoughts.
    pub(crate) reasoning: usize,
}

impl Usage {
    pub(crate) fn of(stats: &RequestStats, reasoning: usize) -> Self {
        Self {
            prompt: stats.prompt_tokens,
            cached: stats.cached_tokens,
            generated: stats.generated_tokens,
            reasoning,
        }
    }

    /// Of several answers to one prompt, which is counted once: what was cached of it is what the first found.
    pub(crate) fn beside(self, other: Self) -> Self {
        Self {
            prompt: self.prompt.max(other.prompt),
            cached: self.cached.min(other.cached),
            generated: self.generated + other.generated,
            reasoning: self.reasoning + other.reasoning,
        }
    }

    /// Of answers to several prompts.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            cached: self.cached + other.cached,
            generated: self.generated + other.generated,
            reasoning: self.reasoning + other.reasoning,
        }
    }
}
