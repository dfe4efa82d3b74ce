//! What every backend's tests share: golden models with their tolerances, and cases for every operation.
#![forbid(unsafe_code)]

pub mod cases;
pub mod data;
pub mod golden;
mod needs;
pub mod random;
pub mod tensor_cases;

pub use needs::{missing, needed};
