//! What can go wrong with tensors.

use metallic_core::sample::ChoiceError;
use metallic_core::tensor::TensorError;
use metallic_core::{BackendError, DType, TypeError};

/// Why a tensor could not be made, viewed, computed or read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes, types or numbers that do not fit.
    #[error(transparent)]
    Invalid(#[from] TensorError),
    /// An operation on tensors it cannot take.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// A way to choose tokens that makes no sense.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The device failed.
    #[error(transparent)]
    Device(BackendError),
    /// Elements asked for as a type they are not.
    #[error(
        "a tensor of {found} has no elements of type {asked}; integers are read as themselves, all else as f32"
    )]
    Element {
        /// The tensor's type.
        found: DType,
        /// The Rust type asked for.
        asked: &'static str,
    },
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        match error {
            BackendError::Tensor(error) => Error::Invalid(error),
            BackendError::Type(error) => Error::Type(error),
            error => Error::Device(error),
        }
    }
}
