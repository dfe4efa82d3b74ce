//! Readers and writers of model files, with good files and bad ones.

mod bad;
mod gguf;
mod mutations;
mod safetensors;
mod truncated;
