//! Copies of strided elements, cast or decoded on the way.

use std::ops::Range;

use half::{bf16, f16};
use metallic_core::DType;
use metallic_core::quant::{dequantize, quantize};
use metallic_core::tensor::{TensorError, View};

use crate::ops::PART;
use crate::simd::Team;

/// Rows and columns that are copied together: where either side lies across, a cache line serves as many.
const ROWS: usize = 16;
const COLUMNS: usize = 64;

/// A view and its bytes, from its first element to its last.
pub(crate) struct Part<B> {
    pub(crate) view: View,
    pub(crate) bytes: B,
}

pub(crate) type Source<'a> = Part<&'a [u8]>;
pub(crate) type Target<'a> = Part<&'a mut [u8]>;

/// Copies what [`metallic_core::tensor::check_copy`] allows.
pub(crate) fn copy(team: &Team, from: &Source<'_>, to: &mut Target<'_>) -> Result<(), TensorError> {
    if from.view.is_empty() {
        return Ok(());
    }
    if from.view.is_contiguous() && to.view.is_contiguous() {
        run(team, from, to);
        return Ok(());
    }
    let (source, target) = (from.view.dtype(), to.view.dtype());
    if source.is_quantized() {
        return blocks(team, from, to);
    }
    match (source, target) {
        (DType::F32, DType::F32) | (DType::U32, DType::U32) | (DType::I32, DType::I32) => {
            each(team, from, to, |x: [u8; 4]| x);
        }
        (DType::F16, DType::F16) | (DType::BF16, DType::BF16) => each(team, from, to, |x: [u8; 2]| x),
        (DType::F32, DType::F16) => each(team, from, to, |x| to_f16(f32::from_le_bytes(x))),
        (DType::F32, DType::BF16) => each(team, from, to, |x| to_bf16(f32::from_le_bytes(x))),
        (DType::F16, DType::F32) => each(team, from, to, |x| f16::from_le_bytes(x).to_f32().to_le_bytes()),
        (DType::BF16, DType::F32) => each(team, from, to, |x| bf16::from_le_bytes(x).to_f32().to_le_bytes()),
        (DType::F16, DType::BF16) => each(team, from, to, |x| to_bf16(f16::from_le_bytes(x).to_f32())),
        (DType::BF16, DType::F16) => each(team, from, to, |x| to_f16(bf16::from_le_bytes(x).to_f32())),
        // Refused before.
        _ => return Err(TensorError::Copy { found: from.view.to_string(), needed: to.view.to_string() }),
    }
    Ok(())
}

fn to_f16(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

fn to_bf16(x: f32) -> [u8; 2] {
    bf16::from_f32(x).to_le_bytes()
}

/// Elements that lie one after another on both sides.
fn run(team: &Team, from: &Source<'_>, to: &mut Target<'_>) {
    let (source, target) = (from.view.dtype(), to.view.dtype());
    let size = target.block_bytes();
    team.for_chunks(to.bytes, PART * size, |i, out| {
        let len = out.len() / size;
        let part = |elements: usize| elements / source.block_len() * source.block_bytes();
        let bytes = &from.bytes[part(i * PART)..part(i * PART + len)];
        if source == target {
            out.copy_from_slice(bytes);
            return;
        }
        let mut numbers = vec![0.0; len];
        let decoded = dequantize(source, bytes, &mut numbers);
        // The lengths belong together; were they not to, it must show.
        if decoded.and_then(|()| quantize(target, &numbers, out)).is_err() {
            out.fill(0xff);
        }
    });
}

/// Quantised blocks are decoded whole, row by row: a copy is the same in any order of axes.
fn blocks(team: &Team, from: &Source<'_>, to: &mut Target<'_>) -> Result<(), TensorError> {
    let Some(axis) = from.view.strides().iter().position(|stride| *stride == 1) else { return Ok(()) };
    let last = from.view.rank() - 1;
    let (source, target) = (from.view.transpose(axis, last)?, to.view.transpose(axis, last)?);
    let (cols, dtype) = (source.cols(), source.dtype());
    let bytes = |elements: usize| elements / dtype.block_len() * dtype.block_bytes();
    let row_target = View::strided(target.dtype(), 0, &[cols], &[target.col_stride()])?;
    let row_source = View::contiguous(DType::F32, &[cols])?;
    let mut numbers = vec![0.0; cols];
    for row in 0..source.rows() {
        let at = bytes(source.row_offset(row) - source.offset());
        if dequantize(dtype, &from.bytes[at..at + bytes(cols)], &mut numbers).is_err() {
            numbers.fill(f32::NAN);
        }
        let start = (target.row_offset(row) - target.offset()) * target.dtype().block_bytes();
        let row = Source { view: row_source, bytes: crate::simd::bytes_of(&numbers) };
        let len = row_target.byte_range().len();
        copy(team, &row, &mut Target { view: row_target, bytes: &mut to.bytes[start..start + len] })?;
    }
    Ok(())
}

/// Element by element. A contiguous target is written by the whole team, another one by the caller alone.
fn each<const A: usize, const B: usize>(
    team: &Team,
    from: &Source<'_>,
    to: &mut Target<'_>,
    convert: impl Fn([u8; A]) -> [u8; B] + Sync,
) {
    let (source, view) = (from.bytes.as_chunks::<A>().0, to.view);
    let (base, target) = ([from.view.offset(), view.offset()], to.bytes.as_chunks_mut::<B>().0);
    let copy_rows = |rows: Range<usize>, first: usize, target: &mut [[u8; B]]| {
        for_pairs(&from.view, &view, rows, |x, y| target[y - first] = convert(source[x - base[0]]));
    };
    if !view.is_contiguous() {
        copy_rows(0..view.rows(), base[1], target);
        return;
    }
    let part = (PART / view.cols()).max(1).next_multiple_of(ROWS);
    team.for_chunks(target, part * view.cols(), |i, target| {
        let rows = i * part..i * part + target.len() / view.cols();
        copy_rows(rows, base[1] + i * part * view.cols(), target);
    });
}

/// Where each element of these rows lies on both sides, a few rows and columns at a time.
fn for_pairs(from: &View, to: &View, rows: Range<usize>, mut pair: impl FnMut(usize, usize)) {
    let (cols, strides) = (from.cols(), [from.col_stride(), to.col_stride()]);
    for first in rows.clone().step_by(ROWS) {
        let count = ROWS.min(rows.end - first);
        let starts: [[usize; 2]; ROWS] = std::array::from_fn(|i| {
            let row = first + i.min(count - 1);
            [from.row_offset(row), to.row_offset(row)]
        });
        for col in (0..cols).step_by(COLUMNS) {
            for start in &starts[..count] {
                for col in col..cols.min(col + COLUMNS) {
                    pair(start[0] + col * strides[0], start[1] + col * strides[1]);
                }
            }
        }
    }
}
