//! What an engine has to know of its model, its limits, and whether a request keeps within them.

use metallic_core::StateLayout;

use super::pool::blocks_for;
use super::scheduler::tokens_in;
use super::{EngineError, Options, Request, Speculation};
use crate::adapter::AdapterShare;

/// What the engine has to know of the model, and its limits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Most tokens of one sequence, prompt and answer together.
    pub context_length: usize,
    /// Logits in a row.
    pub vocab_size: usize,
    /// What the program keeps between steps.
    pub states: StateLayout,
    /// Bytes the cache may grow to, all sequences together.
    pub kv_budget_bytes: usize,
    /// Most tokens of one step; a longer prompt is computed in pieces. At least `max_sequences`.
    pub step_tokens: usize,
    /// Most sequences that run at the same time; more wait.
    pub max_sequences: usize,
    /// Most requests that wait, besides the `max_sequences` that may run; more are turned away with
    /// [`EngineError::Busy`].
    pub max_waiting: usize,
    /// Most events of an answer that are unread before it pauses, until half of them are read.
    pub max_unread: usize,
    /// While answers are made, pieces of prompts beside them are so large that a step takes about as long as so many steps without.
    /// Infinite: as large as `step_tokens` allows.
    pub step_stretch: f64,
    /// Tokens with which the model ends an answer.
    pub end_tokens: Vec<u32>,
    /// Keeps the cache of what was computed and reuses it where a prompt begins the same way.
    pub prefix_cache: bool,
    /// The program's adapters, each with how much of it a request takes that does not say.
    pub adapters: Vec<AdapterShare>,
    /// Whether and how tokens are guessed ahead, where a request does not say otherwise. Off for models with recurrent states.
    pub speculation: Speculation,
    /// Bytes of memory there are for all together, where that is known: for those who watch.
    pub memory_bytes: Option<u64>,
}

metallic_core::setters!(EngineConfig {
    context_length: usize,
    vocab_size: usize,
    states: StateLayout,
    kv_budget_bytes: usize,
    step_tokens: usize,
    max_sequences: usize,
    max_waiting: usize,
    max_unread: usize,
    step_stretch: f64,
    end_tokens: Vec<u32>,
    prefix_cache: bool,
    adapters: Vec<AdapterShare>,
    speculation: Speculation,
    memory_bytes: impl Into<Option<u64>>,
});

/// Tokens of a step, where nothing else is asked for.
pub(crate) const STEP_TOKENS: usize = 512;

/// Requests that may wait, where nothing else is asked for.
pub(crate) const MAX_WAITING: usize = 1024;

impl EngineConfig {
    /// The usual limits: steps of 512 tokens, 16 sequences and 1024 that wait, a cache for one full context.
    pub fn new(context_length: usize, vocab_size: usize, states: StateLayout) -> Self {
        Self {
            context_length,
            vocab_size,
            kv_budget_bytes: blocks_for(context_length).saturating_mul(states.block_bytes()),
            states,
            step_tokens: STEP_TOKENS,
            max_sequences: 16,
            max_waiting: MAX_WAITING,
            max_unread: 1024,
            step_stretch: 1.8,
            end_tokens: Vec::new(),
            prefix_cache: true,
            adapters: Vec::new(),
            speculation: Speculation::Off,
            memory_bytes: None,
        }
    }

    pub(super) fn validate(&self) -> Result<(), EngineError> {
        if self.context_length < 2 {
            return Err(EngineError::parameter("context_length", self.context_length, "2 or more"));
        }
        if self.vocab_size == 0 {
            return Err(EngineError::parameter("vocab_size", 0, "1 or more"));
        }
        if self.max_sequences == 0 {
            return Err(EngineError::parameter("max_sequences", 0, "1 or more"));
        }
        if self.step_tokens < self.max_sequences {
            return Err(EngineError::parameter("step_tokens", self.step_tokens, "at least max_sequences"));
        }
        if self.max_unread == 0 {
            return Err(EngineError::parameter("max_unread", 0, "1 or more"));
        }
        if self.step_stretch.is_nan() || self.step_stretch < 1.0 {
            return Err(EngineError::parameter("step_stretch", self.step_stretch, "1 or more"));
        }
        if self.block_limits().far == 0 {
            return Err(self.over_budget(1));
        }
        Ok(())
    }

    /// How much of each adapter a request takes.
    pub(super) fn mix(&self, asked: Option<&[AdapterShare]>) -> Result<Vec<f32>, EngineError> {
        let Some(asked) = asked else { return Ok(self.adapters.iter().map(|a| a.scale).collect()) };
        let mut mix = vec![0.0; self.adapters.len()];
        for AdapterShare { name, scale } in asked {
            let Some(index) = self.adapters.iter().position(|adapter| adapter.name == *name) else {
                let known = self.adapters.iter().map(|adapter| adapter.name.as_str()).collect::<Vec<_>>();
                return Err(EngineError::Adapter { name: name.clone(), known: known.join(", ") });
            };
            mix[index] += scale;
            // Two large numbers may be none together.
            if !mix[index].is_finite() {
                return Err(EngineError::parameter("the scale of an adapter", mix[index], "a number"));
            }
        }
        Ok(mix)
    }

    /// Checks a request and says how many tokens its prompt and answer may have together.
    pub(super) fn most_tokens(&self, request: &Request, has_text: bool) -> Result<usize, EngineError> {
        let (prompt, vocab) = (request.prompt.len(), self.vocab_size);
        let Options { max_tokens, stop, logprobs, prompt_logprobs, sampling, .. } = &request.options;
        // Without an answer the prompt may take all there is.
        let answers = usize::from(*max_tokens != Some(0));
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.saturating_add(answers) > self.context_length {
            return Err(EngineError::PromptTooLong { tokens: prompt, context: self.context_length });
        }
        if let Some((index, &id)) = request.prompt.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { index, id, vocab });
        }
        for (name, top) in [("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)] {
            if let Some(top) = top.filter(|top| *top > vocab) {
                return Err(EngineError::parameter(name, top, "at most the size of the vocabulary"));
            }
        }
        if stop.iter().any(String::is_empty) {
            return Err(EngineError::parameter("stop", "an empty string", "text"));
        }
        if !stop.is_empty() && !has_text {
            return Err(EngineError::NoTokenizer);
        }
        sampling.validate(vocab)?;
        if request.options.speculation == Some(true) && !self.speculation.is_on() {
            return Err(EngineError::parameter("speculation", true, "off: this engine does not guess ahead"));
        }
        // The last token of an answer is never put into the cache.
        let capacity = tokens_in(self.block_limits().far).saturating_add(answers);
        let wanted = prompt.saturating_add(max_tokens.unwrap_or(1)).min(self.context_length);
        if wanted > capacity {
            return Err(self.over_budget(wanted - answers));
        }
        Ok(match max_tokens {
            Some(_) => wanted,
            None => self.context_length.min(capacity),
        })
    }
}
