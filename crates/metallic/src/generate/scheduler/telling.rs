//! What the scheduler tells: its steps, who waits and runs, what is held.

use std::time::Instant;

use metallic_core::{BackendError, RunStats};
use metallic_telemetry::tracing::debug_span;
use metallic_telemetry::{Event, Phase, Queue, SPANS, emit, is_on};

use super::super::flight::Flight;
use super::super::sequence::Sequence;
use super::Scheduler;
use crate::telemetry::tell::{self, Steps};

/// What was told, so that it is told again only where it has changed.
#[derive(Debug, Default)]
pub(super) struct Teller {
    pub(super) steps: Steps,
    queue: Option<Queue>,
    /// Whether it was told that the cache cannot grow.
    is_short: bool,
    /// Tokens of prompts that were found in the cache.
    prefix_tokens: u64,
}

impl Teller {
    /// A sequence was let in.
    pub(super) fn admitted(&mut self, sequence: &Sequence<'_>) {
        self.prefix_tokens += sequence.computed as u64;
        sequence.tell(Phase::Started, "");
    }
}

impl Scheduler<'_> {
    /// Waits for the oldest step under way.
    pub(super) fn finish(&mut self) -> Result<RunStats, BackendError> {
        debug_span!(target: SPANS, "finish").in_scope(|| self.program.finish())
    }

    /// Takes the results of a step, and tells it.
    pub(super) fn complete(&mut self, mut flight: Flight, cost: RunStats) {
        let told = flight.told.take().map(|told| (told, Instant::now()));
        debug_span!(target: SPANS, "sample").in_scope(|| self.absorb(&flight, &cost));
        if let Some((told, start)) = told {
            told.end(cost, start.elapsed());
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
            waiting: self.waiting.len() as u64,
            running: self.running.len() as u64,
            held_blocks: self.cache.held().far as u64,
            cached_blocks: self.cache.idle().far as u64,
            reserved_blocks: self.cache.reserved().far as u64,
            block_limit: self.config.block_limits().far as u64,
            preemptions: self.preemptions,
            prefix_tokens: self.teller.prefix_tokens,
        }
    }
}
