//! Which models a server has: loaded ones, and files that are loaded when somebody asks for them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use metallic::{AdapterShare, Llm, LoadOptions, Needs};

use crate::error::ServerError;

/// A model that is loaded when somebody asks for it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelSpec {
    /// A GGUF file or a folder.
    pub path: PathBuf,
    /// How it is loaded.
    pub options: LoadOptions,
    /// Loads it when the server starts.
    pub preload: bool,
    /// Never makes room for others once it is loaded.
    pub pinned: bool,
}

impl ModelSpec {
    /// The model at `path`, with the usual options.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), options: LoadOptions::default(), preload: false, pinned: false }
    }
}

metallic_core::setters!(ModelSpec { path: PathBuf, options: LoadOptions, preload: bool, pinned: bool });

/// Where a model comes from.
pub(super) enum Source {
    Loaded(Box<Llm>),
    File { spec: Box<ModelSpec>, needs: Needs },
}

/// A model and what clients call it.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) source: Source,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Entry {
    /// Its adapters; each is a model of its own, called `model:adapter`.
    pub(super) fn adapters(&self) -> &[AdapterShare] {
        match &self.source {
            Source::Loaded(llm) => llm.model().adapters(),
            Source::File { needs, .. } => &needs.adapters,
        }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let adapters = self.adapters().iter().map(|adapter| adapter_name(&self.name, adapter));
        std::iter::once(self.name.clone()).chain(adapters)
    }
}

/// What a model with one of its adapters is called.
pub(super) fn adapter_name(model: &str, adapter: &AdapterShare) -> String {
    format!("{model}:{}", adapter.name)
}

/// The models that a server has.
///
/// Models that are [added](Self::add) are there as long as the server is. Those that are [registered](Self::register) are loaded when
/// somebody asks for them and go again when others need their room.
///
/// ```no_run
/// use metallic::Llm;
/// use metallic_server::{ModelSpec, Models};
///
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let models = Models::new()
///     .add("small", Llm::load("SmolLM2-135M-Instruct.Q4_1.gguf")?)?
///     .register("large", ModelSpec::new("Qwen3-8B.Q4_K_M.gguf"))?
///     .alias("gpt-4o-mini", "small")?
///     .memory_budget(16 << 30);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Models {
    pub(super) entries: Vec<Entry>,
    /// Other names, each with the model's own.
    pub(super) aliases: BTreeMap<String, String>,
    pub(super) memory_budget: Option<u64>,
    pub(super) load_time: Duration,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            aliases: BTreeMap::new(),
            memory_budget: None,
            load_time: Duration::from_secs(300),
        }
    }
}

impl Models {
    /// No models yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a loaded model under a name.
    pub fn add(self, name: impl Into<String>, llm: Llm) -> Result<Self, ServerError> {
        self.enter(name.into(), Source::Loaded(Box::new(llm)))
    }

    /// Adds a model that is loaded when somebody asks for it. Its file is looked at now.
    pub fn register(self, name: impl Into<String>, spec: ModelSpec) -> Result<Self, ServerError> {
        let name = name.into();
        let needs = Needs::of(&spec.path, &spec.options)
            .map_err(|source| ServerError::Load { name: name.clone(), source: Box::new(source) })?;
        self.enter(name, Source::File { spec: Box::new(spec), needs })
    }

    /// Adds another name for a model that is there, or for one with an adapter (`model:adapter`).
    pub fn alias(mut self, alias: impl Into<String>, model: impl Into<String>) -> Result<Self, ServerError> {
        let (alias, model) = (alias.into(), model.into());
        self.check_name(&alias)?;
        if !self.entries.iter().any(|entry| entry.names().any(|name| name == model)) {
            return Err(ServerError::Alias { alias, model });
        }
        self.aliases.insert(alias, model);
        Ok(self)
    }

    /// Bytes that weights and caches of all models may take together; without it, what the machine has left.
    #[must_use]
    pub fn memory_budget(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.memory_budget = bytes.into();
        self
    }

    /// How long a request waits for its model to be loaded.
    #[must_use]
    pub fn load_time(mut self, time: Duration) -> Self {
        self.load_time = time;
        self
    }

    fn enter(mut self, name: String, source: Source) -> Result<Self, ServerError> {
        let entry = Entry { name, source };
        for name in entry.names() {
            self.check_name(&name)?;
        }
        self.entries.push(entry);
        Ok(self)
    }

    fn check_name(&self, name: &str) -> Result<(), ServerError> {
        if name.is_empty() || name.len() > 256 || name.chars().any(char::is_control) {
            let (found, needed) = (name.to_owned(), "a short text");
            return Err(ServerError::Option { name: "the name of a model", found, needed });
        }
        let taken = self.aliases.contains_key(name)
            || self.entries.iter().any(|entry| entry.names().any(|other| other == name));
        if taken { Err(ServerError::Name { name: name.to_owned() }) } else { Ok(()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
