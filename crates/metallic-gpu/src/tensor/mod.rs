//! Tensors of a GPU: single operations through the plans of graphs, and copies between strided views.

mod memory;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use metallic_core::tensor::{
    Evaluated, Operand, TensorDevice, TensorMemory, View, check_copy, check_eval, trivial,
};
use metallic_core::{BackendError, DType, Op, RunStats, Sizes, TensorType};

use crate::backend::Shared;
use crate::command::{Command, Region};
use crate::error::GpuError;
use crate::gpu::{Limits, Storage};
use crate::kernels::axes::Axes;
use crate::kernels::gather::{Gathered, decode};
use crate::kernels::{Slot, Stage, Stages, copy};
use crate::pipelines::HeldKernels;
use crate::plan::{Site, choice, plan};
use crate::pool::Allocation;
use crate::prepare::{ALIGN, made};
use crate::provider::{Choice, Provider};
use crate::step::StepShape;
use memory::{GpuMemory, Held, Queue};

const WORD: usize = 4;

/// The tensors of a GPU. Operations gather and go to the device together, at the latest when a result is read.
pub(crate) struct GpuTensors {
    queue: Arc<Queue>,
}

/// The commands of one operation, and what has to stay until they are done.
struct Work {
    commands: Vec<Command>,
    scratch: Allocation,
    kernels: HeldKernels,
}

impl GpuTensors {
    /// Tensors that share a backend's memory and kernels.
    pub(crate) fn new(shared: Arc<Shared>) -> GpuTensors {
        GpuTensors { queue: Arc::new(Queue::new(shared)) }
    }

    fn shared(&self) -> &Shared {
        &self.queue.shared
    }

    fn fails(&self, error: GpuError) -> BackendError {
        error.on(self.shared().kind())
    }

    fn mine<'a>(&self, memory: &'a dyn TensorMemory) -> Option<&'a GpuMemory> {
        let any: &dyn Any = memory;
        any.downcast_ref::<GpuMemory>().filter(|memory| Arc::ptr_eq(&memory.queue, &self.queue))
    }

    /// The memory of an operand, if it is of this device, and the bytes from its first element to its last.
    fn held(&self, operand: &Operand<'_>, name: &str) -> Result<(Arc<Held>, Region), BackendError> {
        let foreign =
            || BackendError::ForeignMemory { device: self.shared().kind(), operand: name.to_owned() };
        let held = self.mine(operand.memory.as_ref()).ok_or_else(foreign)?.held.clone();
        let range = operand.view.byte_range();
        let region = held.region().slice(range.start, range.len()).map_err(|e| self.fails(e))?;
        Ok((held, region))
    }

    /// The commands of a plan whose arguments lie in these regions.
    fn work(
        &self,
        op: &'static str,
        choice: Option<&Choice>,
        plan: impl Fn(Option<Provider>, &Limits) -> Result<Stages, GpuError>,
        (inputs, output): (&[Region], Region),
    ) -> Result<Work, GpuError> {
        let shared = self.shared();
        let mut kernels = HeldKernels::default();
        let ready = made(shared, &mut kernels, choice, shared.limits(), plan)?;
        // A stand-in for arguments that are not used, then the scratch.
        let bytes = ALIGN + ready.scratch_bytes();
        let scratch = shared.pool.transient("scratch of a tensor operation", bytes, Storage::Private)?;
        let (stand_in, own) =
            (scratch.region().slice(0, ALIGN)?, scratch.region().slice(ALIGN, bytes - ALIGN)?);
        let region = |slot: Slot| match slot {
            Slot::Input(index) if index < inputs.len() => Ok(inputs[index]),
            Slot::Output => Ok(output),
            Slot::Unused => Ok(stand_in),
            slot => Err(GpuError::unsupported(op, format!("{slot:?} outside a program"))),
        };
        let mut commands = Vec::new();
        ready.encode(op, shared.gpu.limits(), own, region, |command, _| commands.push(command))?;
        Ok(Work { commands, scratch, kernels })
    }

    /// A copy of a tensor that begins at a whole word: kernels bind vectors there, whatever their type.
    fn at_a_word(&self, operand: &Operand<'_>, bytes: usize) -> Result<(Arc<Held>, Region), BackendError> {
        let copy = self.allocate(bytes)?;
        let view = View::contiguous(operand.view.dtype(), operand.view.shape())?;
        let to = Operand { memory: &copy, view: &view };
        self.copy(*operand, to)?;
        self.held(&to, "a copy")
    }

    /// Queues work and says what it costs.
    fn push(&self, work: Work, read: Vec<Arc<Held>>, written: Arc<Held>, start: Instant) -> RunStats {
        let mut stats = RunStats {
            dispatches: work.commands.len() as u64,
            cache_hits: work.kernels.hits,
            cache_misses: work.kernels.misses,
            arena_bytes: work.scratch.region().len() as u64,
            ..RunStats::default()
        };
        for command in &work.commands {
            let (bytes_read, bytes_written) = command.traffic();
            stats.bytes_read += bytes_read;
            stats.bytes_written += bytes_written;
        }
        stats.submissions = self.queue.push(work, read, written);
        stats.time = start.elapsed();
        stats
    }
}

