//! Programs are compiled for devices that compute nothing and note which kernels are asked for ([`rehearsals`]); all of those are
//! translated at once ([`translate`]).

use std::path::Path;
use std::sync::Arc;

use metallic_core::{Backend, BackendError};
use metallic_gpu::cuda::Rehearsal;

use super::{OpenOptions, gpu};

pub use metallic_gpu::cuda::{Asked, Translated};

/// Devices that compute nothing and note what is asked of them, as NVIDIA GPUs of this compute capability (times ten) with so many
/// multiprocessors: what programs on all of them need is what they need on such a GPU.
pub fn rehearsals(asked: &Asked, capability: u32, units: u32) -> Result<Vec<Box<dyn Backend>>, BackendError> {
    let all = Rehearsal::all(asked, capability, units).map_err(|error| error.on("cuda"))?;
    all.into_iter().map(|rehearsal| gpu(Arc::new(rehearsal), &OpenOptions::default())).collect()
}

/// Puts what was asked for into a folder, for each of these compute capabilities (times ten), by so many threads. What lies there
/// already stays. `progress` is told how many of how many are there.
pub fn translate(
    asked: &Asked,
    folder: &Path,
    capabilities: &[u32],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Translated, BackendError> {
    asked.translate(folder, capabilities, threads, progress).map_err(|error| error.on("cuda"))
}
