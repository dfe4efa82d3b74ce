//! What this crate tells: models that are loaded, steps, memory.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metallic_core::{
    Backend, CacheUse, DType, OpCost, PoolUse, Program, ProgramMemory, RunStats, Step as Submitted,
};
use metallic_telemetry::tracing::dispatcher::{self, Dispatch};
use metallic_telemetry::tracing::subscriber::NoSubscriber;
use metallic_telemetry::{
    CacheSummary, Event, Fault, Load, Memory, Name, OpTime, Ops, Owned, PoolSummary, SPANS, Step, Warning,
    emit, emit_lasting, is_on, seconds, tracing,
};

use crate::model::Model;

static REQUESTS: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);

/// A number for a request that no other of this process has.
pub(crate) fn next_request() -> u64 {
    REQUESTS.fetch_add(1, Ordering::Relaxed) + 1
}

/// What was loaded, for [`tell_load`]. `loading` is all of loading, `compiling` the program's part of it.
pub fn load_event(model: &Model, backend: &dyn Backend, kv_type: DType, times: [Duration; 2]) -> Load {
    let (config, device) = (model.config(), backend.info());
    let [loading, compiling] = times.map(|time| time.as_secs_f64());
    let name = model.path().file_name().map(|name| name.to_string_lossy().into_owned());
    Load {
        model: name.unwrap_or_else(|| model.path().display().to_string()),
        family: config.architecture.clone().into(),
        layers: config.layers as u32,
        weights: commonest(model).into(),
        device: device.kind.into(),
        device_name: device.name.clone(),
        kv_type: kv_type.name().into(),
        context: config.context as u64,
        seconds: loading,
        compile_seconds: compiling,
        peak_bytes_per_second: None,
    }
}

/// What most bytes of the weights are stored as.
fn commonest(model: &Model) -> &'static str {
    let mut types: Vec<(DType, u64)> = Vec::new();
    for weight in model.graph().weights() {
        let bytes = weight.data.len() as u64;
        match types.iter_mut().find(|(dtype, _)| *dtype == weight.ty.dtype) {
            Some((_, sum)) => *sum += bytes,
            None => types.push((weight.ty.dtype, bytes)),
        }
    }
    types.iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(dtype, _)| dtype.name())
}

/// Tells that a model is loaded, and what it takes.
pub fn tell_load(load: &Load, program: &dyn Program, budget_bytes: Option<u64>) {
    emit_lasting(|| Event::Load(load.clone()));
    emit_lasting(|| Event::Memory(memory(program.memory(), &program.pools(), budget_bytes)));
}

/// Tells where loading a model fails.
pub fn loading<T, E: std::fmt::Display>(path: &Path, load: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let span = tracing::info_span!(target: SPANS, "load", path = %path.display());
    span.in_scope(load).inspect_err(|error| fault("load", error))
}

/// Tells where making a program fails.
pub(crate) fn compiling<T, E: std::fmt::Display>(compile: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let span = tracing::info_span!(target: SPANS, "compile", what = "program");
    span.in_scope(compile).inspect_err(|error| fault("compile", error))
}

/// Tells that something is slower, or other, than was asked for.
pub fn warn(about: &'static str, text: impl FnOnce() -> String) {
    emit_lasting(|| Event::Warning(Warning { about: about.into(), text: text() }));
}

/// Tells that something failed.
pub(crate) fn fault(at: &'static str, error: &dyn std::fmt::Display) {
    emit_lasting(|| Event::Fault(Fault { at: at.into(), error: error.to_string() }));
}

/// Memory by owner.
pub(crate) fn memory(held: ProgramMemory, pools: &[PoolUse], budget_bytes: Option<u64>) -> Memory {
    let ProgramMemory { weights, mapped, arena, kv } = held;
    let owned = |owner: &'static str, bytes: u64| Owned { owner: owner.into(), bytes };
    let mut owners = vec![
        owned("weights", weights as u64),
        owned("mapped", mapped as u64),
        owned("arena", arena as u64),
        owned("kv", kv as u64),
    ];
    if !pools.is_empty() {
        owners.push(owned("pool", pools.iter().map(|pool| pool.idle).sum()));
    }
    let budget = pools.iter().filter_map(|pool| pool.budget).chain(budget_bytes).min();
    Memory { owners, budget_bytes: budget }
}

/// Tells what a cache holds and has done.
pub(crate) fn cache(used: &CacheUse) {
    emit(|| {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        Event::Cache(CacheSummary {
            cache: used.name.into(),
            entries: used.entries as u64,
            limit: used.limit.map(|limit| limit as u64),
            hits: used.hits,
            misses: used.misses,
            evictions: used.evictions,
            make_seconds: used.making.as_secs_f64(),
            oldest_seconds: seconds(used.oldest),
            idle_seconds: seconds(used.idle),
        })
    });
}

/// Tells what a pool of memory holds and has done.
pub(crate) fn pool(used: &PoolUse) {
    emit(|| {
        Event::Pool(PoolSummary {
            pool: used.name.into(),
            live_bytes: used.live,
            idle_bytes: used.idle,
            peak_bytes: used.peak,
            budget_bytes: used.budget,
            allocations: used.allocations,
            reuses: used.reuses,
        })
    });
}

