//! The driver for Metal, on macOS: it encodes what it is told. What there is to decide stands in `driver`, where it is
//! tested on any machine; this is the one part of the crate that other machines cannot run.
//!
//! Buffers are tracked for hazards by Metal, so encoders and command buffers that share one run in order; inside an
//! encoder, whose dispatches run together, the barriers of the command list order them. Copies and fills are kernels of
//! the family `transfer`. A command buffer refers to its objects without retaining them: the handler that Metal calls
//! when it is done owns them until then.
//!
//! Metal reports what can fail through null and `NSError`, never through exceptions; what would break its rules is
//! refused before it is encoded.
#![allow(unsafe_code)]

#[cfg(all(test, metal_on_linux))]
mod apple_tests;
mod archive;
mod buffer;
mod clock;
mod device;
mod graph;
mod library;
mod mps;
#[cfg(all(test, metal_on_linux))]
mod on_linux;
mod residency;
mod submit;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use metallic_core::{Bytes, DeviceInfo};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::ns_string;
use objc2_metal::{MTLCommandQueue, MTLDevice as _};

use self::archive::Archivist;
use self::buffer::{Buffer, Memory};
use self::clock::Clock;
pub use self::device::{MetalDevice, devices};
use self::library::{Library, Ready};
use self::mps::Mps;
use self::residency::Residency;
use self::submit::{Encoder, Kept};
use crate::command::CommandList;
use crate::driver::fault::About;
use crate::driver::import::{self, Mapping};
use crate::driver::progress::{Running, Timed};
use crate::driver::{archive as places, batch, check, fault, steps, ticks};
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
use crate::kernels::{Call, Constants, Kernel};
use crate::lock;
use crate::objects::Objects;
use crate::pipelines::LibraryMetrics;

/// A GPU that Metal drives.
pub struct Metal {
    info: DeviceInfo,
    /// Name and build of the system, which machine code depends on.
    system: String,
    page: usize,
    memory: Memory,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// Where machine code of kernels is kept.
    folder: Option<PathBuf>,
    archivist: Archivist,
    /// What Apple's libraries of kernels have made ready.
    mps: Mps,
    objects: Mutex<Objects<Buffer, Library, Ready>>,
    /// The kernels of copies and fills, by name, and their library.
    transfers: Mutex<(Option<LibraryId>, HashMap<&'static str, PipelineId>)>,
    /// Whether dispatches are named, for captures.
    named: bool,
}

impl fmt::Debug for Metal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metal")
            .field("info", &self.info)
            .field("limits", self.limits())
            .finish_non_exhaustive()
    }
}

impl Metal {
    /// The pipeline of a copy or a fill, made when it is first needed.
    fn transfer(&self, kernel: &Kernel) -> Result<PipelineId, GpuError> {
        let mut made = lock(&self.transfers);
        if let Some(id) = made.1.get(kernel.function) {
            return Ok(*id);
        }
        let library = match made.0 {
            Some(library) => library,
            None => self.library(kernel.family.name, &kernel.family.source())?,
        };
        made.0 = Some(library);
        let id = self.pipeline(library, kernel.function, &kernel.constants)?.id;
        made.1.insert(kernel.function, id);
        Ok(id)
    }

    /// Checks every step against what it names, and takes hold of that.
    fn keep(&self, runs: &[Vec<steps::Step<'_>>]) -> Result<Kept, GpuError> {
        let objects = lock(&self.objects);
        let mut kept = Kept::default();
        for step in runs.iter().flatten() {
            let dispatch = &*step.dispatch;
            let pipeline = objects.pipelines.get(&dispatch.pipeline);
            check::launch(dispatch, pipeline.map(|p| &p.facts), self.limits())?;
            kept.pipelines.extend(pipeline.cloned());
            for (index, binding) in dispatch.bindings() {
                let buffer = objects.buffers.get(binding.region.buffer());
                check::binding(dispatch, index, binding, buffer.map(|b| &b.facts))?;
                kept.buffers.extend(buffer.cloned());
            }
        }
        // Not under the lock: a library may compile.
        drop(objects);
        let mut bound = 0;
        for step in runs.iter().flatten() {
            let own = &kept.buffers[bound..];
            kept.calls.push(self.mps.bind(step, own)?);
            bound += step.dispatch.bindings().count();
        }
        Ok(kept)
    }
}

/// Opens a GPU of this machine: by index, by name or by a part of its name; the system's choice where nothing is said.
pub fn open(which: Option<&str>) -> Result<Metal, GpuError> {
    autoreleasepool(|_| {
        let device = device::find(which)?;
        let info = device::info(&device);
        let queue = device.newCommandQueueWithMaxCommandBufferCount(batch::QUEUE);
        let queue = queue.ok_or_else(|| GpuError::Missing(format!("no command queue of `{}`", info.name)))?;
        queue.setLabel(Some(ns_string!("metallic")));
        let limits = device::limits(&device);
        let memory = Memory {
            limits,
            residency: Residency::new(&device, &queue, limits.budget).map(Arc::new),
            held: Arc::new(AtomicU64::new(0)),
            device: device.clone(),
        };
        Ok(Metal {
            info,
            system: device::system(),
            page: page_size(),
            memory,
            queue,
            folder: places::folder(|name| std::env::var_os(name)),
            mps: Mps::new(device.clone()),
            archivist: Archivist::new(device),
            objects: Mutex::default(),
            transfers: Mutex::default(),
            named: std::env::var_os("MTL_CAPTURE_ENABLED").is_some(),
        })
    })
}

fn page_size() -> usize {
    // SAFETY: it reads a number of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Without one nothing lies on a page, and everything is copied.
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(usize::MAX)
}

impl Gpu for Metal {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self) -> &Limits {
        &self.memory.limits
    }

