//! The GPU backend: kernels in Metal, planned by pure Rust, driven by Metal on a Mac and, with the feature `soft`, by
//! softmetal anywhere.
//!
//! `Op → plan → prepare → Command list → driver`. Plans decide; drivers encode.
#![deny(unsafe_code)]

mod backend;
mod cache;
mod command;
#[cfg(any(test, target_os = "macos"))]
mod driver;
mod error;
pub mod fault;
mod gpu;
pub mod kernels;
#[cfg(target_os = "macos")]
pub mod metal;
mod null;
mod params;
mod pipelines;
mod plan;
mod pool;
mod prepare;
mod program;
mod provider;
#[cfg(any(test, feature = "soft"))]
pub mod soft;
mod states;
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
pub use null::Null;
pub use pipelines::{PipelineMetrics, Pipelines, ReadyPipeline};
pub use pool::{Allocation, ClassStats, Pool, PoolStats, PooledBuffer};
pub use provider::{OpKind, Provider, Providers, Quarantined, Selection, Why};
#[cfg(any(test, feature = "soft"))]
pub use soft::{Soft, SoftOptions};
