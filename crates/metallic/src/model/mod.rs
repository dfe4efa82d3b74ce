//! Models: numbers and weights read from a file, and the graph they make.

mod cohere2;
pub mod config;
mod deepseek;
mod error;
mod exaone4;
mod falcon_h1;
mod folder;
mod gemma;
mod glm4;
mod gpt2;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod lfm2;
mod llama;
mod mamba;
mod meta;
mod mistral;
mod moe;
mod nemotron;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3_next;
mod rope;
mod smollm3;
mod stablelm;
mod starcoder2;
mod transformer;

use std::path::{Path, PathBuf};

use metallic_core::{
    Backend, BackendError, CompileOptions, DType, Graph, GraphBuilder, Op, Program, Schedule, Sizes,
    StateLayout, Var, WeightUse, rewrite,
};
pub use metallic_formats::Access;
use metallic_formats::{FormatError, Gguf, Metadata, SafeTensors, Tensor};
use serde_json::{Map, Value};

pub use config::Config;
pub use error::ModelError;
pub(crate) use folder::Folder;
pub use meta::{Field, Key, Meta, Naming};
pub(crate) use rope::yarn_magnitude;
pub use rope::{RopeConfig, RopeScaling};

use crate::adapter::{Adapter, AdapterOptions, AdapterShare};
use crate::telemetry::tell;
use crate::text::{ChatTemplate, TemplateSources, TextError, Tokenizer};
use crate::weights::{Adapters, Ledger, Packing, WeightSource};

/// A family of models: the names its files give it, and how it is read from them.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `general.architecture` of its GGUF files.
    pub gguf: &'static [&'static str],
    /// `model_type` of its Hugging Face folders.
    pub hf: &'static [&'static str],
    /// Reads its numbers.
    pub read: fn(&Meta<'_>) -> Result<Box<dyn Decoder>, ModelError>,
}

/// A model in numbers, ready to be made a graph with the weights of its file.
pub trait Decoder {
    /// What the rest of the program needs to know of it.
    fn config(&self) -> &Config;

    /// What it gives for the rows that were asked for.
    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g>;
}

/// What a model gives for the rows that were asked for.
#[derive(Clone, Copy)]
pub struct Results<'g> {
    /// `[outputs, vocab]`
    pub logits: Var<'g>,
    /// What the logits are made of: `[outputs, hidden]`.
    pub hidden: Var<'g>,
}

impl<'g> Results<'g> {
    /// Of the last layer's `x [tokens, hidden]`, by the norm after it and the head. The norm is there twice: steps want the one or
    /// the other, and the head's becomes part of its product.
    pub fn new(
        x: Var<'g>,
        norm: impl Fn(Var<'g>) -> Var<'g>,
        head: impl FnOnce(Var<'g>) -> Var<'g>,
    ) -> Results<'g> {
        let last = x.select_rows(x.graph().output_rows());
        Results { logits: head(norm(last)), hidden: norm(last) }
    }
}

/// Outputs of a model's graph: logits, `[outputs, vocab]`.
pub const LOGITS: usize = 0;
/// Outputs of a model's graph: the token chosen from each row of logits.
pub const CHOSEN: usize = 1;
/// Outputs of a model's graph: hidden states, `[outputs, hidden]`.
pub const HIDDEN: usize = 2;

/// The families this engine runs.
pub const FAMILIES: &[&Family] = &[
    &cohere2::COHERE,
    &cohere2::COHERE2,
    &deepseek::V2,
    &deepseek::V3,
    &exaone4::FAMILY,
    &falcon_h1::FAMILY,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &glm4::GLM,
    &glm4::GLM4,
    &glm4::GLM4_MOE,
    &gpt2::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &granite_hybrid::FAMILY,
    &lfm2::FAMILY,
    &llama::ARCEE,
    &llama::ERNIE,
    &llama::FAMILY,
    &llama::SEED,
    &mamba::FAMILY,
    &mistral::FAMILY,
    &nemotron::FAMILY,
    &olmo2::FAMILY,
    &olmo2::OLMOE,
    &phi3::FAMILY,
    &qwen2::QWEN2,
    &qwen2::QWEN3,
    &qwen3_next::QWEN3_NEXT,
    &qwen3_next::QWEN3_5,
    &smollm3::FAMILY,
    &stablelm::FAMILY,
    &starcoder2::FAMILY,
];

impl Family {
    fn names(&self, naming: Naming) -> &'static [&'static str] {
        match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace => self.hf,
        }
    }

    /// Reads the numbers of a model of one of these families.
    fn decoder(families: &[&Family], meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
        let (naming, found) = (meta.naming(), meta.architecture());
        let Some(family) = families.iter().find(|family| family.names(naming).contains(&found)) else {
            let supported: Vec<&str> = families.iter().flat_map(|f| f.names(naming)).copied().collect();
            let (file, found, supported) = (meta.file().to_owned(), found.to_owned(), supported.join(", "));
            return Err(ModelError::Architecture { file, found, supported });
        };
        (family.read)(meta)
    }
}