    fn system(&self) -> String {
        self.system.clone()
    }

    fn allocate(&self, bytes: usize, storage: Storage) -> Result<BufferId, GpuError> {
        let buffer = autoreleasepool(|_| self.memory.allocate(bytes, storage))?;
        Ok(lock(&self.objects).add_buffer(buffer, None))
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        let mapping = bytes.mapping();
        let facts = mapping.as_ref().map(|(all, _)| Mapping { address: all.as_ptr().addr(), len: all.len() });
        let start = mapping.as_ref().map_or(0, |(_, start)| *start);
        let plan = import::plan(facts, &(start..start + bytes.len()), self.page, self.limits().max_buffer)?;
        let share = |start: usize, len: usize, offset: usize| {
            let Some((all, _)) = &mapping else { return Ok(None) };
            let pages = (all.as_ptr().addr() + start, len);
            // Held to the end: two threads that import one file share one buffer.
            let mut objects = lock(&self.objects);
            let known = objects.buffers.share(pages);
            let buffer = match known {
                Some(id) => Some(id),
                None => self.memory.share(all, start, len)?.map(|made| objects.add_buffer(made, Some(pages))),
            };
            Ok(buffer.map(|buffer| Imported { buffer, offset, copied: 0 }))
        };
        let copy = || {
            let copy = self.memory.allocate(bytes.len(), Storage::Shared)?;
            let mut buffer = Vec::new();
            copy.write(BufferId(0), 0, bytes.read(0..bytes.len(), &mut buffer)?)?;
            let buffer = lock(&self.objects).add_buffer(copy, None);
            Ok(Imported { buffer, offset: 0, copied: bytes.len() })
        };
        autoreleasepool(|_| import::carry_out(plan, share, copy))
    }

    fn free(&self, buffer: BufferId) {
        autoreleasepool(|_| {
            let last = lock(&self.objects).buffers.release(buffer);
            // Not under the lock.
            drop(last);
        });
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        lock(&self.objects).buffer(buffer)?.write(buffer, offset, bytes)
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        lock(&self.objects).buffer(buffer)?.read(buffer, offset, out)
    }

    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError> {
        let folder = self.folder.as_deref();
        let file = folder.map(|f| places::file(f, name, source, &self.info.name, &self.system));
        let library = autoreleasepool(|_| Library::compile(&self.memory.device, name, source, file))?;
        Ok(lock(&self.objects).add_library(library))
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        let library = lock(&self.objects).library(library, function)?;
        // Not under the lock: compiling takes its time.
        let (ready, job) = autoreleasepool(|_| library.pipeline(&self.memory.device, function, constants))?;
        if let Some(job) = job {
            self.archivist.add(job);
        }
        let max_threads = ready.facts.max_threads;
        Ok(Pipeline { id: lock(&self.objects).add_pipeline(ready), max_threads })
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        autoreleasepool(|_| {
            let last = lock(&self.objects).pipelines.remove(&pipeline);
            drop(last);
        });
    }

    fn drop_library(&self, library: LibraryId) {
        autoreleasepool(|_| {
            let last = lock(&self.objects).drop_library(library);
            drop(last);
        });
    }

    fn prepare(&self, call: &Call) -> Result<(), GpuError> {
        autoreleasepool(|_| self.mps.prepare(call))
    }

    fn library_metrics(&self) -> LibraryMetrics {
        self.mps.metrics()
    }

    fn library_keys(&self) -> Vec<crate::pipelines::ReadyKey> {
        self.mps.keys()
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        Ok(Box::new(self.start(commands, None)?))
    }

    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        let clock = autoreleasepool(|_| Clock::new(&self.memory.device, commands.len()))?;
        let times = clock.times.clone();
        Ok(Box::new(Timed { running: self.start(commands, Some(clock))?, times }))
    }
}

impl Metal {
    /// Hands commands to the GPU; where there is a clock it notes the time of each.
    fn start(&self, commands: &CommandList, clock: Option<Clock>) -> Result<Running, GpuError> {
        autoreleasepool(|_| {
            let ready = |kernel: &Kernel| self.transfer(kernel);
            let mut runs = steps::runs(commands, self.limits(), &batch::BOUND, &ready)?;
            if clock.is_some() {
                runs = ticks::cut(steps::apart(runs));
            }
            let kept = self.keep(&runs)?;
            if let Some(residency) = &self.memory.residency {
                residency.settle();
            }
            let about = About {
                label: fault::label(commands),
                bytes: usize::try_from(self.memory.held()).unwrap_or(usize::MAX),
                budget: self.limits().budget,
            };
            let encoder = Encoder { queue: &self.queue, named: self.named, clock };
            encoder.submit(&runs, kept, about)
        })
    }
}
