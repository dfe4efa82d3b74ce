//! Runs command buffers, each on the thread of its queue.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use softmetal::{ArgumentKind, Kind, Outcome, Severity};

use super::bind::{self, Dispatch, Grid, Pass, PassKind, Slot, Step};
use super::command_buffer::{CommandBuffer, Status};
use super::hazard::{self, Memories};
use super::{counters, reach, sync};
use crate::faults::{self, Fault};
use crate::foundation::{Domain, error};
use crate::lock;
use crate::objc::Id;
use crate::problem::{Rule, note};
use crate::settings::Settings;

/// How long an event is waited for before the GPU's watchdog would end it: longer than the dispatch that it may wait for
/// is let run.
const WATCHDOG: Duration = Duration::from_secs(2 * softmetal::device::TIME_LIMIT.as_secs());

/// Why a command buffer ends early, by the numbers of `MTLCommandBufferError`.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    code: isize,
    text: String,
}

impl Failure {
    fn new(code: isize, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn internal(text: impl Into<String>) -> Failure {
        Failure::new(INTERNAL, text)
    }
}

const INTERNAL: isize = 1;
const TIMEOUT: isize = 2;
const PAGE_FAULT: isize = 3;
const OUT_OF_MEMORY: isize = 8;
const DEVICE_REMOVED: isize = 11;

/// Runs all passes; the command buffer has its outcome afterwards.
pub(crate) fn run(buffer: &CommandBuffer) {
    let passes = std::mem::take(&mut lock(&buffer.state).passes);
    let start = counters::now();
    let all = || fault(buffer).map_or_else(|| passes.iter().try_for_each(|pass| run_pass(buffer, pass)), Err);
    // What a kernel or a rule ends must not end the thread that others wait for.
    let outcome = catch_unwind(AssertUnwindSafe(all))
        .unwrap_or_else(|_| Err(Failure::internal("a rule was broken while it ran; see above")));
    let mut state = lock(&buffer.state);
    state.passes = passes;
    // Before anybody can see that it is done: who does may release what it used, and use it anew.
    buffer.done.store(true, Ordering::Release);
    std::mem::take(&mut state.borrowed).into_iter().for_each(Id::give_back);
    state.gpu = (seconds(start), seconds(counters::now()));
    state.status = Status::Completed;
    if let Err(failure) = outcome {
        state.status = Status::Error;
        state.error = Some(error(Domain::CommandBuffer, failure.code, failure.text));
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

/// The failure that was asked for.
fn fault(buffer: &CommandBuffer) -> Option<Failure> {
    if faults::strikes(Fault::DeviceRemoved) {
        buffer.device.removed.store(true, Ordering::Relaxed);
    }
    if buffer.device.removed.load(Ordering::Relaxed) {
        return Some(Failure::new(DEVICE_REMOVED, "the device was removed (on request)"));
    }
    let kinds = [
        (Fault::Gpu, PAGE_FAULT, "Caused GPU Address Fault Error (on request)"),
        (Fault::Timeout, TIMEOUT, "Caused GPU Timeout Error (on request)"),
        (Fault::OutOfMemory, OUT_OF_MEMORY, "Insufficient Memory (on request)"),
    ];
    let struck = kinds.into_iter().find(|(fault, ..)| faults::strikes(*fault))?;
    Some(Failure::new(struck.1, struck.2))
}

fn run_pass(buffer: &CommandBuffer, pass: &Pass) -> Result<(), Failure> {
    let sample = |place: usize| {
        for sampling in &pass.sampling {
            sampling.samples.note(sampling.places[place]);
        }
    };
    match &pass.kind {
        PassKind::Wait(event, value) => {
            let waited = sync::wait(event.id, *value, WATCHDOG);
            return if waited {
                Ok(())
            } else {
                Err(Failure::new(TIMEOUT, "the event it waits for never came"))
            };
        }
        PassKind::Signal(event, value) => sync::signal(event.id, *value),
        PassKind::Encoder { label, concurrent, steps } => {
            sample(0);
            // What may run together, up to a barrier.
            for group in steps.split(|step| matches!(step, Step::Barrier)) {
                if *concurrent {
                    hazard::run_together(group, label, &|step, on| run_step(buffer, step, on))?;
                } else {
                    let own = Memories::default();
                    group.iter().try_for_each(|step| run_step(buffer, step, &own))?;
                }
            }
            sample(1);
        }
    }
    Ok(())
}

fn run_step(buffer: &CommandBuffer, step: &Step, on: &Memories) -> Result<(), Failure> {
    let memory = |error: softmetal::Error| Failure::internal(error.to_string());
    match step {
        Step::Dispatch(dispatch) => run_dispatch(buffer, dispatch, on)?,
        // It stands in an encoder of its own, so that nothing runs beside it.
        Step::Work(work) => {
            (work.run)().map_err(|error| Failure::internal(format!("{}: {error}", work.name)))?;
        }
        Step::Copy { from, to, len } => {
            let ((source, first), (target, place)) = (on.of(&from.1), on.of(&to.1));
            source.copy_to(first + from.2, target, place + to.2, *len).map_err(memory)?;
        }
        Step::Fill { to, len, value } => {
            let (target, place) = on.of(&to.1);
            target.write(place + to.2, &vec![*value; *len]).map_err(memory)?;
        }
        Step::Sample { samples, index, .. } if on.is_own() => samples.note(*index),
        Step::Sample { .. } | Step::Barrier | Step::UpdateFence(_) | Step::WaitForFence(_) => {}
    }
    Ok(())
}

/// Axes as kernels count them. Larger ones were refused when they were encoded.
fn narrow(axes: [usize; 3]) -> Result<[u32; 3], Failure> {
    let all: Result<Vec<u32>, _> = axes.into_iter().map(u32::try_from).collect();
    all.ok()
        .and_then(|axes| axes.try_into().ok())
        .ok_or_else(|| Failure::internal(format!("{axes:?} is more than 2^32 - 1 on an axis")))
}

/// A texture or a sampler that a kernel takes.
enum Image {
    Texture(softmetal::Texture),
    Sampler(softmetal::Sampler),
}

/// Textures and samplers that the kernel takes, by their index there; textures where `on` has their texels.
fn images(dispatch: &Dispatch, on: &Memories) -> Result<Vec<(u32, Image)>, softmetal::Error> {
    let kernel = dispatch.state.pipeline.kernel();
    let image = |(place, slot): (&u32, &Slot)| match slot {
        Slot::Texture { texture, buffer, .. } => {
            bind::texture_arguments(kernel, *place).next()?;
            let (memory, start) = on.shared(buffer);
            let moved = texture.on(memory, start);
            Some(moved.map(|moved| (*place - bind::texture_slot(0), Image::Texture(moved))))
        }
        Slot::Sampler { sampler, .. } => Some(Ok((*place - bind::sampler_slot(0), Image::Sampler(*sampler)))),
        Slot::Buffer { .. } | Slot::Bytes(_) => None,
    };
    dispatch.slots.iter().filter_map(image).collect()
}

fn run_dispatch(buffer: &CommandBuffer, dispatch: &Dispatch, on: &Memories) -> Result<(), Failure> {
    let pipeline = &dispatch.state.pipeline;
    let fail = |error: softmetal::Error| {
        note(Rule::Kernel, error.to_string());
        Failure::internal(error.to_string())
    };
    if on.is_own() {
        reach::check(dispatch, &buffer.residency_sets());
    }
    let images = images(dispatch, on).map_err(fail)?;
    let threads = narrow(dispatch.threads.axes())?;
    let call = buffer.device.runner().dispatch_of(pipeline).seed(Settings::get().seed);
    let mut call = match &dispatch.grid {
        Grid::Groups(groups) => call.threadgroups(narrow(groups.axes())?, threads),
        Grid::Threads(grid) => call.threads(narrow(grid.axes())?, threads),
        Grid::Indirect { buffer, offset, .. } => {
            let mut bytes = [0; 12];
            let (memory, start) = on.of(buffer);
            memory.read(start + *offset, &mut bytes).map_err(fail)?;
            let word =
                |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let groups = [word(0), word(4), word(8)];
            if groups.contains(&0) {
                return Ok(());
            }
            call.threadgroups(groups, threads)
        }
    };
    for (slot, image) in &images {
        call = match image {
            Image::Texture(texture) => call.texture(*slot, texture),
            Image::Sampler(sampler) => call.sampler(*slot, *sampler),
        };
    }
    for (index, slot) in &dispatch.slots {
        if !pipeline.kernel().arguments.iter().any(|argument| argument.kind == ArgumentKind::Buffer(*index)) {
            continue;
        }
        call = match slot {
            Slot::Texture { .. } | Slot::Sampler { .. } => continue,
            Slot::Bytes(bytes) => call.value(*index, bytes.as_slice()),
            Slot::Buffer { buffer, offset, .. } => {
                let (memory, start) = on.of(buffer);
                call.bind(*index, memory, start + *offset..start + buffer.len())
            }
        };
    }
    for argument in &pipeline.kernel().arguments {
        if let ArgumentKind::Threadgroup(index) = argument.kind
            && let Some(bytes) = dispatch.threadgroup.get(&index)
        {
            call = call.threadgroup_memory(index, *bytes);
        }
    }
    judge(&call.run().map_err(fail)?, on)
}

/// Writes down what a kernel did wrong; fails where a GPU would. A run on copies shows the same warnings once more.
fn judge(outcome: &Outcome, on: &Memories) -> Result<(), Failure> {
    for report in outcome.reports.iter().filter(|report| on.is_own() || report.severity == Severity::Error) {
        note(Rule::Kernel, report.to_string());
    }
    // What a lane gets of one that is not there is undefined: a GPU goes on, and whether it matters is the kernel's to know.
    let failed = outcome.errors().find(|report| report.kind != Kind::AbsentLane);
    let Some(report) = failed else { return Ok(()) };
    let code = if report.kind == Kind::TimeLimit { TIMEOUT } else { PAGE_FAULT };
    Err(Failure::new(code, report.to_string()))
}
