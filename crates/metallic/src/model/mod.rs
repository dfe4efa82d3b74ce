//! Models: numbers and weights read from a file, and the graph they make.

pub mod config;
mod error;
mod llama;
mod meta;
mod mistral;
mod qwen2;
mod rope;

use std::path::{Path, PathBuf};

use metallic_core::{
    Backend, DType, Graph, GraphBuilder, KvLayout, Program, Schedule, Sizes, TypeError, Var, rewrite,
};
use metallic_formats::{Gguf, Metadata, SafeTensors, Tensor};
use serde_json::{Map, Value};

pub use config::Config;
pub use error::ModelError;
pub use meta::{Field, Key, Meta, Naming};
pub use rope::{RopeConfig, RopeScaling};

use crate::text::{ChatTemplate, TemplateSources, TextError, Tokenizer};
use crate::weights::{Ledger, WeightSource};

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

    /// Logits `[outputs, vocab]` of the rows that were asked for.
    fn logits<'g>(&self, w: &WeightSource<'_, 'g>) -> Var<'g>;
}

/// The families this engine runs.
pub const FAMILIES: &[&Family] = &[&llama::FAMILY, &mistral::FAMILY, &qwen2::FAMILY];

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

fn read_json(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| ModelError::Read { file: file.clone(), error })?;
    serde_json::from_slice(&bytes).map_err(|error| ModelError::Json { file, reason: error.to_string() })
}

/// A model read from disk: its numbers and its graph, on no device yet.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    source: Source,
    config: Config,
    graph: Graph,
}

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

impl Model {
    /// Opens a GGUF file, or a folder with `config.json` and safetensors.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        Model::open_with(path, FAMILIES)
    }

    /// Opens a model of one of these families.
    pub fn open_with(path: &Path, families: &[&Family]) -> Result<Model, ModelError> {
        let name = path.display().to_string();
        let not = |reason: &str| ModelError::NotAModel { path: name.clone(), reason: reason.to_owned() };
        let kind = std::fs::metadata(path).map_err(|e| not(&format!("it cannot be opened: {e}")))?;
        if kind.is_dir() {
            let file = path.join("config.json");
            if !file.is_file() {
                return Err(not("the folder has no config.json"));
            }
            let (file, config) = (file.display().to_string(), read_json(&file)?);
            let decoder = Family::decoder(families, &Meta::json(&file, &config)?)?;
            return Model::build(path, Source::Folder(SafeTensors::open(path)?), decoder.as_ref());
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            return Err(not("a safetensors file alone has no configuration; give its folder"));
        }
        let gguf = Gguf::open(path)?;
        let decoder = Family::decoder(families, &Meta::gguf(&name, &gguf.metadata)?)?;
        Model::build(path, Source::Gguf(gguf), decoder.as_ref())
    }

    fn build(path: &Path, source: Source, decoder: &dyn Decoder) -> Result<Model, ModelError> {
        let builder = GraphBuilder::new();
        let file = path.display().to_string();
        let config = decoder.config().clone();
        let ledger = Ledger::new(source.naming(), file.clone(), source.tensors());
        // Every layer has several tensors of its own: do not walk layers that cannot be there.
        if config.layers > ledger.len() {
            let needed = format!("no more than its {} tensors allow", ledger.len());
            let (key, found) = ("layer count".to_owned(), config.layers.to_string());
            return Err(ModelError::Config { file, key, found, needed });
        }
        let logits = decoder.logits(&ledger.source(&builder));
        ledger.finish()?;
        let graph = builder.finish(&[logits])?;
        Ok(Model { path: path.to_owned(), source, config, graph })
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

    /// Every tensor of the file.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.source.tensors()
    }

    /// The computation: output 0 is the logits `[outputs, vocab]`.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    fn text_error(&self, error: TextError) -> ModelError {
        ModelError::Text { file: self.path.display().to_string(), error: Box::new(error) }
    }

    /// Its tokenizer; `None` where it comes without one.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, ModelError> {
        let tokenizer = match &self.source {
            Source::Gguf(gguf) if gguf.metadata.get("tokenizer.ggml.model").is_some() => {
                Tokenizer::from_gguf(&gguf.metadata)
            }
            Source::Folder(_) if self.path.join("tokenizer.json").exists() => Tokenizer::from_hf(&self.path),
            Source::Gguf(_) | Source::Folder(_) => return Ok(None),
        };
        tokenizer.map(Some).map_err(|error| self.text_error(error))
    }

    /// Its template for ordinary chat; `None` where it comes without one.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, ModelError> {
        let sources = match &self.source {
            Source::Gguf(gguf) => TemplateSources::from_gguf(&gguf.metadata),
            Source::Folder(_) => TemplateSources::from_hf(&self.path),
        };
        let sources = sources.map_err(|error| self.text_error(error))?;
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("");
        let template = sources
            .choose(false)
            .map(|source| ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos())));
        template.transpose().map_err(|error| self.text_error(error))
    }

    /// Bytes of the weights as stored in the file.
    pub fn weight_bytes(&self) -> u64 {
        self.graph.weights().iter().map(|w| w.data.len() as u64).sum()
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors().map(|t| t.shape.iter().map(|n| *n as u64).product::<u64>()).sum()
    }

    /// The cache this model needs, stored as `dtype`.
    pub fn kv_layout(&self, dtype: DType) -> Result<KvLayout, ModelError> {
        let Config { layers, kv_heads, head_dim, .. } = self.config;
        if !KvLayout::supports(dtype, head_dim) {
            return Err(ModelError::KvType { dtype, head_dim });
        }
        Ok(KvLayout { layers, kv_heads, head_dim, dtype })
    }

    /// Makes it ready to run on a device.
    pub fn compile(&self, backend: &dyn Backend, kv: DType) -> Result<Box<dyn Program>, ModelError> {
        Ok(backend.compile(&self.graph, self.kv_layout(kv)?)?)
    }

    /// What running it will take.
    pub fn memory_estimate(&self) -> Result<MemoryEstimate, TypeError> {
        let Config { layers, kv_heads, head_dim, .. } = self.config;
        let kv = KvLayout { layers, kv_heads, head_dim, dtype: DType::F16 };
        let fused = rewrite::fuse(&self.graph)?;
        let arena = Schedule::of(&fused).arena_len(Sizes { tokens: 512, outputs: 1 }) * size_of::<f32>();
        Ok(MemoryEstimate {
            weights: self.weight_bytes(),
            kv_per_1k_tokens: kv.token_bytes() as u64 * 1024,
            arena: arena as u64,
        })
    }
}
