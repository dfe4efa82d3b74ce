//! Dispatching kernels: buffers, sizes, constants, and what came of it.

mod bind;
mod memory;
mod non_finite;
mod pipeline;
mod problem;
mod textures;

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

pub use bind::Scalar;
use bind::{Bindings, Source};
use memory::Memory;
pub use pipeline::{ConstantId, Pipeline};
pub use problem::Problem;
use serde::Serialize;

use crate::{
    check::{CheckOptions, Checker, Grid, Report, Resolver, Symbols},
    diagnostic::Severity,
    error::{Error, Result},
    library::{ArgumentKind, Code, Kernel, Library},
    runtime::{
        self, Buffer, Constants, Crew, Job, Level, Message, Stats,
        abi::{texture_key, texture_of},
    },
    texture::{Sampler, Texture},
};

/// The most threads a threadgroup may have.
pub const MAX_THREADS: u32 = 1024;
/// How long a kernel may run unless [`Dispatch::time_limit`] says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs kernels on the processors of this machine, in this process and with its rights.
///
/// What a kernel is trusted with depends on its flavour. A **checked** kernel that goes wrong is stopped before it touches memory
/// that was not bound to it. A **plain** kernel is compiled code that nothing watches: one that writes past its buffers writes into
/// the host's memory, as a wrong C function would, and that is undefined behaviour although no caller wrote `unsafe`. Run a kernel
/// plain when it is known to be right for the sizes at hand; a device that is to take no kernel on trust says so
/// ([`Device::checked_only`]). Neither flavour is a sandbox: a source that means harm can do it, as any native code can.
#[derive(Debug)]
pub struct Device {
    workers: usize,
    crew: Crew,
    checked_only: bool,
    threadgroup_memory: usize,
}

impl Default for Device {
    fn default() -> Self {
        Self::new()
    }
}

impl Device {
    /// A device that spreads threadgroups over all processors.
    pub fn new() -> Self {
        Self::with_workers(thread::available_parallelism().map_or(1, Into::into))
    }

    /// A device of `workers` host threads.
    pub fn with_workers(workers: usize) -> Self {
        let threadgroup_memory = runtime::THREADGROUP_MEMORY;
        Self { workers: workers.max(1), crew: Crew::default(), checked_only: false, threadgroup_memory }
    }

    /// Refuses kernels of the plain flavour: what runs here is watched, and a mistake in a kernel is a report, never damage to the
    /// host.
    #[must_use]
    pub fn checked_only(mut self) -> Self {
        self.checked_only = true;
        self
    }

    /// Sets the bytes of threadgroup memory that a threadgroup may use, 32 KiB unless set: what every Apple GPU has. More than
    /// 1 MiB, which no GPU has, counts as that.
    #[must_use]
    pub fn threadgroup_memory(mut self, bytes: usize) -> Self {
        self.threadgroup_memory = bytes.min(1 << 20);
        self
    }

    /// Begins a dispatch of a kernel. A library of the checked flavour is checked as it runs.
    pub fn dispatch<'a>(&'a self, library: &'a Library, kernel: &str) -> Result<Dispatch<'a>> {
        let kernel = library.index_of(kernel)?;
        Ok(self.begin(library, kernel, library.code(kernel)?, Constants::default()))
    }

    /// Begins a dispatch of a kernel that was chosen before.
    pub fn dispatch_of<'a>(&'a self, pipeline: &'a Pipeline) -> Dispatch<'a> {
        self.begin(&pipeline.library, pipeline.kernel, pipeline.code.clone(), pipeline.constants.clone())
    }

    fn begin<'a>(
        &'a self,
        library: &'a Library,
        kernel: usize,
        code: Code,
        chosen: Constants,
    ) -> Dispatch<'a> {
        Dispatch {
            device: self,
            library,
            kernel,
            code,
            bindings: Bindings::default(),
            threads: [1; 3],
            threadgroup: [1; 3],
            overflow: None,
            chosen,
            constants: Vec::new(),
            seed: 0,
            lockstep: false,
            keep_going: false,
            workers: None,
            time_limit: TIME_LIMIT,
            options: CheckOptions::default(),
        }
    }
}

