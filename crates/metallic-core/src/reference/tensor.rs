//! The naive meaning of every operation on tensors: inputs are read whole, the formula is followed, results are stored.

use std::any::Any;
use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{DEVICE, ops, softcap};
use crate::quant::{dequantize, quantize};
use crate::sample::rank;
use crate::tensor::{Operand, Sdpa, TensorDevice, TensorMemory, TensorOp, View, check, room, traffic};
use crate::{BackendError, Binary, DType, Rope, RunStats, Unary};

/// The most bytes that stand here at one time for an element of an operand: encoded, decoded, gathered, and in the midst
/// of a formula.
const ELEMENT_BYTES: usize = 32;

/// The tensors of the reference.
pub(super) struct ReferenceTensors;

struct Memory(Mutex<Vec<u8>>);

impl Memory {
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

impl TensorMemory for Memory {
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
        Ok(Arc::new(Memory(Mutex::new(memory))))
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
        let (sources, targets) = (memories(inputs, "input")?, memories(outputs, "output")?);
        if outputs.iter().any(|output| !output.view.is_empty()) {
            let all = inputs.iter().chain(outputs);
            let elements = all.fold(0usize, |sum, operand| sum.saturating_add(operand.view.elements()));
            room(DEVICE, elements.saturating_mul(ELEMENT_BYTES))?;
            let mut read: Vec<Values> = Vec::with_capacity(inputs.len());
            for (memory, input) in sources.iter().zip(inputs) {
                read.push(load(memory, input.view)?);
            }
            let views: Vec<&View> = inputs.iter().map(|input| input.view).collect();
            let results = evaluate(op, &read, &views, outputs);
            for ((memory, output), values) in targets.iter().zip(outputs).zip(results) {
                store(memory, output.view, &values)?;
            }
        }
        Ok(RunStats { time: start.elapsed(), ..traffic(inputs, outputs) })
    }
}

fn memories<'a>(operands: &[Operand<'a>], kind: &str) -> Result<Vec<&'a Memory>, BackendError> {
    let mine = |(index, operand): (usize, &Operand<'a>)| {
        let any: &dyn Any = operand.memory.as_ref();
        any.downcast_ref()
            .ok_or_else(|| BackendError::ForeignMemory { device: DEVICE, operand: format!("{kind} {index}") })
    };
    operands.iter().enumerate().map(mine).collect()
}

/// The elements of a view in row-major order.
enum Values {
    Floats(Vec<f32>),
    Integers(Vec<u32>),
}

impl Values {
    fn floats(&self) -> &[f32] {
        if let Values::Floats(values) = self { values } else { &[] }
    }

    fn integers(&self) -> &[u32] {
        if let Values::Integers(values) = self { values } else { &[] }
    }
}

fn load(memory: &Memory, view: &View) -> Result<Values, BackendError> {
    let range = view.byte_range();
    let mut bytes = vec![0; range.len()];
    memory.read(range.start, &mut bytes)?;
    // The first byte read holds the view's first element.
    let base = view.offset();
    if matches!(view.dtype(), DType::U32 | DType::I32) {
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let mut values = Vec::with_capacity(view.elements());
        values.extend(view.offsets().map(|at| words[at - base]));
        return Ok(Values::Integers(values));
    }
    let blocks = bytes.len() / view.dtype().block_bytes();
    let mut numbers = vec![0.0; blocks * view.dtype().block_len()];
    dequantize(view.dtype(), &bytes, &mut numbers).map_err(failed)?;
    let mut values = Vec::with_capacity(view.elements());
    values.extend(view.offsets().map(|at| numbers[at - base]));
    Ok(Values::Floats(values))
}

