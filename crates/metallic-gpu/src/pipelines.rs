//! Kernels made ready, each once: libraries by the name of their family, pipelines by family, function and constants.

use std::sync::Arc;

use crate::cache::{Cache, CacheMetrics};
use crate::error::GpuError;
use crate::gpu::{Gpu, LibraryId, Limits, Pipeline};
use crate::kernels::{Constants, Family, Kernel};
use crate::tell;

pub(crate) const LIBRARIES: usize = 64;
pub(crate) const PIPELINES: usize = 1024;

/// A kernel made ready. Its driver is told when the last holder lets go.
#[derive(Debug)]
pub struct ReadyPipeline {
    gpu: Arc<dyn Gpu>,
    pub(crate) pipeline: Pipeline,
    _library: Arc<ReadyLibrary>,
}

impl ReadyPipeline {
    /// What is left of a device's limits for this kernel.
    pub fn limits(&self, device: &Limits) -> Limits {
        Limits { max_threads: self.pipeline.max_threads.min(device.max_threads), ..*device }
    }
}

impl Drop for ReadyPipeline {
    fn drop(&mut self) {
        self.gpu.drop_pipeline(self.pipeline.id);
    }
}

#[derive(Debug)]
struct ReadyLibrary {
    gpu: Arc<dyn Gpu>,
    id: LibraryId,
}

impl Drop for ReadyLibrary {
    fn drop(&mut self) {
        self.gpu.drop_library(self.id);
    }
}

/// The family's name, the function's, and its constants.
type PipelineKey = (&'static str, &'static str, Constants);

/// What the caches of a driver's library have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryMetrics {
    /// Kernels of products.
    pub products: CacheMetrics,
    /// Graphs that were compiled.
    pub graphs: CacheMetrics,
}

/// What the caches have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineMetrics {
    /// Compiled sources.
    pub libraries: CacheMetrics,
    /// Kernels with their constants.
    pub pipelines: CacheMetrics,
    /// What a library of the device's maker has made ready.
    pub library: LibraryMetrics,
}

/// The kernels of a device, made ready as they are asked for.
#[derive(Debug)]
pub struct Pipelines {
    gpu: Arc<dyn Gpu>,
    ready: Cache<PipelineKey, ReadyPipeline, GpuError>,
    libraries: Cache<&'static str, ReadyLibrary, GpuError>,
}

impl Pipelines {
    /// With room for so many libraries and pipelines; those in use always have room.
    pub fn bounded(gpu: Arc<dyn Gpu>, libraries: usize, pipelines: usize) -> Pipelines {
        // A source that does not compile will not compile the next time.
        let lasting = |error: &GpuError| matches!(error, GpuError::Compile { .. });
        Pipelines {
            gpu,
            ready: Cache::remembering(pipelines, lasting),
            libraries: Cache::remembering(libraries, lasting),
        }
    }

    /// A kernel, and whether it had to be made.
    fn look_up(&self, kernel: &Kernel) -> (Result<Arc<ReadyPipeline>, GpuError>, bool) {
        let key = (kernel.family.name, kernel.function, kernel.constants);
        let mut made = false;
        let ready = self.ready.get_or_make(&key, || {
            made = true;
            if !kernel.family.declares(kernel.function, kernel.args) {
                let message =
                    format!("family `{}` does not declare it with these arguments", kernel.family.name);
                return Err(GpuError::compile(kernel.function, message));
            }
            let library = self.library(kernel.family)?;
            let pipeline = tell::compiled(
                "pipeline",
                kernel.function,
                || self.gpu.compilations(),
                || self.gpu.pipeline(library.id, kernel.function, &kernel.constants),
            )?;
            Ok(ReadyPipeline { gpu: self.gpu.clone(), pipeline, _library: library })
        });
        (ready, made)
    }

    /// What the caches have done so far.
    pub fn metrics(&self) -> PipelineMetrics {
        PipelineMetrics {
            libraries: self.libraries.metrics(),
            pipelines: self.ready.metrics(),
            library: self.gpu.library_metrics(),
        }
    }

    /// Forgets which kernels did not compile, so that they are tried again.
    pub fn forget_failures(&self) {
        self.ready.forget_failures();
        self.libraries.forget_failures();
    }

    /// Lets go of everything that is not in use.
    pub fn clear(&self) {
        // A pipeline holds its library.
        self.ready.clear();
        self.libraries.clear();
    }

    fn library(&self, family: &Family) -> Result<Arc<ReadyLibrary>, GpuError> {
        self.libraries.get_or_make(&family.name, || {
            let id = tell::compiled(
                "library",
                family.name,
                || self.gpu.compilations(),
                || self.gpu.library(family.name, &family.source()),
            )?;
            Ok(ReadyLibrary { gpu: self.gpu.clone(), id })
        })
    }
}