/// What a dispatch did and what was found in it.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Counts.
    pub stats: Stats,
    /// Mistakes, in the order they were met.
    pub reports: Vec<Report>,
    /// What the kernel said through `os_log`, thread by thread.
    pub logs: Vec<Log>,
    /// Time the kernel took.
    pub elapsed: Duration,
}

/// A message of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Log {
    /// How much it weighs.
    pub level: Level,
    /// What it says, its values put in.
    pub text: String,
    /// Position of the thread in its threadgroup.
    pub thread: [u32; 3],
    /// Its threadgroup.
    pub threadgroup: [u32; 3],
}

impl Outcome {
    /// Nothing was reported.
    pub fn is_clean(&self) -> bool {
        self.reports.is_empty()
    }

    /// The reports of severity error.
    pub fn errors(&self) -> impl Iterator<Item = &Report> {
        self.reports.iter().filter(|r| r.severity == Severity::Error)
    }
}

/// A dispatch in the making. Buffers are borrowed until it has run.
#[derive(Debug)]
#[must_use = "a dispatch does nothing until `run`"]
pub struct Dispatch<'a> {
    device: &'a Device,
    library: &'a Library,
    kernel: usize,
    code: Code,
    bindings: Bindings<'a>,
    threads: [u32; 3],
    threadgroup: [u32; 3],
    /// Threadgroups that have more threads on an axis than can be counted.
    overflow: Option<[u32; 3]>,
    /// Constants of the pipeline, and those set for this dispatch alone.
    chosen: Constants,
    constants: Vec<(ConstantId, Vec<u8>)>,
    seed: u64,
    lockstep: bool,
    keep_going: bool,
    workers: Option<usize>,
    time_limit: Duration,
    options: CheckOptions,
}

impl<'a> Dispatch<'a> {
    /// Binds bytes the kernel only reads.
    pub fn buffer(self, index: u32, bytes: &'a [u8]) -> Self {
        self.buffer_at(index, bytes, 0)
    }

    /// Binds bytes the kernel only reads, from `offset` on.
    pub fn buffer_at(mut self, index: u32, bytes: &'a [u8], offset: usize) -> Self {
        self.bindings.buffers.insert(index, Source::Input { bytes, offset });
        self
    }

    /// Binds bytes the kernel may write.
    pub fn buffer_mut(self, index: u32, bytes: &'a mut [u8]) -> Self {
        self.buffer_mut_at(index, bytes, 0)
    }

    /// Binds bytes the kernel may write, from `offset` on.
    pub fn buffer_mut_at(mut self, index: u32, bytes: &'a mut [u8], offset: usize) -> Self {
        self.bindings.buffers.insert(index, Source::Output { bytes, offset });
        self
    }

    /// Binds a part of a shared buffer, which is all of it that the kernel may touch. The same buffer may be bound several
    /// times, also where the parts overlap. Whether the kernel may write is for its argument to say.
    pub fn bind(mut self, index: u32, buffer: &'a Buffer, range: Range<usize>) -> Self {
        self.bindings.buffers.insert(index, Source::Shared { buffer, range });
        self
    }

    /// Binds the memory of buffer `of` once more, from `offset` of it on.
    pub fn alias(mut self, index: u32, of: u32, offset: usize) -> Self {
        self.bindings.buffers.insert(index, Source::Alias { of, offset });
        self
    }

    /// Binds a copy of a number or of bytes, as `setBytes` does.
    pub fn value(mut self, index: u32, value: impl Scalar) -> Self {
        self.bindings.buffers.insert(index, Source::Owned(value.to_bytes()));
        self
    }

    /// Binds a `visible_function_table` of these functions, which the source marks `[[visible]]`.
    pub fn functions(mut self, index: u32, names: &[&str]) -> Result<Self> {
        let known = self.code.image.functions();
        let mut bytes = (names.len() as u64).to_ne_bytes().to_vec();
        for name in names {
            let Some((_, address)) = known.iter().find(|(known, _)| known == name) else {
                let kernel = self.library.kernels()[self.kernel].name.clone();
                let known = known.iter().map(|(name, _)| name.clone()).collect();
                let problem = Problem::NoFunction { name: (*name).to_owned(), known };
                return Err(Error::Dispatch { kernel, problem });
            };
            bytes.extend((*address as u64).to_ne_bytes());
        }
        self.bindings.buffers.insert(index, Source::Owned(bytes));
        Ok(self)
    }

