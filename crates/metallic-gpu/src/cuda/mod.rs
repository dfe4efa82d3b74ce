//! The driver for NVIDIA GPUs: the very kernels that ship for Metal, as PTX.
//!
//! All memory is the GPU's own; what the host writes and reads is copied. Work goes into one stream, which runs it in order, so
//! that every barrier of a list holds; what is read comes through a stream of its own and waits for nobody. A list that is
//! submitted again is recorded and replayed as a whole: its launches cost the host one call.
//!
//! What there is to decide stands in `driver`; what can be wrong with memory stands in `api`.

mod api;
mod ptx;
mod rehearsal;
mod replay;
mod running;
mod timed;
mod under_way;
mod uploads;
mod work;

use std::fmt;
use std::sync::{Arc, Mutex};

use metallic_core::{Bytes, DeviceInfo};

use self::api::{Attribute, Blas, Context, Driver, Event, Kernel, Memory, Stream};
use self::ptx::{Translator, Wanted};
pub use self::rehearsal::{Asked, Rehearsal, Translated};
use self::replay::{Recorded, Replays};
use self::running::Running;
use self::under_way::{Kept, UnderWay};
use self::uploads::Uploads;
use self::work::{Work, hand_over, named};
use crate::command::{Command, CommandList};
use crate::driver::check::{self, BufferFacts, PipelineFacts};
use crate::driver::{choose, fault, memory};
use crate::error::GpuError;
use crate::gpu::{
    BufferId, Gpu, Imported, LibraryId, Limits, MatrixUnits, Pipeline, PipelineId, Storage, Submission,
};
use crate::kernels::Constants;
use crate::lock;
use crate::objects::Objects;
use crate::tuning::built_in;

/// Bytes of threadgroup memory that kernels are planned for, as on every GPU they are written for.
const THREADGROUP_MEMORY: u32 = 32 << 10;
/// Simdgroups that keep a multiprocessor busy.
const BUSY: u32 = 32;
/// The part of the memory that programs may take: the driver and others need some of it.
const BUDGET: (u64, u64) = (15, 16);

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaDevice {
    /// What it is.
    pub info: DeviceInfo,
    /// What it allows.
    pub limits: Limits,
    /// Its driver, which compiles its kernels.
    pub system: String,
    /// Its place among the GPUs of this machine.
    pub index: usize,
    /// Why its kernels cannot be run, where they cannot.
    pub unusable: Option<String>,
}

/// The first driver that records kernels which begin early: CUDA 12.3, as drivers number themselves.
const RECORDS_EARLY: u32 = 12030;

/// What compiles kernels here, or why nothing does.
pub fn compiler() -> Result<String, String> {
    Translator::of_user().compiler()
}

/// The library of NVIDIA's that makes products of many tokens, or why there is none: kernels of ours then do.
pub fn library() -> Result<String, String> {
    let started = || Blas::new(&Context::new(&Driver::load()?, 0)?);
    started().map(|blas| blas.version()).map_err(|error: GpuError| error.to_string())
}

/// Whether kernels can be had for a GPU of this machine: there is what compiles them, or somebody has.
pub fn has_kernels() -> bool {
    Translator::of_user().has_some()
}

/// The GPUs of this machine that NVIDIA's driver knows; an error where there is no such driver.
pub fn devices() -> Result<Vec<CudaDevice>, GpuError> {
    let driver = Driver::load()?;
    let describe = |index| describe(&driver, &*Context::new(&driver, index)?, index);
    (0..driver.count()?).map(describe).collect()
}

/// Threadgroups of a grid along each axis, on every GPU since compute capability 3.0.
const MAX_GROUPS: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// The least compute capability, times ten, whose matrix units take bfloats.
const BFLOATS: u32 = 80;

/// Matrix units of a GPU of this compute capability.
fn matrix_units(capability: u32, cores: u32, threadgroup_memory: u32) -> Option<MatrixUnits> {
    (capability >= BFLOATS).then_some(MatrixUnits { cores, threadgroup_memory })
}

