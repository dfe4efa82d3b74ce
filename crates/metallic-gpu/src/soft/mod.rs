//! The software device: the very kernels that ship, run on the processor by softmetal.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use metallic_core::{Bytes, DeviceInfo};
use softmetal::{Compiler, Device, Flavour, Kind, Library, Source};

use crate::command::{Command, CommandList, Dispatch};
use crate::driver::progress::{Progress, Running, Timed, Times};
use crate::error::GpuError;
use crate::gpu::{
    AppleKernels, BufferId, Gpu, Imported, LibraryId, Limits, MatrixUnits, Pipeline, PipelineId, Storage,
    Submission,
};
use crate::kernels::Constants;
use crate::lock;
use crate::objects::Objects;
use crate::tuning::built_in;

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
    /// Plans as for a GPU with such matrix units: to run the kernels that are made for them.
    pub matrix_units: Option<MatrixUnits>,
    /// Plans as for a device with a library that makes products, which kernels stand for here.
    pub library: bool,
    /// Plans as for a GPU that has the tensor operations of Metal 4.
    pub tensor_ops: bool,
    /// Plans as for a system with Apple's libraries of kernels, which kernels of ours stand for here.
    pub apple: AppleKernels,
}

metallic_core::setters!(SoftOptions {
    threads: usize,
    checked: bool,
    seed: u64,
    time_limit: impl Into<Option<Duration>>,
    matrix_units: impl Into<Option<MatrixUnits>>,
    library: bool,
    tensor_ops: bool,
    apple: AppleKernels,
});

/// Threads of threadgroups of which two have the memory of a core.
const SHARING_THREADS: u32 = 256;

