//! How requests end: answered, cancelled, out of time, or with the program.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::super::flight::Flight;
use super::super::hook::panic_message;
use super::super::inbox::Inbox;
use super::super::sample::Scratch;
use super::super::sequence::{Outcome, Sequence};
use super::super::snapshots::Snapshots;
use super::super::{EngineError, FinishReason};
use super::{Inputs, Scheduler, new_cache, slots_of};
use crate::telemetry::tell;

/// How much the time between the last two ends counts.
const FRESH: f64 = 0.2;

/// How many requests ended and how, and how long it takes until another one does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    pub(super) stopped: u64,
    pub(super) full: u64,
    pub(super) cancelled: u64,
    pub(super) expired: u64,
    pub(super) failed: u64,
    /// When the last one ended, or work began after a time without.
    last: Option<Instant>,
    seconds: Option<f64>,
}

impl Ends {
    /// There is something to do again.
    pub(super) fn begin(&mut self, now: Instant) {
        self.last = Some(now);
    }

    fn note(&mut self, outcome: &Outcome, now: Instant, inbox: &Inbox) {
        match outcome {
            Ok(FinishReason::Stop) => self.stopped += 1,
            Ok(FinishReason::Length) => self.full += 1,
            Ok(FinishReason::Cancelled) => self.cancelled += 1,
            Ok(FinishReason::Deadline) => self.expired += 1,
            Err(_) => self.failed += 1,
        }
        if let Some(last) = self.last.replace(now) {
            let took = now.saturating_duration_since(last).as_secs_f64();
            let seconds = self.seconds.map_or(took, |old| old + FRESH * (took - old));
            self.seconds = Some(seconds);
            inbox.set_interval(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        }
    }
}

impl Scheduler<'_> {
    /// Looks after requests that were cancelled, or whose readers have read.
    pub(in crate::generate) fn heed(&mut self, noted: &[u64]) {
        for &serial in noted {
            let running = self.running.iter_mut().find(|s| s.serial == serial);
            if let Some(sequence) = running.filter(|s| s.outlet.is_cancelled()) {
                sequence.outcome = Some(Ok(FinishReason::Cancelled));
            } else if self.queue.get(serial).is_some_and(|s| s.outlet.is_cancelled()) {
                self.end_waiting(serial, FinishReason::Cancelled);
            } else {
                self.queue.has_read(serial);
            }
        }
        if !noted.is_empty() {
            self.sweep();
        }
    }

    /// Ends the requests whose time is over.
    pub(in crate::generate) fn expire(&mut self) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = (self.clock)();
        let mut any = false;
        while self.deadlines.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, serial)) = self.deadlines.pop_first()
        {
            any = true;
            if let Some(sequence) = self.running.iter_mut().find(|s| s.serial == serial) {
                sequence.outcome.get_or_insert(Ok(FinishReason::Deadline));
            } else {
                self.end_waiting(serial, FinishReason::Deadline);
            }
        }
        if any {
            self.sweep();
        }
    }

    fn end_waiting(&mut self, serial: u64, reason: FinishReason) {
        if let Some(sequence) = self.queue.remove(serial) {
            self.conclude(sequence, Ok(reason));
        }
    }

    /// Ends every request the same way.
    pub(in crate::generate) fn end_all(&mut self, outcome: &Outcome) {
        if self.chasing.take().is_some() {
            // Nobody wants its results; the device has to be done with it all the same.
            let _ = self.finish();
        }
        let running = std::mem::take(&mut self.running);
        for mut sequence in running.into_iter().chain(self.queue.drain()) {
            self.cache.give_back(&mut sequence.table);
            self.conclude(sequence, outcome.clone());
        }
    }

    /// Tells every caller of a failure without touching the cache, which may be in any state.
    pub(in crate::generate) fn abandon(&mut self, error: &EngineError) {
        for sequence in self.running.drain(..).chain(self.queue.drain()) {
            let tell = move || {
                sequence.tell_end(&Err(error.clone()));
                sequence.outlet.send(Err(error.clone()));
            };
            // With it goes its hook, which may break down on that; the others are to hear of the end all the same.
            let _ = catch_unwind(AssertUnwindSafe(tell));
        }
    }

    /// Takes out the sequences that have ended, and says whether there were any: all their blocks are given back before any
    /// caller hears of it.
    pub(super) fn sweep(&mut self) -> bool {
        let mut done: Vec<Sequence<'_>> =
            self.running.extract_if(.., |sequence| sequence.outcome.is_some()).collect();
        for sequence in &mut done {
            self.give_slot_back(sequence.slot);
            self.cache.give_back(&mut sequence.table);
        }
        let any = !done.is_empty();
        if any {
            let running = &self.running;
            self.speculator.keep(|serial| running.iter().any(|s| s.serial == serial));
        }
        for mut sequence in done {
            if let Some(outcome) = sequence.outcome.take() {
                self.conclude(sequence, outcome);
            }
        }
        any
    }

    /// Tells the caller how a request ended whose blocks were given back.
    fn conclude(&mut self, sequence: Sequence<'_>, outcome: Outcome) {
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, sequence.serial));
        }
        self.ends.note(&outcome, (self.clock)(), &self.inbox);
        // The last of its text comes from code of whoever brought the decoder; a line that is cut is an end as well.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| sequence.end(outcome))) {
            let message = panic_message(panic.as_ref());
            tell::fault("request", &EngineError::Panicked { message });
        }
    }

    /// A step failed. Those of it that fail by themselves end; with a program that panicked all of them do.
    pub(super) fn failed(&mut self, flight: &Flight, error: &EngineError) {
        // With it went what came after.
        let chasing = self.chasing.take();
        if !matches!(error, EngineError::Panicked { .. }) {
            return self.apart(flight, error);
        }
        tell::fault("step", error);
        self.totals.breakdowns += 1;
        let members = chasing.iter().chain([flight]).flat_map(|flight| &flight.members);
        for member in members {
            if let Some(sequence) = self.running.iter_mut().find(|s| s.serial == member.serial) {
                sequence.outcome.get_or_insert(Err(error.clone()));
            }
        }
        self.begin_anew();
    }

    /// Something panicked that is nobody's own, such as a program that was asked for memory: those that run end, those that
    /// wait are served.
    pub(super) fn break_down(&mut self, error: &EngineError) {
        tell::fault("engine", error);
        self.totals.breakdowns += 1;
        (self.chasing, self.broken) = (None, None);
        for sequence in &mut self.running {
            sequence.outcome.get_or_insert(Err(error.clone()));
        }
        self.begin_anew();
        // Whoever was on the way from one place to another is gone, and its line is cut.
        let Self { deadlines, queue, .. } = self;
        deadlines.retain(|(_, serial)| queue.get(*serial).is_some());
    }

    /// After a program that panicked nothing it kept is to be trusted: all blocks and states are forgotten, and whoever had
    /// no part in the step is computed again.
    fn begin_anew(&mut self) {
        // Steps that are still under way; a program that panics again will be asked again.
        for _ in 0..self.program.depth() {
            if self.finish().is_err() {
                break;
            }
        }
        self.cache = new_cache(&self.config);
        self.snapshots = Snapshots::new(&self.config);
        (self.inputs, self.scratch) = (Inputs::default(), Scratch::default());
        self.blocked = None;
        for sequence in &mut self.running {
            sequence.forget_blocks();
        }
        self.sweep();
        while !self.running.is_empty() {
            self.set_aside(self.running.len() - 1);
        }
        self.free_slots = (0..slots_of(&self.config) as u32).rev().collect();
    }
}
