//! Run language models on your own machine.
pub mod text;
