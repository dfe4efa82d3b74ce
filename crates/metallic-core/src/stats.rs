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
    /// Multiplications with additions of matrix products and attention.
    pub multiply_adds: u64,
    /// What each kind of operation cost; empty unless profiling is on.
    pub ops: Vec<OpCost>,
    /// What each operation of this one step cost, in the order they ran; empty unless [`Program::profile`](crate::Program::profile)
    /// is on. Sums of steps have none.
    pub each: Vec<OpCost>,
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
        sum!(dispatches submissions allocations bytes_read bytes_written multiply_adds);
        sum!(cache_hits cache_misses plan_hits plan_misses time host_time overlap device_time);
        self.arena_bytes = self.arena_bytes.max(other.arena_bytes);
        for cost in &other.ops {
            self.add_op(cost);
        }
    }

    /// Adds what an operation cost to what those of its kind did.
    pub fn add_op(&mut self, cost: &OpCost) {
        let kind =
            |known: &OpCost| (known.op, known.kernel) == (cost.op, cost.kernel) && known.part == cost.part;
        match self.ops.iter_mut().find(|known| kind(known)) {
            Some(sum) => {
                sum.times += cost.times;
                sum.time += cost.time;
                sum.bytes += cost.bytes;
                sum.multiply_adds += cost.multiply_adds;
            }
            None => self.ops.push(OpCost { layer: None, ..cost.clone() }),
        }
    }

    /// Time by operation name, of all its kernels and weights.
    pub fn time_by_op(&self) -> Vec<(&'static str, Duration)> {
        let mut times: Vec<(&'static str, Duration)> = Vec::new();
        for cost in &self.ops {
            match times.iter_mut().find(|(op, _)| *op == cost.op) {
                Some((_, sum)) => *sum += cost.time,
                None => times.push((cost.op, cost.time)),
            }
        }
        times
    }
}

/// What operations of one kind cost together: those of all layers that one kernel carries out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCost {
    /// The operation's name.
    pub op: &'static str,
    /// Which weights it takes, by [`Graph::part`](crate::Graph::part); empty where it takes none.
    pub part: String,
    /// Its layer, by [`Graph::layers`](crate::Graph::layers), in [`RunStats::each`]; `None` outside of layers, and of all together.
    pub layer: Option<u32>,
    /// The kernel; empty where the device has no names for them.
    pub kernel: &'static str,
    /// How often it was carried out.
    pub times: u64,
    /// Time all of them took.
    pub time: Duration,
    /// Bytes read and written.
    pub bytes: u64,
    /// Multiplications with additions.
    pub multiply_adds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(op: &'static str, part: &str, kernel: &'static str, ms: u64) -> OpCost {
        let (part, time) = (part.to_owned(), Duration::from_millis(ms));
        OpCost { op, part, layer: Some(3), kernel, times: 1, time, bytes: 10, multiply_adds: 100 }
    }

    #[test]
    fn costs_are_added_to_those_of_their_kind_alone() {
        let mut first = RunStats::default();
        for cost in [cost("project", "ffn_down", "f", 1), cost("project", "ffn_down", "f", 2)] {
            first.add_op(&cost);
        }
        let mut sum = RunStats::default();
        for others in [
            cost("project", "output", "f", 4),
            cost("project", "ffn_down", "g", 8),
            cost("embed", "", "e", 16),
        ] {
            sum.add_op(&others);
        }
        sum.add(&first);
        sum.add(&first);
        let found: Vec<_> =
            sum.ops.iter().map(|cost| (&*cost.part, cost.kernel, cost.times, cost.bytes)).collect();
        assert_eq!(
            found,
            [("output", "f", 1, 10), ("ffn_down", "g", 1, 10), ("", "e", 1, 10), ("ffn_down", "f", 4, 40)]
        );
        assert_eq!((sum.ops[3].multiply_adds, sum.ops[3].time), (400, Duration::from_millis(6)));
        assert!(sum.ops.iter().all(|cost| cost.layer.is_none()) && sum.each.is_empty());
        let ms = Duration::from_millis;
        assert_eq!(sum.time_by_op(), [("project", ms(18)), ("embed", ms(16))]);
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
