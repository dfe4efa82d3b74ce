//! What every backend's tests share: golden models with their tolerances, and cases for every operation.
//!
//! [`cases::all`] is the one table of operations. [`graphs`] runs it as programs over several steps, [`eager`] runs the same
//! operations one by one on tensors, and [`copies`] is the small table of what only tensors have: views that lie anyhow.
//! Whatever a backend computes is compared with the reference.
#![forbid(unsafe_code)]

pub mod cases;
mod compare;
pub mod copies;
pub mod data;
pub mod eager;
pub mod golden;
pub mod graphs;
mod needs;
pub mod random;
mod report;
#[cfg(test)]
mod tests;

pub use compare::Tolerance;
pub use needs::{missing, needed};
pub use report::{Failure, Plan, Report, Results, run_all};
