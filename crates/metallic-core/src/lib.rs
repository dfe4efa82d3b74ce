//! What a computation is: element types, graphs of operations, their meaning, and the traits a backend implements.
#![forbid(unsafe_code)]

mod bytes;
mod dtype;

pub use bytes::Bytes;
pub use dtype::{DType, UnknownDType};
