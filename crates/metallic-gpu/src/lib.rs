//! The GPU backend: kernels in Metal, planned by pure Rust, driven by Metal on a Mac and by softmetal anywhere.
//!
//! `Op → plan → Command list → driver`. Plans decide; drivers encode.
#![deny(unsafe_code)]
#![allow(dead_code, unused_imports)]

mod command;
mod error;
mod gpu;
pub mod kernels;
mod params;
pub mod soft;
mod threadgroup;

pub use command::{Access, Binding, Command, CommandList, Dispatch, Region};
pub use error::GpuError;
pub use gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
pub use soft::{Soft, SoftOptions};
