//! The software device: the very kernels that ship, run on the processor by softmetal.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use metallic_core::{Bytes, DeviceInfo};
use softmetal::{Compiler, Device, Flavour, Kind, Library, Source};

use crate::command::{Command, CommandList, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
use crate::kernels::Constants;

/// How the software device runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftOptions {
    /// Processor threads; 0: one for each core.
    pub threads: usize,
    /// Watch every access to memory; a mistake is an error of the submission.
    pub checked: bool,
    /// Zero runs everything in order; any other seed gives one random schedule, always the same: of the threads of a
    /// kernel, and of the commands between two barriers of a submission.
    pub seed: u64,
    /// A kernel that runs longer is stopped; `None`: softmetal's own limit.
    pub time_limit: Option<Duration>,
}

metallic_core::setters!(SoftOptions {
    threads: usize,
    checked: bool,
    seed: u64,
    time_limit: impl Into<Option<Duration>>,
});

/// A Metal device in software. Work runs on a thread of its own, in the order it is handed over.
#[derive(Debug)]
pub struct Soft {
    info: DeviceInfo,
    limits: Limits,
    compiler: Compiler,
    options: SoftOptions,
    state: Mutex<State>,
    /// `None` only while dropping.
    jobs: Option<Mutex<Sender<Job>>>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    next: u32,
    buffers: HashMap<BufferId, Arc<softmetal::Buffer>>,
    libraries: HashMap<LibraryId, Arc<Library>>,
    pipelines: HashMap<PipelineId, Arc<softmetal::Pipeline>>,
}

impl State {
    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

impl Soft {
    /// Finds clang and starts the threads.
    pub fn new(options: SoftOptions) -> Result<Soft, GpuError> {
        let flavour = if options.checked { Flavour::Checked } else { Flavour::Plain };
        let compiler = Compiler::new().map_err(|e| GpuError::Missing(e.to_string()))?.flavour(flavour);
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let name = format!("Metal in software, {threads} threads");
        let (jobs, inbox) = channel();
        let runner = Runner { device: Device::with_workers(threads), options };
        let worker = std::thread::Builder::new()
            .name("metallic-soft".to_owned())
            .spawn(move || runner.serve(&inbox))
            .map_err(|e| GpuError::Missing(format!("a thread for the device: {e}")))?;
        Ok(Soft {
            info: DeviceInfo { kind: "soft", name, units: threads, memory_bytes: None },
            limits: Limits {
                max_threads: softmetal::device::MAX_THREADS,
                simd_width: 32,
                // A thread on a processor costs as much as a hundred multiplications, so a few for each worker.
                busy_simdgroups: 16 * threads as u32,
                threadgroup_memory: 32 << 10,
                max_buffer: isize::MAX as usize,
                budget: None,
                depth: 2,
            },
            compiler,
            options,
            state: Mutex::default(),
            jobs: Some(Mutex::new(jobs)),
            worker: Some(worker),
        })
    }

