//! What a driver offers. It is told everything and decides nothing.

use std::fmt;
use std::time::Duration;

use metallic_core::{Bytes, DeviceInfo};

use crate::command::CommandList;
use crate::driver::choose;
use crate::error::GpuError;
use crate::kernels::{Call, Constants};
use crate::pipelines::LibraryMetrics;
use crate::tuning::{Tuning, built_in};

/// A buffer of a [`Gpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A compiled source of a [`Gpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryId(pub u32);

/// A kernel made ready, with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipelineId(pub u32);

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Storage {
    /// Host and GPU both reach it.
    Shared,
    /// The GPU alone reaches it; the host goes through copies.
    Private,
}

/// What a device allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Threads of a threadgroup at most.
    pub max_threads: u32,
    /// Threadgroups of a grid at most, along each axis.
    pub max_groups: [u32; 3],
    /// Threads that run in step.
    pub simd_width: u32,
    /// Simdgroups that keep the device busy: past these, more work for each is better than more of them.
    pub busy_simdgroups: u32,
    /// Bytes of threadgroup memory at most.
    pub threadgroup_memory: u32,
    /// Bytes of one buffer at most.
    pub max_buffer: usize,
    /// Bytes all buffers may take together, where the device says so.
    pub budget: Option<u64>,
    /// Steps it profits from having at once: 2 where it works on one while the host prepares the next.
    pub depth: usize,
    /// Matrix units for which weights are laid out anew; `None` where they stay as in their files.
    pub matrix_units: Option<MatrixUnits>,
    /// Whether it has a library of its maker's that makes products.
    pub library: bool,
    /// Which of Apple's libraries of kernels there are; they serve where they are asked for by name.
    pub apple: AppleKernels,
    /// What plans may choose, as far as it is known of such a device.
    pub tuning: Tuning,
    /// It has the tensor operations of Metal 4, and matrix units behind them.
    pub tensor_ops: bool,
}

/// Libraries of kernels that come with Apple's systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppleKernels {
    /// MetalPerformanceShaders, for products.
    pub mps: bool,
    /// MetalPerformanceShadersGraph, for attention.
    pub graph: bool,
}

impl AppleKernels {
    /// None of them.
    pub const NONE: AppleKernels = AppleKernels { mps: false, graph: false };
    /// All of them.
    pub const ALL: AppleKernels = AppleKernels { mps: true, graph: true };
}

/// Matrix units that take weights in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixUnits {
    /// Cores that have some.
    pub cores: u32,
    /// Bytes of threadgroup memory for kernels that have a core to themselves.
    pub threadgroup_memory: u32,
}

impl Limits {
    /// What the GPU of an Apple chip of this name (`Apple M2 Max`) allows by its maker's tables of features, with as many
    /// simdgroups to keep it busy as its driver takes: for planning without one.
    pub fn of_apple(name: &str) -> Limits {
        Limits {
            max_threads: 1024,
            max_groups: [u32::MAX; 3],
            simd_width: 32,
            busy_simdgroups: choose::busy_simdgroups(name),
            threadgroup_memory: 32768,
            max_buffer: isize::MAX as usize,
            budget: None,
            depth: 2,
            matrix_units: None,
            library: false,
            apple: AppleKernels::NONE,
            tensor_ops: name.contains("M5"),
            tuning: built_in("metal", name, 0).0,
        }
    }

    /// Bytes of threadgroup memory of any kernel at most.
    pub fn most_threadgroup_memory(&self) -> u32 {
        self.matrix_units.map_or(0, |units| units.threadgroup_memory).max(self.threadgroup_memory)
    }

    /// Simdgroups that keep the device busy, as plans see it.
    pub(crate) fn busy(&self) -> u32 {
        let percent = u64::from(self.busy_simdgroups) * u64::from(self.tuning.busy);
        u32::try_from(percent / 100).unwrap_or(u32::MAX)
    }

    /// Cores, as far as they can be told.
    pub(crate) fn cores(&self) -> u32 {
        self.matrix_units.map_or(self.busy_simdgroups / choose::SIMDGROUPS_PER_CORE, |units| units.cores)
    }
}

/// A kernel made ready, and what the compiler left of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Its handle.
    pub id: PipelineId,
    /// Threads of a threadgroup at most, for this kernel.
    pub max_threads: u32,
}

/// Bytes of the host that became a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The buffer; several imports may share one.
    pub buffer: BufferId,
    /// Where the bytes begin in it.
    pub offset: usize,
    /// Bytes that had to be copied; 0 where the GPU reads the host's own pages.
    pub copied: usize,
}

/// A device that runs command lists.
pub trait Gpu: Send + Sync + fmt::Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// What it allows.
    fn limits(&self) -> &Limits;

    /// What drives it and compiles its kernels, with versions: what is measured holds for these alone. Empty where there is
    /// nothing to measure.
    fn system(&self) -> String {
        String::new()
    }

    /// What it does otherwise, or slower, than it should, as far as that is known by now: for people.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// How often a compiler was run for kernels so far; `None` where that is not known. What is made ready without one more run lay on
    /// disk.
    fn compilations(&self) -> Option<u64> {
        None
    }

    /// A new buffer, zeroed.
    fn allocate(&self, bytes: usize, storage: Storage) -> Result<BufferId, GpuError>;

    /// Makes read-only bytes of the host a buffer, without a copy where the device can; such a buffer keeps the bytes.
    /// Freed like any other.
    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError>;

    /// Gives a buffer back. Work that was submitted keeps it until it is done.
    fn free(&self, buffer: BufferId);

    /// Writes bytes into a shared buffer.
    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError>;

    /// Reads bytes of a shared buffer.
    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError>;

    /// Compiles a source. `name` is for messages.
    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError>;

    /// Makes a kernel of a library ready.
    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError>;

    /// Gives a pipeline back, when a cache lets it go.
    fn drop_pipeline(&self, pipeline: PipelineId);

    /// Gives a library back, when a cache lets it go.
    fn drop_library(&self, library: LibraryId);

    /// Makes ready what a library of the maker's does in the place of a launch, so that a failure shows before anything is
    /// submitted. Nothing to do where a kernel of ours stands in.
    fn prepare(&self, _call: &Call) -> Result<(), GpuError> {
        Ok(())
    }

    /// What the caches of such things have done so far.
    fn library_metrics(&self) -> LibraryMetrics {
        LibraryMetrics::default()
    }

    /// Hands commands to the device. Commands run in order where the list says they must.
    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError>;

    /// The same, with the time of each command: [`Submission::times`]. They run one after another, which costs some speed. An error
    /// where the device cannot tell.
    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError>;
}

/// Work on its way.
pub trait Submission: Send {
    /// Times work was handed to the device for it: a driver may cut long lists.
    fn command_buffers(&self) -> u64;

    /// Whether it is done, without waiting.
    fn poll(&mut self) -> bool;

    /// Waits at most this long, and says how it went. The time is what the GPU took, where it is known.
    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError>;

    /// The time of each command of a list that was [submitted for it](Gpu::submit_timed) and waited for; none of any other.
    fn times(&mut self) -> Result<Vec<Duration>, GpuError> {
        Ok(Vec::new())
    }
}