/// Where a model came from.
#[derive(Debug)]
pub enum Source {
    /// One GGUF file.
    Gguf(Gguf),
    /// A Hugging Face folder.
    Folder(SafeTensors),
}

impl Source {
    fn naming(&self) -> Naming {
        match self {
            Source::Gguf(_) => Naming::Gguf,
            Source::Folder(_) => Naming::HuggingFace,
        }
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &Tensor> + '_> {
        match self {
            Source::Gguf(gguf) => Box::new(gguf.tensors()),
            Source::Folder(tensors) => Box::new(tensors.tensors()),
        }
    }
}

pub(crate) fn read_json(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| ModelError::Read { file: file.clone(), error })?;
    serde_json::from_slice(&without_infinities(bytes))
        .map_err(|error| ModelError::Json { file, reason: error.to_string() })
}

/// Python writes numbers that JSON does not have; nothing a model needs is one of them.
fn without_infinities(mut json: Vec<u8>) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut at, mut in_text) = (0, false);
    while at < json.len() {
        match json[at] {
            b'"' => in_text = !in_text,
            b'\\' => at += 1,
            _ if in_text => {}
            _ => {
                if let Some(word) = WORDS.iter().find(|word| json[at..].starts_with(word)) {
                    json.splice(at..at + word.len(), *b"null");
                    at += 3;
                }
            }
        }
        at += 1;
    }
    json
}

/// A model read from disk: its numbers and its graph, on no device yet.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    source: Source,
    config: Config,
    graph: Graph,
    adapters: Vec<AdapterShare>,
}

/// How a model is read, and what is loaded with it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelOptions {
    /// How the bytes of its files are had.
    pub access: Access,
    /// Adapters of its matrices.
    pub adapters: Vec<AdapterOptions>,
    /// Adds them to the matrices, each as much as its scale says, instead of computing them beside for each request.
    pub merge_adapters: bool,
    /// Tokens of a sequence at most, where that is known: a model with factors for long contexts takes those where it must.
    pub context: Option<usize>,
}

metallic_core::setters!(ModelOptions {
    access: Access,
    adapters: impl Into<Vec<AdapterOptions>>,
    merge_adapters: bool,
    context: impl Into<Option<usize>>,
});

/// Bytes a model needs to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryEstimate {
    /// The weights as stored in the file.
    pub weights: u64,
    /// Keys and values of 1024 tokens in `f16`.
    pub kv_per_1k_tokens: u64,
    /// Intermediates of a step of 512 tokens.
    pub arena: u64,
}

/// Reads the adapters of a model; no two have one name.
fn adapters(options: &ModelOptions, naming: Naming, config: &Config) -> Result<Vec<Adapter>, ModelError> {
    let mut all: Vec<Adapter> = Vec::new();
    for options in &options.adapters {
        let adapter = Adapter::open(options)?;
        adapter.fits(naming, &config.architecture)?;
        if all.iter().any(|other| other.share.name == adapter.share.name) {
            let reason = format!("another one is called `{}`; give it a name of its own", adapter.share.name);
            return Err(ModelError::NotAnAdapter { path: adapter.file, reason });
        }
        all.push(adapter);
    }
    Ok(all)
}

