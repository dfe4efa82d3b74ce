//! Why a model could not be loaded.

use metallic_core::{BackendError, DType, GraphError};
use metallic_formats::FormatError;

use crate::text::TextError;

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
    #[error("`{file}` holds a `{found}` model; supported are {supported}")]
    Architecture {
        /// The file.
        file: String,
        /// The family it names.
        found: String,
        /// The families there are.
        supported: String,
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
    /// There is no adapter at the path, or one of another kind.
    #[error("`{path}` is no adapter: {reason}")]
    NotAnAdapter {
        /// The path as given.
        path: String,
        /// What was found, and what was needed.
        reason: String,
    },
    /// An adapter was made for another family.
    #[error("`{file}` adapts a `{found}` model, and this is a `{needed}` model")]
    AdapterBase {
        /// The adapter.
        file: String,
        /// The family it names.
        found: String,
        /// The model's.
        needed: String,
    },
    /// An adapter changes what the model does not have, or what cannot be changed.
    #[error(
        "`{file}` adapts `{target}` and {others} others that this model does not have so; it may adapt {needed}"
    )]
    AdapterTarget {
        /// The adapter.
        file: String,
        /// The first such tensor.
        target: String,
        /// How many more there are.
        others: usize,
        /// What would do.
        needed: String,
    },
    /// What an adapter has for a matrix does not fit it.
    #[error("`{file}`: what adapts `{target}` is {found}, it must be {needed}")]
    AdapterShape {
        /// The adapter.
        file: String,
        /// The matrix.
        target: String,
        /// Its halves.
        found: String,
        /// What would do.
        needed: String,
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
