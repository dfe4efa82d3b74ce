//! How each operation runs.

use metallic_core::sample::{Choices, Record};
use metallic_core::tensor::{Sample, Sdpa, TensorOp};
use metallic_core::{DType, Rope};

use super::matmul;
use super::work::{Tensor, Work};
use crate::command::Region;
use crate::error::GpuError;
use crate::kernels::axes::Axes;
use crate::kernels::norm::{self, Norm};
use crate::kernels::strided::{self, Map, Zip};
use crate::kernels::{copy, elementwise, gather, rope, sample, sdpa, softmax};

/// Appends the commands of an operation whose operands keep the rules of `check`; outputs have elements.
pub(super) fn plan(
    work: &mut Work<'_>,
    op: &TensorOp,
    inputs: &[Tensor],
    outputs: &[Tensor],
) -> Result<(), GpuError> {
    match (*op, inputs, outputs) {
        (TensorOp::Copy, [x], [out]) if x.dtype().is_quantized() => decode(work, *x, *out),
        (TensorOp::Copy, [x], [out]) => work.copy(*x, *out),
        (TensorOp::Fill(value), [], [out]) => fill(work, value, *out),
        (TensorOp::Unary(f), [x], [out]) => map(work, Map::Unary(f), *x, *out),
        (TensorOp::Softcap(cap), [x], [out]) => map(work, Map::Softcap(cap), *x, *out),
        (TensorOp::Scalar { op, value, reversed }, [x], [out]) => {
            map(work, Map::Scalar { op, value, reversed }, *x, *out)
        }
        (TensorOp::Binary(f), [a, b], [out]) => zip(work, Zip::Binary(f), [*a, *b], *out),
        (TensorOp::Gated(act), [a, b], [out]) => zip(work, Zip::Gated(act), [*a, *b], *out),
        (TensorOp::RmsNorm { eps }, ..) => norms(work, Norm::Rms, eps, inputs, outputs),
        (TensorOp::LayerNorm { eps }, ..) => norms(work, Norm::Layer, eps, inputs, outputs),
        (TensorOp::AddRmsNorm { eps }, ..) => norms(work, Norm::AddRms, eps, inputs, outputs),
        (TensorOp::AddLayerNorm { eps }, ..) => norms(work, Norm::AddLayer, eps, inputs, outputs),
        (TensorOp::Softmax, [x], [out]) => {
            let x = work.dense(*x, x.dtype())?;
            let launch = softmax::softmax(x.dtype(), rows(work, x)?, work.limits())?;
            let target = work.target(*out, out.dtype())?;
            work.launch(&launch, &[Some(x.region), Some(target.region)])?;
            work.deliver(target, *out)
        }
        (TensorOp::Matmul, [a, b], [out]) => matmul::plan(work, *a, *b, *out),
        (TensorOp::Rope(spec), [x, positions, freqs], [out]) => {
            rotate(work, &spec, [*x, *positions, *freqs], *out)
        }
        (TensorOp::Sdpa(spec), [q, k, v, sinks @ ..], [out]) => {
            attend(work, &spec, [*q, *k, *v], sinks.first(), *out)
        }
        (TensorOp::Argmax, [x], [out]) => {
            let x = work.dense(*x, x.dtype())?;
            let launch = sample::argmax(x.dtype(), rows(work, x)?, work.limits())?;
            let target = work.target(*out, DType::U32)?;
            work.launch(&launch, &[Some(x.region), Some(target.region)])?;
            work.deliver(target, *out)
        }
        (TensorOp::TopK { k }, [x], [values, indices]) => top_k(work, k, *x, [*values, *indices]),
        (TensorOp::Sample(how), [x, counts @ ..], [out]) => draw(work, &how, *x, counts.first(), *out),
        // `check` has held every operation to its number of operands.
        _ => Err(work.unsupported(format!("{} inputs and {} outputs", inputs.len(), outputs.len()))),
    }
}

/// Rows of the last axis, and their length.
fn rows(work: &Work<'_>, x: Tensor) -> Result<(u32, u32), GpuError> {
    Ok((work.count(x.view.rows())?, work.count(x.view.cols())?))
}

pub(super) fn fill(work: &mut Work<'_>, value: f32, out: Tensor) -> Result<(), GpuError> {
    let axes = Axes::new(work.op(), out.view.shape(), [out.view.strides()])?;
    let launch = copy::fill(out.dtype(), value, &axes, work.limits())?;
    work.launch(&launch, &[Some(out.region)])
}