    /// Binds a texture, which may be bound several times.
    pub fn texture(mut self, index: u32, texture: &'a Texture) -> Self {
        let source = Source::Shared { buffer: texture.buffer(), range: texture.range() };
        self.bindings.buffers.insert(texture_key(index), source);
        self.bindings.textures.insert(index, texture);
        self
    }

    /// Binds a sampler.
    pub fn sampler(mut self, index: u32, sampler: Sampler) -> Self {
        self.bindings.samplers.insert(index, sampler);
        self
    }

    /// Sets the length of a `[[threadgroup(index)]]` argument.
    pub fn threadgroup_memory(mut self, index: u32, bytes: u32) -> Self {
        self.bindings.threadgroup.insert(index, bytes);
        self
    }

    /// Sets a function constant; those not set are undefined.
    pub fn constant(mut self, id: impl Into<ConstantId>, value: impl Scalar) -> Self {
        self.constants.push((id.into(), value.to_bytes()));
        self
    }

    /// Dispatches `threads`, in threadgroups of at most `threadgroup` threads per axis.
    pub fn threads(mut self, threads: [u32; 3], threadgroup: [u32; 3]) -> Self {
        (self.threads, self.threadgroup, self.overflow) = (threads, threadgroup, None);
        self
    }

    /// Dispatches `groups` whole threadgroups.
    pub fn threadgroups(mut self, groups: [u32; 3], threadgroup: [u32; 3]) -> Self {
        let threads = [0, 1, 2].map(|a| groups[a].checked_mul(threadgroup[a]));
        self.overflow = threads.contains(&None).then_some(groups);
        (self.threads, self.threadgroup) = (threads.map(|t| t.unwrap_or(1)), threadgroup);
        self
    }

    /// Zero runs everything in order; any other seed gives one random schedule, always the same. A seeded dispatch runs on
    /// one host thread unless `workers` says otherwise, so that atomics are repeatable too.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the lanes of a simdgroup together, from one access to the next, as GPUs of today do. A kernel whose results are right
    /// so and wrong with other schedules lacks barriers within simdgroups; one that is wrong here too is broken in another way.
    /// Needs a library of the checked flavour, where accesses are seen.
    pub fn lockstep(mut self) -> Self {
        self.lockstep = true;
        self
    }

    /// Lets a crash end the thread it happens in, and not the dispatch: the others may have more to show.
    pub fn keep_going(mut self) -> Self {
        self.keep_going = true;
        self
    }

    /// Host threads to spread threadgroups over. Checked kernels always take one.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// After this long (60 s unless set) the kernel is stopped and reported.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// What to check, for libraries of the checked flavour.
    pub fn checks(mut self, options: CheckOptions) -> Self {
        self.options = options;
        self
    }

    /// Runs the kernel. Mistakes of the kernel are reports, not errors; an error means that it could not be run.
    ///
    /// A kernel of the plain flavour must be right for what is bound here: nothing keeps it from the rest of the host's memory
    /// (see [`Device`]).
    pub fn run(self) -> Result<Outcome> {
        let kernel = &self.library.kernels()[self.kernel];
        self.try_run(kernel).map_err(|problem| Error::Dispatch { kernel: kernel.name.clone(), problem })
    }

