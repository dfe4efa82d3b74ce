//! A testing aid: a device that fails on demand and counts what it holds.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metallic_core::{Bytes, DeviceInfo};

use crate::command::{CommandList, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
use crate::kernels::{Call, Constants};
use crate::lock;
use crate::pipelines::LibraryMetrics;

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `allocate` finds no memory.
    Allocate,
    /// `import` finds no memory.
    Import,
    /// `library` does not compile.
    Library,
    /// `pipeline` does not compile.
    Pipeline,
    /// `prepare` does not get ready what a library does.
    Call,
    /// `submit` is refused.
    Submit,
    /// The work breaks off: `wait` says so. What it was to write stays unwritten.
    Execute,
    /// The work is late: its first `wait` times out, then it has finished.
    Wait,
    /// The work never finishes: every `wait` for it times out.
    Hang,
}

/// What a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Buffers that were not freed.
    pub buffers: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Libraries that were not dropped.
    pub libraries: usize,
    /// Pipelines that were not dropped.
    pub pipelines: usize,
    /// Submissions somebody still holds.
    pub submissions: usize,
    /// Things given back that were not there: freed twice, or never made.
    pub strays: usize,
}

/// A [`Gpu`] over another one. It fails by plan and counts what it holds, for tests of everything above a driver.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Gpu>,
    state: Mutex<State>,
    submissions: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<Fault, u64>,
    /// Calls that fail, by their number.
    plan: HashSet<(Fault, u64)>,
    /// Faults of which every call fails.
    always: HashSet<Fault>,
    refused: HashSet<String>,
    /// Buffers with their bytes and how often each was handed out: imports may share one.
    buffers: HashMap<BufferId, (usize, usize)>,
    libraries: HashSet<LibraryId>,
    pipelines: HashSet<PipelineId>,
    strays: usize,
    narrow: Option<u32>,
    /// Command buffers that each submission says it is, where it is not for the device to say.
    cut: Option<u64>,
    labels: Vec<&'static str>,
    distortion: Option<Distortion>,
}

/// What is made wrong of dispatches.
#[derive(Clone, Debug, PartialEq)]
pub struct Distortion {
    /// Of which: an operation, or how the names of kernels begin.
    pub of: String,
    /// Which of them in a submission, from 0; `None`: all.
    pub nth: Option<usize>,
    /// Every number of the result is multiplied by it.
    pub factor: f32,
}

impl Faulty {
    /// A device that fails nowhere yet.
    pub fn new(inner: Arc<dyn Gpu>) -> Faulty {
        Faulty { inner, state: Mutex::default(), submissions: Arc::default() }
    }

    /// Makes the `nth` call from now on fail; 1 is the next.
    pub fn fail(&self, fault: Fault, nth: u64) {
        let mut state = lock(&self.state);
        let at = state.calls.get(&fault).copied().unwrap_or(0) + nth;
        state.plan.insert((fault, at));
    }

    /// Makes every call fail until [`Faulty::heal`].
    pub fn fail_always(&self, fault: Fault) {
        lock(&self.state).always.insert(fault);
    }

    /// Makes the library of this name not compile until [`Faulty::heal`].
    pub fn refuse(&self, library: &str) {
        lock(&self.state).refused.insert(library.to_owned());
    }

    /// Leaves every pipeline that is made from now on so many threads at most, as a compiler does that is short of
    /// registers.
    pub fn narrow(&self, threads: u32) {
        lock(&self.state).narrow = Some(threads);
    }

    /// Lets every submission from now on say that it is so many command buffers, as a driver does that cuts long lists.
    pub fn cut(&self, command_buffers: u64) {
        lock(&self.state).cut = Some(command_buffers);
    }

    /// Makes results of dispatches wrong from now on, or right again: it then waits for each of them, and changes what it has written.
    pub fn distort(&self, distortion: Option<Distortion>) {
        lock(&self.state).distortion = distortion;
    }

