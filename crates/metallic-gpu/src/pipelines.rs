//! Kernels made ready, each once: libraries by the hash of their source, pipelines by library, function and constants.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ptr;
use std::sync::{Arc, PoisonError, RwLock};

use crate::cache::{Cache, CacheMetrics};
use crate::error::GpuError;
use crate::gpu::{Gpu, LibraryId, Limits, Pipeline, PipelineId};
use crate::kernels::{Constants, Family, Kernel};

/// Libraries kept at most.
pub(crate) const LIBRARIES: usize = 64;
/// Pipelines kept at most.
pub(crate) const PIPELINES: usize = 1024;

/// A kernel made ready. Its driver is told when the last holder lets go.
#[derive(Debug)]
pub struct ReadyPipeline {
    gpu: Arc<dyn Gpu>,
    pipeline: Pipeline,
    /// The code it runs.
    _library: Arc<ReadyLibrary>,
}

impl ReadyPipeline {
    /// Its handle.
    pub fn id(&self) -> PipelineId {
        self.pipeline.id
    }

    /// Threads of a threadgroup at most, for this kernel.
    pub fn max_threads(&self) -> u32 {
        self.pipeline.max_threads
    }

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

/// Identifies a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SourceHash([u64; 2]);

impl SourceHash {
    fn of(family: &Family) -> SourceHash {
        let source = family.source();
        SourceHash([0u8, 1].map(|salt| {
            let mut hasher = DefaultHasher::new();
            (salt, &source).hash(&mut hasher);
            hasher.finish()
        }))
    }
}

type PipelineKey = (SourceHash, &'static str, Constants);

/// What the two caches have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineMetrics {
    /// Compiled sources.
    pub libraries: CacheMetrics,
    /// Kernels with their constants.
    pub pipelines: CacheMetrics,
}

/// The kernels of a device, made ready as they are asked for.
#[derive(Debug)]
pub struct Pipelines {
    gpu: Arc<dyn Gpu>,
    /// Families by address: what is `'static` keeps its place, so no source is hashed twice.
    hashes: RwLock<HashMap<usize, SourceHash>>,
    ready: Cache<PipelineKey, ReadyPipeline, GpuError>,
    libraries: Cache<SourceHash, ReadyLibrary, GpuError>,
}

impl Pipelines {
    /// Nothing is compiled yet.
    pub fn new(gpu: Arc<dyn Gpu>) -> Pipelines {
        Pipelines::bounded(gpu, LIBRARIES, PIPELINES)
    }

    /// With room for so many libraries and pipelines; those in use always have room.
    pub fn bounded(gpu: Arc<dyn Gpu>, libraries: usize, pipelines: usize) -> Pipelines {
        // A source that does not compile will not compile the next time.
        let lasting = |error: &GpuError| matches!(error, GpuError::Compile { .. });
        Pipelines {
            gpu,
            hashes: RwLock::default(),
            ready: Cache::remembering(pipelines, lasting),
            libraries: Cache::remembering(libraries, lasting),
        }
    }

    /// A kernel, ready to run.
    pub fn get(&self, kernel: &Kernel) -> Result<Arc<ReadyPipeline>, GpuError> {
        self.look_up(kernel).0
    }

    /// A kernel, and whether it had to be made.
    fn look_up(&self, kernel: &Kernel) -> (Result<Arc<ReadyPipeline>, GpuError>, bool) {
        let hash = self.hash(kernel.family);
        let key = (hash, kernel.function, kernel.constants);
        let mut made = false;
        let ready = self.ready.get_or_make(&key, || {
            made = true;
            if !kernel.family.declares(kernel.function, kernel.args) {
                let message =
                    format!("family `{}` does not declare it with these arguments", kernel.family.name);
                return Err(GpuError::Compile { kernel: kernel.function.to_owned(), message });
            }
            let library = self.library(hash, kernel.family)?;
            let pipeline = self.gpu.pipeline(library.id, kernel.function, &kernel.constants)?;
            Ok(ReadyPipeline { gpu: self.gpu.clone(), pipeline, _library: library })
        });
        (ready, made)
    }

