//! Model files as named, typed tensors and metadata: GGUF (read and written) and safetensors (read).
//!
//! Files are mapped, not read: a [`Tensor`]'s bytes are a window into the mapping, at whatever alignment
//! the file gives them. Nothing in a file is believed before it is checked, so no file, however malformed,
//! can make a reader panic, overflow, recurse without bound, or allocate more than a small multiple of its
//! own length. Every refusal names the file, the key or tensor, what was found and what was needed.
//!
//! A mapped file must not be changed while it is in use: shortening it makes the operating system end the
//! process at the next read of the lost part, as with every program that maps files.
#![deny(unsafe_code)]

mod error;
mod gguf;
mod map;
mod metadata;
mod safetensors;
mod tensor;
mod value;

pub use error::FormatError;
pub use gguf::{Gguf, GgufStream, GgufWriter, TensorSpec};
pub use metadata::Metadata;
pub use safetensors::SafeTensors;
pub use tensor::Tensor;
pub use value::{Array, Value};
