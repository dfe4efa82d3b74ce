//! A device that computes nothing, for measuring what the host does, and for tests where there is no compiler: memory is real,
//! kernels are names, work is laid out and checked as the Metal driver does it, and is done when it is handed over.

use std::borrow::Cow;
use std::sync::Mutex;
use std::time::Duration;

use metallic_core::{Bytes, DeviceInfo};

use crate::command::CommandList;
use crate::driver::check::{self, BufferFacts, PipelineFacts};
use crate::driver::{batch, steps};
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
use crate::kernels::Constants;
use crate::lock;
use crate::objects::Objects;
use crate::tuning::Tuning;

/// What a large GPU of a Mac allows.
const LIMITS: Limits = Limits {
    max_threads: 1024,
    max_groups: [u32::MAX; 3],
    simd_width: 32,
    busy_simdgroups: 512,
    threadgroup_memory: 32768,
    max_buffer: isize::MAX as usize,
    budget: None,
    depth: 2,
    matrix_units: None,
    library: false,
    apple: crate::gpu::AppleKernels::NONE,
    tuning: Tuning::DEFAULT,
    tensor_ops: false,
};

/// A device that computes nothing.
#[derive(Debug)]
pub struct Null {
    info: DeviceInfo,
    limits: Limits,
    objects: Mutex<Objects<Buffer, (), ()>>,
}

#[derive(Debug)]
struct Buffer {
    facts: BufferFacts,
    contents: Mutex<Contents>,
}

#[derive(Debug)]
enum Contents {
    Own(Vec<u8>),
    Imported(Bytes),
}

impl Contents {
    fn bytes(&self) -> &[u8] {
        match self {
            Contents::Own(bytes) => bytes,
            Contents::Imported(bytes) => bytes,
        }
    }
}

impl Null {
    /// The device with the limits of a large GPU.
    pub fn new() -> Null {
        Null::with(LIMITS)
    }

    /// The device with other limits.
    pub fn with(limits: Limits) -> Null {
        let name = "computes nothing; for measuring the host".to_owned();
        let info = DeviceInfo { kind: "null", name, units: 0, memory_bytes: None };
        Null { info, limits, objects: Mutex::default() }
    }

    fn keep(&self, contents: Contents) -> BufferId {
        let writable = matches!(contents, Contents::Own(_));
        let facts = BufferFacts { len: contents.bytes().len(), writable, host: true };
        lock(&self.objects).add_buffer(Buffer { facts, contents: Mutex::new(contents) }, None)
    }
}

impl Default for Null {
    fn default() -> Null {
        Null::new()
    }
}

fn outside(start: usize, len: usize, found: usize) -> GpuError {
    GpuError::OutOfBounds { start, end: start.saturating_add(len), len: found }
}

impl Gpu for Null {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize, _: Storage) -> Result<BufferId, GpuError> {
        Ok(self.keep(Contents::Own(vec![0; bytes])))
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        // What is mapped counts as read where it lies.
        let copied = if bytes.mapping().is_some() { 0 } else { bytes.len() };
        Ok(Imported { buffer: self.keep(Contents::Imported(bytes.clone())), offset: 0, copied })
    }

    fn free(&self, buffer: BufferId) {
        lock(&self.objects).buffers.release(buffer);
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let buffer = lock(&self.objects).buffer(buffer)?;
        let Contents::Own(found) = &mut *lock(&buffer.contents) else {
            return Err(outside(offset, bytes.len(), 0));
        };
        let len = found.len();
        let part = found.get_mut(offset..offset.saturating_add(bytes.len()));
        part.ok_or_else(|| outside(offset, bytes.len(), len))?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        let buffer = lock(&self.objects).buffer(buffer)?;
        let contents = lock(&buffer.contents);
        let part = contents.bytes().get(offset..offset.saturating_add(out.len()));
        out.copy_from_slice(part.ok_or_else(|| outside(offset, out.len(), contents.bytes().len()))?);
        Ok(())
    }

    fn library(&self, _: &str, _: &str) -> Result<LibraryId, GpuError> {
        Ok(lock(&self.objects).add_library(()))
    }

    fn pipeline(&self, _: LibraryId, _: &str, _: &Constants) -> Result<Pipeline, GpuError> {
        Ok(Pipeline { id: lock(&self.objects).add_pipeline(()), max_threads: self.limits.max_threads })
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        lock(&self.objects).pipelines.remove(&pipeline);
    }

    fn drop_library(&self, library: LibraryId) {
        lock(&self.objects).drop_library(library);
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        let runs = steps::runs(commands, &self.limits, &batch::BOUND, &|_| Ok(PipelineId(0)))?;
        let facts = PipelineFacts { max_threads: self.limits.max_threads, threadgroup_bytes: 0 };
        let objects = lock(&self.objects);
        for step in runs.iter().flatten() {
            // Copies have kernels of the driver's own.
            let own = matches!(step.dispatch, Cow::Owned(_));
            let there = own || objects.pipelines.contains_key(&step.dispatch.pipeline);
            check::launch(&step.dispatch, there.then_some(&facts), &self.limits)?;
            for (index, binding) in step.dispatch.bindings() {
                let buffer = objects.buffers.get(binding.region.buffer());
                check::binding(&step.dispatch, index, binding, buffer.map(|buffer| &buffer.facts))?;
            }
        }
        Ok(Box::new(Done { command_buffers: runs.len() as u64, timed: 0 }))
    }

    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        let command_buffers = self.submit(commands)?.command_buffers();
        Ok(Box::new(Done { command_buffers, timed: commands.len() }))
    }
}

/// Work that took no time.
struct Done {
    command_buffers: u64,
    /// Commands whose times were asked for.
    timed: usize,
}

impl Submission for Done {
    fn command_buffers(&self) -> u64 {
        self.command_buffers
    }

    fn poll(&mut self) -> bool {
        true
    }

    fn wait(&mut self, _: Duration) -> Result<Option<Duration>, GpuError> {
        Ok(Some(Duration::ZERO))
    }

    fn times(&mut self) -> Result<Vec<Duration>, GpuError> {
        Ok(vec![Duration::ZERO; self.timed])
    }
}
