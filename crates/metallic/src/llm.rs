//! A model ready to answer: engine, tokenizer and chat template together.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use metallic_core::{Backend, BackendError, DType, KvLayout};

use crate::device::{Device, OpenOptions, Providers, available_memory};
use crate::generate::{Engine, EngineConfig, EngineError, Generation, Request, Sampling};
use crate::model::{Model, ModelError};
use crate::text::{ChatTemplate, Message, TextError, Tokenizer};

/// What can go wrong between a path and an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model could not be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer or the template failed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The request was refused, or broke off.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The model has no tokenizer, so it cannot take text.
    #[error("`{path}` has no tokenizer, so it takes token ids only")]
    NoTokenizer {
        /// The model.
        path: String,
    },
    /// The model has no chat template, so a conversation cannot be written for it.
    #[error("`{path}` has no chat template; give the prompt as plain text")]
    NoTemplate {
        /// The model.
        path: String,
    },
    /// The model and the smallest cache do not fit into memory.
    #[error("the model needs {needed} bytes for its weights, {available} are available")]
    NoRoom {
        /// Bytes of the weights.
        needed: u64,
        /// Bytes that are left.
        available: u64,
    },
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: Device,
    /// Threads of a CPU; 0: one for each core.
    pub threads: usize,
    /// Which provider serves which operation on a GPU; a clone that is kept tells what was chosen.
    pub providers: Providers,
    /// Compute in 32 bits throughout on a CPU, for comparisons.
    pub exact: bool,
    /// How keys and values are stored: `F32`, `F16`, `BF16` or `Q8_0`.
    pub kv_type: DType,
    /// Most tokens of a sequence; `None`: as many as the model was made for.
    pub context: Option<usize>,
    /// Bytes keys and values may grow to; `None`: what the machine has left, but no more than a few full contexts need.
    pub kv_budget: Option<u64>,
    /// Keeps what was computed for prompts that begin the same way.
    pub prefix_cache: bool,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            device: Device::Auto,
            threads: 0,
            providers: Providers::new(),
            exact: false,
            kv_type: DType::F16,
            context: None,
            kv_budget: None,
            prefix_cache: true,
        }
    }
}

/// How an answer is made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Most tokens to generate; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Text that ends the answer.
    pub stop: Vec<String>,
}

/// A model that answers.
///
/// ```no_run
/// use metallic::{Llm, Message, Options};
///
/// let llm = Llm::load("SmolLM2-135M-Instruct.Q4_1.gguf")?;
/// let answer = llm.chat(&[Message::user("Why is the sky blue?")], Options::default())?;
/// println!("{}", answer.complete()?.text);
/// # Ok::<(), metallic::Error>(())
/// ```
pub struct Llm {
    model: Model,
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    device: String,
    load_s: f64,
}

/// Sequences whose full context the default budget pays for.
const FULL_CONTEXTS: u64 = 4;
/// Memory left to everything else.
const SPARE_BYTES: u64 = 256 << 20;

impl Llm {
    /// Loads a GGUF file or a Hugging Face folder onto the best device.
    pub fn load(path: impl AsRef<Path>) -> Result<Llm, Error> {
        Llm::load_with(path, &LoadOptions::default())
    }

    /// Loads with options.
    pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Llm, Error> {
        let start = Instant::now();
        let path = path.as_ref();
        let model = Model::open(path)?;
        let name = path.display().to_string();
        let tokenizer = Arc::new(model.tokenizer()?.ok_or(Error::NoTokenizer { path: name })?);
        let template = model.template(&tokenizer)?;
        let LoadOptions { threads, exact, .. } = *options;
        let providers = options.providers.clone();
        let backend =
            options.device.open_with(&OpenOptions { threads, exact, providers, ..OpenOptions::default() })?;
        let config = engine_config(&model, &tokenizer, (options, memory_of(backend.as_ref())))?;
        let program = model.compile(backend.as_ref(), options.kv_type)?;
        let engine = Engine::with_text(program, config, Arc::clone(&tokenizer) as _)?;
        let device = backend.info().kind.to_owned();
        let load_s = start.elapsed().as_secs_f64();
        Ok(Llm { model, engine, tokenizer, template, device, load_s })
    }

    /// Continues plain text.
    pub fn generate(&self, prompt: &str, options: Options) -> Result<Generation, Error> {
        self.submit(self.tokenizer.encode(prompt, true, true)?, options)
    }

    /// Answers a conversation.
    pub fn chat(&self, messages: &[Message], options: Options) -> Result<Generation, Error> {
        let prompt = self.render(messages)?;
        self.submit(self.tokenizer.encode_chat(&prompt)?, options)
    }

    /// The text a conversation becomes for this model, up to where its answer begins.
    pub fn render(&self, messages: &[Message]) -> Result<String, Error> {
        let template = self
            .template
            .as_ref()
            .ok_or_else(|| Error::NoTemplate { path: self.model.path().display().to_string() })?;
        Ok(template.render(messages, None, true)?)
    }

    fn submit(&self, prompt: Vec<u32>, options: Options) -> Result<Generation, Error> {
        let Options { max_tokens, sampling, stop } = options;
        Ok(self.engine.submit(Request { prompt, max_tokens, sampling, stop, ..Request::default() })?)
    }

    /// The engine, for requests of every kind.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template, where the model has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The kind of device it runs on: `cpu`, `metal`, `soft`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Seconds loading took.
    pub fn load_s(&self) -> f64 {
        self.load_s
    }
}

/// Bytes a model may take: what the device has, and no more than the machine has left.
fn memory_of(backend: &dyn Backend) -> Option<u64> {
    backend.info().memory_bytes.into_iter().chain(available_memory()).min()
}

/// The engine's limits, computed before anything is loaded onto the device.
fn engine_config(
    model: &Model,
    tokenizer: &Tokenizer,
    (options, available): (&LoadOptions, Option<u64>),
) -> Result<EngineConfig, Error> {
    let context = options.context.unwrap_or(usize::MAX).min(model.config().context);
    let kv = model.kv_layout(options.kv_type)?;
    let mut config = EngineConfig::new(context, model.config().vocab, kv);
    let weights = model.weight_bytes();
    config.kv_budget_bytes = match (options.kv_budget, available) {
        (Some(bytes), _) => to_usize(bytes),
        (None, Some(available)) => {
            let left = available.saturating_sub(weights).saturating_sub(SPARE_BYTES);
            if left < kv.block_bytes() as u64 {
                return Err(Error::NoRoom { needed: weights, available });
            }
            to_usize(left.min(full_contexts(context, kv)))
        }
        (None, None) => to_usize(full_contexts(context, kv)),
    };
    config.end_tokens = tokenizer.end_of_generation().collect();
    config.prefix_cache = options.prefix_cache;
    Ok(config)
}

fn full_contexts(context: usize, kv: KvLayout) -> u64 {
    let blocks = context.div_ceil(metallic_core::BLOCK_TOKENS) as u64;
    blocks.saturating_mul(kv.block_bytes() as u64).saturating_mul(FULL_CONTEXTS)
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
