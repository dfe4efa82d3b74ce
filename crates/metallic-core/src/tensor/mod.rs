//! Tensors of a device, and single operations on them, carried out at once: what the eager `Tensor` API runs on.
//!
//! A [`TensorDevice`] owns memories; a [`View`] says which elements of a memory a tensor is made of. Operations are those of
//! graphs ([`Op`]), on operands whose elements lie one after another; [`TensorDevice::copy`] brings them there.

mod error;
#[cfg(test)]
mod tests;
mod view;

use std::any::Any;
use std::sync::Arc;

pub use error::TensorError;
pub use view::View;

use crate::{BackendError, Op, OpClass, RunStats, Sizes, TensorType, infer};

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
    fn same_memory(&self, other: &Operand<'_>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(self.memory), Arc::as_ptr(other.memory))
    }

    fn check_bounds(&self, op: &'static str, operand: &str) -> Result<(), TensorError> {
        let (needed, found) = (self.view.byte_range().end, self.memory.len());
        if needed <= found {
            return Ok(());
        }
        Err(TensorError::Bounds { op, operand: operand.to_owned(), needed, found })
    }
}

/// The result of an operation: a tensor whose elements are all of a memory, one after another.
pub struct Evaluated {
    /// Where it lies.
    pub memory: Arc<dyn TensorMemory>,
    /// What it is.
    pub ty: TensorType,
    /// What it cost.
    pub stats: RunStats,
}

/// A device that keeps tensors and carries out single operations on them. Work takes effect in the order it is given; a device may
/// return before it is done, and then reports a failure when the result is read. Memory of another device is refused by
/// [`BackendError::ForeignMemory`].
pub trait TensorDevice: Send + Sync {
    /// Memory of `bytes` bytes (0 is fine), in which anything may stand.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError>;

    /// Whether this memory is of this device.
    fn owns(&self, memory: &dyn TensorMemory) -> bool;

    /// Copies the elements of a view to those of another of the same shape, after [`check_copy`]. Floats and quantised types
    /// to any float type, rounded to nearest; `U32` and `I32` to themselves.
    fn copy(&self, from: Operand<'_>, to: Operand<'_>) -> Result<RunStats, BackendError>;

    /// Carries out one operation, after [`check_eval`].
    fn eval(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Evaluated, BackendError>;
}

/// Checks everything a copy relies on: types and shapes, that both views lie inside their memories, that no element is written twice,
/// and that what is written is not read (but for the very same view).
pub fn check_copy(from: &Operand<'_>, to: &Operand<'_>) -> Result<(), TensorError> {
    let (source, target) = (from.view.dtype(), to.view.dtype());
    let casts = (source.is_float() || source.is_quantized()) && target.is_float();
    if from.view.shape() != to.view.shape() || !(casts || source == target && !target.is_quantized()) {
        return Err(TensorError::Copy { found: from.view.to_string(), needed: to.view.to_string() });
    }
    from.check_bounds("copy", "input 0")?;
    to.check_bounds("copy", "output 0")?;
    let clash = |with: &str| {
        Err(TensorError::Overlap { op: "copy", operand: "output 0".to_owned(), with: with.to_owned() })
    };
    if to.view.repeats() {
        return clash("itself");
    }
    let (x, y) = (from.view.byte_range(), to.view.byte_range());
    if from.same_memory(to) && from.view != to.view && x.start < y.end && y.start < x.end {
        return clash("input 0");
    }
    Ok(())
}

/// Checks everything an operation relies on: that it can be carried out alone, that its operands are contiguous and lie inside
/// their memories, and its rule of types. Returns the type of the result.
pub fn check_eval(op: &Op, inputs: &[Operand<'_>]) -> Result<TensorType, BackendError> {
    if op.class() != OpClass::Pure {
        return Err(TensorError::Alone { op: op.name() }.into());
    }
    let mut types = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        if !input.view.is_contiguous() {
            let (operand, found) = (format!("input {index}"), input.view.to_string());
            return Err(TensorError::Strided { op: op.name(), operand, found }.into());
        }
        input.check_bounds(op.name(), &format!("input {index}"))?;
        types.push(input.view.ty());
    }
    Ok(infer(op, &types)?)
}

/// The result of an operation that leaves nothing to compute: one without elements, or zeros because a sum has no terms.
pub fn trivial(
    device: &dyn TensorDevice,
    op: &Op,
    inputs: &[Operand<'_>],
    ty: TensorType,
) -> Result<Option<Evaluated>, BackendError> {
    let is_sum = matches!(op, Op::Linear | Op::ExpertLinear | Op::Sdpa(_));
    let no_terms = is_sum && inputs.get(1).is_some_and(|terms| terms.view.is_empty());
    let bytes = ty.bytes(Sizes::default()).unwrap_or(0);
    if bytes > 0 && !no_terms {
        return Ok(None);
    }
    let memory = device.allocate(bytes)?;
    memory.write(0, &vec![0; bytes])?;
    Ok(Some(Evaluated { memory, ty, stats: RunStats::default() }))
}

/// What an operation costs that reads its inputs once and writes its result once; the time is left open.
pub fn traffic(inputs: &[Operand<'_>], written: usize) -> RunStats {
    RunStats {
        dispatches: 1,
        bytes_read: inputs.iter().map(|input| input.view.byte_range().len() as u64).sum(),
        bytes_written: written as u64,
        ..RunStats::default()
    }
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