    /// What compiles the kernels: version and path of clang.
    pub fn compiler(&self) -> String {
        let toolchain = self.compiler.toolchain();
        format!("{} ({})", toolchain.version, toolchain.clang.display())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer(&self, id: BufferId) -> Result<Arc<softmetal::Buffer>, GpuError> {
        self.state().buffers.get(&id).cloned().ok_or_else(|| GpuError::Execution {
            label: format!("buffer {}", id.0),
            reason: "it was given back".to_owned(),
        })
    }

    /// A command with everything it uses, which stays until it is done.
    fn resolved(&self, command: &Command) -> Result<Resolved, GpuError> {
        Ok(match command {
            Command::Dispatch(dispatch) => {
                let pipeline = self.state().pipelines.get(&dispatch.pipeline).cloned();
                let gone = || failed(dispatch, "its pipeline was given back".to_owned());
                let bound = dispatch.bindings().map(|(_, b)| self.buffer(b.region.buffer()));
                let buffers = bound.collect::<Result<_, _>>()?;
                Resolved::Dispatch { dispatch: *dispatch, pipeline: pipeline.ok_or_else(gone)?, buffers }
            }
            Command::Copy { from, to } => {
                let buffers = [self.buffer(from.buffer())?, self.buffer(to.buffer())?];
                Resolved::Copy { from: *from, to: *to, buffers }
            }
            Command::Fill { to, value } => {
                Resolved::Fill { to: *to, value: *value, buffer: self.buffer(to.buffer())? }
            }
        })
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            // A panic there has ended what was waited for.
            let _ = worker.join();
        }
    }
}

/// A command and what it uses.
#[allow(clippy::large_enum_variant)] // Nearly all are dispatches.
enum Resolved {
    Dispatch { dispatch: Dispatch, pipeline: Arc<softmetal::Pipeline>, buffers: Vec<Arc<softmetal::Buffer>> },
    Copy { from: Region, to: Region, buffers: [Arc<softmetal::Buffer>; 2] },
    Fill { to: Region, value: u8, buffer: Arc<softmetal::Buffer> },
}

/// The commands of a submission, in the order they run; the first that could not be resolved is the last.
struct Job {
    commands: Vec<Result<Resolved, GpuError>>,
    progress: Arc<Progress>,
}

/// How a submission went, once it is done.
#[derive(Default)]
struct Progress {
    result: Mutex<Option<Result<Option<Duration>, GpuError>>>,
    done: Condvar,
}

impl Progress {
    fn result(&self) -> MutexGuard<'_, Option<Result<Option<Duration>, GpuError>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let broken =
            || GpuError::Execution { label: "soft".to_owned(), reason: "its thread broke off".to_owned() };
        self.progress.result().get_or_insert_with(|| Err(broken()));
        self.progress.done.notify_all();
    }
}

/// What runs the kernels.
struct Runner {
    device: Device,
    options: SoftOptions,
}

impl Runner {
    fn serve(&self, inbox: &Receiver<Job>) {
        for mut job in inbox {
            let start = Instant::now();
            let result = job.commands.drain(..).try_for_each(|command| self.execute(&command?));
            *job.progress.result() = Some(result.map(|()| Some(start.elapsed())));
        }
    }

    fn execute(&self, command: &Resolved) -> Result<(), GpuError> {
        match command {
            Resolved::Dispatch { dispatch, pipeline, buffers } => self.dispatch(dispatch, pipeline, buffers),
            Resolved::Copy { from, to, buffers: [source, target] } => {
                source.copy_to(from.offset(), target, to.offset(), from.len()).map_err(|e| memory(&e))
            }
            Resolved::Fill { to, value, buffer } => {
                buffer.write(to.offset(), &vec![*value; to.len()]).map_err(|e| memory(&e))
            }
        }
    }

    fn dispatch(
        &self,
        dispatch: &Dispatch,
        pipeline: &softmetal::Pipeline,
        buffers: &[Arc<softmetal::Buffer>],
    ) -> Result<(), GpuError> {
        let run = || -> softmetal::Result<softmetal::Outcome> {
            let mut call = self
                .device
                .dispatch_of(pipeline)
                .value(0, dispatch.params.as_bytes())
                .threadgroups(dispatch.groups, dispatch.threads)
                .seed(self.options.seed);
            for ((index, binding), buffer) in dispatch.bindings().zip(buffers) {
                let region = binding.region;
                call = call.bind(index, buffer, region.offset()..region.offset() + region.len());
            }
            if let Some(limit) = self.options.time_limit {
                call = call.time_limit(limit);
            }
            if dispatch.threadgroup_bytes > 0 {
                call = call.threadgroup_memory(0, dispatch.threadgroup_bytes);
            }
            call.run()
        };
        let outcome = run().map_err(|e| failed(dispatch, e.to_string()))?;
        match outcome.reports.first() {
            Some(report) if report.kind == Kind::TimeLimit => {
                Err(GpuError::Timeout { after: outcome.elapsed })
            }
            Some(report) => Err(failed(dispatch, report.to_string())),
            None => Ok(()),
        }
    }
}

fn failed(dispatch: &Dispatch, reason: String) -> GpuError {
    GpuError::Execution { label: format!("{} ({})", dispatch.label, dispatch.function), reason }
}

