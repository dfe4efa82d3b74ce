//! Run language models on your own machine.
pub mod generate;
pub mod model;
mod nn;
pub mod text;
mod weights;
