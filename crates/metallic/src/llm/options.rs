//! What may be chosen of the engine, and what is made of it where nothing was.

use std::num::NonZeroUsize;

use metallic_core::{DType, StateLayout};

use super::Error;
use crate::generate::{EngineConfig, MAX_WAITING, STEP_TOKENS, Speculation, blocks_at_once};
use crate::model::Model;
use crate::text::Tokenizer;

/// Sequences whose full context the default budget pays for.
const FULL_CONTEXTS: u64 = 4;
/// Memory left to everything else.
const SPARE_BYTES: u64 = 256 << 20;

/// What may be chosen of the engine; what is left open comes from the model and the memory there is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// How keys and values are stored: `F32`, `F16`, `BF16` or `Q8_0`.
    pub kv_type: DType,
    /// Most tokens of a sequence; `None`: as many as the model was made for.
    pub context: Option<usize>,
    /// Bytes keys and values may grow to; `None`: what the machine has left, but no more than a few full contexts need.
    pub kv_budget: Option<u64>,
    /// Most sequences that run at the same time; more wait.
    pub max_sequences: usize,
    /// Most requests that wait besides them; more are turned away with [`EngineError::Busy`](crate::generate::EngineError::Busy).
    pub max_waiting: usize,
    /// Most tokens of one step, at least `max_sequences`; `None`: as many as the device does well with.
    pub step_tokens: Option<usize>,
    /// Keeps what was computed for prompts that begin the same way.
    pub prefix_cache: bool,
    /// Whether and how tokens are guessed ahead: faster where an answer repeats what came before, or a smaller model often says the
    /// same, and the same tokens in any case.
    pub speculation: Speculation,
    /// Computes one operation of every so many steps again by the reference ([`crate::diff::verified`]): slower, and the arena is
    /// larger. `None`: never.
    pub verify: Option<NonZeroUsize>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            kv_type: DType::F16,
            context: None,
            kv_budget: None,
            max_sequences: 16,
            max_waiting: MAX_WAITING,
            step_tokens: None,
            prefix_cache: true,
            speculation: Speculation::Off,
            verify: None,
        }
    }
}

metallic_core::setters!(EngineOptions {
    kv_type: DType,
    context: impl Into<Option<usize>>,
    kv_budget: impl Into<Option<u64>>,
    max_sequences: usize,
    max_waiting: usize,
    step_tokens: impl Into<Option<usize>>,
    prefix_cache: bool,
    speculation: Speculation,
    verify: impl Into<Option<NonZeroUsize>>,
});

impl EngineOptions {
    /// The engine's limits, computed before anything is loaded onto the device, of which so many bytes are left and where weights
    /// take `weights`.
    pub(super) fn resolve(
        &self,
        model: &Model,
        tokenizer: &Tokenizer,
        weights: u64,
        available: Option<u64>,
    ) -> Result<EngineConfig, Error> {
        let context = self.context.unwrap_or(usize::MAX).min(model.config().context);
        let kv = model.states(self.kv_type)?;
        let budget = match (self.kv_budget, available) {
            (Some(bytes), _) => bytes,
            (None, Some(available)) => {
                let left = available.saturating_sub(weights).saturating_sub(SPARE_BYTES);
                if left < kv.block_bytes() as u64 {
                    return Err(Error::NoRoom { needed: weights, available });
                }
                left.min(full_contexts(context, &kv))
            }
            (None, None) => full_contexts(context, &kv),
        };
        let config = EngineConfig::new(context, model.config().vocab, kv);
        Ok(config
            .kv_budget_bytes(usize::try_from(budget).unwrap_or(usize::MAX))
            .max_sequences(self.max_sequences)
            .max_waiting(self.max_waiting)
            .step_tokens(self.step_tokens.unwrap_or(STEP_TOKENS.max(self.max_sequences)))
            .end_tokens(tokenizer.end_of_generation().collect())
            .prefix_cache(self.prefix_cache)
            .speculation(self.speculation.clone())
            .adapters(model.adapters().to_vec()))
    }
}

pub(crate) fn full_contexts(context: usize, kv: &StateLayout) -> u64 {
    (kv.bytes_of(blocks_at_once(kv, context, STEP_TOKENS)) as u64).saturating_mul(FULL_CONTEXTS)
}
