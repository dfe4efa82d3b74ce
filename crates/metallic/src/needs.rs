//! What a model takes of memory, known before it is loaded.

use std::path::Path;

use crate::adapter::AdapterShare;
use crate::device::Device;
use crate::generate::{STEP_TOKENS, blocks_at_once};
use crate::llm::{Error, LoadOptions, full_contexts};
use crate::model::{FAMILIES, Model};

/// Tokens of a conversation that every cache should hold.
const SHORT_CONTEXT: usize = 2048;

/// What a model takes of memory, and what else its file tells before it is loaded.
///
/// ```no_run
/// use metallic::{LoadOptions, Needs};
///
/// let needs = Needs::of("SmolLM2-135M-Instruct.Q4_1.gguf", &LoadOptions::default())?;
/// println!("{} bytes, and {} for answers", needs.weights, needs.cache);
/// # Ok::<(), metallic::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Needs {
    /// Bytes of its weights.
    pub weights: u64,
    /// Bytes that keys and values may grow to: what the options say, or a few full contexts.
    pub cache: u64,
    /// Bytes of a cache that holds one short conversation.
    pub least_cache: u64,
    /// Most tokens of a sequence.
    pub context: usize,
    /// The adapters that requests may take, each with how much they take of it where they do not say.
    pub adapters: Vec<AdapterShare>,
}

impl Needs {
    /// Reads what the model at `path` would need with these options. Nothing is put onto a device.
    pub fn of(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Needs, Error> {
        let LoadOptions { device, engine, model, .. } = options;
        let wished = model.clone().context(model.context.or(engine.context));
        let model = Model::open_with(path.as_ref(), FAMILIES, &wished)?;
        let context = engine.context.unwrap_or(usize::MAX).min(model.config().context);
        let kv = model.states(engine.kv_type)?;
        let short = blocks_at_once(&kv, context.min(SHORT_CONTEXT), STEP_TOKENS);
        // NVIDIA's have tied tables twice.
        let twice = if matches!(device, Device::Cuda(_)) { model.tied_bytes() } else { 0 };
        Ok(Needs {
            weights: model.weight_bytes() + twice,
            cache: engine.kv_budget.unwrap_or_else(|| full_contexts(context, &kv)),
            least_cache: kv.bytes_of(short) as u64,
            context,
            adapters: model.adapters().to_vec(),
        })
    }
}