/// What a GPU of so many multiprocessors and so much memory allows.
fn limits(
    name: &str,
    units: u32,
    max_threads: u32,
    memory: u64,
    matrix_units: Option<MatrixUnits>,
) -> Limits {
    Limits {
        max_threads,
        max_groups: MAX_GROUPS,
        simd_width: 32,
        busy_simdgroups: units.saturating_mul(BUSY),
        threadgroup_memory: THREADGROUP_MEMORY,
        max_buffer: usize::try_from(memory).unwrap_or(usize::MAX),
        budget: Some(memory / BUDGET.1 * BUDGET.0),
        depth: 2,
        matrix_units,
        library: false,
        apple: crate::gpu::AppleKernels::NONE,
        tuning: built_in("cuda", name, matrix_units.map_or(0, |units| units.cores)).0,
        tensor_ops: false,
    }
}

fn describe(driver: &Driver, context: &Context, index: usize) -> Result<CudaDevice, GpuError> {
    let units = context.attribute(Attribute::Multiprocessors)?;
    let memory = context.memory()?;
    let info = DeviceInfo {
        kind: "cuda",
        name: context.name(),
        units: units as usize,
        memory_bytes: context.free_memory().ok().map(|free| free.min(memory / BUDGET.1 * BUDGET.0)),
    };
    let max_threads = context.attribute(Attribute::MaxThreads)?;
    let capability = capability(context)?;
    let matrix_units = matrix_units(capability, units, context.attribute(Attribute::MostShared)?);
    let unusable = match (context.attribute(Attribute::WarpSize)?, capability) {
        (32, 70..) => None,
        (32, old) => Some(format!("its compute capability is {}.{}, 7.0 is needed", old / 10, old % 10)),
        (width, _) => Some(format!("{width} of its threads run in step, 32 are needed")),
    };
    let limits = limits(&info.name, units, max_threads, memory, matrix_units);
    let version = driver.version()?;
    let system = format!("a driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
    Ok(CudaDevice { info, limits, system, index, unusable })
}

/// Compute capability times ten.
fn capability(context: &Context) -> Result<u32, GpuError> {
    Ok(10 * context.attribute(Attribute::Major)? + context.attribute(Attribute::Minor)?)
}

#[derive(Debug)]
struct Buffer {
    memory: Memory,
    facts: BufferFacts,
    /// The file's pages that it is a copy of: while they stay, nothing else can lie at their address.
    _pages: Option<Bytes>,
}

#[derive(Debug)]
struct Source {
    name: String,
    text: String,
}

#[derive(Debug)]
struct Ready {
    kernel: Kernel,
    /// It may begin before what came before is done.
    early: bool,
    facts: PipelineFacts,
}

/// A GPU of NVIDIA's.
pub struct Cuda {
    device: CudaDevice,
    capability: u32,
    /// Its driver records kernels that begin before those before them are done.
    records_early: bool,
    translator: Translator,
    objects: Mutex<Objects<Buffer, Source, Ready>>,
    replays: Mutex<Replays>,
    /// Recordings that time their commands.
    timed: Mutex<Replays>,
    /// Work, in order; the lock keeps what one thread hands over together.
    work: Mutex<(Stream, UnderWay)>,
    /// What the host reads.
    reads: Mutex<Stream>,
    /// What weights come through; locked before the work.
    uploads: Mutex<Uploads>,
    /// What makes products, where it is installed.
    blas: Option<Blas>,
    context: Arc<Context>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Nothing may be freed that is in use; a device that is lost uses nothing.
        let _ = lock(&self.work).0.wait();
    }
}

