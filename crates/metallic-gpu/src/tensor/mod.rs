//! Single operations on tensors, each by kernels.

mod matmul;
mod memory;
mod ops;
#[cfg(test)]
mod tests;
mod work;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use metallic_core::tensor::{Operand, TensorDevice, TensorMemory, TensorOp, View, check};
use metallic_core::{BackendError, RunStats};

use crate::backend::Shared;
use crate::error::GpuError;
use memory::{GpuMemory, Held, Queue};
use work::{Tensor, Work};

/// The tensors of a GPU. Operations gather and go to the device together, at the latest when a result is read.
pub(crate) struct GpuTensors {
    queue: Arc<Queue>,
}

impl GpuTensors {
    /// Tensors that share a backend's memory and kernels.
    pub(crate) fn new(shared: Arc<Shared>) -> GpuTensors {
        GpuTensors { queue: Arc::new(Queue::new(shared)) }
    }

    /// The memory, if it is of this device.
    fn mine<'a>(&self, memory: &'a dyn TensorMemory) -> Option<&'a GpuMemory> {
        let any: &dyn Any = memory;
        any.downcast_ref::<GpuMemory>().filter(|memory| memory.is_of(&self.queue))
    }

    /// The memory of each operand, if it is of this device.
    fn held(&self, operands: &[Operand<'_>], kind: &str) -> Result<Vec<Arc<Held>>, BackendError> {
        let mine = |(index, operand): (usize, &Operand<'_>)| {
            let memory = self.mine(operand.memory.as_ref());
            memory.map(|memory| memory.held().clone()).ok_or_else(|| BackendError::ForeignMemory {
                device: self.queue.shared.kind(),
                operand: format!("{kind} {index}"),
            })
        };
        operands.iter().enumerate().map(mine).collect()
    }
}

impl TensorDevice for GpuTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        let memory = self.queue.allocate(bytes).map_err(|e| e.on(self.queue.shared.kind()))?;
        Ok(Arc::new(memory))
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        self.mine(memory).is_some()
    }

    fn run(
        &self,
        op: &TensorOp,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Result<RunStats, BackendError> {
        check(op, inputs, outputs)?;
        let start = Instant::now();
        let (read, written) = (self.held(inputs, "input")?, self.held(outputs, "output")?);
        if outputs.iter().all(|output| output.view.is_empty()) {
            return Ok(RunStats { time: start.elapsed(), ..RunStats::default() });
        }
        let shared = &self.queue.shared;
        let fails = |e: GpuError| e.on(shared.kind());
        // What reads a result that never came has no result either.
        read.iter().try_for_each(|held| held.check()).map_err(fails)?;
        let tensors = |held: &[Arc<Held>], operands: &[Operand<'_>]| -> Result<Vec<Tensor>, BackendError> {
            let views = operands.iter().map(|operand| operand.view);
            let one = |(held, view): (&Arc<Held>, &View)| Tensor::of(held.region(), view).map_err(fails);
            held.iter().zip(views).map(one).collect()
        };
        let allocated = shared.pool.allocations();
        let (from, to) = (tensors(&read, inputs)?, tensors(&written, outputs)?);
        let work = Work::planned(shared, op.name(), |work| ops::plan(work, op, &from, &to)).map_err(fails)?;
        let mut stats = RunStats {
            dispatches: work.commands.len() as u64,
            cache_hits: work.held.hits,
            cache_misses: work.held.misses,
            ..RunStats::default()
        };
        for command in &work.commands {
            let (bytes_read, bytes_written) = command.traffic();
            stats.bytes_read += bytes_read;
            stats.bytes_written += bytes_written;
        }
        stats.arena_bytes = work.scratch.iter().map(|buffer| buffer.region().len() as u64).sum();
        for (held, output) in written.iter().zip(outputs) {
            if output.view.is_contiguous() && output.view.byte_range().len() == held.region().len() {
                held.renew();
            }
        }
        stats.submissions = self.queue.push(work, read, written);
        stats.allocations = shared.pool.allocations() - allocated;
        stats.time = start.elapsed();
        Ok(stats)
    }
}