    /// What the caches have done so far.
    pub fn metrics(&self) -> PipelineMetrics {
        PipelineMetrics { libraries: self.libraries.metrics(), pipelines: self.ready.metrics() }
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

    fn library(&self, hash: SourceHash, family: &Family) -> Result<Arc<ReadyLibrary>, GpuError> {
        self.libraries.get_or_make(&hash, || {
            let id = self.gpu.library(family.name, &family.source())?;
            Ok(ReadyLibrary { gpu: self.gpu.clone(), id })
        })
    }

    fn hash(&self, family: &'static Family) -> SourceHash {
        let place = ptr::from_ref(family).addr();
        let known = self.hashes.read().unwrap_or_else(PoisonError::into_inner).get(&place).copied();
        known.unwrap_or_else(|| {
            let hash = SourceHash::of(family);
            self.hashes.write().unwrap_or_else(PoisonError::into_inner).insert(place, hash);
            hash
        })
    }
}

/// The kernels of work that is under way: as long as they stand here the cache lets none of them go.
#[derive(Debug, Default)]
pub(crate) struct HeldKernels {
    pipelines: Vec<Arc<ReadyPipeline>>,
    /// Kernels that were ready.
    pub(crate) hits: u64,
    /// Kernels that had to be made.
    pub(crate) misses: u64,
}

impl HeldKernels {
    /// Adds a kernel.
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

    /// The kernels, for work that is handed on.
    pub(crate) fn into_pipelines(self) -> Vec<Arc<ReadyPipeline>> {
        self.pipelines
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

    fn device() -> (Arc<Faulty>, Pipelines) {
        let gpu = Arc::new(Faulty::new(Arc::new(Null::new())));
        let pipelines = Pipelines::bounded(gpu.clone(), 2, 2);
        (gpu, pipelines)
    }

    #[test]
    fn a_source_is_compiled_once_for_all_its_kernels() {
        let (gpu, pipelines) = device();
        let first = pipelines.get(&kernel(DType::F32)).unwrap();
        let again = pipelines.get(&kernel(DType::F32)).unwrap();
        let other = pipelines.get(&kernel(DType::F16)).unwrap();
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
            pipelines.get(&Kernel { constants: Constants::of([value]), ..kernel(DType::F32) }).unwrap();
        }
        assert_eq!(gpu.counts().pipelines, 2);
    }

    #[test]
    fn what_is_evicted_is_given_back_when_nobody_uses_it() {
        let (gpu, pipelines) = device();
        let held = pipelines.get(&Kernel { constants: Constants::of([0]), ..kernel(DType::F32) }).unwrap();
        for value in 1..6 {
            pipelines.get(&Kernel { constants: Constants::of([value]), ..kernel(DType::F32) }).unwrap();
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
        let error = pipelines.get(&kernel(DType::F32)).unwrap_err();
        assert!(matches!(&error, GpuError::Compile { .. }), "{error}");
        assert_eq!(pipelines.get(&kernel(DType::F32)).unwrap_err(), error);
        assert!(pipelines.get(&kernel(DType::F16)).is_err(), "the source is the same");
        assert_eq!(gpu.calls(Fault::Library), 1);
        pipelines.forget_failures();
        pipelines.get(&kernel(DType::F32)).unwrap();
        gpu.fail(Fault::Pipeline, 1);
        assert!(pipelines.get(&kernel(DType::BF16)).is_err());
        assert!(pipelines.get(&kernel(DType::F32)).is_ok(), "others of the source still serve");
    }

    #[test]
    fn a_kernel_its_family_does_not_declare_is_refused() {
        let (_, pipelines) = device();
        let error = pipelines.get(&Kernel { function: "rms_norm_f64", ..kernel(DType::F32) }).unwrap_err();
        assert!(error.to_string().contains("`rms_norm_f64`"), "{error}");
    }
}