/// An order for the commands of a group: as they stand for seed 0, else shuffled, by the seed and the group's number.
fn order(len: usize, seed: u64, group: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    if seed == 0 {
        return order;
    }
    let mut state = seed ^ group.wrapping_mul(0xA076_1D64_78BD_642F);
    for last in (1..len).rev() {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        order.swap(last, ((bits ^ (bits >> 31)) % (last as u64 + 1)) as usize);
    }
    order
}

fn memory(error: &softmetal::Error) -> GpuError {
    GpuError::Execution { label: "memory".to_owned(), reason: error.to_string() }
}

impl Gpu for Soft {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize, _: Storage) -> Result<BufferId, GpuError> {
        let buffer = softmetal::Buffer::new(bytes).map_err(|_| GpuError::OutOfMemory {
            what: "a buffer",
            needed: bytes,
            budget: None,
        })?;
        let mut state = self.state();
        let id = BufferId(state.id());
        state.buffers.insert(id, Arc::new(buffer));
        Ok(id)
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        let mut state = self.state();
        let id = BufferId(state.id());
        state.buffers.insert(id, Arc::new(softmetal::Buffer::from_owner(Arc::new(Owner(bytes.clone())))));
        Ok(Imported { buffer: id, offset: 0, copied: 0 })
    }

    fn free(&self, buffer: BufferId) {
        self.state().buffers.remove(&buffer);
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.buffer(buffer)?.write(offset, bytes).map_err(|e| memory(&e))
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        self.buffer(buffer)?.read(offset, out).map_err(|e| memory(&e))
    }

    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError> {
        let library = self
            .compiler
            .compile(&Source::new(name, source))
            .map_err(|e| GpuError::Compile { kernel: name.to_owned(), message: e.to_string() })?;
        let mut state = self.state();
        let id = LibraryId(state.id());
        state.libraries.insert(id, Arc::new(library));
        Ok(id)
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        let fails = |message: String| GpuError::Compile { kernel: function.to_owned(), message };
        let mut state = self.state();
        let library = state
            .libraries
            .get(&library)
            .cloned()
            .ok_or_else(|| fails("its library was given back".to_owned()))?;
        let mut ready = softmetal::Pipeline::new(&library, function).map_err(|e| fails(e.to_string()))?;
        for (index, value) in constants.values() {
            ready = ready.constant(index as u32, value).map_err(|e| fails(e.to_string()))?;
        }
        let max_threads = ready.kernel().max_threads.unwrap_or(softmetal::device::MAX_THREADS);
        let id = PipelineId(state.id());
        state.pipelines.insert(id, Arc::new(ready));
        Ok(Pipeline { id, max_threads })
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        self.state().pipelines.remove(&pipeline);
    }

    fn drop_library(&self, library: LibraryId) {
        self.state().libraries.remove(&library);
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        let ordered = commands.groups().zip(1..).flat_map(|(group, number)| {
            order(group.len(), self.options.seed, number).into_iter().map(|index| &group[index])
        });
        let progress = Arc::new(Progress::default());
        let commands = ordered.map(|command| self.resolved(command)).collect();
        let job = Job { commands, progress: progress.clone() };
        if let Some(jobs) = &self.jobs {
            // A job that nobody takes says so when it is dropped.
            let _ = jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job);
        }
        Ok(Box::new(UnderWay(progress)))
    }
}

/// A submission that runs, or has run.
struct UnderWay(Arc<Progress>);

impl Submission for UnderWay {
    fn command_buffers(&self) -> u64 {
        1
    }

    fn poll(&mut self) -> bool {
        self.0.result().is_some()
    }

    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError> {
        let waited = self.0.done.wait_timeout_while(self.0.result(), bound, |result| result.is_none());
        let (result, _) = waited.unwrap_or_else(PoisonError::into_inner);
        result.clone().unwrap_or(Err(GpuError::Timeout { after: bound }))
    }
}

/// Keeps imported bytes alive.
struct Owner(Bytes);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
