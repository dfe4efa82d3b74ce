//! A smaller model that guesses for another.

use std::path::Path;

use metallic_core::{Backend, CompileOptions};

use super::{Error, full_contexts, held_bytes};
use crate::generate::{Draft, EngineConfig, Speculation};
use crate::llm::LoadOptions;
use crate::model::{FAMILIES, Model, ModelOptions};
use crate::text::Tokenizer;

/// The part of the memory left beside the weights that the cache of a draft model may take: one of so many.
const CACHE_PART: u64 = 8;

/// A draft model that has yet to be compiled.
pub(super) struct DraftModel {
    model: Model,
    /// What it will take: its weights, and its cache at most.
    weights: u64,
    cache: u64,
}

impl DraftModel {
    /// Opens the draft model that the options name, if they do. It must have the vocabulary of `tokenizer`; `left` bytes are
    /// there for it and its cache.
    pub(super) fn open(
        options: &LoadOptions,
        tokenizer: &Tokenizer,
        backend: &dyn Backend,
        left: Option<u64>,
    ) -> Result<Option<DraftModel>, Error> {
        let Speculation::Draft(draft) = &options.engine.speculation else { return Ok(None) };
        let reading = ModelOptions::default().access(options.model.access).context(options.engine.context);
        let model = Model::open_with(&draft.path, FAMILIES, &reading)?;
        check_vocabulary(&draft.path, &model, tokenizer)?;
        let weights = held_bytes(&model, backend);
        let states = model.states(options.engine.kv_type)?;
        let full = full_contexts(model.config().context, &states);
        let left = left.map_or(u64::MAX, |left| left.saturating_sub(weights) / CACHE_PART);
        let cache = full.min(left).max(states.block_bytes() as u64);
        Ok(Some(DraftModel { model, weights, cache }))
    }

    /// Bytes it will take.
    pub(super) fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.cache)
    }

    /// Makes it ready.
    pub(super) fn compile(self, backend: &dyn Backend, options: &LoadOptions) -> Result<Draft, Error> {
        let Self { model, cache, .. } = self;
        let engine = &options.engine;
        let states = model.states(engine.kv_type)?;
        let context = engine.context.unwrap_or(usize::MAX).min(model.config().context);
        let config = EngineConfig::new(context, model.config().vocab, states)
            .kv_budget_bytes(usize::try_from(cache).unwrap_or(usize::MAX))
            .max_sequences(engine.max_sequences);
        let program = model.compile(backend, CompileOptions::kv(engine.kv_type))?;
        Ok(Draft::new(program, config)?)
    }
}

/// Checks that a draft model means the same by every token that both have.
fn check_vocabulary(path: &Path, model: &Model, tokenizer: &Tokenizer) -> Result<(), Error> {
    let name = || path.display().to_string();
    let own = model.tokenizer()?.ok_or_else(|| Error::NoTokenizer { path: name() })?;
    let both = own.vocab_size().min(tokenizer.vocab_size());
    let differs = |id: &u32| own.token_text(*id) != tokenizer.token_text(*id);
    let Some(id) = (0..both as u32).find(differs) else { return Ok(()) };
    let text = |tokenizer: &Tokenizer| tokenizer.token_text(id).unwrap_or_default().to_owned();
    Err(Error::DraftVocabulary { path: name(), id, found: text(&own), needed: text(tokenizer) })
}