/// A Metal device in software. Work runs on a thread of its own, in the order it is handed over.
#[derive(Debug)]
pub struct Soft {
    info: DeviceInfo,
    limits: Limits,
    compiler: Compiler,
    options: SoftOptions,
    objects: Mutex<Objects<softmetal::Buffer, Library, softmetal::Pipeline>>,
    /// `None` only while dropping.
    jobs: Option<Mutex<Sender<Job>>>,
    worker: Option<JoinHandle<()>>,
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
            limits: Limits {
                // Threadgroups of matrix units share a core's memory, which is more than one of them can have here.
                max_threads: options.matrix_units.map_or(softmetal::device::MAX_THREADS, |_| SHARING_THREADS),
                max_groups: [u32::MAX; 3],
                simd_width: 32,
                // A thread on a processor costs as much as a hundred multiplications, so a few for each worker.
                busy_simdgroups: 16 * threads as u32,
                threadgroup_memory: 32 << 10,
                max_buffer: isize::MAX as usize,
                budget: None,
                depth: 2,
                matrix_units: options.matrix_units,
                library: options.library,
                apple: options.apple,
                tuning: built_in("soft", &name, options.matrix_units.map_or(0, |units| units.cores)).0,
                tensor_ops: options.tensor_ops,
            },
            info: DeviceInfo { kind: "soft", name, units: threads, memory_bytes: None },
            compiler,
            options,
            objects: Mutex::default(),
            jobs: Some(Mutex::new(jobs)),
            worker: Some(worker),
        })
    }

    /// What compiles the kernels: version and path of clang.
    pub fn compiler(&self) -> String {
        let toolchain = self.compiler.toolchain();
        format!("{} ({})", toolchain.version, toolchain.clang.display())
    }

    fn buffer(&self, id: BufferId) -> Result<Arc<softmetal::Buffer>, GpuError> {
        lock(&self.objects).buffer(id)
    }

    /// What runs a command, with everything it uses, which stays until it is done.
    fn resolved(&self, command: &Command) -> Result<Work, GpuError> {
        Ok(match *command {
            Command::Dispatch(dispatch)
            | Command::Gemm { dispatch, .. }
            | Command::Graph { dispatch, .. } => {
                let pipeline = lock(&self.objects).pipelines.get(&dispatch.pipeline).cloned();
                let gone = || GpuError::execution(dispatch.name(), "its pipeline was given back");
                let bound = dispatch.bindings().map(|(_, b)| self.buffer(b.region.buffer()));
                let buffers = bound.collect::<Result<Vec<_>, _>>()?;
                let pipeline = pipeline.ok_or_else(gone)?;
                Box::new(move |runner| runner.dispatch(&dispatch, &pipeline, &buffers))
            }
            Command::Copy { from, to } => {
                let (source, target) = (self.buffer(from.buffer())?, self.buffer(to.buffer())?);
                let copy = move || source.copy_to(from.offset(), &target, to.offset(), from.len());
                Box::new(move |_| copy().map_err(|e| memory(&e)))
            }
            Command::Fill { to, value } => {
                let target = self.buffer(to.buffer())?;
                Box::new(move |_| target.write(to.offset(), &vec![value; to.len()]).map_err(|e| memory(&e)))
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

type Work = Box<dyn FnOnce(&Runner) -> Result<(), GpuError> + Send>;

/// The commands of a submission with their places in the list, in the order they run; the first that could not be resolved is the last.
struct Job {
    commands: Vec<(usize, Result<Work, GpuError>)>,
    progress: Arc<Progress>,
    /// How long each takes, by its place in the list, where that is wanted.
    times: Option<Arc<Times>>,
    /// When it began and ended, in seconds, once it has run.
    result: Option<Result<(f64, f64), GpuError>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        let broken = || Err(GpuError::execution("soft", "its thread broke off"));
        self.progress.finish(0, self.result.take().unwrap_or_else(broken));
    }
}

struct Runner {
    device: Device,
    options: SoftOptions,
}

impl Runner {
    fn serve(&self, inbox: &Receiver<Job>) {
        for mut job in inbox {
            let start = Instant::now();
            let times = job.times.clone();
            let result = job.commands.drain(..).try_for_each(|(index, command)| {
                let begun = Instant::now();
                command?(self)?;
                if let Some(times) = &times {
                    times.add(index, begun.elapsed());
                }
                Ok(())
            });
            // From any moment on that is not 0, which would mean that none is known.
            job.result = Some(result.map(|()| (1.0, 1.0 + start.elapsed().as_secs_f64())));
        }
    }

    fn dispatch(
        &self,
        dispatch: &Dispatch,
        pipeline: &softmetal::Pipeline,
        buffers: &[Arc<softmetal::Buffer>],
    ) -> Result<(), GpuError> {
        let launch = &dispatch.launch;
        let run = || -> softmetal::Result<softmetal::Outcome> {
            let mut call = self
                .device
                .dispatch_of(pipeline)
                .value(0, launch.params.as_bytes())
                .threadgroups(launch.groups, launch.threads)
                .seed(self.options.seed);
            for ((index, binding), buffer) in dispatch.bindings().zip(buffers) {
                let region = binding.region;
                call = call.bind(index, buffer, region.offset()..region.offset() + region.len());
            }
            if let Some(limit) = self.options.time_limit {
                call = call.time_limit(limit);
            }
            if launch.threadgroup_bytes > 0 {
                call = call.threadgroup_memory(0, launch.threadgroup_bytes);
            }
            call.run()
        };
        let outcome = run().map_err(|e| GpuError::execution(dispatch.name(), e.to_string()))?;
        match outcome.reports.first() {
            Some(report) if report.kind == Kind::TimeLimit => {
                Err(GpuError::Timeout { after: outcome.elapsed })
            }
            Some(report) => Err(GpuError::execution(dispatch.name(), report.to_string())),
            None => Ok(()),
        }
    }
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
    GpuError::execution("memory", error.to_string())
}

impl Gpu for Soft {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn system(&self) -> String {
        self.compiler.toolchain().version.clone()
    }

    fn allocate(&self, bytes: usize, _: Storage) -> Result<BufferId, GpuError> {
        let buffer = softmetal::Buffer::new(bytes);
        let buffer = buffer.map_err(|_| GpuError::no_room("a buffer", bytes, None))?;
        Ok(lock(&self.objects).add_buffer(buffer, None))
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        let shared = softmetal::Buffer::from_owner(Arc::new(Owner(bytes.clone())));
        Ok(Imported { buffer: lock(&self.objects).add_buffer(shared, None), offset: 0, copied: 0 })
    }

    fn free(&self, buffer: BufferId) {
        lock(&self.objects).buffers.release(buffer);
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.buffer(buffer)?.write(offset, bytes).map_err(|e| memory(&e))
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        self.buffer(buffer)?.read(offset, out).map_err(|e| memory(&e))
    }

    fn compilations(&self) -> Option<u64> {
        Some(self.compiler.toolchain().runs())
    }

    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError> {
        let library = self.compiler.compile(&Source::new(name, source));
        let library = library.map_err(|e| GpuError::compile(name, e.to_string()))?;
        Ok(lock(&self.objects).add_library(library))
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        let fails = |e: softmetal::Error| GpuError::compile(function, e.to_string());
        let library = lock(&self.objects).library(library, function)?;
        let mut ready = softmetal::Pipeline::new(&library, function).map_err(fails)?;
        for (index, value) in constants.values() {
            ready = ready.constant(index as u32, value).map_err(fails)?;
        }
        let max_threads = ready.kernel().max_threads.unwrap_or(softmetal::device::MAX_THREADS);
        Ok(Pipeline { id: lock(&self.objects).add_pipeline(ready), max_threads })
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        lock(&self.objects).pipelines.remove(&pipeline);
    }

    fn drop_library(&self, library: LibraryId) {
        lock(&self.objects).drop_library(library);
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        Ok(Box::new(self.start(commands, None)?))
    }

    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        let times = Times::of(commands.len());
        Ok(Box::new(Timed { running: self.start(commands, Some(&times))?, times }))
    }
}

impl Soft {
    fn start(&self, commands: &CommandList, times: Option<&Arc<Times>>) -> Result<Running, GpuError> {
        Running::start(1, |_, progress| {
            let mut first = 0;
            let ordered = commands.groups().zip(1..).flat_map(|(group, number)| {
                let start = first;
                first += group.len();
                let order = order(group.len(), self.options.seed, number).into_iter();
                order.map(move |index| (start + index, &group[index]))
            });
            let commands = ordered.map(|(index, command)| (index, self.resolved(command))).collect();
            let job = Job { commands, progress: progress.clone(), times: times.cloned(), result: None };
            if let Some(jobs) = &self.jobs {
                // A job that nobody takes says so when it is dropped.
                let _ = lock(jobs).send(job);
            }
            Ok(())
        })
    }
}

struct Owner(Bytes);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