impl TensorDevice for GpuTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        Ok(Arc::new(self.queue.allocate(bytes).map_err(|e| self.fails(e))?))
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        self.mine(memory).is_some()
    }

    fn copy(&self, from: Operand<'_>, to: Operand<'_>) -> Result<RunStats, BackendError> {
        check_copy(&from, &to)?;
        let start = Instant::now();
        let ((read, source), (written, target)) = (self.held(&from, "input 0")?, self.held(&to, "output 0")?);
        if to.view.is_empty() {
            return Ok(RunStats { time: start.elapsed(), ..RunStats::default() });
        }
        // What reads a result that never came has no result either.
        read.check().map_err(|e| self.fails(e))?;
        let plan = |_, limits: &Limits| copies(from.view, to.view, limits);
        let work = self.work("copy", None, plan, (&[source], target)).map_err(|e| self.fails(e))?;
        if to.view.is_contiguous() && to.view.byte_range().len() == written.region().len() {
            written.renew();
        }
        Ok(self.push(work, vec![read], written, start))
    }

    fn eval(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
        let ty = check_eval(op, inputs)?;
        let start = Instant::now();
        let mut held = Vec::with_capacity(inputs.len());
        let mut regions = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let (mut memory, mut region) = self.held(input, &format!("input {index}"))?;
            memory.check().map_err(|e| self.fails(e))?;
            if input.view.dtype().is_float() && !region.offset().is_multiple_of(WORD) {
                (memory, region) = self.at_a_word(input, region.len())?;
            }
            held.push(memory);
            regions.push(region);
        }
        if let Some(done) = trivial(self, op, inputs, ty)? {
            return Ok(done);
        }
        let allocated = self.shared().pool.allocations();
        let bytes = ty.bytes(Sizes::default()).unwrap_or(0);
        let memory = self.queue.allocate(bytes).map_err(|e| self.fails(e))?;
        let types: Vec<TensorType> = inputs.iter().map(|input| input.view.ty()).collect();
        let shape = StepShape { edits: true, ..StepShape::default() };
        let site =
            Site { op, inputs: &types, out: ty, shape: &shape, states: None, cells: false, next: None };
        let output = memory.held.region().slice(0, bytes).map_err(|e| self.fails(e))?;
        let plan = |provider, limits: &Limits| plan(&site, provider, limits);
        let work = self
            .work(op.name(), choice(&site, &self.shared().limits()).as_ref(), plan, (&regions, output))
            .map_err(|e| self.fails(e))?;
        let mut stats = self.push(work, held, memory.held.clone(), start);
        stats.allocations = self.shared().pool.allocations() - allocated;
        Ok(Evaluated { memory: Arc::new(memory), ty, stats })
    }
}

/// The launches that copy a view's elements to another's: `(x) -> out`, each bound at its first element.
fn copies(from: &View, to: &View, limits: &Limits) -> Result<Stages, GpuError> {
    let strided = |from: &View, to: &View| {
        let axes = Axes::new("copy", to.shape(), [from.strides(), to.strides()])?;
        copy::copy((from.dtype(), to.dtype()), &axes, limits)
    };
    if !from.dtype().is_quantized() {
        return Ok(Stage::new(strided(from, to)?, [Slot::Input(0), Slot::Output]).into());
    }
    let unsupported = |reason: String| GpuError::unsupported("copy", reason);
    let wrong = |error: metallic_core::tensor::TensorError| unsupported(error.to_string());
    let (rank, block) = (from.rank(), from.dtype().block_len());
    let is_rows = |axis: &usize| from.strides()[*axis] == 1 && from.shape()[*axis].is_multiple_of(block);
    let along =
        (0..rank).find(is_rows).ok_or_else(|| unsupported(format!("{from}, which has no rows of blocks")))?;
    // The same elements with the axis of the blocks last.
    let order: Vec<usize> = (0..rank).filter(|axis| *axis != along).chain([along]).collect();
    let (from, to) = (from.permute(&order).map_err(wrong)?, to.permute(&order).map_err(wrong)?);
    let dense = View::contiguous(to.dtype(), to.shape()).map_err(wrong)?;
    let mut stages = decoded_rows(&from, to.dtype(), limits)?.bytewise(from.dtype().block_bytes() % 2 == 1);
    if !to.is_contiguous() {
        let rows = stages.keep_output(dense.byte_range().len());
        stages.stages.push(Stage::new(strided(&dense, &to)?, [rows, Slot::Output]));
    }
    Ok(stages)
}

/// Decodes rows of blocks one after another, a launch for each run of rows that lie at one distance from each other.
fn decoded_rows(x: &View, out: DType, limits: &Limits) -> Result<Stages, GpuError> {
    let (table, cols) = (x.dtype(), x.cols());
    let count = |n: usize| crate::kernels::count("copy", n);
    let bytes = |elements: usize| elements / table.block_len() * table.block_bytes();
    let (run, stride) = match x.rank() {
        0 | 1 => (1, cols),
        rank => (x.shape()[rank - 2], x.strides()[rank - 2]),
    };
    let rows = count(run)?;
    let spec = Gathered { table, out, rows, cols: count(cols)?, of: rows, fed: false };
    let launch = decode(&spec, count(bytes(stride))?, limits)?;
    let each = run * cols * out.block_bytes();
    let mut stages = Stages::default();
    for (index, row) in (0..x.rows()).step_by(run.max(1)).enumerate() {
        let start = bytes(x.row_offset(row) - x.offset());
        let slots = [Slot::Unused, Slot::Input(0), Slot::Unused, Slot::Output];
        let stage = Stage::new(launch, slots).touching(1, bytes(run * cols)).touching(3, each);
        stages.stages.push(stage.starting(1, start).starting(3, index * each));
    }
    Ok(stages)
}
