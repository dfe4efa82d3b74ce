//! What the scheduler tells: its steps, who waits and runs, what is held.

use std::time::Instant;

use metallic_core::RunStats;
use metallic_telemetry::tracing::debug_span;
use metallic_telemetry::{Event, Queue, SPANS, emit, is_on};

use super::super::flight::Flight;
use super::super::{EngineError, EngineStats};
use super::Scheduler;
use super::layout::guarded;
use crate::telemetry::tell::{self, Steps};

/// What was told, so that it is told again only where it has changed.
#[derive(Debug, Default)]
pub(super) struct Teller {
    pub(super) steps: Steps,
    queue: Option<Queue>,
    /// Whether it was told that the cache cannot grow.
    is_short: bool,
}

/// Most prompts of a step whose time says what tokens of a long one cost.
const FEW_PROMPTS: usize = 2;

impl Scheduler<'_> {
    /// Waits for the oldest step under way.
    pub(super) fn finish(&mut self) -> Result<RunStats, EngineError> {
        let finish = || debug_span!(target: SPANS, "finish").in_scope(|| self.program.finish());
        Ok(guarded(finish)??)
    }

    /// Takes the results of a step, and tells it.
    pub(super) fn complete(&mut self, mut flight: Flight, cost: RunStats) {
        self.measure(&flight);
        let told = flight.told.take().map(|told| (told, Instant::now()));
        debug_span!(target: SPANS, "sample").in_scope(|| self.absorb(&flight, &cost));
        if let Some((told, start)) = told {
            told.end(cost, start.elapsed());
        }
        self.learn(&flight);
    }

    /// Notes what a step took. One that was handed over early began when the one before it was done.
    fn measure(&mut self, flight: &Flight) {
        let now = (self.clock)();
        let begun = self.finished.replace(now).map_or(flight.begun, |finished| finished.max(flight.begun));
        let prompt_tokens = flight.prompt_tokens();
        self.totals.prompt_tokens += prompt_tokens as u64;
        let seconds = now.saturating_duration_since(begun).as_secs_f64();
        // A step with guesses says nothing of those without.
        if flight.members.iter().all(|m| m.drafts == 0) {
            match flight.answers() {
                answers if answers > 0 && flight.prompts() > FEW_PROMPTS => self.pace.crowded(answers),
                answers => self.pace.observe(answers, prompt_tokens, seconds),
            }
        }
    }

    /// How things stand.
    pub(in crate::generate) fn stats(&self) -> EngineStats {
        let (totals, ends) = (&self.totals, &self.ends);
        EngineStats {
            running: self.running.len(),
            waiting: self.queue.len(),
            paused: self.queue.unread() + self.running.iter().filter(|s| s.paused).count(),
            held_blocks: self.cache.held().far,
            near_blocks: self.cache.held().near,
            cached_blocks: self.cache.idle().far,
            reserved_blocks: self.cache.reserved().far,
            block_limit: self.config.block_limits().far,
            steps: totals.steps,
            computed_tokens: totals.computed_tokens,
            prompt_tokens: totals.prompt_tokens,
            generated_tokens: totals.generated_tokens,
            prefix_tokens: totals.prefix_tokens,
            preemptions: totals.preemptions,
            drafted_tokens: self.speculator.drafted,
            accepted_tokens: self.speculator.accepted,
            draft_blocks: self.speculator.draft_blocks(),
            breakdowns: totals.breakdowns,
            requests: totals.requests,
            rejected: self.inbox.rejected(),
            stopped: ends.stopped,
            full: ends.full,
            cancelled: ends.cancelled,
            expired: ends.expired,
            failed: ends.failed,
        }
    }

    /// Tells what has changed between two steps.
    pub(super) fn tell(&mut self) {
        if !is_on() {
            self.teller.queue = None;
            return;
        }
        let short = self.cache.growth_error();
        if let Some(error) = short.filter(|_| !self.teller.is_short) {
            tell::warn("memory", || format!("the cache of keys and values cannot grow: {error}"));
        }
        self.teller.is_short = short.is_some();
        let queue = self.queue();
        if self.teller.queue.as_ref() != Some(&queue) {
            emit(|| Event::Queue(queue.clone()));
            self.teller.queue = Some(queue);
        }
        if self.teller.steps.is_due() || self.is_idle() {
            tell::cache(&self.cache.usage());
            if self.config.states.is_recurrent() {
                tell::cache(&self.snapshots.usage());
            }
            self.teller.steps.sum_up(&*self.program, self.config.memory_bytes);
        }
    }

    fn queue(&self) -> Queue {
        Queue {
            waiting: self.queue.len() as u64,
            running: self.running.len() as u64,
            held_blocks: self.cache.held().far as u64,
            cached_blocks: self.cache.idle().far as u64,
            reserved_blocks: self.cache.reserved().far as u64,
            block_limit: self.config.block_limits().far as u64,
            preemptions: self.totals.preemptions,
            prefix_tokens: self.totals.prefix_tokens,
        }
    }
}
