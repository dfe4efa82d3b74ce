//! Metal's standard library against scalar references, function by function.

// Sources are put together from pieces.
#![allow(clippy::format_push_string, clippy::format_collect)]

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
