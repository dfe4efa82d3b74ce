//! What every backend's tests share: golden models with their tolerances, and cases for every operation.
#![forbid(unsafe_code)]

pub mod cases;
pub mod data;
pub mod golden;
pub mod random;
pub mod tensor_cases;