fn map(work: &mut Work<'_>, f: Map, x: Tensor, out: Tensor) -> Result<(), GpuError> {
    let (dtype, limits) = (out.dtype(), work.limits());
    let axes = Axes::new(work.op(), out.view.shape(), [x.view.strides(), out.view.strides()])?;
    let launch = match (axes.contiguous(), f) {
        (None, f) => strided::map(dtype, f, &axes, limits)?,
        (Some(n), Map::Unary(f)) => elementwise::unary(dtype, f, n, limits)?,
        (Some(n), Map::Softcap(cap)) => elementwise::softcap(dtype, cap, n, limits)?,
        (Some(n), Map::Scalar { op, value, reversed }) => {
            elementwise::scalar(dtype, (op, reversed), value, n, limits)?
        }
    };
    work.launch(&launch, &[Some(x.region), Some(out.region)])
}

fn zip(work: &mut Work<'_>, f: Zip, [a, b]: [Tensor; 2], out: Tensor) -> Result<(), GpuError> {
    let (dtype, limits) = (out.dtype(), work.limits());
    let strides = [a.view.strides(), b.view.strides(), out.view.strides()];
    let axes = Axes::new(work.op(), out.view.shape(), strides)?;
    let launch = match (axes.contiguous(), f) {
        (None, f) => strided::zip(dtype, f, &axes, limits)?,
        (Some(n), Zip::Binary(f)) => elementwise::binary(dtype, f, n, n, limits)?,
        (Some(n), Zip::Gated(act)) => elementwise::gated(dtype, act, n, limits)?,
    };
    work.launch(&launch, &[Some(a.region), Some(b.region), Some(out.region)])
}

/// `(x, residual?, w, b?) -> (sum?, out)`, in the order of the kernels' arguments.
fn norms(
    work: &mut Work<'_>,
    kind: Norm,
    eps: f32,
    inputs: &[Tensor],
    outputs: &[Tensor],
) -> Result<(), GpuError> {
    let [x, ..] = inputs else { return Err(work.unsupported("no rows")) };
    let size = rows(work, *x)?;
    let dtype = x.dtype();
    let launch = norm::norm(kind, (dtype, dtype), size, eps, work.limits())?;
    let mut regions: Vec<Option<Region>> = Vec::with_capacity(launch.kernel.args.len());
    for (input, arg) in inputs.iter().zip(launch.kernel.args) {
        let mut dense = work.dense(*input, dtype)?;
        if !dense.region.offset().is_multiple_of(arg.align) {
            // Weights are bound at whole words.
            dense = work.scratch_tensor(dtype, input.view.shape())?;
            work.copy(*input, dense)?;
        }
        regions.push(Some(dense.region));
    }
    let mut targets = Vec::with_capacity(outputs.len());
    for output in outputs {
        let target = work.target(*output, dtype)?;
        regions.push(Some(target.region));
        targets.push(target);
    }
    work.launch(&launch, &regions)?;
    targets.into_iter().zip(outputs).try_for_each(|(target, output)| work.deliver(target, *output))
}

fn rotate(
    work: &mut Work<'_>,
    spec: &Rope,
    [x, positions, freqs]: [Tensor; 3],
    out: Tensor,
) -> Result<(), GpuError> {
    if freqs.view.is_empty() {
        return work.copy(x, out);
    }
    let views = [&x.view, &positions.view, &freqs.view, &out.view];
    let launch = rope::rope_view(spec, views, work.limits())?;
    work.launch(&launch, &[Some(x.region), Some(positions.region), Some(freqs.region), Some(out.region)])
}

fn attend(
    work: &mut Work<'_>,
    spec: &Sdpa,
    [q, k, v]: [Tensor; 3],
    sinks: Option<&Tensor>,
    out: Tensor,
) -> Result<(), GpuError> {
    if k.view.is_empty() {
        return fill(work, 0.0, out);
    }
    let views = [&q.view, &k.view, &v.view, &out.view];
    let launch = sdpa::sdpa(spec, views, sinks.map(|sinks| &sinks.view), work.limits())?;
    let sinks = sinks.map(|sinks| sinks.region);
    work.launch(&launch, &[Some(q.region), Some(k.region), Some(v.region), sinks, Some(out.region)])
}

