//! What a backend offers: it compiles a graph into a program, and a program runs steps.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::plan::ProgramPlan;
use crate::tensor::{TensorDevice, TensorError};
use crate::{
    Blocks, BytesLost, CacheUse, DType, Graph, KernelCount, Peaks, PoolUse, RunStats, Step, StepError, Taps,
    TypeError,
};

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Short name as users give it: `cpu`.
    pub kind: &'static str,
    /// What it is, in words.
    pub name: String,
    /// Threads, or compute units.
    pub units: usize,
    /// Memory a program may use, where known.
    pub memory_bytes: Option<u64>,
}

/// What a backend can fail with, where the caller could not have known. Devices are named by their [kind](DeviceInfo::kind).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BackendError {
    /// The device has no way to run this operation on these types.
    #[error("{device} cannot run `{op}`: {reason}")]
    Unsupported { device: &'static str, op: &'static str, reason: String },
    /// Memory could not be had.
    #[error("{device} has no room for {needed} bytes of {what}")]
    OutOfMemory { device: &'static str, what: &'static str, needed: usize },
    /// The device cannot be used on this machine.
    #[error("{device} is not available: {reason}")]
    Unavailable { device: &'static str, reason: String },
    /// The device cannot follow a choice that was made for it: an option (`sdpa=plain`), or a variable of the environment
    /// (`METALLIC_FORCE_SDPA_BACKEND=plain`).
    #[error("{device} cannot take `{setting}`: {reason}")]
    Setting { device: &'static str, setting: String, reason: String },
    /// The step breaks the contract of [`Step`].
    #[error("the step is invalid: {0}")]
    Step(#[from] StepError),
    /// A kernel, or its library, does not compile on this device.
    #[error("{device} cannot compile `{kernel}`: {reason}")]
    Compile { device: &'static str, kernel: String, reason: String },
    /// Work on the device did not finish in time.
    #[error("{device} did not finish within {after:?}")]
    Timeout { device: &'static str, after: Duration },
    /// An operation cannot take these inputs.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// A view of a tensor makes no sense.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A tensor (`input 1`) lies in the memory of another device.
    #[error("{operand} lies in the memory of another device than {device}")]
    ForeignMemory { device: &'static str, operand: String },
    /// Bytes outside a memory.
    #[error("bytes {start}..+{len} lie outside a memory of {found}")]
    Range { start: usize, len: usize, found: usize },
    /// A file's weights cannot be had (any more).
    #[error(transparent)]
    Bytes(#[from] BytesLost),
    /// Work on the device broke off.
    #[error("{device} failed while running: {reason}")]
    Failed { device: &'static str, reason: String },
}

/// What a program is made with, besides its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// How keys and values are stored: `F32`, `F16`, `BF16` or `Q8_0`.
    pub kv: DType,
    /// What the activations of tokens are: `F32`, `F16` or `BF16`. Rows whose result was asked for are `F32` always.
    pub activations: DType,
    /// Fuse operations, where the backend does; off for comparisons of single operations.
    pub fuse: bool,
    /// Keep the value of every operation readable after a step ([`Program::taps`]): each then has a place of its own in the arena.
    pub taps: bool,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions { kv: DType::F16, activations: DType::F32, fuse: true, taps: false }
    }
}

impl CompileOptions {
    /// Keys and values stored as `kv`, activations of `F32`.
    pub fn kv(kv: DType) -> CompileOptions {
        CompileOptions { kv, ..CompileOptions::default() }
    }
}

impl From<DType> for CompileOptions {
    fn from(kv: DType) -> CompileOptions {
        CompileOptions::kv(kv)
    }
}

/// A device that can run graphs.
pub trait Backend: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Makes a program of a graph: weights are taken over, memory is laid out.
    fn compile(&self, graph: &Graph, options: CompileOptions) -> Result<Box<dyn Program>, BackendError>;

    /// What a program of this graph would do for a step, without making it: no weight is read, and nothing runs. The default is for
    /// devices that fuse nothing and plan nothing.
    fn describe(
        &self,
        graph: &Graph,
        options: CompileOptions,
        step: &Step<'_>,
    ) -> Result<ProgramPlan, BackendError> {
        ProgramPlan::unplanned(graph, options, false, step)
    }

    /// Carries out single operations on tensors, on the same device.
    fn tensors(&self) -> Arc<dyn TensorDevice>;

    /// The backend as what it is, where it has more to tell than any other.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Measures what the device reaches at best, in about half a second; `None` where a share of it would mean nothing.
    fn peaks(&self) -> Result<Option<Peaks>, BackendError> {
        Ok(None)
    }
}

/// A graph made ready for a device, with what it keeps between steps.
///
/// A step is *submitted* and later *finished*; between the two the caller is free to do other things, and where
/// [`Program::depth`] allows it, to submit the next step, which may take the tokens this one chooses.
pub trait Program: Send {
    /// Makes room for at least so many cache blocks; existing contents stay.
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError>;

    /// Blocks reserved so far.
    fn reserved(&self) -> Blocks;

    /// Makes room for at least `blocks` cache blocks of every layer.
    fn reserve_blocks(&mut self, blocks: usize) -> Result<(), BackendError> {
        self.reserve(Blocks::both(blocks))
    }

    /// Makes room for the recurrent states of at least so many sequences; existing contents stay. Nothing to do for a
    /// graph that keeps none.
    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError>;

    /// Gives the recurrent state of `to` the contents of that of `from`: a sequence branches. No step may be under way.
    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError>;

    /// Tokens of prompts that a step does well with: fewer leave the device idle, more keep others waiting.
    fn step_tokens(&self) -> usize {
        512
    }

    /// Steps that may be under way at once.
    fn depth(&self) -> usize {
        1
    }

    /// Whether it is better to have it choose tokens than to read logits and choose by them, where either will do: it need not be
    /// waited for, or has more threads for it than the caller.
    fn chooses(&self) -> bool {
        self.depth() > 1
    }

    /// Hands a step to the device. After an error nothing of it is under way. [`BackendError::Failed`] where as many are under way as
    /// [`Program::depth`] allows.
    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError>;

    /// Waits for the oldest step under way; its results can then be read until another one is finished. After an error the
    /// steps submitted after it are dropped as well. [`BackendError::Failed`] where none is under way.
    fn finish(&mut self) -> Result<RunStats, BackendError>;

    /// Runs one step: submits it and waits for it.
    fn run(&mut self, step: &Step<'_>) -> Result<RunStats, BackendError> {
        self.submit(step)?;
        self.finish()
    }

    /// The graph's `index`-th output after the step last finished, row-major; empty where that step did not want it, where
    /// there is none, and for an output of indices (see [`Program::ids`]).
    fn output(&self, index: usize) -> &[f32];

    /// The same for an output of indices, such as the tokens [`crate::Op::Sample`] has chosen.
    fn ids(&self, index: usize) -> &[u32];

    /// Bytes of memory held: weights as stored on the device, intermediates, cache.
    fn memory(&self) -> ProgramMemory;

    /// The kernels of the step last submitted, in the order of their first launches, as its plan counts them. Empty where
    /// nothing is planned: on the processor, and before the first step.
    fn kernels(&self) -> Vec<KernelCount> {
        Vec::new()
    }

    /// Notes what each operation takes ([`RunStats::each`]), of the steps submitted from now on, or no longer. Where a program cannot,
    /// the list stays empty.
    fn profile(&mut self, on: bool) {
        let _ = on;
    }

    /// Of how many steps one can be noted so without slowing them noticeably: all of them, where a look at the clock is all it takes.
    fn profile_every(&self) -> u64 {
        1
    }

    /// The caches behind it, those it shares with other programs included.
    fn caches(&self) -> Vec<CacheUse> {
        Vec::new()
    }

    /// The pools of memory behind it, those it shares with other programs included.
    fn pools(&self) -> Vec<PoolUse> {
        Vec::new()
    }

    /// What every operation has made in the step last finished; `None` unless the program was made with [`CompileOptions::taps`].
    fn taps(&mut self) -> Option<&mut dyn Taps> {
        None
    }
}

/// Bytes a program holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramMemory {
    /// Weights in the device's own layout (mapped file pages not counted).
    pub weights: usize,
    /// Weights that are read where they lie in a mapped file, or in memory of the caller's.
    pub mapped: usize,
    /// Intermediates.
    pub arena: usize,
    /// Keys, values and recurrent states.
    pub kv: usize,
}
