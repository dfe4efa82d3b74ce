//! The GPU backend: kernels in Metal, planned by pure Rust, driven by Metal on a Mac and, with the feature `soft`, by
//! softmetal anywhere.
//!
//! `Op → plan → prepare → Command list → driver`. Plans decide; drivers encode.
#![deny(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod backend;
mod cache;
mod command;
mod counts;
#[cfg(feature = "cuda")]
pub mod cuda;
mod describe;
#[cfg_attr(not(any(test, target_os = "macos", metal_on_linux)), allow(dead_code))]
mod driver;
mod error;
pub mod fault;
mod gpu;
pub mod graph;
mod kernel_counts;
pub mod kernels;
#[cfg(any(target_os = "macos", metal_on_linux))]
pub mod metal;
mod null;
#[cfg_attr(not(any(test, target_os = "macos", metal_on_linux)), allow(dead_code))]
mod objects;
pub mod on_disk;
mod params;
mod peaks;
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
mod taps;
mod tell;
mod tensor;
mod threadgroup;
pub mod tuning;
mod weights;

// Its symbols are what the driver for Metal links to.
#[cfg(metal_on_linux)]
use softmetal_framework as _;

pub use backend::{GpuBackend, GpuOptions};
pub use cache::{Cache, CacheMetrics, CachedKey};
pub use command::{Access, Binding, Command, CommandList, Dispatch, Region};
pub use error::GpuError;
pub use gpu::{
    AppleKernels, BufferId, Gpu, Imported, LibraryId, Limits, MatrixUnits, Pipeline, PipelineId, Storage,
    Submission,
};
pub use kernels::relay::Relay;
#[cfg(any(target_os = "macos", metal_on_linux))]
pub use metal::Metal;
pub use null::Null;
pub use pipelines::{LibraryMetrics, PipelineMetrics, Pipelines, ReadyKey, ReadyPipeline};
pub use pool::{Allocation, ClassStats, Pool, PoolStats};
pub use provider::{Choice, OpKind, Provider, Providers, Quarantined, Selection, Why};
#[cfg(any(test, feature = "soft"))]
pub use soft::{Soft, SoftOptions};
pub use tuning::{Tuned, Tuning};

/// What is behind a lock, also where a thread has panicked with it: no change is made in steps that could fail between.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
