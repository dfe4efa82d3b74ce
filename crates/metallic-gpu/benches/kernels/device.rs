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
    /// What is left to do at the end.
    finish: Finish,
}

type Finish = Box<dyn Fn() -> Result<(), String>>;

/// A device that computes.
fn computing(gpu: Arc<dyn Gpu>, sizes: Sizes) -> Device {
    Device { gpu, sizes, measures: true, finish: Box::new(|| Ok(())) }
}

impl Device {
    /// The device of this name.
    pub(crate) fn open(name: &str) -> Result<Device, String> {
        let (kind, which) = name.split_once(':').map_or((name, None), |(kind, which)| (kind, Some(which)));
        match kind {
            "soft" => Ok(computing(soft(false)?, SMALL)),
            "soft-units" => Ok(computing(soft(true)?, SMALL)),
            "cuda" => Ok(computing(cuda(which)?, REAL)),
            "ptx" => {
                let (gpu, finish) = rehearsal(which.ok_or("`ptx:FOLDER` names the folder")?)?;
                Ok(Device { gpu, sizes: REAL, measures: false, finish })
            }
            // On Linux what stands for Metal computes on the processor.
            "metal" => Ok(computing(metal(which)?, if cfg!(metal_on_linux) { SMALL } else { REAL })),
            _ => Err("there are soft, soft-units, cuda, metal and ptx:FOLDER".to_owned()),
        }
    }

    /// Does what is left to do.
    pub(crate) fn finish(&self) -> Result<(), String> {
        (self.finish)()
    }

    /// Cores, as far as they are known.
    pub(crate) fn cores(&self) -> usize {
        self.gpu.limits().matrix_units.map_or(1, |units| units.cores).max(1) as usize
    }

    /// Bytes of threadgroup memory that a kernel may have.
    pub(crate) fn threadgroup_memory(&self) -> usize {
        self.gpu.limits().most_threadgroup_memory() as usize
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

/// An H200, and what puts its kernels into a folder.
#[cfg(feature = "cuda")]
fn rehearsal(folder: &str) -> Result<(Arc<dyn Gpu>, Finish), String> {
    use metallic_gpu::cuda::{Asked, Rehearsal};
    let (asked, folder) = (Asked::new(), std::path::PathBuf::from(folder));
    let all = Rehearsal::all(&asked, 90, 132).map_err(|error| error.to_string())?;
    let gpu = all.into_iter().next_back().ok_or("no GPU is rehearsed")?;
    let finish = move || {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let made = asked.translate(&folder, &[90], threads, &|_, _| {}).map_err(|error| error.to_string())?;
        println!("{} kernels in {}", made.made + made.found, folder.display());
        Ok(())
    };
    Ok((Arc::new(gpu), Box::new(finish)))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Err("it takes `--features cuda`".to_owned())
}

#[cfg(not(feature = "cuda"))]
fn rehearsal(_: &str) -> Result<(Arc<dyn Gpu>, Finish), String> {
    Err("it takes `--features cuda`".to_owned())
}

#[cfg(any(target_os = "macos", metal_on_linux))]
fn metal(which: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Ok(Arc::new(metallic_gpu::metal::open(which).map_err(|error| error.to_string())?))
}

#[cfg(not(any(target_os = "macos", metal_on_linux)))]
fn metal(_: Option<&str>) -> Result<Arc<dyn Gpu>, String> {
    Err("Metal is part of macOS".to_owned())
}
