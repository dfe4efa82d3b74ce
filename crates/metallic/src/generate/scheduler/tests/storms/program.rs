//! Programs that are watched, fail at times, or are not sure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metallic_core::{BackendError, Blocks, Program, ProgramMemory, RunStats, Step};

use super::Dice;

/// What befalls a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Fault {
    FailsToTake = 1,
    FailsToEnd,
    PanicsAtTaking,
    PanicsAtEnd,
    PanicsOverMemory,
    PanicsOverState,
}

const FAULTS: [Fault; 6] = [
    Fault::FailsToTake,
    Fault::FailsToEnd,
    Fault::PanicsAtTaking,
    Fault::PanicsAtEnd,
    Fault::PanicsOverMemory,
    Fault::PanicsOverState,
];

/// At most so many sequences run.
pub(super) const RUNNING: usize = 5;

/// Time, and what is to go wrong next.
#[derive(Debug, Default)]
pub(super) struct Weather {
    micros: AtomicU64,
    fault: AtomicU64,
    /// Requests that may fail by it.
    excused: AtomicU64,
    /// Steps with tokens that the step before them chose.
    pub(super) fed: AtomicU64,
}

impl Weather {
    pub(super) fn passed(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    pub(super) fn passes(&self, time: Duration) {
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn excused(&self) -> u64 {
        self.excused.load(Ordering::Relaxed)
    }

    /// Something is to go wrong.
    pub(super) fn bring(&self, dice: &mut Dice) {
        self.fault.store(FAULTS[dice.below(FAULTS.len())] as u64, Ordering::Relaxed);
    }

    /// Whether this goes wrong now, by which so many requests may fail.
    fn strikes(&self, fault: Fault, requests: usize) -> bool {
        let none =
            self.fault.compare_exchange(fault as u64, 0, Ordering::Relaxed, Ordering::Relaxed).is_err();
        if !none {
            self.excused.fetch_add(requests as u64, Ordering::Relaxed);
        }
        !none
    }
}

/// Holds a program's user to what may be done when, and fails at times.
pub(super) struct Watched {
    inner: Box<dyn Program>,
    weather: Arc<Weather>,
    /// Sequences of each step under way.
    under_way: VecDeque<usize>,
}

impl Watched {
    pub(super) fn new(inner: Box<dyn Program>, weather: Arc<Weather>) -> Self {
        Self { inner, weather, under_way: VecDeque::new() }
    }

    /// Gives up all steps that are under way; the requests of that many sequences were in them.
    fn give_up(&mut self) {
        while self.under_way.pop_front().is_some() {
            let _ = self.inner.finish();
        }
    }
}

fn failed() -> BackendError {
    BackendError::Failed { device: "storm", reason: "lightning".to_owned() }
}

impl Program for Watched {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        assert!(!self.weather.strikes(Fault::PanicsOverMemory, RUNNING), "lightning strikes the memory");
        self.inner.reserve(blocks)
    }

    fn reserved(&self) -> Blocks {
        self.inner.reserved()
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.inner.reserve_slots(slots)
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        assert!(self.under_way.is_empty(), "a state is copied while a step is under way");
        // One more was on its way in.
        assert!(!self.weather.strikes(Fault::PanicsOverState, RUNNING + 1), "lightning strikes a state");
        self.inner.copy_slot(from, to)
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn chooses(&self) -> bool {
        self.inner.chooses()
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        let sequences = step.sequences.len();
        self.weather.passes(Duration::from_micros(200 + 50 * step.tokens.len() as u64));
        assert!(self.under_way.len() < self.depth(), "more steps than it takes");
        if self.weather.strikes(Fault::FailsToTake, usize::from(sequences == 1)) {
            return Err(failed());
        }
        let all = sequences + self.under_way.iter().sum::<usize>();
        assert!(!self.weather.strikes(Fault::PanicsAtTaking, all), "lightning strikes a step");
        self.inner.submit(step)?;
        self.weather.fed.fetch_add(u64::from(!step.fed.is_empty()), Ordering::Relaxed);
        self.under_way.push_back(sequences);
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let all = self.under_way.iter().sum::<usize>();
        // Of those that come again by themselves none fails, unless it is alone.
        if all > 0 && self.weather.strikes(Fault::FailsToEnd, usize::from(self.under_way[0] == 1)) {
            self.give_up();
            return Err(failed());
        }
        if all > 0 && self.weather.strikes(Fault::PanicsAtEnd, all) {
            self.give_up();
            panic!("lightning strikes the end of a step");
        }
        self.under_way.pop_front();
        self.inner.finish()
    }

    fn output(&self, index: usize) -> &[f32] {
        self.inner.output(index)
    }

    fn ids(&self, index: usize) -> &[u32] {
        self.inner.ids(index)
    }

    fn memory(&self) -> ProgramMemory {
        self.inner.memory()
    }
}

/// A program that is wrong about some of its logits.
pub(super) struct Unsure {
    inner: Box<dyn Program>,
    steps: usize,
    output: Vec<f32>,
}

impl Unsure {
    pub(super) fn new(inner: Box<dyn Program>) -> Self {
        Self { inner, steps: 0, output: Vec::new() }
    }
}

impl Program for Unsure {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        self.inner.reserve(blocks)
    }

    fn reserved(&self) -> Blocks {
        self.inner.reserved()
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.inner.reserve_slots(slots)
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.inner.copy_slot(from, to)
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        self.inner.submit(step)
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        let stats = self.inner.finish()?;
        self.output.clear();
        self.output.extend_from_slice(self.inner.output(0));
        self.steps += 1;
        if self.steps.is_multiple_of(3) && !self.output.is_empty() {
            let at = self.steps % self.output.len();
            self.output[at] += 1000.0;
        }
        Ok(stats)
    }

    fn output(&self, index: usize) -> &[f32] {
        if index == 0 { &self.output } else { self.inner.output(index) }
    }

    fn ids(&self, index: usize) -> &[u32] {
        self.inner.ids(index)
    }

    fn memory(&self) -> ProgramMemory {
        self.inner.memory()
    }
}
