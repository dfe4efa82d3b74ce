//! The graph, its types and its steps from the outside.

mod quant;
mod rewrite;
mod step;
