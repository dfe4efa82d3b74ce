//! Run language models on your own machine.
//!
//! [`Llm`] loads a GGUF file or a Hugging Face folder and answers; the modules below are its parts, for programs that
//! need them one by one: [`model`] reads files into graphs, [`text`] tokenizes and renders conversations, [`generate`]
//! runs many requests at once on a compiled program, [`device`] chooses where. [`Tensor`] is for computing by hand: single
//! operations, carried out at once. [`telemetry`] is what all of it tells while it works.
#![forbid(unsafe_code)]

mod adapter;
pub mod bench;
mod chat;
#[cfg(feature = "constrain")]
pub mod constrain;
pub mod device;
pub mod diff;
pub mod generate;
mod llm;
pub mod model;
mod needs;
pub mod nn;
pub mod plan;
pub mod quantize;
pub mod roof;
pub mod selftest;
pub mod telemetry;
pub mod tensor;
pub mod text;
pub mod tune;
pub mod weights;

pub use adapter::{AdapterOptions, AdapterShare};
pub use chat::Chat;
pub use device::Device;
pub use generate::{Event, FinishReason, Generation, Options, Request, Sampling, Speculation};
pub use llm::{Embedding, EngineOptions, Error, Llm, LoadOptions, Prompt};
/// Element types, graphs, programs and what a backend implements: what [`model`], [`generate`] and [`device`] speak of.
pub use metallic_core as core;
/// Readers of model files and a GGUF writer: what [`Model::tensors`] and [`Model::metadata`] give.
pub use metallic_formats as formats;
pub use model::Model;
pub use needs::Needs;
pub use tensor::Tensor;
pub use text::{ChatTemplate, Message, Tokenizer};
