//! The scheduler step by step, on a program whose steps take a time of their own.

mod sharing;
mod speculating;
mod storms;
mod timing;
