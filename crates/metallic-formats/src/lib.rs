//! Model files as named, typed tensors and metadata: GGUF (read and written) and safetensors (read).
//!
//! Files are mapped, not read, unless [`Access::Read`] is asked for: a [`Tensor`]'s bytes are a window into the mapping, at
//! whatever alignment the file gives them. Nothing in a file is believed before it is checked, so no file, however malformed,
//! can make a reader panic, overflow, recurse without bound, or allocate more than a small multiple of its
//! own length. Every refusal names the file, the key or tensor, what was found and what was needed.
//!
//! A mapped file should be left alone while it is in use. What is written into it shows, sooner or later. Where it becomes
//! shorter, Linux and macOS tell by a signal; it is caught, what is lost reads as zeros, and [`Bytes::check`] has an error from then
//! on, which readers of this workspace ask for before they use what they read. Windows does not let a mapped file become shorter;
//! other systems end the process. A GPU that reads the pages itself is beyond that: its driver reports what it makes of them.
//!
//! [`Bytes::check`]: metallic_core::Bytes::check
#![deny(unsafe_code)]

mod contents;
mod error;
mod gguf;
mod map;
mod metadata;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod mmap_guard;
mod safetensors;
mod tensor;
mod value;

pub use contents::Access;
pub use error::FormatError;
pub use gguf::{Gguf, GgufStream, GgufWriter, TensorSpec};
pub use metadata::Metadata;
pub use safetensors::SafeTensors;
pub use tensor::Tensor;
pub use value::{Array, Value};