/// Runs work on a thread of its own with the subscriber of the thread that asked for it, where that is not everybody's.
pub(crate) fn with_subscriber(dispatch: &Dispatch, work: impl FnOnce()) {
    if dispatch.is::<NoSubscriber>() { work() } else { dispatcher::with_default(dispatch, work) }
}

/// The subscriber of this thread.
pub(crate) fn subscriber() -> Dispatch {
    dispatcher::get_default(Clone::clone)
}

/// Tells the steps of one program, and has their operations timed as often as that costs next to nothing.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Steps told since operations were last timed.
    since_timed: u64,
    /// When that was.
    timed: Option<Instant>,
    profiling: bool,
    /// When caches, pools and memory were last told.
    summed: Option<Instant>,
    told_memory: Option<Memory>,
}

/// A step under way that is to be told.
#[derive(Debug)]
pub(crate) struct UnderWay(Box<Step>);

impl UnderWay {
    /// Tells the step, after it is finished and its results are taken, which took so long.
    pub(crate) fn end(self, mut stats: RunStats, sampling: Duration) {
        let told = *self.0;
        let (step, begin, tokens) = (told.step, told.begin, told.tokens);
        let each = std::mem::take(&mut stats.each);
        emit(|| {
            Event::Step(Step {
                seconds: stats.time.as_secs_f64(),
                host_seconds: stats.host_time.as_secs_f64(),
                device_seconds: stats.device_time.as_secs_f64(),
                overlap_seconds: stats.overlap.as_secs_f64(),
                sample_seconds: sampling.as_secs_f64(),
                dispatches: stats.dispatches,
                submissions: stats.submissions,
                bytes_read: stats.bytes_read,
                bytes_written: stats.bytes_written,
                multiply_adds: stats.multiply_adds,
                planned: stats.plan_misses > 0,
                ..told
            })
        });
        if !each.is_empty() {
            emit(|| Event::Ops(Ops { step, begin, tokens, ops: each.into_iter().map(op_time).collect() }));
        }
    }
}

/// How often operations are timed at most: their hundreds of figures are written while the processor has the next step to compute.
const TIMED: Duration = Duration::from_millis(20);
/// How often caches, pools and memory are told at most.
const SUMMED: Duration = Duration::from_secs(1);

impl Steps {
    /// Before a step is submitted. `decoding` of its tokens continue answers.
    pub(crate) fn begin(
        &mut self,
        program: &mut dyn Program,
        step: &Submitted<'_>,
        decoding: usize,
    ) -> Option<UnderWay> {
        if !is_on() {
            self.stop(program);
            return None;
        }
        let timed = self.is_timed(program.profile_every(), Instant::now());
        if timed != self.profiling {
            program.profile(timed);
            self.profiling = timed;
        }
        Some(UnderWay(Box::new(Step {
            step: STEPS.fetch_add(1, Ordering::Relaxed) + 1,
            begin: seconds(),
            tokens: step.tokens.len() as u64,
            decode_tokens: decoding as u64,
            sequences: step.sequences.len() as u64,
            outputs: step.outputs.len() as u64,
            device_chooses: !step.choices.is_empty(),
            ..Step::default()
        })))
    }

    /// Whether the operations of the next step are timed: those of one in `every`, and not more often than [`TIMED`].
    fn is_timed(&mut self, every: u64, now: Instant) -> bool {
        let timed = self.since_timed == 0 && self.timed.is_none_or(|last| now - last >= TIMED);
        if timed {
            self.timed = Some(now);
        }
        if timed || self.since_timed > 0 {
            self.since_timed = (self.since_timed + 1) % every.max(1);
        }
        timed
    }

    /// Nobody listens any more.
    fn stop(&mut self, program: &mut dyn Program) {
        if self.profiling {
            program.profile(false);
        }
        *self = Steps::default();
    }

    /// Whether caches, pools and memory are to be told now: once a second of work.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = is_on() && self.summed.is_none_or(|last| last.elapsed() >= SUMMED);
        if due {
            self.summed = Some(Instant::now());
        }
        due
    }

    /// Tells caches, pools and memory of a program.
    pub(crate) fn sum_up(&mut self, program: &dyn Program, budget_bytes: Option<u64>) {
        program.caches().iter().for_each(cache);
        let pools = program.pools();
        pools.iter().for_each(pool);
        let held = memory(program.memory(), &pools, budget_bytes);
        if self.told_memory.as_ref() != Some(&held) {
            emit_lasting(|| Event::Memory(held.clone()));
            self.told_memory = Some(held);
        }
    }
}

fn op_time(cost: OpCost) -> OpTime {
    OpTime {
        op: cost.op.into(),
        part: Name::Owned(cost.part),
        layer: cost.layer,
        kernel: cost.kernel.into(),
        seconds: cost.time.as_secs_f64(),
        bytes: cost.bytes,
        multiply_adds: cost.multiply_adds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_timed_as_often_as_the_program_allows_and_not_all_the_time() {
        let (mut steps, start) = (Steps::default(), Instant::now());
        let mut at = |every, millis| steps.is_timed(every, start + Duration::from_millis(millis));
        assert_eq!(
            [0, 5, 19, 20, 21, 50].map(|millis| at(1, millis)),
            [true, false, false, true, false, true]
        );
        assert_eq!([70, 100, 130, 160].map(|millis| at(3, millis)), [true, false, false, true]);
    }
}