/// The kernels of work that is under way: as long as they stand here the cache lets none of them go.
#[derive(Debug, Default)]
pub(crate) struct HeldKernels {
    pub(crate) pipelines: Vec<Arc<ReadyPipeline>>,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl HeldKernels {
    pub(crate) fn take(
        &mut self,
        pipelines: &Pipelines,
        kernel: &Kernel,
    ) -> Result<Arc<ReadyPipeline>, GpuError> {
        let (ready, made) = pipelines.look_up(kernel);
        let ready = ready?;
        self.hits += u64::from(!made);
        self.misses += u64::from(made);
        self.pipelines.push(ready.clone());
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use metallic_core::DType;

    use super::*;
    use crate::fault::{Fault, Faulty};
    use crate::kernels::norm::{NormSpec, rms_norm};
    use crate::null::Null;
    use crate::threadgroup::tests::LIMITS;

    fn kernel(dtype: DType) -> Kernel {
        rms_norm(&NormSpec { dtype, ..NormSpec::plain(1, 64, 1e-5) }, &LIMITS).unwrap().kernel
    }

    fn get(pipelines: &Pipelines, kernel: &Kernel) -> Result<Arc<ReadyPipeline>, GpuError> {
        pipelines.look_up(kernel).0
    }

    fn device() -> (Arc<Faulty>, Pipelines) {
        let gpu = Arc::new(Faulty::new(Arc::new(Null::new())));
        let pipelines = Pipelines::bounded(gpu.clone(), 2, 2);
        (gpu, pipelines)
    }

    #[test]
    fn a_source_is_compiled_once_for_all_its_kernels() {
        let (gpu, pipelines) = device();
        let first = get(&pipelines, &kernel(DType::F32)).unwrap();
        let again = get(&pipelines, &kernel(DType::F32)).unwrap();
        let other = get(&pipelines, &kernel(DType::F16)).unwrap();
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
        assert_eq!((gpu.counts().libraries, gpu.counts().pipelines), (1, 2));
        let metrics = pipelines.metrics();
        assert_eq!((metrics.pipelines.hits, metrics.pipelines.misses), (1, 2));
        assert_eq!((metrics.libraries.hits, metrics.libraries.misses), (1, 1));
    }

    #[test]
    fn constants_make_another_pipeline() {
        let (gpu, pipelines) = device();
        for value in [0, 1, 0] {
            get(&pipelines, &Kernel { constants: Constants::of([value]), ..kernel(DType::F32) }).unwrap();
        }
        assert_eq!(gpu.counts().pipelines, 2);
    }

    #[test]
    fn what_is_evicted_is_given_back_when_nobody_uses_it() {
        let (gpu, pipelines) = device();
        let held = get(&pipelines, &Kernel { constants: Constants::of([0]), ..kernel(DType::F32) }).unwrap();
        for value in 1..6 {
            get(&pipelines, &Kernel { constants: Constants::of([value]), ..kernel(DType::F32) }).unwrap();
        }
        assert_eq!(gpu.counts().pipelines, 2, "one in use, one more");
        pipelines.clear();
        assert_eq!((gpu.counts().pipelines, gpu.counts().libraries), (1, 1));
        drop(held);
        pipelines.clear();
        assert_eq!((gpu.counts().pipelines, gpu.counts().libraries, gpu.counts().strays), (0, 0, 0));
    }

    #[test]
    fn a_failed_compilation_is_not_repeated_until_it_is_forgotten() {
        let (gpu, pipelines) = device();
        gpu.fail(Fault::Library, 1);
        let error = get(&pipelines, &kernel(DType::F32)).unwrap_err();
        assert!(matches!(&error, GpuError::Compile { .. }), "{error}");
        assert_eq!(get(&pipelines, &kernel(DType::F32)).unwrap_err(), error);
        assert!(get(&pipelines, &kernel(DType::F16)).is_err(), "the source is the same");
        assert_eq!(gpu.calls(Fault::Library), 1);
        pipelines.forget_failures();
        get(&pipelines, &kernel(DType::F32)).unwrap();
        gpu.fail(Fault::Pipeline, 1);
        assert!(get(&pipelines, &kernel(DType::BF16)).is_err());
        assert!(get(&pipelines, &kernel(DType::F32)).is_ok(), "others of the source still serve");
    }

    #[test]
    fn a_kernel_its_family_does_not_declare_is_refused() {
        let (_, pipelines) = device();
        let error = get(&pipelines, &Kernel { function: "rms_norm_f64", ..kernel(DType::F32) }).unwrap_err();
        assert!(error.to_string().contains("`rms_norm_f64`"), "{error}");
    }
}