fn store(memory: &Memory, view: &View, values: &Values) -> Result<(), BackendError> {
    let size = view.dtype().block_bytes();
    for (index, at) in view.offsets().enumerate() {
        let mut bytes = [0; 4];
        match values {
            Values::Floats(values) => {
                quantize(view.dtype(), &values[index..=index], &mut bytes[..size]).map_err(failed)?;
            }
            Values::Integers(values) => bytes = values[index].to_le_bytes(),
        }
        memory.write(at * size, &bytes[..size])?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> BackendError {
    BackendError::Failed { device: DEVICE, reason: error.to_string() }
}

/// The values of each output.
fn evaluate(op: &TensorOp, inputs: &[Values], views: &[&View], outputs: &[Operand<'_>]) -> Vec<Values> {
    let x = |index: usize| inputs[index].floats();
    let each = |f: &dyn Fn(f32) -> f32| vec![Values::Floats(x(0).iter().map(|x| f(*x)).collect())];
    let both = |f: &dyn Fn(f32, f32) -> f32| {
        vec![Values::Floats(x(0).iter().zip(x(1)).map(|(a, b)| f(*a, *b)).collect())]
    };
    let rows = || x(0).chunks(views[0].cols().max(1));
    let by_row =
        |f: &dyn Fn(&[f32]) -> Vec<f32>| vec![Values::Floats(rows().flat_map(f).collect::<Vec<f32>>())];
    match *op {
        TensorOp::Copy => match &inputs[0] {
            Values::Floats(values) => vec![Values::Floats(values.clone())],
            Values::Integers(values) => vec![Values::Integers(values.clone())],
        },
        TensorOp::Fill(value) => vec![Values::Floats(vec![value; outputs[0].view.elements()])],
        TensorOp::Unary(f) => each(&|x| ops::unary(f, x)),
        TensorOp::Softcap(cap) => each(&|x| softcap(f64::from(x), cap) as f32),
        TensorOp::Binary(f) => both(&|a, b| ops::binary(f, a, b)),
        TensorOp::Scalar { op, value, reversed: false } => each(&|x| ops::binary(op, x, value)),
        TensorOp::Scalar { op, value, reversed: true } => each(&|x| ops::binary(op, value, x)),
        TensorOp::Gated(act) => both(&|gate, up| gated(act, gate, up)),
        TensorOp::RmsNorm { eps } => by_row(&|row| ops::rms_norm(row, x(1), eps)),
        TensorOp::LayerNorm { eps } => by_row(&|row| layer_norm(row, x(1), x(2), eps)),
        TensorOp::AddRmsNorm { eps } => added(inputs, views, &|row| ops::rms_norm(row, x(2), eps)),
        TensorOp::AddLayerNorm { eps } => added(inputs, views, &|row| layer_norm(row, x(2), x(3), eps)),
        TensorOp::Softmax => by_row(&|row| {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            ops::softmax(&row).iter().map(|x| *x as f32).collect()
        }),
        TensorOp::Matmul => vec![Values::Floats(matmul(x(0), x(1), views))],
        TensorOp::Rope(rope) => vec![Values::Floats(rotated(&rope, inputs, views))],
        TensorOp::Sdpa(sdpa) => vec![Values::Floats(attention(&sdpa, inputs, views))],
        TensorOp::Argmax => vec![Values::Integers(rows().map(|row| ranked(row)[0].0).collect())],
        TensorOp::TopK { k } => {
            let best: Vec<(u32, f32)> = rows().flat_map(|row| ranked(row).into_iter().take(k)).collect();
            let (indices, values) = best.into_iter().unzip();
            vec![Values::Floats(values), Values::Integers(indices)]
        }
        TensorOp::Sample(sample) => {
            let cols = views[0].cols();
            let counts = inputs.get(1).map_or(&[][..], Values::integers);
            let counts = |row: usize| counts.get(row * cols..(row + 1) * cols).unwrap_or(&[]);
            let draw = |(row, logits): (usize, &[f32])| sample.draw(row as u32, logits, counts(row));
            vec![Values::Integers(rows().enumerate().map(draw).collect())]
        }
    }
}

fn gated(act: Unary, gate: f32, up: f32) -> f32 {
    ops::binary(Binary::Mul, ops::unary(act, gate), up)
}

/// `(x - mean) / sqrt(mean((x - mean)²) + eps) * w + b`
fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32) -> Vec<f32> {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
    let one =
        |(i, x): (usize, &f32)| ((f64::from(*x) - mean) * inverse * f64::from(w[i]) + f64::from(b[i])) as f32;
    x.iter().enumerate().map(one).collect()
}

/// The sum of the first two inputs, and the norm of its rows as they are stored.
fn added(inputs: &[Values], views: &[&View], norm: &dyn Fn(&[f32]) -> Vec<f32>) -> Vec<Values> {
    let round = |x: f32| match views[0].dtype() {
        DType::F16 => half::f16::from_f32(x).to_f32(),
        DType::BF16 => half::bf16::from_f32(x).to_f32(),
        _ => x,
    };
    let pairs = inputs[0].floats().iter().zip(inputs[1].floats());
    let sum: Vec<f32> = pairs.map(|(a, b)| round(a + b)).collect();
    let normed = sum.chunks(views[0].cols().max(1)).flat_map(norm).collect();
    vec![Values::Floats(sum), Values::Floats(normed)]
}

fn matmul(a: &[f32], b: &[f32], views: &[&View]) -> Vec<f32> {
    let (rank, shape) = (views[0].rank(), views[0].shape());
    let (m, k, n) = (shape[rank - 2], shape[rank - 1], views[1].cols());
    let batches: usize = shape[..rank - 2].iter().product();
    let mut out = Vec::with_capacity(batches * m * n);
    for batch in 0..batches {
        let (a, b) = (&a[batch * m * k..][..m * k], &b[batch * k * n..][..k * n]);
        for i in 0..m {
            for j in 0..n {
                let product = |at: usize| f64::from(a[i * k + at]) * f64::from(b[at * n + j]);
                out.push((0..k).map(product).sum::<f64>() as f32);
            }
        }
    }
    out
}

fn rotated(rope: &Rope, inputs: &[Values], views: &[&View]) -> Vec<f32> {
    let mut x = inputs[0].floats().to_vec();
    let cols = views[0].shape()[1] * rope.head_dim;
    for (row, position) in x.chunks_mut(cols.max(1)).zip(inputs[1].integers()) {
        ops::rope(rope, row, *position, inputs[2].floats());
    }
    x
}

/// Every index of a row with its number, best first.
fn ranked(row: &[f32]) -> Vec<(u32, f32)> {
    let mut order: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    order.sort_by_key(|(id, x)| Reverse(rank(*id, *x)));
    order
}

fn attention(sdpa: &Sdpa, inputs: &[Values], views: &[&View]) -> Vec<f32> {
    let [heads, m, d] = [0, 1, 2].map(|axis| views[0].shape()[axis]);
    let (kv_heads, n) = (views[1].shape()[0], views[1].shape()[1]);
    let (q, k, v) = (inputs[0].floats(), inputs[1].floats(), inputs[2].floats());
    let mut out = Vec::with_capacity(heads * m * d);
    for head in 0..heads {
        let group = head / (heads / kv_heads);
        let sink = inputs.get(3).map(|sinks| f64::from(sinks.floats()[head]));
        for i in 0..m {
            let row = |x: &[f32], at: usize| x[at * d..][..d].to_vec();
            let q = row(q, head * m + i);
            let seen = sdpa.mask.visible(i, m, n);
            let mut scores: Vec<f64> = seen
                .clone()
                .map(|j| ops::dot(&q, &row(k, group * n + j)) * f64::from(sdpa.scale))
                .map(|s| sdpa.softcap.map_or(s, |cap| softcap(s, cap)))
                .collect();
            scores.extend(sink);
            let mut sum = vec![0f64; d];
            for (p, j) in ops::softmax(&scores).iter().zip(seen) {
                for (sum, v) in sum.iter_mut().zip(row(v, group * n + j)) {
                    *sum += p * f64::from(v);
                }
            }
            out.extend(sum.iter().map(|x| *x as f32));
        }
    }
    out
}
