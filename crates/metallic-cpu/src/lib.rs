//! The CPU backend: weights repacked for the instruction set at hand, activations in 8 bits where weights are
//! quantised, a team of threads that takes every operation together. `unsafe` lives in `simd` alone.
#![deny(unsafe_code)]

mod attention;
mod cache;
mod ops;
mod program;
#[doc(hidden)]
pub mod simd;
mod tensor;
mod tensor_attention;
mod tensor_data;
mod tensor_matmul;
mod tensor_ops;
mod weights;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use metallic_core::tensor::TensorDevice;
use metallic_core::{Backend, BackendError, DeviceInfo, Graph, KvLayout, Program, rewrite};

use simd::{Isa, Team};

const DEVICE: &str = "cpu";

/// Runs kernels. A panic in one is a bug; it must not take the caller's thread with it.
fn guarded(run: impl FnOnce() -> Result<(), BackendError>) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let reason = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(BackendError::Failed { device: DEVICE, reason })
    })
}

/// How the CPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that compute; 0: one for each core this process may use.
    pub threads: usize,
    /// Measure the time of every kind of operation.
    pub profile: bool,
    /// Compute in 32 bits throughout: quantised matrices are unpacked when they are loaded, which takes up to eight
    /// times their memory and time, and activations are not rounded. For comparisons.
    pub exact: bool,
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
        let team = Team::new(threads).map_err(|e| BackendError::Failed {
            device: DEVICE,
            reason: format!("{threads} threads: {e}"),
        })?;
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

    fn compile(&self, graph: &Graph, kv: KvLayout) -> Result<Box<dyn Program>, BackendError> {
        kv.check(DEVICE, graph)?;
        let fused = rewrite::fuse(graph).map_err(|error| BackendError::Unsupported {
            device: DEVICE,
            op: "rewrite",
            reason: error.to_string(),
        })?;
        Ok(Box::new(program::CpuProgram::new(fused, kv, Arc::clone(&self.team), self.isa, self.options)?))
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        Arc::new(tensor::CpuTensors { team: Arc::clone(&self.team), isa: self.isa })
    }
}