fn top_k(work: &mut Work<'_>, k: usize, x: Tensor, outputs: [Tensor; 2]) -> Result<(), GpuError> {
    let x = work.dense(x, x.dtype())?;
    let (rows, n) = rows(work, x)?;
    let k = work.count(k)?;
    let launch = sample::top_k(x.dtype(), (rows, n), k, work.limits())?;
    let picked = work.scratch(sample::top_k_scratch(rows, k))?;
    let values = work.target(outputs[0], x.dtype())?;
    let indices = work.target(outputs[1], DType::U32)?;
    work.launch(&launch, &[Some(x.region), Some(picked), Some(values.region), Some(indices.region)])?;
    work.deliver(values, outputs[0])?;
    work.deliver(indices, outputs[1])
}

/// Penalised logits in scratch, which the choice may write over; then the choice.
fn draw(
    work: &mut Work<'_>,
    how: &Sample,
    x: Tensor,
    counts: Option<&Tensor>,
    out: Tensor,
) -> Result<(), GpuError> {
    let x = work.dense(x, x.dtype())?;
    let counts = counts.map(|counts| work.dense(*counts, DType::U32)).transpose()?;
    let (rows, n) = rows(work, x)?;
    let mut choices = Choices::default();
    for row in 0..rows {
        choices.push(&how.choice(row), &[]).map_err(|error| work.unsupported(error.to_string()))?;
    }
    let words = choices.words();
    sample::check_choices(words, rows as usize)?;
    let (record, _) = Record::read(words, 0).map_err(|error| work.unsupported(error.to_string()))?;
    let (words, logits) = (work.words(words)?, work.scratch_tensor(DType::F32, x.view.shape())?);
    let count = work.count(x.view.elements())?;
    let launch = sample::penalise(x.dtype(), count, &record, counts.is_some(), work.limits())?;
    work.launch(&launch, &[Some(x.region), counts.map(|counts| counts.region), Some(logits.region)])?;
    let target = work.target(out, DType::U32)?;
    let launch = sample::choose((rows, n), work.limits())?;
    work.launch(&launch, &[Some(logits.region), Some(words), Some(target.region)])?;
    work.deliver(target, out)
}

/// Decodes a quantised tensor.
fn decode(work: &mut Work<'_>, x: Tensor, out: Tensor) -> Result<(), GpuError> {
    let rank = x.view.rank();
    let block = x.dtype().block_len();
    let along =
        (0..rank).find(|axis| x.view.strides()[*axis] == 1 && x.view.shape()[*axis].is_multiple_of(block));
    let along = along.ok_or_else(|| work.unsupported(format!("{}, which has no rows of blocks", x.view)))?;
    // The same elements with the axis of the blocks last.
    let order: Vec<usize> = (0..rank).filter(|axis| *axis != along).chain([along]).collect();
    let turn = |tensor: Tensor| -> Result<Tensor, GpuError> {
        let view = tensor
            .view
            .permute(&order)
            .map_err(|error| GpuError::Unsupported { op: "copy", reason: error.to_string() })?;
        Ok(Tensor { view, ..tensor })
    };
    let (x, out) = (turn(x)?, turn(out)?);
    let target = work.target(out, out.dtype())?;
    decode_rows(work, x, target)?;
    work.deliver(target, out)
}

/// Decodes rows of blocks, a launch for each run of rows that lie at one distance from each other.
pub(super) fn decode_rows(work: &mut Work<'_>, x: Tensor, out: Tensor) -> Result<(), GpuError> {
    let (dtype, cols) = (x.dtype(), x.view.cols());
    let bytes = |elements: usize| elements / dtype.block_len() * dtype.block_bytes();
    let (run, stride) = match x.view.rank() {
        0 | 1 => (1, cols),
        rank => (x.view.shape()[rank - 2], x.view.strides()[rank - 2]),
    };
    let size = (work.count(run)?, work.count(cols)?);
    let launch = gather::decode((dtype, out.dtype()), size, work.count(bytes(stride))?, work.limits())?;
    let each = run * cols * out.dtype().block_bytes();
    for (index, row) in (0..x.view.rows()).step_by(run.max(1)).enumerate() {
        let start = bytes(x.view.row_offset(row) - x.view.offset());
        let table = x.region.slice(start, bytes((run - 1) * stride + cols))?;
        let rows = out.region.slice(index * each, each)?;
        work.launch(&launch, &[None, Some(table), Some(rows)])?;
    }
    Ok(())
}
