//! Single operations on strided tensors, carried out at once: what the eager `Tensor` API runs on.
//!
//! A [`TensorDevice`] owns memories; a [`View`] says which elements of a memory a tensor is made of; a [`TensorOp`] computes
//! outputs from inputs. [`check`] holds all the rules, so that every device starts from valid operands.

mod check;
mod error;
mod op;
mod sample;
#[cfg(test)]
mod tests;
mod view;

use std::any::Any;
use std::sync::Arc;

pub use check::{check, outputs};
pub use error::TensorError;
pub use op::{Mask, Sdpa, TensorOp};
pub use sample::Sample;
pub use view::View;

use crate::{BackendError, RunStats};

/// Memory of a device that tensors lie in. A device finds its own type behind it through [`Any`].
pub trait TensorMemory: Send + Sync + Any {
    /// Bytes.
    fn len(&self) -> usize;

    /// Whether it holds nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, once everything that was to write them has. [`BackendError::Range`] where they are not inside;
    /// where work that a device took earlier failed, that error.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError>;

    /// Copies bytes in, once everything that was to read or write them has.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BackendError>;
}

/// A view and the memory it is of.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// The memory.
    pub memory: &'a Arc<dyn TensorMemory>,
    /// Which elements of it.
    pub view: &'a View,
}

impl Operand<'_> {
    /// Whether both lie in one memory.
    pub fn same_memory(&self, other: &Operand<'_>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(self.memory), Arc::as_ptr(other.memory))
    }
}

/// What an operation costs that reads its inputs once and writes its outputs once; the time is left open.
pub fn traffic(inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> RunStats {
    let bytes = |all: &[Operand<'_>]| all.iter().map(|o| o.view.byte_range().len() as u64).sum();
    RunStats {
        dispatches: 1,
        bytes_read: bytes(inputs),
        bytes_written: bytes(outputs),
        ..RunStats::default()
    }
}

/// A device that carries out single operations on tensors.
pub trait TensorDevice: Send + Sync {
    /// Memory of `bytes` bytes (0 is fine), in which anything may stand.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError>;

    /// Whether this memory is of this device: whether [`TensorDevice::run`] takes it.
    fn owns(&self, memory: &dyn TensorMemory) -> bool;

    /// Carries out one operation, after [`check`]. Operations take effect in the order they are given; a device may return
    /// before one is done, and then reports a failure when the result is read.
    ///
    /// Memory of another device is refused by [`BackendError::ForeignMemory`].
    fn run(
        &self,
        op: &TensorOp,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Result<RunStats, BackendError>;
}

/// Refuses an operation that needs more memory of the host, beside its operands, than can be had. A view repeats elements
/// without memory, so what is made from it may be of any size: a device that computes on the host asks once for the most
/// that an operation needs.
pub fn room(device: &'static str, bytes: usize) -> Result<(), BackendError> {
    let mut scratch = Vec::<u8>::new();
    let full = BackendError::OutOfMemory { device, what: "scratch of a tensor operation", needed: bytes };
    scratch.try_reserve_exact(bytes).map_err(|_| full)?;
    // The optimiser may take memory that nobody uses as given.
    std::hint::black_box(&mut scratch);
    Ok(())
}