/// Opens the GPU asked for: by its index, its name or a part of it; the first one where nothing is said.
pub fn open(asked: Option<&str>) -> Result<Cuda, GpuError> {
    let driver = Driver::load()?;
    let contexts =
        (0..driver.count()?).map(|index| Context::new(&driver, index)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = contexts.iter().map(|context| context.name()).collect();
    let index = choose::device(asked, &names, Some(0))?;
    let context = contexts[index].clone();
    let mut device = describe(&driver, &context, index)?;
    if let Some(reason) = &device.unusable {
        return Err(GpuError::Missing(format!("`{}` cannot run the kernels: {reason}", device.info.name)));
    }
    // One that does not start is for `metallic devices` to tell; kernels of ours serve without it.
    let blas = Blas::new(&context).ok();
    device.limits.library = blas.is_some();
    Ok(Cuda {
        blas,
        capability: capability(&context)?,
        records_early: driver.version()? >= RECORDS_EARLY,
        translator: Translator::of_user(),
        objects: Mutex::default(),
        replays: Mutex::default(),
        timed: Mutex::default(),
        work: Mutex::new((Stream::new(&context)?, UnderWay::default())),
        reads: Mutex::new(Stream::new(&context)?),
        uploads: Mutex::default(),
        device,
        context,
    })
}

impl Cuda {
    /// The objects that a list names, after they were checked, and where its buffers lie: launch after launch, as many addresses
    /// as each kernel takes.
    fn resolve<'c>(&self, commands: &'c CommandList) -> Result<(Kept, Vec<Work<'c>>), GpuError> {
        let objects = lock(&self.objects);
        let (mut kept, mut work) = (Kept::default(), Vec::with_capacity(commands.len()));
        for command in commands.commands() {
            match command {
                Command::Dispatch(dispatch)
                | Command::Gemm { dispatch, .. }
                | Command::Graph { dispatch, .. } => {
                    let ready = objects.pipelines.get(&dispatch.pipeline);
                    check::launch(dispatch, ready.map(|ready| &ready.facts), &self.device.limits)?;
                    let Some(ready) = ready else { continue };
                    let mut addresses = vec![0; ready.kernel.takes().addresses];
                    for (index, binding) in dispatch.bindings() {
                        let buffer = objects.buffers.get(binding.region.buffer());
                        check::binding(dispatch, index, binding, buffer.map(|buffer| &buffer.facts))?;
                        // The params come before them.
                        let place =
                            (index as usize).checked_sub(1).and_then(|index| addresses.get_mut(index));
                        let (Some(buffer), Some(to)) = (buffer, place) else { continue };
                        *to = buffer.memory.at(binding.region.offset());
                        kept.buffers.push(buffer.clone());
                    }
                    // What the library cannot make, the kernel does that says what it is.
                    if let (Command::Gemm { product, .. }, Some(blas)) = (command, &self.blas)
                        && let [x, w, out, ..] = addresses[..]
                        && blas.makes(product)
                    {
                        check::product(dispatch, product)?;
                        let label = dispatch.label;
                        work.push(Work::Product { label, product: *product, at: [x, w, out] });
                        continue;
                    }
                    kept.pipelines.push(ready.clone());
                    work.push(Work::Launch { dispatch, kernel: kept.pipelines.len() - 1, addresses });
                }
                Command::Copy { from, to } => {
                    let first = kept.buffers.len();
                    for region in [from, to] {
                        kept.buffers.push(objects.buffer(region.buffer())?);
                    }
                    work.push(Work::Copy { first, from: from.offset(), to: to.offset(), len: from.len() });
                }
                Command::Fill { to, value } => {
                    kept.buffers.push(objects.buffer(to.buffer())?);
                    let buffer = kept.buffers.len() - 1;
                    work.push(Work::Fill { buffer, to: to.offset(), len: to.len(), value: *value });
                }
            }
        }
        Ok((kept, work))
    }
}

