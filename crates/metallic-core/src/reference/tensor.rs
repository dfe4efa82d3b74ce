//! Single operations on tensors: operands are read whole, the formula is followed, the result is stored.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::DEVICE;
use super::eval::{Args, evaluate};
use super::value::Value;
use crate::tensor::{
    Evaluated, Operand, TensorDevice, TensorMemory, View, check_copy, check_eval, room, traffic, trivial,
};
use crate::{BackendError, Op, RunStats, Sizes};

/// The most bytes that stand here at one time for an element of an operand: encoded, decoded, gathered, and in the midst
/// of a formula.
const ELEMENT_BYTES: usize = 32;

/// The tensors of the reference.
pub(super) struct ReferenceTensors;

struct ReferenceMemory(Mutex<Vec<u8>>);

impl ReferenceMemory {
    fn with<T>(
        &self,
        offset: usize,
        len: usize,
        then: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, BackendError> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = bytes.len();
        let range = offset..offset.saturating_add(len);
        let part = bytes.get_mut(range).ok_or(BackendError::Range { start: offset, len, found })?;
        Ok(then(part))
    }
}

impl TensorMemory for ReferenceMemory {
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        self.with(offset, out.len(), |bytes| out.copy_from_slice(bytes))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.with(offset, bytes.len(), |part| part.copy_from_slice(bytes))
    }
}

impl TensorDevice for ReferenceTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        let mut memory = Vec::new();
        let full = BackendError::OutOfMemory { device: DEVICE, what: "a tensor", needed: bytes };
        memory.try_reserve_exact(bytes).map_err(|_| full)?;
        memory.resize(bytes, 0xff); // Unwritten memory is poison: all ones is NaN in every float type.
        Ok(Arc::new(ReferenceMemory(Mutex::new(memory))))
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        (memory as &dyn Any).is::<ReferenceMemory>()
    }

    fn copy(&self, from: Operand<'_>, to: Operand<'_>) -> Result<RunStats, BackendError> {
        check_copy(&from, &to)?;
        let start = Instant::now();
        own(&to, "output 0")?;
        room(DEVICE, from.view.elements().saturating_mul(ELEMENT_BYTES))?;
        let dtype = to.view.dtype();
        let bytes = load(&from, "input 0")?.store(dtype)?;
        let size = dtype.block_bytes();
        for (element, at) in bytes.chunks_exact(size).zip(to.view.offsets()) {
            to.memory.write(at * size, element)?;
        }
        Ok(RunStats { time: start.elapsed(), ..traffic(&[from], bytes.len()) })
    }

    fn eval(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
        let ty = check_eval(op, inputs)?;
        let start = Instant::now();
        if let Some(done) = trivial(self, op, inputs, ty)? {
            return Ok(done);
        }
        let elements = inputs.iter().fold(ty.shape.elements(Sizes::default()), |sum, input| {
            sum.saturating_add(input.view.elements())
        });
        room(DEVICE, elements.saturating_mul(ELEMENT_BYTES))?;
        let one = |(index, input)| load(input, &format!("input {index}"));
        let read: Vec<Value> = inputs.iter().enumerate().map(one).collect::<Result<_, _>>()?;
        let args = Args {
            values: read.iter().collect(),
            types: inputs.iter().map(|input| input.view.ty()).collect(),
            out: ty,
            sizes: Sizes::default(),
            threads: 1,
        };
        let bytes = evaluate(op, &args).store(ty.dtype)?;
        let memory = self.allocate(bytes.len())?;
        memory.write(0, &bytes)?;
        let stats = RunStats { time: start.elapsed(), ..traffic(inputs, bytes.len()) };
        Ok(Evaluated { memory, ty, stats })
    }
}

fn own(operand: &Operand<'_>, name: &str) -> Result<(), BackendError> {
    if ReferenceTensors.owns(operand.memory.as_ref()) {
        return Ok(());
    }
    Err(BackendError::ForeignMemory { device: DEVICE, operand: name.to_owned() })
}

/// The elements of a view in row-major order.
fn load(operand: &Operand<'_>, name: &str) -> Result<Value, BackendError> {
    own(operand, name)?;
    let view: &View = operand.view;
    let range = view.byte_range();
    let mut bytes = vec![0; range.len()];
    operand.memory.read(range.start, &mut bytes)?;
    // The first byte read holds the view's first element.
    let base = view.offset();
    Ok(match Value::load(view.dtype(), &bytes)? {
        Value::Floats(all) => Value::Floats(view.offsets().map(|at| all[at - base]).collect()),
        Value::Words(all) => Value::Words(view.offsets().map(|at| all[at - base]).collect()),
    })
}
