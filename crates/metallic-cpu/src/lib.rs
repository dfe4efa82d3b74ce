//! The CPU backend: weights repacked for the instruction set at hand, activations in 8 bits where weights are
//! quantised, a team of threads that takes every operation together. `unsafe` lives in `simd` alone.
#![deny(unsafe_code)]

mod attention;
mod copy;
mod exec;
mod kept;
mod linear;
mod ops;
mod peaks;
mod program;
mod sdpa;
#[cfg(not(feature = "bench"))]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "what the benchmarks see is public with their feature"
)]
mod simd;
#[cfg(feature = "bench")]
pub mod simd;
mod tensor;
mod weights;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use metallic_core::plan::ProgramPlan;
use metallic_core::sample::{ChoiceError, Scratch};
use metallic_core::tensor::TensorDevice;
use metallic_core::{
    Backend, BackendError, CompileOptions, DeviceInfo, Graph, Peaks, Program, Step, rewrite,
};

use simd::{Isa, Team};

/// Chooses the token of row `row` of packed choices by its logits, as [`metallic_core::sample::choose`] defines it, with the best
/// instructions this processor has.
pub fn choose(
    words: &[u32],
    row: usize,
    logits: &[f32],
    scratch: &mut Scratch,
) -> Result<Option<u32>, ChoiceError> {
    simd::choose(Isa::detect(), words, row, logits, scratch)
}

const DEVICE: &str = "cpu";

fn failed(reason: impl Display) -> BackendError {
    BackendError::Failed { device: DEVICE, reason: reason.to_string() }
}

fn unsupported(op: &'static str, reason: impl Display) -> BackendError {
    BackendError::Unsupported { device: DEVICE, op, reason: reason.to_string() }
}

fn no_room(what: &'static str, needed: usize) -> BackendError {
    BackendError::OutOfMemory { device: DEVICE, what, needed }
}

/// Runs kernels. A panic in one is a bug; it must not take the caller's thread with it.
fn guarded(run: impl FnOnce() -> Result<(), BackendError>) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        Err(failed(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()))
    })
}

/// How the CPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuOptions {
    /// Threads that compute; 0: one for each core this process may use.
    pub threads: usize,
    /// Measure the time of every kind of operation.
    pub profile: bool,
    /// Compute in 32 bits throughout: quantised matrices are unpacked when they are loaded, which takes up to eight
    /// times their memory and time, and activations are not rounded. For comparisons.
    pub exact: bool,
}

metallic_core::setters!(CpuOptions { threads: usize, profile: bool, exact: bool });
/// What computes: an instruction set and threads.
#[derive(Clone, Copy)]
struct Processor<'a> {
    isa: Isa,
    team: &'a Team,
}

/// The processor of this machine.
pub struct Cpu {
    info: DeviceInfo,
    team: Arc<Team>,
    isa: Isa,
    options: CpuOptions,
}

impl Cpu {
    /// Starts the threads and picks the instruction set.
    pub fn new(options: CpuOptions) -> Result<Cpu, BackendError> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let team = Team::new(threads).map_err(|e| failed(format!("{threads} threads: {e}")))?;
        let isa = Isa::detect();
        let name = format!("{} threads, {}", team.threads(), isa.name());
        let info = DeviceInfo { kind: DEVICE, name, units: team.threads(), memory_bytes: None };
        Ok(Cpu { info, team: Arc::new(team), isa, options })
    }
}

impl Backend for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Activations of `F16` and `BF16` are computed in 32 bits and rounded where they are stored: half the memory, but
    /// slower than `F32`, which is read and written where it lies.
    fn compile(&self, graph: &Graph, options: CompileOptions) -> Result<Box<dyn Program>, BackendError> {
        let graph = rewrite::with_activations(graph, options.activations)?;
        let graph = if options.fuse { rewrite::fuse(&graph)? } else { graph };
        let work = exec::Work::new(Arc::clone(&self.team), self.isa);
        Ok(Box::new(program::CpuProgram::new(graph, options, work, self.options)?))
    }

    fn describe(
        &self,
        graph: &Graph,
        options: CompileOptions,
        step: &Step<'_>,
    ) -> Result<ProgramPlan, BackendError> {
        let plan = ProgramPlan::unplanned(graph, options, true, step)?;
        let weights = weights::PackedWeights::plans(&plan.fused.graph, self.isa, self.options.exact)?;
        Ok(ProgramPlan { weights, ..plan })
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        Arc::new(tensor::CpuTensors { team: Arc::clone(&self.team), isa: self.isa })
    }

    fn peaks(&self) -> Result<Option<Peaks>, BackendError> {
        peaks::measure(Processor { isa: self.isa, team: &self.team }).map(Some)
    }
}
