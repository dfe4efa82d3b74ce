//! A model ready to answer: engine, tokenizer and chat template together.

mod draft;
mod embedding;
mod options;

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use metallic_core::{Backend, BackendError, CompileOptions, DType, Program};

use crate::adapter::AdapterOptions;
use crate::chat::Chat;
use crate::device::{Device, OpenOptions, Providers, available_memory};
use crate::diff::{self, DiffError, Verification, VerifyOptions};
use crate::generate::{Engine, EngineError, Generation, Options, Request, Speculation};
use crate::model::{Access, FAMILIES, Model, ModelError, ModelOptions};
use crate::telemetry;
use crate::text::{
    ChatTemplate, MarkGuard, ReasoningFormat, TextError, Tokenizer, ToolFormat, render_with_tools,
};
use draft::DraftModel;
pub use embedding::Embedding;
pub use options::EngineOptions;
pub(crate) use options::full_contexts;

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
    /// The format of an answer was refused.
    #[cfg(feature = "constrain")]
    #[error(transparent)]
    Constrain(#[from] crate::constrain::ConstrainError),
    /// Steps cannot be looked over.
    #[error(transparent)]
    Verify(#[from] DiffError),
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
    /// A draft model guesses tokens that the model does not have.
    #[error("`{path}` cannot guess for this model: its token {id} is `{found}`, the model's is `{needed}`")]
    DraftVocabulary {
        /// The draft model.
        path: String,
        /// A token that differs.
        id: u32,
        /// Its text in the draft model.
        found: String,
        /// Its text in the model.
        needed: String,
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
///
/// ```
/// use metallic::{Device, LoadOptions};
///
/// let options = LoadOptions::default().device(Device::Cpu).threads(4).context(4096);
/// assert_eq!((options.open.threads, options.engine.context), (4, Some(4096)));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Where it runs.
    pub device: Device,
    /// How the device is used.
    pub open: OpenOptions,
    /// How requests share it.
    pub engine: EngineOptions,
    /// How the model is read, and what is loaded with it.
    pub model: ModelOptions,
    /// A file with a chat template (Jinja) to use instead of the model's own.
    pub template: Option<PathBuf>,
}

metallic_core::setters!(
    LoadOptions {
        device: Device,
        open: OpenOptions,
        engine: EngineOptions,
        model: ModelOptions,
        template: impl Into<Option<PathBuf>>,
    }
    open { threads: usize, profile: bool, exact: bool, providers: Providers }
    model { access: Access, adapters: impl Into<Vec<AdapterOptions>>, merge_adapters: bool }
    engine {
        kv_type: DType,
        context: impl Into<Option<usize>>,
        kv_budget: impl Into<Option<u64>>,
        max_sequences: usize,
        max_waiting: usize,
        step_tokens: impl Into<Option<usize>>,
        prefix_cache: bool,
        speculation: Speculation,
        verify: impl Into<Option<NonZeroUsize>>,
    }
);

/// What a model continues: text, or token ids as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// Text; special tokens in it count as such, and what the model wants before it is put there.
    Text(Cow<'a, str>),
    /// Token ids.
    Tokens(Cow<'a, [u32]>),
}

macro_rules! prompts {
    ($($from:ty => $kind:ident),*) => {$(
        impl<'a> From<$from> for Prompt<'a> {
            fn from(prompt: $from) -> Prompt<'a> {
                Prompt::$kind(prompt.into())
            }
        }
    )*};
}

prompts!(&'a str => Text, &'a String => Text, String => Text, &'a [u32] => Tokens, &'a Vec<u32> => Tokens, Vec<u32> => Tokens);

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
    template: Option<Arc<ChatTemplate>>,
    /// The template for conversations with tools; often the same.
    tool_template: Option<Arc<ChatTemplate>>,
    device: String,
    load_s: f64,
    verification: Option<Verification>,
    #[cfg(feature = "constrain")]
    constrainer: std::sync::OnceLock<crate::constrain::Constrainer>,
}

/// The part of a GPU's memory that is left to its steps where they are large: one of so many.
const STEPS_PART: u64 = 16;

impl Llm {
    /// Loads a GGUF file or a Hugging Face folder onto the best device.
    pub fn load(path: impl AsRef<Path>) -> Result<Llm, Error> {
        Llm::load_with(path, &LoadOptions::default())
    }

    /// Loads with options.
    pub fn load_with(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Llm, Error> {
        let path = path.as_ref();
        telemetry::loading(path, || Llm::load_on(path, options))
    }

    fn load_on(path: &Path, options: &LoadOptions) -> Result<Llm, Error> {
        let start = Instant::now();
        let LoadOptions { device, open, engine, model, template } = options;
        // What the engine is asked for counts where the model is not told otherwise.
        let wished = model.clone().context(model.context.or(engine.context));
        let model = Model::open_with(path, FAMILIES, &wished)?;
        let name = path.display().to_string();
        let tokenizer = Arc::new(model.tokenizer()?.ok_or(Error::NoTokenizer { path: name })?);
        let (template, tool_template) = if let Some(path) = template {
            let template = Arc::new(ChatTemplate::from_file(path, &tokenizer)?);
            (Some(Arc::clone(&template)), Some(template))
        } else {
            let own = |with_tools| Ok::<_, Error>(model.template(&tokenizer, with_tools)?.map(Arc::new));
            (own(false)?, own(true)?)
        };
        let backend = device.open_with(open)?;
        let memory = memory_of(backend.as_ref());
        let weights = held_bytes(&model, backend.as_ref());
        let left = memory.map(|memory| memory.saturating_sub(weights));
        let draft = DraftModel::open(options, &tokenizer, backend.as_ref(), left)?;
        let weights = weights.saturating_add(draft.as_ref().map_or(0, DraftModel::bytes));
        let mut config = engine.resolve(&model, &tokenizer, weights, memory)?.memory_bytes(memory);
        let compiling = Instant::now();
        let (program, verification) = compile(&model, backend.as_ref(), device, open, engine)?;
        let compiled = compiling.elapsed();
        // Blocks of layers with a window were counted for steps as they usually are.
        if !config.states.is_mixed() && engine.step_tokens.is_none() {
            config.step_tokens = config.step_tokens.max(program.step_tokens());
        }
        let mut load =
            telemetry::load_event(&model, backend.as_ref(), engine.kv_type, [start.elapsed(), compiled]);
        load.context = config.context_length as u64;
        telemetry::tell_load(&load, &*program, memory);
        degraded(options, &model, &tokenizer);
        let text = Arc::clone(&tokenizer) as _;
        let engine = match draft {
            Some(draft) => {
                let draft = draft.compile(backend.as_ref(), options)?;
                Engine::with_draft(program, config, Some(text), draft)?
            }
            None => Engine::with_text(program, config, text)?,
        };
        let device = backend.info().kind.to_owned();
        let load_s = start.elapsed().as_secs_f64();
        Ok(Llm {
            model,
            engine,
            tokenizer,
            template,
            tool_template,
            device,
            load_s,
            verification,
            #[cfg(feature = "constrain")]
            constrainer: std::sync::OnceLock::new(),
        })
    }

    /// Continues text or tokens.
    pub fn generate<'p>(&self, prompt: impl Into<Prompt<'p>>, options: Options) -> Result<Generation, Error> {
        self.submit(self.request(prompt)?.options(options))
    }

    /// Answers a conversation: messages, or a [`Chat`] with tools.
    pub fn chat(&self, chat: impl Into<Chat>, options: Options) -> Result<Generation, Error> {
        self.submit(self.chat_request(chat)?.options(options))
    }

    /// A request to continue text or tokens, for what [`generate`](Self::generate) does not take: a
    /// [hook](Request::hook), for example.
    pub fn request<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Request, Error> {
        Ok(Request::new(self.tokens(prompt.into())?))
    }

    /// A request to answer a conversation.
    pub fn chat_request(&self, chat: impl Into<Chat>) -> Result<Request, Error> {
        let mut chat = chat.into();
        let guard = if chat.parse_marks {
            MarkGuard::default()
        } else {
            self.tokenizer.guard_marks(&mut chat.messages, &mut chat.variables)?
        };
        let format = self.reasoning().filter(|_| chat.split_reasoning);
        let has_tools = !chat.tools.is_empty();
        let prompt = self.render(chat)?;
        let request = Request::new(self.tokenizer.encode_guarded(&prompt, &guard)?);
        Ok(request.reasoning(format.map(|format| format.splitter(&prompt).keep_calls(has_tools))))
    }

    /// How the model marks its thoughts; `None` for models that do not think aloud.
    pub fn reasoning(&self) -> Option<ReasoningFormat> {
        ReasoningFormat::of(self.template.as_deref().map(ChatTemplate::source), &self.tokenizer)
    }

    /// The same model with another chat template, for conversations with tools and without.
    #[must_use]
    pub fn with_template(mut self, template: ChatTemplate) -> Llm {
        let template = Arc::new(template);
        self.tool_template = Some(Arc::clone(&template));
        self.template = Some(template);
        self
    }

    /// Checks a request and queues it.
    pub fn submit(&self, request: Request) -> Result<Generation, Error> {
        Ok(self.engine.submit(request)?)
    }

    /// The model's logits for the token that follows, one for each token of the vocabulary; other requests go on
    /// beside it. The prompt must leave room for one more token in the context.
    pub fn logits<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Vec<f32>, Error> {
        Ok(self.engine.logits(self.tokens(prompt.into())?)?)
    }

    /// [`logits`](Self::logits) after each token of the prompt.
    pub fn all_logits<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.engine.all_logits(self.tokens(prompt.into())?)?)
    }

    /// Hidden states after each token of a prompt: what the model makes logits of.
    pub fn hidden<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.engine.hidden(self.request(prompt)?.prompt)?)
    }

    /// The text a conversation becomes for this model, up to where its answer begins.
    ///
    /// Tools reach the model whatever its template does: where that does not write definitions, calls or results, they are put into
    /// a system message ([`ToolFormat::system_prompt`]) and into texts that it does write. Arguments of calls may be JSON text or
    /// objects, and content may be a list of texts: the template gets what it can take.
    pub fn render(&self, chat: impl Into<Chat>) -> Result<String, Error> {
        let Chat { messages, tools, variables, .. } = chat.into();
        let template = if tools.is_empty() { &self.template } else { &self.tool_template };
        let template = template
            .as_ref()
            .ok_or_else(|| Error::NoTemplate { path: self.model.path().display().to_string() })?;
        Ok(render_with_tools(template, self.tools().as_ref(), &messages, &tools, &variables)?)
    }

    /// How the model writes calls of tools; `None` where it has no chat template and its vocabulary does not tell.
    pub fn tools(&self) -> Option<ToolFormat> {
        ToolFormat::of(self.tool_template.as_deref().map(ChatTemplate::source), &self.tokenizer)
    }

    fn tokens(&self, prompt: Prompt<'_>) -> Result<Vec<u32>, Error> {
        match prompt {
            Prompt::Text(text) => Ok(self.tokenizer.encode(&text, true, true)?),
            Prompt::Tokens(tokens) => Ok(tokens.into_owned()),
        }
    }

    /// What makes formats into [constraints](Request::constraint) for this model's vocabulary. It is made when it is first asked for,
    /// which takes a moment.
    #[cfg(feature = "constrain")]
    pub fn constrainer(&self) -> Result<&crate::constrain::Constrainer, Error> {
        if let Some(constrainer) = self.constrainer.get() {
            return Ok(constrainer);
        }
        let ends: Vec<u32> = self.tokenizer.end_of_generation().collect();
        let made = crate::constrain::Constrainer::new(&self.tokenizer, &ends)?;
        Ok(self.constrainer.get_or_init(|| made))
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
        self.template.as_deref()
    }

    /// The kind of device it runs on: `cpu`, `metal`, `soft`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What looking over steps has found so far, where [that was asked for](EngineOptions::verify).
    pub fn verification(&self) -> Option<&Verification> {
        self.verification.as_ref()
    }

    /// Seconds loading took.
    pub fn load_s(&self) -> f64 {
        self.load_s
    }
}