    /// The operations of the last submission's dispatches, in order.
    pub fn labels(&self) -> Vec<&'static str> {
        lock(&self.state).labels.clone()
    }

    /// Forgets all plans.
    pub fn heal(&self) {
        let mut state = lock(&self.state);
        state.plan.clear();
        state.always.clear();
        state.refused.clear();
    }

    /// What is held now.
    pub fn counts(&self) -> Counts {
        let state = lock(&self.state);
        Counts {
            buffers: state.buffers.len(),
            bytes: state.buffers.values().map(|(bytes, _)| bytes).sum(),
            libraries: state.libraries.len(),
            pipelines: state.pipelines.len(),
            submissions: self.submissions.load(Ordering::Relaxed),
            strays: state.strays,
        }
    }

    /// How often this was called, failures included. [`Fault::Execute`], [`Fault::Wait`] and
    /// [`Fault::Hang`] count submissions: each has one fate.
    pub fn calls(&self, fault: Fault) -> u64 {
        lock(&self.state).calls.get(&fault).copied().unwrap_or(0)
    }

    /// Counts a call and says whether it is to fail.
    fn fails(&self, fault: Fault) -> bool {
        let mut state = lock(&self.state);
        let call = state.calls.entry(fault).or_default();
        *call += 1;
        let call = *call;
        state.plan.remove(&(fault, call)) || state.always.contains(&fault)
    }
}

/// What everything that fails by plan says.
const INJECTED: &str = "injected failure";

impl Gpu for Faulty {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn system(&self) -> String {
        self.inner.system()
    }

    fn notes(&self) -> Vec<String> {
        self.inner.notes()
    }

    fn compilations(&self) -> Option<u64> {
        self.inner.compilations()
    }

    fn allocate(&self, bytes: usize, storage: Storage) -> Result<BufferId, GpuError> {
        if self.fails(Fault::Allocate) {
            return Err(GpuError::no_room("a buffer (injected failure)", bytes, None));
        }
        let id = self.inner.allocate(bytes, storage)?;
        lock(&self.state).buffers.insert(id, (bytes, 1));
        Ok(id)
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        if self.fails(Fault::Import) {
            return Err(GpuError::no_room("an import (injected failure)", bytes.len(), None));
        }
        let imported = self.inner.import(bytes)?;
        let mut state = lock(&self.state);
        let (held, times) = state.buffers.entry(imported.buffer).or_default();
        *held += bytes.len();
        *times += 1;
        Ok(imported)
    }

    fn free(&self, buffer: BufferId) {
        let mut state = lock(&self.state);
        match state.buffers.get_mut(&buffer) {
            Some((_, times)) if *times > 1 => *times -= 1,
            Some(_) => {
                state.buffers.remove(&buffer);
            }
            None => state.strays += 1,
        }
        drop(state);
        self.inner.free(buffer);
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.inner.write(buffer, offset, bytes)
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        self.inner.read(buffer, offset, out)
    }

    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError> {
        if self.fails(Fault::Library) || lock(&self.state).refused.contains(name) {
            return Err(GpuError::compile(name, INJECTED));
        }
        let id = self.inner.library(name, source)?;
        lock(&self.state).libraries.insert(id);
        Ok(id)
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        if self.fails(Fault::Pipeline) {
            return Err(GpuError::compile(function, INJECTED));
        }
        let mut pipeline = self.inner.pipeline(library, function, constants)?;
        let mut state = lock(&self.state);
        state.pipelines.insert(pipeline.id);
        pipeline.max_threads = pipeline.max_threads.min(state.narrow.unwrap_or(u32::MAX));
        Ok(pipeline)
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        let mut state = lock(&self.state);
        state.strays += usize::from(!state.pipelines.remove(&pipeline));
        drop(state);
        self.inner.drop_pipeline(pipeline);
    }

    fn drop_library(&self, library: LibraryId) {
        let mut state = lock(&self.state);
        state.strays += usize::from(!state.libraries.remove(&library));
        drop(state);
        self.inner.drop_library(library);
    }

    fn prepare(&self, call: &Call) -> Result<(), GpuError> {
        if self.fails(Fault::Call) {
            return Err(GpuError::compile("a library's kernel", INJECTED));
        }
        self.inner.prepare(call)
    }

    fn library_metrics(&self) -> LibraryMetrics {
        self.inner.library_metrics()
    }

    fn library_keys(&self) -> Vec<crate::pipelines::ReadyKey> {
        self.inner.library_keys()
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        self.watched(commands, |inner| inner.submit(commands))
    }

    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        self.watched(commands, |inner| inner.submit_timed(commands))
    }
}

