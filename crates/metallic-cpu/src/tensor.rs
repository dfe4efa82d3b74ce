//! Single operations on tensors: memory of bytes, locked for the time of one operation.

use std::any::Any;
use std::ptr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use metallic_core::tensor::{Operand, TensorDevice, TensorMemory, TensorOp, check, room, traffic};
use metallic_core::{BackendError, Binary, RunStats};

use crate::simd::{Isa, Team};
use crate::tensor_attention::attend;
use crate::tensor_data::{Sink, Source};
use crate::tensor_matmul::matmul;
use crate::tensor_ops as ops;
use crate::{DEVICE, guarded, tensor_attention, tensor_matmul};

/// The tensors of one [`crate::Cpu`]: its team and its instruction set.
pub(crate) struct CpuTensors {
    pub(crate) team: Arc<Team>,
    pub(crate) isa: Isa,
}

struct Memory(RwLock<Vec<u8>>);

impl Memory {
    fn read_lock(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TensorMemory for Memory {
    fn len(&self) -> usize {
        self.read_lock().len()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        let bytes = self.read_lock();
        let outside = BackendError::Range { start: offset, len: out.len(), found: bytes.len() };
        let part = bytes.get(offset..offset.saturating_add(out.len())).ok_or(outside)?;
        out.copy_from_slice(part);
        Ok(())
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BackendError> {
        let mut all = self.write_lock();
        let outside = BackendError::Range { start: offset, len: bytes.len(), found: all.len() };
        let part = all.get_mut(offset..offset.saturating_add(bytes.len())).ok_or(outside)?;
        part.copy_from_slice(bytes);
        Ok(())
    }
}

impl TensorDevice for CpuTensors {
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn TensorMemory>, BackendError> {
        let mut memory = Vec::new();
        let full = BackendError::OutOfMemory { device: DEVICE, what: "a tensor", needed: bytes };
        memory.try_reserve_exact(bytes).map_err(|_| full)?;
        memory.resize(bytes, 0);
        Ok(Arc::new(Memory(RwLock::new(memory))))
    }

    fn owns(&self, memory: &dyn TensorMemory) -> bool {
        (memory as &dyn Any).is::<Memory>()
    }

    fn run(
        &self,
        op: &TensorOp,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Result<RunStats, BackendError> {
        check(op, inputs, outputs)?;
        let start = Instant::now();
        room(DEVICE, self.scratch(op, inputs, outputs))?;
        guarded(|| self.evaluate(op, inputs, outputs))?;
        Ok(RunStats { time: start.elapsed(), ..traffic(inputs, outputs) })
    }
}

impl CpuTensors {
    /// The most bytes an operation takes beside its operands, where that may be more than a few pages for each thread.
    fn scratch(&self, op: &TensorOp, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> usize {
        if outputs.iter().all(|output| output.view.is_empty()) {
            return 0;
        }
        let threads = self.team.threads();
        match (op, inputs) {
            (TensorOp::Matmul, [a, b]) => tensor_matmul::scratch(threads, a.view, b.view),
            (TensorOp::Sdpa(_), [q, ..]) => tensor_attention::scratch(threads, q.view),
            (TensorOp::Argmax | TensorOp::TopK { .. } | TensorOp::Sample(_), [x, ..]) => {
                ops::scratch(threads.min(x.view.rows()), x.view.cols(), outputs[0].view.elements())
            }
            // The heads of a token are turned together.
            (TensorOp::Rope(rope), [x, ..]) => {
                let [tokens, heads] = [x.view.shape()[0], x.view.shape()[1]];
                ops::scratch(threads.min(tokens), heads * rope.head_dim, 0)
            }
            (op, [x, ..]) if !op.is_element_wise() => {
                ops::scratch(threads.min(x.view.rows()), x.view.cols(), 0)
            }
            _ => 0,
        }
    }

    fn evaluate(
        &self,
        op: &TensorOp,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Result<(), BackendError> {
        let (isa, team) = (self.isa, &*self.team);
        let out = &outputs[0];
        match *op {
            TensorOp::Copy => with(inputs, out, |x, out| ops::copy(team, &x[0], out)),
            TensorOp::Fill(value) => with(inputs, out, |_, out| ops::fill(team, value, out)),
            TensorOp::Unary(f) => {
                with(inputs, out, |x, out| ops::map(team, &x[0], out, |x| crate::ops::apply(isa, f, x)))
            }
            TensorOp::Softcap(cap) => with(inputs, out, |x, out| {
                let capped = |x: &mut [f32]| x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
                ops::map(team, &x[0], out, capped);
            }),
            TensorOp::Binary(f) => {
                with(inputs, out, |x, out| ops::zip(team, (&x[0], &x[1]), out, |a, b| ops::binary(f, a, b)))
            }
            TensorOp::Scalar { op, value, reversed } => with(inputs, out, |x, out| {
                ops::map(team, &x[0], out, |x| ops::scalar(op, value, reversed, x));
            }),
            TensorOp::Gated(act) => with(inputs, out, |x, out| {
                ops::zip(team, (&x[0], &x[1]), out, |gate, up| {
                    crate::ops::apply(isa, act, gate);
                    ops::binary(Binary::Mul, gate, up);
                });
            }),
            TensorOp::RmsNorm { eps } => with(inputs, out, |x, out| ops::rms_norm((isa, team), x, eps, out)),
            TensorOp::LayerNorm { eps } => with(inputs, out, |x, out| ops::layer_norm(team, x, eps, out)),
            // The norm reads the sum as it was stored.
            TensorOp::AddRmsNorm { eps } => {
                self.evaluate(&TensorOp::Binary(Binary::Add), &inputs[..2], &outputs[..1])?;
                self.evaluate(&TensorOp::RmsNorm { eps }, &[*out, inputs[2]], &outputs[1..])
            }
            TensorOp::AddLayerNorm { eps } => {
                self.evaluate(&TensorOp::Binary(Binary::Add), &inputs[..2], &outputs[..1])?;
                self.evaluate(&TensorOp::LayerNorm { eps }, &[*out, inputs[2], inputs[3]], &outputs[1..])
            }
            TensorOp::Softmax => with(inputs, out, |x, out| ops::softmax((isa, team), &x[0], out)),
            TensorOp::Matmul => with(inputs, out, |x, out| matmul((isa, team), (&x[0], &x[1]), out))?,
            TensorOp::Rope(rope) => with(inputs, out, |x, out| ops::rope(team, &rope, x, out)),
            TensorOp::Sdpa(sdpa) => with(inputs, out, |x, out| attend((isa, team), &sdpa, x, out)),
            TensorOp::Argmax => with(inputs, out, |x, mut out| out.put_u32(0, &ops::argmax(team, &x[0]))),
            TensorOp::TopK { k } => {
                let mut indices = Vec::new();
                with(inputs, out, |x, mut out| {
                    let best = ops::top_k(team, &x[0], k);
                    let values: Vec<f32> = best.iter().map(|(_, value)| *value).collect();
                    indices = best.into_iter().map(|(index, _)| index).collect();
                    out.put(0, &values);
                })?;
                with(&[], &outputs[1], |_, mut out| out.put_u32(0, &indices))
            }
            TensorOp::Sample(sample) => {
                with(inputs, out, |x, mut out| out.put_u32(0, &ops::sample(team, &sample, x)))
            }
        }
    }
}

fn memory<'a>(operand: &Operand<'a>, name: impl FnOnce() -> String) -> Result<&'a Memory, BackendError> {
    let any: &dyn Any = operand.memory.as_ref();
    any.downcast_ref().ok_or_else(|| BackendError::ForeignMemory { device: DEVICE, operand: name() })
}

/// Locks the memories of an operation and calls `body` with its operands.
fn with<R>(
    inputs: &[Operand<'_>],
    output: &Operand<'_>,
    body: impl FnOnce(&[Source<'_>], Sink<'_>) -> R,
) -> Result<R, BackendError> {
    let target = memory(output, || "output 0".to_owned())?;
    let mut sources = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        sources.push(memory(input, || format!("input {index}"))?);
    }
    // In the order of their addresses, each once: two operations never wait for one another.
    let mut order: Vec<&Memory> = sources.clone();
    order.push(target);
    order.sort_unstable_by_key(|memory| ptr::from_ref(*memory));
    order.dedup_by(|a, b| ptr::eq(*a, *b));
    let mut reads: Vec<(&Memory, RwLockReadGuard<'_, Vec<u8>>)> = Vec::with_capacity(order.len());
    let mut write = None;
    for memory in order {
        if ptr::eq(memory, target) {
            write = Some(memory.write_lock());
        } else {
            reads.push((memory, memory.read_lock()));
        }
    }
    let Some(mut write) = write else {
        return Err(BackendError::Failed { device: DEVICE, reason: "the output has no memory".to_owned() });
    };
    let range = output.view.byte_range();
    let (before, rest) = write.split_at_mut(range.start);
    let (out, after) = rest.split_at_mut(range.len());
    // What an operation overwrites in place is copied; everything else is read where it lies.
    let copies: Vec<Vec<u8>> = inputs
        .iter()
        .zip(&sources)
        .map(|(input, memory)| {
            let read = input.view.byte_range();
            let overlaps = read.start < range.end && range.start < read.end;
            if ptr::eq(*memory, target) && overlaps {
                out[read.start - range.start..][..read.len()].to_vec()
            } else {
                Vec::new()
            }
        })
        .collect();
    let find = |index: usize| -> &[u8] {
        let read = inputs[index].view.byte_range();
        if read.is_empty() {
            return &[];
        }
        if let Some((_, bytes)) = reads.iter().find(|(memory, _)| ptr::eq(*memory, sources[index])) {
            return &bytes[read];
        }
        if !copies[index].is_empty() {
            return &copies[index];
        }
        if read.end <= range.start {
            &before[read]
        } else {
            &after[read.start - range.end..read.end - range.end]
        }
    };
    let read: Vec<Source<'_>> =
        inputs.iter().enumerate().map(|(index, input)| Source::new(find(index), *input.view)).collect();
    Ok(body(&read, Sink::new(out, *output.view)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use metallic_core::tensor::View;
    use metallic_core::{Backend, DType};

    #[test]
    fn scratch_is_counted_for_as_many_rows_as_there_are_threads() {
        let cpu = crate::Cpu::new(crate::CpuOptions { threads: 2, ..Default::default() }).unwrap();
        let tensors = CpuTensors { team: cpu.team.clone(), isa: cpu.isa };
        let memory = cpu.tensors().allocate(4).unwrap();
        let one = View::contiguous(DType::F32, &[1]).unwrap();
        let scratch = |op, shape: &[usize], output: &[usize]| {
            let (x, out) = (one.broadcast(shape).unwrap(), View::contiguous(DType::U32, output).unwrap());
            let at = |view| Operand { memory: &memory, view };
            tensors.scratch(&op, &[at(&x)], &[at(&out)])
        };
        let row = 1 << 30;
        assert_eq!(scratch(TensorOp::Argmax, &[1, row], &[1]), 16 * (2 * row + 1));
        assert_eq!(scratch(TensorOp::Argmax, &[100, row], &[100]), 16 * (3 * row + 100));
        assert_eq!(scratch(TensorOp::TopK { k: 7 }, &[1, row], &[1, 7]), 16 * (2 * row + 7));
        assert_eq!(scratch(TensorOp::Softmax, &[100, row], &[100, row]), 16 * 3 * row);
        assert_eq!(scratch(TensorOp::Unary(metallic_core::Unary::Relu), &[100, row], &[100, row]), 0);
        assert_eq!(scratch(TensorOp::Softmax, &[0, row], &[0, row]), 0);
        assert_eq!(scratch(TensorOp::Softmax, &[1, usize::MAX / 8], &[1, 1]), usize::MAX);
    }
}
