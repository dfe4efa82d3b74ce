//! What running costs, as values that flow up.

use std::time::Duration;

/// What one run cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// Operations carried out on the device.
    pub dispatches: u64,
    /// Times work was handed to the device.
    pub submissions: u64,
    /// Buffers the device had to allocate.
    pub allocations: u64,
    /// Bytes of intermediates in use.
    pub arena_bytes: u64,
    /// Bytes of weights and cache read.
    pub bytes_read: u64,
    /// Bytes written to the cache and to results.
    pub bytes_written: u64,
    /// Kernels that were ready when they were asked for.
    pub cache_hits: u64,
    /// Kernels that had to be made.
    pub cache_misses: u64,
    /// Steps whose plan was ready.
    pub plan_hits: u64,
    /// Steps that had to be planned.
    pub plan_misses: u64,
    /// Time by operation name; empty unless profiling is on.
    pub time_by_op: Vec<(&'static str, Duration)>,
    /// Wall time, from when the step was handed over until its results were there.
    pub time: Duration,
    /// Time the caller's thread was busy with the step: handing it over and taking its results, waiting apart.
    pub host_time: Duration,
    /// Time the step was under way before it was asked for: other work of the caller, its wait for a step before included.
    pub overlap: Duration,
    /// Time the device itself was busy, where it tells.
    pub device_time: Duration,
}

impl RunStats {
    /// Adds another run's figures to these.
    pub fn add(&mut self, other: &RunStats) {
        macro_rules! sum {
            ($($field:ident)*) => { $(self.$field += other.$field;)* };
        }
        sum!(dispatches submissions allocations bytes_read bytes_written);
        sum!(cache_hits cache_misses plan_hits plan_misses time host_time overlap device_time);
        self.arena_bytes = self.arena_bytes.max(other.arena_bytes);
        for (op, time) in &other.time_by_op {
            self.add_time(op, *time);
        }
    }

    /// Adds time of an operation.
    pub fn add_time(&mut self, op: &'static str, time: Duration) {
        match self.time_by_op.iter_mut().find(|(name, _)| *name == op) {
            Some((_, sum)) => *sum += time,
            None => self.time_by_op.push((op, time)),
        }
    }
}
