//! Metal's standard library against scalar references, function by function.

mod atomic;
mod integer;
mod math;
mod matrix;
mod pack;
mod relational;
mod scalars;
mod simd;
mod support;
mod table;
mod types;
