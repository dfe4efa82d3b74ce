//! Single operations on tensors: memory of bytes, locked for the time of one operation.

use std::any::Any;
use std::ptr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use metallic_core::tensor::{
    Evaluated, Operand, TensorDevice, TensorMemory, check_copy, check_eval, room, traffic, trivial,
};
use metallic_core::{BackendError, Op, RunStats, Sizes, TensorType};

use crate::copy::{Source, Target, copy};
use crate::exec::{Args, Input, Out, Value, Work, scratch_bytes};
use crate::simd::{self, Isa, Team};
use crate::{DEVICE, guarded, no_room};

/// The tensors of one [`crate::Cpu`]: its team and its instruction set.
pub(crate) struct CpuTensors {
    pub(crate) team: Arc<Team>,
    pub(crate) isa: Isa,
}

struct CpuMemory(RwLock<simd::AlignedBytes>);

impl CpuMemory {
    fn read_lock(&self) -> RwLockReadGuard<'_, simd::AlignedBytes> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self) -> RwLockWriteGuard<'_, simd::AlignedBytes> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Zeros.
fn memory_of(bytes: usize) -> Result<simd::AlignedBytes, BackendError> {
    let mut memory = simd::AlignedBytes::default();
    memory.grow(bytes).map_err(|_| no_room("a tensor", bytes))?;
    Ok(memory)
}

impl TensorMemory for CpuMemory {
    fn len(&self) -> usize {
        self.read_lock().bytes().len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        let memory = self.read_lock();
        let (bytes, len) = (memory.bytes(), out.len());
        let part = bytes.get(offset..offset.saturating_add(len));
        out.copy_from_slice(part.ok_or(BackendError::Range { start: offset, len, found: bytes.len() })?);
        Ok(())
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BackendError> {
        let mut memory = self.write_lock();
        let (len, found) = (bytes.len(), memory.bytes().len());
        let part = memory.bytes_mut().get_mut(offset..offset.saturating_add(len));
        part.ok_or(BackendError::Range { start: offset, len, found })?.copy_from_slice(bytes);
        Ok(())
    }
}

impl TensorDevice for CpuTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        Ok(Arc::new(CpuMemory(RwLock::new(memory_of(bytes)?))))
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        (memory as &dyn Any).is::<CpuMemory>()
    }

    fn copy(&self, from: Operand<'_>, to: Operand<'_>) -> Result<RunStats, BackendError> {
        check_copy(&from, &to)?;
        let start = Instant::now();
        let (source, target) = (memory(&from, "input 0")?, memory(&to, "output 0")?);
        let (read, written) = (from.view.byte_range(), to.view.byte_range());
        guarded(|| {
            let bytes;
            let (source, mut target) = if ptr::eq(source, target) {
                room(DEVICE, read.len())?;
                let target = target.write_lock();
                bytes = target.bytes()[read.clone()].to_vec();
                (None, target)
            } else {
                bytes = Vec::new();
                // In the order of their addresses: two operations never wait for one another.
                let first = (ptr::from_ref(source) < ptr::from_ref(target)).then(|| source.read_lock());
                let target = target.write_lock();
                (Some(first.unwrap_or_else(|| source.read_lock())), target)
            };
            let bytes = source.as_ref().map_or(&bytes[..], |source| &source.bytes()[read.clone()]);
            let mut target = Target { view: *to.view, bytes: &mut target.bytes_mut()[written.clone()] };
            Ok(copy(&self.team, &Source { view: *from.view, bytes }, &mut target)?)
        })?;
        let elements = to.view.elements() * to.view.dtype().block_bytes();
        Ok(RunStats { time: start.elapsed(), ..traffic(&[from], elements) })
    }

    fn eval(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Evaluated, BackendError> {
        let ty = check_eval(op, inputs)?;
        let start = Instant::now();
        let one = |(index, input)| memory(input, &format!("input {index}"));
        let memories: Vec<&CpuMemory> = inputs.iter().enumerate().map(one).collect::<Result<_, _>>()?;
        if let Some(done) = trivial(self, op, inputs, ty)? {
            return Ok(done);
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.view.ty()).collect();
        room(DEVICE, scratch_bytes(op, &types, &ty))?;
        let mut out = memory_of(ty.bytes(Sizes::default()).unwrap_or(0))?;
        // In the order of their addresses, each once: two operations never wait for one another.
        let mut order = memories.clone();
        order.sort_unstable_by_key(|memory| ptr::from_ref(*memory));
        order.dedup_by(|a, b| ptr::eq(*a, *b));
        let locked: Vec<_> = order.iter().map(|memory| memory.read_lock()).collect();
        guarded(|| {
            let mut args = Args::new(&ty, Sizes::default());
            for (index, (input, memory)) in inputs.iter().zip(&memories).enumerate() {
                let lock = order.iter().position(|other| ptr::eq(*other, *memory));
                let bytes = lock.map_or(&[][..], |lock| &locked[lock].bytes()[input.view.byte_range()]);
                let value = Value::operand(input.view.dtype(), bytes, op.weight_use(index));
                args.push(Input { value, ty: &types[index], node: None })?;
            }
            let mut work = Work::new(Arc::clone(&self.team), self.isa);
            work.run(op, args, Out::stored(ty.dtype, out.bytes_mut()), None)
        })?;
        let stats = RunStats { time: start.elapsed(), ..traffic(inputs, out.bytes().len()) };
        Ok(Evaluated { memory: Arc::new(CpuMemory(RwLock::new(out))), ty, stats })
    }
}

fn memory<'a>(operand: &Operand<'a>, name: &str) -> Result<&'a CpuMemory, BackendError> {
    let any: &dyn Any = operand.memory.as_ref();
    any.downcast_ref().ok_or_else(|| BackendError::ForeignMemory { device: DEVICE, operand: name.to_owned() })
}