impl Faulty {
    /// Hands commands over as `submit` does, unless they are to fail.
    fn watched(
        &self,
        commands: &CommandList,
        submit: impl FnOnce(&dyn Gpu) -> Result<Box<dyn Submission>, GpuError>,
    ) -> Result<Box<dyn Submission>, GpuError> {
        let labels = commands.commands().iter().filter_map(|command| Some(command.dispatch()?.label));
        lock(&self.state).labels = labels.collect();
        if self.fails(Fault::Submit) {
            return Err(GpuError::execution("submission", INJECTED));
        }
        // Each is counted, whatever the others say.
        let faults = [Fault::Execute, Fault::Hang, Fault::Wait].map(|fault| self.fails(fault));
        let distortion = lock(&self.state).distortion.clone();
        let inner = match (faults, distortion) {
            ([false, false, _], None) => Some(submit(&*self.inner)?),
            ([false, false, _], Some(distortion)) => Some(self.distorted(commands, &distortion)?),
            _ => None,
        };
        self.submissions.fetch_add(1, Ordering::Relaxed);
        let cut = lock(&self.state).cut;
        let held = self.submissions.clone();
        Ok(Box::new(Watched { inner, breaks: faults[0], late: faults[2], cut, held }))
    }
}

impl Faulty {
    /// Runs commands in pieces that end with a result which is then made wrong.
    fn distorted(
        &self,
        commands: &CommandList,
        distortion: &Distortion,
    ) -> Result<Box<dyn Submission>, GpuError> {
        let Distortion { of, nth, factor } = distortion;
        let (mut piece, mut seen, mut last) = (CommandList::new(), 0, None);
        for command in commands.commands() {
            piece.push(*command);
            let named = |d: &&Dispatch| d.label == of || d.launch.kernel.function.starts_with(&**of);
            let Some(dispatch) = command.dispatch().filter(named) else { continue };
            seen += 1;
            if nth.is_some_and(|nth| nth + 1 != seen) {
                continue;
            }
            let mut submission = self.inner.submit(&piece)?;
            submission.wait(DISTORTED)?;
            let written = dispatch.bindings().find(|(_, binding)| binding.access.writes());
            if let Some((_, binding)) = written {
                self.scale(binding.region, *factor)?;
            }
            (piece, last) = (CommandList::new(), Some(submission));
        }
        match last {
            Some(done) if piece.is_empty() => Ok(done),
            _ => self.inner.submit(&piece),
        }
    }

    fn scale(&self, region: Region, factor: f32) -> Result<(), GpuError> {
        let mut bytes = vec![0; region.len()];
        self.inner.read(region.buffer(), region.offset(), &mut bytes)?;
        for number in bytes.as_chunks_mut::<4>().0 {
            *number = (f32::from_ne_bytes(*number) * factor).to_ne_bytes();
        }
        self.inner.write(region.buffer(), region.offset(), &bytes)
    }
}

/// How long a piece may take that is to be made wrong.
const DISTORTED: Duration = Duration::from_secs(600);

struct Watched {
    /// `None` where the work is not given to the device.
    inner: Option<Box<dyn Submission>>,
    /// It then breaks off, or else hangs.
    breaks: bool,
    /// Has not been waited for yet, and is not done before it was.
    late: bool,
    /// Command buffers it says it is.
    cut: Option<u64>,
    held: Arc<AtomicUsize>,
}

impl Submission for Watched {
    fn command_buffers(&self) -> u64 {
        self.cut.unwrap_or_else(|| self.inner.as_ref().map_or(1, |inner| inner.command_buffers()))
    }

    fn poll(&mut self) -> bool {
        self.inner.as_mut().map_or(self.breaks, |inner| !self.late && inner.poll())
    }

    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError> {
        match &mut self.inner {
            _ if std::mem::take(&mut self.late) => Err(GpuError::Timeout { after: bound }),
            Some(inner) => inner.wait(bound),
            None if self.breaks => Err(GpuError::execution("submission", INJECTED)),
            None => Err(GpuError::Timeout { after: bound }),
        }
    }

    fn times(&mut self) -> Result<Vec<Duration>, GpuError> {
        self.inner.as_mut().map_or_else(|| Ok(Vec::new()), |inner| inner.times())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}