    fn try_run(mut self, kernel: &Kernel) -> Result<Outcome, Problem> {
        let image = &*self.code.image.clone();
        if self.device.checked_only && !image.checked() {
            return Err(Problem::Unchecked);
        }
        if self.lockstep && !image.checked() {
            return Err(Problem::Lockstep);
        }
        let groups = self.check_sizes(kernel)?;
        let constants = pipeline::resolve(&self.chosen, &self.constants, self.library.constants())?;
        let unfit = self.bindings.verify(kernel, self.library.name(), self.device.threadgroup_memory)?;
        if !unfit.is_empty() {
            return Ok(Outcome { reports: unfit, ..Outcome::default() });
        }
        let mut holds = self.bindings.hold(kernel);
        let memory = Memory::of(&mut self.bindings, &holds, kernel, image.checked())?;
        let workers = self.workers.unwrap_or(if self.seed == 0 { self.device.workers } else { 1 });
        let job = Job {
            image,
            kernel: self.code.entry,
            threads: self.threads,
            threadgroup: self.threadgroup,
            groups,
            buffers: memory.pointers(),
            threadgroup_memory: self.bindings.threadgroup_lengths(),
            threadgroup_limit: self.device.threadgroup_memory,
            textures: memory.textures(&self.bindings, kernel),
            samplers: self.bindings.sampler_slots(),
            constants,
            seed: self.seed,
            lockstep: self.lockstep,
            keep_going: self.keep_going,
            workers,
            time_limit: self.time_limit,
        };
        let mut checker = image.checked().then(|| {
            job.image.set_constants(&job.constants);
            let span = image.span();
            let library = span.segments.into_iter().chain([span.tls]).collect();
            let mut checker = Checker::new(self.options, image.base, library, groups);
            memory.regions().into_iter().for_each(|r| checker.buffer(r));
            checker
        });
        let start = Instant::now();
        let finished = runtime::run(&job, checker.as_mut(), &self.device.crew);
        let elapsed = start.elapsed();
        let mut found = checker.as_mut().map(Checker::take_findings).unwrap_or_default();
        if let Some(checker) = &checker
            && self.options.non_finite
        {
            found.extend(memory.non_finite(kernel, checker, &image.types[self.code.entry]));
        }
        let (mut reports, grid) = (Vec::new(), Grid { threads: self.threads, threadgroup: self.threadgroup });
        if !found.is_empty() || !finished.events.is_empty() {
            let mut resolver = Resolver {
                symbols: Symbols::new(image.path(), self.library.name()),
                base: image.base,
                kernel: &kernel.name,
                grid,
                unbound: self.bindings.unbound(kernel),
                divergence: self.options.divergence,
            };
            reports.extend(found.into_iter().map(|f| resolver.finding(f)));
            reports.extend(finished.events.into_iter().filter_map(|(e, who)| resolver.event(e, who)));
            distinct(&mut reports, self.options.max_reports);
        }
        memory.give_back(&mut self.bindings, &mut holds, kernel);
        let logs = finished.messages.into_iter().map(|(Message { level, text }, who)| Log {
            level,
            text,
            thread: grid.position(who),
            threadgroup: who.group,
        });
        Ok(Outcome { stats: finished.stats, reports, logs: logs.collect(), elapsed })
    }

    /// The grid in threadgroups.
    fn check_sizes(&self, kernel: &Kernel) -> Result<[u32; 3], Problem> {
        if let Some(groups) = self.overflow {
            return Err(Problem::TooManyOnAxis { groups, threadgroup: self.threadgroup });
        }
        if self.threads.contains(&0) || self.threadgroup.contains(&0) {
            return Err(Problem::Empty { threads: self.threads, threadgroup: self.threadgroup });
        }
        let most = kernel.max_threads.unwrap_or(MAX_THREADS).min(MAX_THREADS);
        let size = self.threadgroup.iter().map(|&n| u64::from(n)).product::<u64>();
        if size > u64::from(most) {
            return Err(Problem::TooManyThreads { threadgroup: self.threadgroup, most });
        }
        let groups: [u32; 3] = [0, 1, 2].map(|a| self.threads[a].div_ceil(self.threadgroup[a]));
        if groups.iter().try_fold(1_u32, |n, &g| n.checked_mul(g)).is_none_or(|n| n == u32::MAX) {
            return Err(Problem::TooManyThreadgroups { groups });
        }
        Ok(groups)
    }
}

/// One report per kind and pair of places: a loop meets the same barrier many times.
fn distinct(reports: &mut Vec<Report>, most: usize) {
    let mut seen = std::collections::HashSet::new();
    reports.retain(|r| seen.insert((r.kind, r.at.clone(), r.other.clone())));
    reports.truncate(most.max(1));
}

/// Whether any parameter at `index` lets the kernel write.
fn writes(kernel: &Kernel, index: u32) -> bool {
    match texture_of(index) {
        Some(slot) => textures::arguments_of(kernel, slot).any(|(_, texture)| texture.writes()),
        None => kernel.arguments.iter().any(|a| a.kind == ArgumentKind::Buffer(index) && a.writes()),
    }
}

impl crate::library::Argument {
    /// A pointer or a reference, so that the kernel sees the buffer itself, to what is not const.
    pub fn writes(&self) -> bool {
        !self.read_only && (self.pointer || self.reference)
    }
}
