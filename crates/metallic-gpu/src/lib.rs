//! The GPU backend: kernels in Metal, planned by pure Rust, driven by Metal on a Mac and, with the feature `soft`, by
//! softmetal anywhere.
//!
//! `Op → plan → Command list → driver`. Plans decide; drivers encode.
#![deny(unsafe_code)]

mod backend;
mod cache;
mod command;
#[cfg(any(test, target_os = "macos"))]
mod driver;
mod encode;
mod error;
pub mod fault;
mod gpu;
pub mod kernels;
mod kv;
mod lower;
#[cfg(target_os = "macos")]
pub mod metal;
mod params;
mod pipelines;
mod pool;
mod program;
mod provider;
#[cfg(any(test, feature = "soft"))]
pub mod soft;
mod step;
mod tensor;
mod threadgroup;
mod weights;

pub use backend::{GpuBackend, GpuOptions};
pub use cache::{Cache, CacheMetrics};
pub use command::{Access, Binding, Command, CommandList, Dispatch, Region};
pub use error::GpuError;
pub use gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
#[cfg(target_os = "macos")]
pub use metal::Metal;
pub use pipelines::{PipelineMetrics, Pipelines, ReadyPipeline};
pub use pool::{Allocation, ClassStats, Pool, PoolStats, PooledBuffer};
pub use provider::{OpKind, Providers, Quarantined, Selection, Why};
#[cfg(any(test, feature = "soft"))]
pub use soft::{Soft, SoftOptions};
