//! A GPU as a backend: graphs are fused, lowered and planned here.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use metallic_core::plan::ProgramPlan;
use metallic_core::rewrite::Fused;
use metallic_core::tensor::TensorDevice;
use metallic_core::{
    Backend, BackendError, CompileOptions, DeviceInfo, Graph, Peaks, Program, Step, rewrite,
};

use crate::describe::describe;
use crate::gpu::{Gpu, Limits};
use crate::kernels::relay::Relay;
use crate::peaks;
use crate::pipelines::{LIBRARIES, PIPELINES, PipelineMetrics, Pipelines, ReadyKey};
use crate::pool::{Pool, PoolStats};
use crate::program::GpuProgram;
use crate::provider::Providers;
use crate::tensor::GpuTensors;
use crate::tuning::{Tuned, TunedDevice};

/// How a GPU is used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuOptions {
    /// How long one submission may take before it counts as hung.
    pub timeout: Duration,
    /// Steps that may be under way at once; 0: as many as the device profits from.
    pub depth: usize,
    /// Fuse operations before they are lowered; off only to test single operations.
    pub fuse: bool,
    /// Bytes that may be held in all; the device's own limit if none is given.
    pub budget: Option<u64>,
    /// Kernels kept ready at most, unless more are in use.
    pub kernels: usize,
    /// Measure the time of every kind of operation: the device notes the time after each, which costs some speed.
    pub profile: bool,
    /// Which providers serve which operations.
    pub providers: Providers,
    /// What plans may choose, where it is not what the device has of its own.
    pub tuned: Tuned,
}

metallic_core::setters!(GpuOptions {
    timeout: Duration,
    depth: usize,
    fuse: bool,
    budget: impl Into<Option<u64>>,
    kernels: usize,
    profile: bool,
    providers: Providers,
    tuned: Tuned,
});

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            timeout: Duration::from_secs(600),
            depth: 0,
            fuse: true,
            budget: None,
            kernels: PIPELINES,
            profile: false,
            providers: Providers::default(),
            tuned: Tuned::default(),
        }
    }
}

/// What all programs of a GPU share.
pub(crate) struct Shared {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) pool: Pool,
    pub(crate) pipelines: Pipelines,
    pub(crate) options: GpuOptions,
}

impl Shared {
    pub(crate) fn kind(&self) -> &'static str {
        self.gpu.info().kind
    }

    /// What the device allows, with what plans may choose as it is now.
    pub(crate) fn limits(&self) -> Limits {
        let limits = *self.gpu.limits();
        Limits { tuning: self.options.tuned.get().unwrap_or(limits.tuning), ..limits }
    }

    /// Steps that may be under way at once.
    pub(crate) fn depth(&self) -> usize {
        let wanted = if self.options.depth == 0 { self.gpu.limits().depth } else { self.options.depth };
        wanted.clamp(1, MAX_DEPTH)
    }
}

/// Steps under way at most: one runs, one waits.
const MAX_DEPTH: usize = 2;

/// A GPU that runs graphs.
pub struct GpuBackend {
    shared: Arc<Shared>,
    tensors: Arc<GpuTensors>,
}

impl GpuBackend {
    /// A backend over a device.
    pub fn new(gpu: Arc<dyn Gpu>, options: GpuOptions) -> GpuBackend {
        let budget = options.budget.or(gpu.limits().budget);
        let pool = Pool::new(gpu.clone(), budget);
        options.tuned.attach(TunedDevice::new(gpu.info(), gpu.limits(), gpu.system()));
        let pipelines = Pipelines::bounded(gpu.clone(), LIBRARIES, options.kernels);
        let shared = Arc::new(Shared { gpu, pool, pipelines, options });
        GpuBackend { tensors: Arc::new(GpuTensors::new(shared.clone())), shared }
    }

    /// What the caches of compiled sources and of kernels hold and have done so far, for all programs and tensors.
    pub fn cache_metrics(&self) -> PipelineMetrics {
        self.shared.pipelines.metrics()
    }

    /// Everything that is held ready in this process for the device, and what it has cost: compiled sources, kernels, and what libraries of
    /// its maker's have made.
    pub fn ready_keys(&self) -> Vec<ReadyKey> {
        self.shared.pipelines.keys()
    }

    /// What a kernel takes at best that follows another one, where each core copies so many bytes to threadgroup memory: what bounds steps of
    /// many small kernels.
    pub fn relay(&self, what: Relay) -> Result<Duration, BackendError> {
        peaks::relay(&self.shared, what).map_err(|error| error.on(self.shared.kind()))
    }

    /// What the memory pool holds and has done so far, for all programs and tensors.
    pub fn pool_stats(&self) -> PoolStats {
        self.shared.pool.stats()
    }
}

impl Backend for GpuBackend {
    fn info(&self) -> &DeviceInfo {
        self.shared.gpu.info()
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        self.tensors.clone()
    }

    fn compile(&self, graph: &Graph, options: CompileOptions) -> Result<Box<dyn Program>, BackendError> {
        let device = self.shared.kind();
        let graph = rewrite::with_activations(graph, options.activations)?;
        let fused = if self.shared.options.fuse && options.fuse { rewrite::fuse(&graph)? } else { graph };
        let program = GpuProgram::new(self.shared.clone(), fused, options).map_err(|e| e.on(device))?;
        // What there is to say of kernels is known when they have been made ready.
        self.shared.options.providers.tell(self.shared.gpu.notes());
        Ok(Box::new(program))
    }

    fn describe(
        &self,
        graph: &Graph,
        options: CompileOptions,
        step: &Step<'_>,
    ) -> Result<ProgramPlan, BackendError> {
        let before = rewrite::with_activations(graph, options.activations)?;
        let fused = if self.shared.options.fuse { rewrite::trace(&before)? } else { Fused::unfused(&before) };
        describe(&self.shared, before, fused, options.kv, step)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn peaks(&self) -> Result<Option<Peaks>, BackendError> {
        let kind = self.shared.kind();
        // One does on a processor what others do, the other does nothing.
        if matches!(kind, "soft" | "null") {
            return Ok(None);
        }
        peaks::measure(&self.shared, peaks::FULL).map(Some).map_err(|error| error.on(kind))
    }
}
