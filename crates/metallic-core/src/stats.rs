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

/// What the launches of one kernel in a step come to, counted from the plan: nothing here is measured. Launches of one size
/// are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCount {
    /// The operation they are part of, as in [`RunStats::time_by_op`].
    pub op: &'static str,
    /// The kernel.
    pub kernel: &'static str,
    /// How many there are.
    pub launches: u64,
    /// Threadgroups of each.
    pub groups: u64,
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Bytes of threadgroup memory of each, those the kernel declares itself among them.
    pub threadgroup_bytes: u32,
    /// Bytes read and written by all, as often as plans say that memory is gone over.
    pub moved: u64,
    /// The bytes among them that are different ones: [`KernelCount::moved`] where nothing is read twice by a launch.
    pub distinct: u64,
    /// Bytes of the tokens' vectors that threadgroups read after the first one has: they come out of caches and are not among
    /// those moved.
    pub vectors_again: u64,
    /// Multiply-adds of all; 0 where the bytes are all that takes time.
    pub multiply_adds: u64,
}

impl KernelCount {
    /// Whether these are launches of one kernel in one size.
    pub fn is_like(&self, other: &KernelCount) -> bool {
        let size = |k: &KernelCount| {
            let each = k.multiply_adds.checked_div(k.launches);
            (k.op, k.kernel, k.groups, k.threads, k.threadgroup_bytes, each)
        };
        size(self) == size(other)
    }

    /// Adds launches that are [alike](KernelCount::is_like).
    pub fn add(&mut self, other: &KernelCount) {
        self.launches += other.launches;
        self.moved = self.moved.saturating_add(other.moved);
        self.distinct = self.distinct.saturating_add(other.distinct);
        self.vectors_again = self.vectors_again.saturating_add(other.vectors_again);
        self.multiply_adds = self.multiply_adds.saturating_add(other.multiply_adds);
    }
}
