//! Models: numbers and weights read from a file, and the graph they make.

mod config;
mod gguf;
mod hf;
mod llama;

use std::path::{Path, PathBuf};

use metallic_core::{
    Backend, BackendError, DType, Graph, GraphBuilder, GraphError, KvLayout, Program, Schedule, Sizes,
    TypeError, rewrite,
};
use metallic_formats::{FormatError, Gguf, Metadata, SafeTensors, Tensor};

pub use config::{Config, RopeConfig, RopeScaling};

use crate::text::{ChatTemplate, TemplateSources, TextError, Tokenizer};
use crate::weights::{Naming, Weights};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is nothing at the path, or it is of no known kind.
    #[error("`{path}` is no model: {reason}")]
    NotAModel {
        /// The path as given.
        path: String,
        /// What was found, and what was needed.
        reason: String,
    },
    /// The file could not be read as what it claims to be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A file could not be read.
    #[error("`{file}` cannot be read: {error}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("`{file}` is not a JSON object: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What the parser said.
        reason: String,
    },
    /// The family is not one this engine runs.
    #[error("`{file}` holds a `{found}` model; supported are {}", Family::names())]
    Architecture {
        /// The file.
        file: String,
        /// The family it names.
        found: String,
    },
    /// A number of the configuration is missing or makes no sense.
    #[error("`{file}`: {key} is {found}, it must be {needed}")]
    Config {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would do.
        needed: String,
    },
    /// A weight is not in the file.
    #[error("`{file}` has no tensor `{name}`, the model needs it as {needed}")]
    Missing {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Its shape.
        needed: String,
    },
    /// A weight has another type or shape.
    #[error("`{file}`: tensor `{name}` is {found}, the model needs {needed}")]
    Mismatch {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Its type and shape.
        found: String,
        /// What would do.
        needed: String,
    },
    /// The file has weights the model does not know, so it is not the model it claims to be.
    #[error("`{file}`: tensor `{name}` and {others} others are not part of this model")]
    Unread {
        /// The file.
        file: String,
        /// The first such tensor.
        name: String,
        /// How many more there are.
        others: usize,
    },
    /// The weights do not make a graph.
    #[error("the model's graph is wrong: {0}")]
    Graph(#[from] GraphError),
    /// The cache cannot be kept in this type.
    #[error(
        "a cache of {dtype} cannot hold heads of {head_dim}; use f32, f16, bf16, or q8_0 with heads of a multiple of 32"
    )]
    KvType {
        /// The type asked for.
        dtype: DType,
        /// Elements of a head.
        head_dim: usize,
    },
    /// The device refused the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The tokenizer or the chat template cannot be read.
    #[error("`{file}`: {error}")]
    Text {
        /// The model.
        file: String,
        /// What is wrong with it.
        error: Box<TextError>,
    },
}

/// Families of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Llama,
    Mistral,
    Qwen2,
}

const FAMILIES: [(&str, Family); 3] =
    [("llama", Family::Llama), ("mistral", Family::Mistral), ("qwen2", Family::Qwen2)];

impl Family {
    pub(crate) fn from_name(name: &str) -> Option<Family> {
        FAMILIES.iter().find(|(n, _)| *n == name).map(|(_, family)| *family)
    }

    fn names() -> String {
        FAMILIES.map(|(name, _)| name).join(", ")
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
    fn tensors(&self) -> Box<dyn Iterator<Item = &Tensor> + '_> {
        match self {
            Source::Gguf(gguf) => Box::new(gguf.tensors()),
            Source::Folder(tensors) => Box::new(tensors.tensors()),
        }
    }
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
        let name = path.display().to_string();
        let not = |reason: &str| ModelError::NotAModel { path: name.clone(), reason: reason.to_owned() };
        let kind = std::fs::metadata(path).map_err(|e| not(&format!("it cannot be opened: {e}")))?;
        if kind.is_dir() {
            let file = path.join("config.json");
            if !file.is_file() {
                return Err(not("the folder has no config.json"));
            }
            let (_, config) = hf::read(&file)?;
            let source = Source::Folder(SafeTensors::open(path)?);
            return Model::build(path, source, Naming::HuggingFace, config);
        }
        if path.extension().is_some_and(|e| e == "safetensors") {
            return Err(not("a safetensors file alone has no configuration; give its folder"));
        }
        let gguf = Gguf::open(path)?;
        let (_, config) = gguf::read(&name, &gguf)?;
        Model::build(path, Source::Gguf(gguf), Naming::Gguf, config)
    }

    fn build(path: &Path, source: Source, naming: Naming, config: Config) -> Result<Model, ModelError> {
        let builder = GraphBuilder::new();
        let file = path.display().to_string();
        let graph = {
            let weights = Weights::new(&builder, naming, file.clone(), source.tensors());
            // Every layer has several tensors of its own: do not walk layers that cannot be there.
            if config.layers > weights.len() {
                let needed = format!("no more than its {} tensors allow", weights.len());
                let (key, found) = ("layer count".to_owned(), config.layers.to_string());
                return Err(ModelError::Config { file, key, found, needed });
            }
            let logits = llama::logits(&weights, &config);
            weights.finish()?;
            builder.finish(&[logits])?
        };
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