impl Gpu for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn limits(&self) -> &Limits {
        &self.device.limits
    }

    fn system(&self) -> String {
        self.device.system.clone()
    }

    fn allocate(&self, bytes: usize, storage: Storage) -> Result<BufferId, GpuError> {
        self.context.alive()?;
        let facts = BufferFacts { len: bytes, writable: true, host: storage == Storage::Shared };
        let memory = self.memory(bytes)?;
        lock(&self.work).0.fill(&memory, 0, bytes, 0)?;
        Ok(lock(&self.objects).add_buffer(Buffer { memory, facts, _pages: None }, None))
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        self.context.alive()?;
        // Other memory may be gone before the copy of it is, and its address be another's.
        let mapped = bytes.mapping().is_some().then(|| bytes.clone());
        let pages = mapped.as_ref().map(|bytes| (bytes.as_ptr() as usize, bytes.len()));
        if let Some(buffer) = pages.and_then(|pages| lock(&self.objects).buffers.share(pages)) {
            return Ok(Imported { buffer, offset: 0, copied: 0 });
        }
        let memory = self.memory(bytes.len())?;
        uploads::upload(self, &memory, bytes)?;
        let facts = BufferFacts { len: bytes.len(), writable: false, host: false };
        let (buffer, kept) = {
            let mut objects = lock(&self.objects);
            let id = objects.add_buffer(Buffer { memory, facts, _pages: mapped }, pages);
            (id, objects.buffer(id)?)
        };
        // Copies may be under way to it.
        let (stream, under_way) = &mut *lock(&self.work);
        match under_way.keep(stream, Kept { buffers: vec![kept], ..Kept::default() }) {
            Ok(_) => Ok(Imported { buffer, offset: 0, copied: bytes.len() }),
            Err(error) => {
                drop(lock(&self.objects).buffers.release(buffer));
                Err(error)
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let uploads = lock(&self.uploads).note.clone();
        uploads.into_iter().chain(self.translator.notes()).collect()
    }

    fn compilations(&self) -> Option<u64> {
        Some(self.translator.made())
    }

    fn free(&self, buffer: BufferId) {
        // Recordings of lists that are gone hold what they used; what is under way holds it until it is done.
        self.forget_gone();
        drop(lock(&self.objects).buffers.release(buffer));
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let found = lock(&self.objects).buffer(buffer)?;
        check::host(buffer, &found.facts, (offset, bytes.len()), true)?;
        self.context.alive()?;
        lock(&self.work).0.upload(&found.memory, offset, bytes)
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        let found = lock(&self.objects).buffer(buffer)?;
        check::host(buffer, &found.facts, (offset, out.len()), false)?;
        self.context.alive()?;
        lock(&self.reads).download(&found.memory, offset, out)
    }

    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError> {
        Ok(lock(&self.objects).add_library(Source { name: name.to_owned(), text: source.to_owned() }))
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        self.context.alive()?;
        let source = lock(&self.objects).library(library, function)?;
        let translation = self.translator.get(&Wanted {
            library: &source.name,
            source: &source.text,
            function,
            constants,
            capability: self.capability,
        })?;
        let named = (&translation.text, &translation.entry);
        let kernel = Kernel::new(&self.context, named, translation.takes).map_err(|error| match error {
            lost @ GpuError::Lost { .. } => lost,
            other => GpuError::compile(function, other.to_string()),
        })?;
        let own = kernel.own_shared()?;
        kernel.allow_shared((self.device.limits.most_threadgroup_memory() as usize).saturating_sub(own))?;
        let facts = check::pipeline(function, (kernel.max_threads()?, 32, own))?;
        let ready = Ready { kernel, early: self.records_early && translation.begins_early(), facts };
        Ok(Pipeline { id: lock(&self.objects).add_pipeline(ready), max_threads: facts.max_threads })
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        lock(&self.objects).pipelines.remove(&pipeline);
    }

    fn drop_library(&self, library: LibraryId) {
        lock(&self.objects).drop_library(library);
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        self.context.alive()?;
        let label = fault::label(commands);
        let (stream, under_way) = &mut *lock(&self.work);
        under_way.sweep();
        let start = Event::after(stream)?;
        let known = lock(&self.replays).find(commands);
        let kept = match known {
            Some(recorded) => {
                stream.replay(&recorded.replay).map_err(|error| named(error, &label))?;
                Kept { recorded: Some(recorded), ..Kept::default() }
            }
            None => self.run_once(stream, commands)?,
        };
        let end = under_way.keep(stream, kept)?;
        Ok(Box::new(Running { label, start, end }))
    }

    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        timed::submit(self, commands)
    }
}

impl Cuda {
    /// New memory, with whatever is in it. Where there is none, what work under way holds may be all that is in the way: it is asked
    /// for once more when that has ended.
    fn memory(&self, bytes: usize) -> Result<Memory, GpuError> {
        self.forget_gone();
        memory::asked_twice(
            || Memory::new(&self.context, bytes),
            || {
                let (stream, under_way) = &mut *lock(&self.work);
                under_way.finish(stream)
            },
        )
    }

    /// Lets go of what was recorded of lists that are gone, and of what work that is done used.
    fn forget_gone(&self) {
        lock(&self.work).1.sweep();
        lock(&self.replays).forget_gone();
        lock(&self.timed).forget_gone();
    }

    /// Runs a list by its launches, and records it where it was seen before.
    fn run_once(&self, stream: &Stream, commands: &CommandList) -> Result<Kept, GpuError> {
        let (kept, work) = self.resolve(commands)?;
        if !lock(&self.replays).seen(commands) {
            hand_over(stream, self.blas.as_ref(), &kept, &work, &[])?;
            return Ok(kept);
        }
        let replay = stream.record(|| hand_over(stream, self.blas.as_ref(), &kept, &work, &[]))?;
        let recorded = Arc::new(Recorded { replay, marks: Vec::new(), kept });
        stream.replay(&recorded.replay)?;
        lock(&self.replays).keep(commands, recorded.clone());
        Ok(Kept { recorded: Some(recorded), ..Kept::default() })
    }
}
