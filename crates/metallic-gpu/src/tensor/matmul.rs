//! Products of matrices: floats with floats, and floats with quantised weights.

use metallic_core::DType;
use metallic_core::tensor::View;

use super::ops::{decode_rows, fill};
use super::work::{Tensor, Work};
use crate::command::Region;
use crate::error::GpuError;
use crate::kernels::matmul::{FloatProduct, Strides, plan_float};
use crate::kernels::project::{Part, Projection, plan as plan_projection};
use crate::kernels::{Slot, Stages};

/// `a [.., m, k] · b [.., k, n] -> out [.., m, n]`.
pub(super) fn plan(work: &mut Work<'_>, a: Tensor, b: Tensor, out: Tensor) -> Result<(), GpuError> {
    if a.view.cols() == 0 {
        return fill(work, 0.0, out);
    }
    if !b.dtype().is_quantized() {
        let target = work.target(out, out.dtype())?;
        floats(work, a, b, target)?;
        return work.deliver(target, out);
    }
    // Sums of quantised products are made of f32 activations.
    let a = work.dense(a, DType::F32)?;
    let target = work.target(out, DType::F32)?;
    let rank = b.view.rank();
    let rows = b.view.transpose(rank - 2, rank - 1).map_err(|error| work.unsupported(error.to_string()))?;
    let weights = Tensor { view: rows, ..b };
    let k = a.view.cols();
    // A matrix of one row has no distance between rows.
    let packed = rows.shape()[rank - 2] == 1 || rows.strides()[rank - 2] == k;
    if packed {
        quantised(work, a, weights, target)?;
    } else {
        let decoded = work.scratch_tensor(DType::F32, rows.shape())?;
        decode_rows(work, weights, decoded)?;
        let view = decoded
            .view
            .transpose(rank - 2, rank - 1)
            .map_err(|error| work.unsupported(error.to_string()))?;
        floats(work, a, Tensor { view, ..decoded }, target)?;
    }
    work.deliver(target, out)
}

/// The matrices of a tensor: indices of all axes but the last two, in row-major order.
fn matrices(view: &View) -> Vec<usize> {
    let outer = view.rank() - 2;
    let mut starts = vec![0];
    for (len, stride) in view.shape()[..outer].iter().zip(view.strides()) {
        starts = starts.iter().flat_map(|at| (0..*len).map(move |i| at + i * stride)).collect();
    }
    starts
}

/// The distance between matrices, where all neighbours have the same.
fn pitch(starts: &[usize]) -> Option<usize> {
    let first = starts.get(1).map_or(0, |next| next.wrapping_sub(starts[0]));
    starts.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == first).then_some(first)
}

/// Contiguous results, in as few launches as the outer axes allow.
fn floats(work: &mut Work<'_>, a: Tensor, b: Tensor, out: Tensor) -> Result<(), GpuError> {
    let rank = a.view.rank();
    let (m, k, n) = (a.view.shape()[rank - 2], a.view.cols(), b.view.cols());
    let (a_starts, b_starts) = (matrices(&a.view), matrices(&b.view));
    let pitches = pitch(&a_starts).zip(pitch(&b_starts));
    let (batch, (a_pitch, b_pitch)) = match pitches {
        Some(pitches) => (a_starts.len(), pitches),
        None => (1, (0, 0)),
    };
    let strides = |view: &View, pitch: usize| -> Result<Strides, GpuError> {
        let axis = |axis: usize| work.count(view.strides()[axis]);
        Ok(Strides { batch: work.count(pitch)?, row: axis(rank - 2)?, col: axis(rank - 1)? })
    };
    let product = FloatProduct {
        dtype: out.dtype(),
        batch: work.count(batch)?,
        m: work.count(m)?,
        n: work.count(n)?,
        k: work.count(k)?,
        a: strides(&a.view, a_pitch)?,
        b: strides(&b.view, b_pitch)?,
    };
    let launch = plan_float(&product, work.limits())?;
    let size = out.dtype().block_bytes();
    let tail = |region: Region, start: usize| region.slice(start * size, region.len() - start * size);
    for (index, (a_start, b_start)) in a_starts.iter().zip(&b_starts).step_by(batch).enumerate() {
        let regions =
            [tail(a.region, *a_start)?, tail(b.region, *b_start)?, tail(out.region, index * batch * m * n)?];
        work.launch(&launch, &regions.map(Some))?;
    }
    Ok(())
}

/// `a [.., m, k]` by the rows of `w [.., n, k]`, which lie one after another in each matrix; `a` and `out` are contiguous F32.
fn quantised(work: &mut Work<'_>, a: Tensor, w: Tensor, out: Tensor) -> Result<(), GpuError> {
    let rank = a.view.rank();
    let (m, k, n) = (a.view.shape()[rank - 2], a.view.cols(), w.view.shape()[rank - 2]);
    let dtype = w.dtype();
    let bytes = |elements: usize| elements / dtype.block_len() * dtype.block_bytes();
    let part = Part { dtype, rows: work.count(n)?, weight: Slot::Input(1), bias: None };
    let projection = Projection {
        op: work.op(),
        tokens: work.count(m)?,
        cols: work.count(k)?,
        parts: [Some(part), None, None],
        x: Slot::Input(0),
        norm: None,
        residual: None,
        gate: None,
    };
    let stages = plan_projection(&projection, work.limits())?;
    for (index, start) in matrices(&w.view).into_iter().enumerate() {
        let inputs =
            [a.region.slice(index * m * k * 4, m * k * 4)?, w.region.slice(bytes(start), bytes(n * k))?];
        run_stages(work, &stages, &inputs, out.region.slice(index * m * n * 4, m * n * 4)?)?;
    }
    Ok(())
}

fn run_stages(
    work: &mut Work<'_>,
    stages: &Stages,
    inputs: &[Region],
    output: Region,
) -> Result<(), GpuError> {
    let mut scratch = Vec::with_capacity(stages.scratch.len());
    for bytes in &stages.scratch {
        scratch.push(work.scratch(*bytes)?);
    }
    for stage in &stages.stages {
        let mut regions = Vec::with_capacity(stage.slots().len());
        for (slot, _) in stage.slots() {
            regions.push(match slot {
                Slot::Input(index) => inputs.get(*index).copied(),
                Slot::Output => Some(output),
                Slot::Scratch(index) => scratch.get(*index).copied(),
                Slot::Unused => None,
                other => return Err(work.unsupported(format!("a kernel that asks for {other:?}"))),
            });
        }
        work.launch(&stage.launch, &regions)?;
    }
    Ok(())
}
