//! Run language models on your own machine.
//!
//! [`Llm`] loads a GGUF file or a Hugging Face folder and answers; the modules below are its parts, for programs that
//! need them one by one: [`model`] reads files into graphs, [`text`] tokenizes and renders conversations, [`generate`]
//! runs many requests at once on a compiled program, [`device`] chooses where. [`Tensor`] is for computing by hand: single
//! operations, carried out at once.
#![forbid(unsafe_code)]

pub mod bench;
pub mod device;
pub mod generate;
mod llm;
pub mod model;
pub mod nn;
pub mod tensor;
pub mod text;
pub mod weights;

pub use device::Device;
pub use generate::{Event, FinishReason, Generation, Sampling};
pub use llm::{Error, Llm, LoadOptions, Options};
pub use metallic_core as core;
pub use metallic_formats as formats;
pub use model::Model;
pub use tensor::Tensor;
pub use text::{ChatTemplate, Message, Tokenizer};
