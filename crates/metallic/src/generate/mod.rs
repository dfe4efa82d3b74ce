//! Generation: many requests at once on one program, with a paged cache under a budget.
//!
//! An [`Engine`] owns a compiled program on a thread of its own. Each step carries tokens of many sequences: one of each that
//! is answering, and pieces of the prompts of others. A [`Request`] gives a [`Generation`], an iterator and a
//! stream of events.
//!
//! The cache grows block by block under a budget. When it is full, the youngest sequence is set aside and computed again later,
//! with the same tokens as its result. Blocks of prompts and answers are kept while there is room, so that a conversation
//! so far is not computed again.
//!
//! [`logits`], [`greedy`] and [`perplexity`] work on a program without an engine.

mod budget;
mod cache;
mod channel;
mod config;
mod engine;
mod error;
mod flight;
mod generation;
mod hook;
mod inbox;
mod offline;
mod pace;
mod pool;
mod queue;
mod request;
pub mod sample;
mod scheduler;
mod sequence;
mod snapshots;
mod speculate;
mod text;

pub(crate) use budget::blocks_at_once;
pub use config::EngineConfig;
pub(crate) use config::{MAX_WAITING, STEP_TOKENS};
pub use engine::{Engine, EngineStats};
pub use error::EngineError;
pub use generation::{Canceller, Completion, Generation};
pub use hook::LogitsHook;
#[cfg(feature = "constrain")]
pub(crate) use hook::{Place, Restrict, Verdict};
pub use offline::{Perplexity, greedy, logits, perplexity};
pub use request::{
    Event, FinishReason, Finished, Logprob, Options, PromptToken, Request, RequestStats, StopMatch, Token,
};
pub use sample::Sampling;
pub use speculate::{Draft, DraftOptions, LookupOptions, Speculation};
pub use text::{Decode, Detokenize};
