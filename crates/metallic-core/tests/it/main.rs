//! The graph, its types and its steps from the outside.

mod quant;
mod reference;
mod rewrite;
mod step;