/// Tells what is other than was asked for, or guessed, once a model is there.
fn degraded(options: &LoadOptions, model: &Model, tokenizer: &Tokenizer) {
    let made_for = model.config().context;
    if let Some(asked) = options.engine.context.filter(|asked| *asked > made_for) {
        telemetry::warn("context", || {
            format!("the model was made for {made_for} tokens; {asked} are cut to that")
        });
    }
    for note in tokenizer.notes() {
        telemetry::warn("tokenizer", || note.clone());
    }
    for note in options.open.tuned.notes() {
        telemetry::warn("tuning", || note);
    }
}

/// Makes the model ready, to be looked over where that is asked for.
fn compile(
    model: &Model,
    backend: &dyn Backend,
    device: &Device,
    open: &OpenOptions,
    engine: &EngineOptions,
) -> Result<(Box<dyn Program>, Option<Verification>), Error> {
    let compile = CompileOptions { taps: engine.verify.is_some(), ..CompileOptions::kv(engine.kv_type) };
    let program = model.compile(backend, compile)?;
    let Some(every) = engine.verify else { return Ok((program, None)) };
    let products = diff::products(device, open.exact, engine.kv_type);
    let options = VerifyOptions { every: every.get(), compile, products };
    let (program, verification) = diff::verified(program, model, options)?;
    Ok((program, Some(verification)))
}

/// Bytes a model may take: what the device has, and no more than the machine has left. Large steps take a part of a GPU's memory.
fn memory_of(backend: &dyn Backend) -> Option<u64> {
    let steps = |bytes: u64| if backend.info().kind == "cuda" { bytes / STEPS_PART } else { 0 };
    let own = backend.info().memory_bytes.map(|bytes| bytes - steps(bytes));
    own.into_iter().chain(available_memory()).min()
}

/// Bytes the weights take on a device. NVIDIA's have matrices laid out for their units, beside tables as they are in their files.
fn held_bytes(model: &Model, backend: &dyn Backend) -> u64 {
    let twice = if backend.info().kind == "cuda" { model.tied_bytes() } else { 0 };
    model.weight_bytes() + twice
}