impl Model {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        Model::open_with(path, FAMILIES, &ModelOptions::default())
    }

    /// Opens a model of one of these families, with options.
    pub fn open_with(path: &Path, families: &[&Family], options: &ModelOptions) -> Result<Model, ModelError> {
        let name = path.display().to_string();
        let not = |reason: &str| ModelError::NotAModel { path: name.clone(), reason: reason.to_owned() };
        let kind = std::fs::metadata(path).map_err(|e| not(&format!("it cannot be opened: {e}")))?;
        if kind.is_dir() {
            let file = path.join("config.json");
            if !file.is_file() {
                return Err(not("the folder has no config.json"));
            }
            let (file, config) = (file.display().to_string(), read_json(&file)?);
            let meta = Meta::of_text(&file, &config, families)?.for_context(options.context);
            let decoder = Family::decoder(families, &meta)?;
            let packing = Packing::read(&Meta::json(&file, &config)?)?;
            let source = Source::Folder(SafeTensors::open_with(path, options.access)?);
            return Model::build(path, source, decoder.as_ref(), packing, options);
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            return Err(not("a safetensors file alone has no configuration; give its folder"));
        }
        let gguf = Gguf::open_with(path, options.access)?;
        let meta = Meta::gguf(&name, &gguf.metadata)?.for_context(options.context);
        let decoder = Family::decoder(families, &meta)?;
        Model::build(path, Source::Gguf(gguf), decoder.as_ref(), Packing::Plain, options)
    }

    fn build(
        path: &Path,
        source: Source,
        decoder: &dyn Decoder,
        packing: Packing,
        options: &ModelOptions,
    ) -> Result<Model, ModelError> {
        let builder = GraphBuilder::new();
        let file = path.display().to_string();
        let config = decoder.config().clone();
        let all = adapters(options, source.naming(), &config)?;
        let adapters = Adapters { all: &all, merged: options.merge_adapters };
        let ledger = Ledger::new(source.naming(), file.clone(), source.tensors());
        let ledger = ledger.packed(packing).adapted(adapters);
        // Every layer has several tensors of its own: do not walk layers that cannot be there.
        if config.layers > ledger.len() {
            let needed = format!("no more than its {} tensors allow", ledger.len());
            let (key, found) = ("layer count".to_owned(), config.layers.to_string());
            return Err(ModelError::Config { file, key, found, needed });
        }
        let Results { logits, hidden } = decoder.forward(&ledger.source(&builder));
        // What is lost of a file is the reason for all else.
        source.tensors().try_for_each(|tensor| tensor.data.check()).map_err(FormatError::from)?;
        ledger.finish()?;
        let graph = builder.finish(&[logits, logits.sample(), hidden])?;
        let adapters =
            if options.merge_adapters { Vec::new() } else { all.into_iter().map(|a| a.share).collect() };
        Ok(Model { path: path.to_owned(), source, config, graph, adapters })
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file or folder as it was read.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// GGUF metadata, where it came from a GGUF file.
    pub fn metadata(&self) -> Option<&Metadata> {
        match &self.source {
            Source::Gguf(gguf) => Some(&gguf.metadata),
            Source::Folder(_) => None,
        }
    }

    /// The adapters that requests may take, each with how much they take of it where they do not say.
    pub fn adapters(&self) -> &[AdapterShare] {
        &self.adapters
    }

    /// Every tensor of the file.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.source.tensors()
    }

    /// The computation; its outputs are [`LOGITS`], [`CHOSEN`] and [`HIDDEN`].
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    fn text_error(&self, error: TextError) -> ModelError {
        ModelError::Text { file: self.path.display().to_string(), error: Box::new(error) }
    }

    /// Its tokenizer; `None` where it comes without one.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, ModelError> {
        let tokenizer = match &self.source {
            // A file with parts of a tokenizer is held to all of it.
            Source::Gguf(gguf) if gguf.metadata.iter().any(|(key, _)| key.starts_with("tokenizer.ggml.")) => {
                Tokenizer::from_gguf(&gguf.metadata)
            }
            Source::Folder(_) if self.path.join("tokenizer.json").exists() => Tokenizer::from_hf(&self.path),
            Source::Gguf(_) | Source::Folder(_) => return Ok(None),
        };
        tokenizer.map(Some).map_err(|error| self.text_error(error))
    }

    /// Its template for chat, with tools or without; `None` where it comes without one.
    pub fn template(
        &self,
        tokenizer: &Tokenizer,
        with_tools: bool,
    ) -> Result<Option<ChatTemplate>, ModelError> {
        let sources = match &self.source {
            Source::Gguf(gguf) => TemplateSources::from_gguf(&gguf.metadata),
            Source::Folder(_) => TemplateSources::from_hf(&self.path),
        };
        let sources = sources.map_err(|error| self.text_error(error))?;
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("");
        let template = sources
            .choose(with_tools)
            .map(|source| ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos())));
        template.transpose().map_err(|error| self.text_error(error))
    }

    /// Bytes of the weights as stored in the file.
    pub fn weight_bytes(&self) -> u64 {
        self.graph.weights().iter().map(|w| w.data.len() as u64).sum()
    }

    /// Bytes of tables that are matrices as well, as embeddings that are the head: a device that lays matrices out anew holds them
    /// in both forms.
    pub fn tied_bytes(&self) -> u64 {
        let mut used = vec![(false, false); self.graph.weights().len()];
        for node in self.graph.nodes() {
            for (index, input) in node.inputs.iter().enumerate() {
                let Op::Weight(id) = self.graph.node(*input).op else { continue };
                match node.op.weight_use(index) {
                    WeightUse::Table => used[id.0].0 = true,
                    WeightUse::Matrix => used[id.0].1 = true,
                    WeightUse::Vector => {}
                }
            }
        }
        let both = self.graph.weights().iter().zip(used).filter(|(_, used)| *used == (true, true));
        both.map(|(weight, _)| weight.data.len() as u64).sum()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors().map(|t| t.shape.iter().map(|n| *n as u64).product::<u64>()).sum()
    }

    /// What this model keeps between steps, with keys and values stored as `dtype`.
    pub fn states(&self, dtype: DType) -> Result<StateLayout, ModelError> {
        let plain = StateLayout::of(&self.graph, DType::F32).map_err(BackendError::from)?;
        let dims = plain.kv_states().flat_map(|kv| [kv.key_dim, kv.value_dim]);
        match dims.into_iter().find(|dim| !StateLayout::supports(dtype, *dim)) {
            Some(head_dim) => Err(ModelError::KvType { dtype, head_dim }),
            None => Ok(StateLayout::of(&self.graph, dtype).map_err(BackendError::from)?),
        }
    }

    /// Makes it ready to run on a device, with keys and values stored as a type, or with all options.
    pub fn compile(
        &self,
        backend: &dyn Backend,
        options: impl Into<CompileOptions>,
    ) -> Result<Box<dyn Program>, ModelError> {
        let options = options.into();
        self.states(options.kv)?;
        Ok(tell::compiling(|| backend.compile(&self.graph, options))?)
    }

    /// What running it will take.
    pub fn memory_estimate(&self) -> Result<MemoryEstimate, ModelError> {
        let fused = rewrite::fuse(&self.graph).map_err(BackendError::from)?;
        let arena = Schedule::of(&fused).arena_bytes(Sizes { tokens: 512, outputs: 1 });
        let states = StateLayout::of(&self.graph, DType::F16).map_err(BackendError::from)?;
        Ok(MemoryEstimate {
            weights: self.weight_bytes(),
            kv_per_1k_tokens: states.token_bytes() as u64 * 1024,
            arena: arena as u64,
        })
    }
}
