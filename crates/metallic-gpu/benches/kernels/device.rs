//! The device that is measured.

use std::sync::Arc;

use metallic_gpu::{Gpu, GpuBackend, GpuOptions, Providers};

use crate::graphs::{REAL, SMALL, Sizes};

/// A device, and the shapes that suit it.
pub(crate) struct Device {
    gpu: Arc<dyn Gpu>,
    pub(crate) sizes: Sizes,
    /// Whether it computes: one that only has kernels made does not.
    pub(crate) measures: bool,
}

impl Device {
    /// The device of this name.
    pub(crate) fn open(name: &str) -> Result<Device, String> {
        let (kind, which) = name.split_once(':').map_or((name, None), |(kind, which)| (kind, Some(which)));
        match kind {
            "soft" => Ok(Device { gpu: soft(false)?, sizes: SMALL, measures: true }),
            "soft-units" => Ok(Device { gpu: soft(true)?, sizes: SMALL, measures: true }),
            "cuda" => Ok(Device { gpu: cuda(which)?, sizes: REAL, measures: true }),
            "ptx" => {
                let folder = which.ok_or("`ptx:FOLDER` names the folder")?;
                Ok(Device { gpu: rehearsal(folder)?, sizes: REAL, measures: false })
            }
            "metal" => Ok(Device { gpu: metal(which)?, sizes: REAL, measures: true }),
            _ => Err("there are soft, soft-units, cuda, metal and ptx:FOLDER".to_owned()),
        }
    }

    /// The device as a backend, with its own kernels and memory; `profile`: each operation is timed.
    pub(crate) fn backend(&self, providers: &Providers, profile: bool) -> GpuBackend {
        let options = GpuOptions::default().providers(providers.clone()).profile(profile);
        GpuBackend::new(self.gpu.clone(), options)
    }
}

#[cfg(feature = "soft")]
fn soft(units: bool) -> Result<Arc<dyn Gpu>, String> {
    use metallic_gpu::{MatrixUnits, Soft, SoftOptions};
    let units = units.then_some(MatrixUnits { cores: 2, threadgroup_memory: 32 << 10 });
    let soft = Soft::new(SoftOptions::default().matrix_units(units));
    Ok(Arc::new(soft.map_err(|error| error.to_string())?))
}

#[cfg(not(feature = "soft"))]
fn soft(_: bool) -> Result<Arc<dyn Gpu>, String> {
    Err("it takes `--features soft`".to_owned())
}

#[cfg(feature = "cuda")]
fn cuda(which: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Ok(Arc::new(metallic_gpu::cuda::open(which).map_err(|error| error.to_string())?))
}

/// For a GPU of compute capability 9.0 with 132 multiprocessors.
#[cfg(feature = "cuda")]
fn rehearsal(folder: &str) -> Result<Arc<dyn Gpu>, String> {
    let made = metallic_gpu::cuda::Rehearsal::new(std::path::Path::new(folder), 90, 132);
    Ok(Arc::new(made.map_err(|error| error.to_string())?))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Err("it takes `--features cuda`".to_owned())
}

#[cfg(not(feature = "cuda"))]
fn rehearsal(_: &str) -> Result<Arc<dyn Gpu>, String> {
    Err("it takes `--features cuda`".to_owned())
}

#[cfg(target_os = "macos")]
fn metal(which: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Ok(Arc::new(metallic_gpu::metal::open(which).map_err(|error| error.to_string())?))
}

#[cfg(not(target_os = "macos"))]
fn metal(_: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Err("Metal is part of macOS".to_owned())
}
