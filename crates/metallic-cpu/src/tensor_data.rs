//! Strided elements as runs of numbers: what the operations on tensors read and write.

use half::{bf16, f16};
use metallic_core::DType;
use metallic_core::quant::{dequantize, quantize};
use metallic_core::tensor::View;

use crate::simd::Team;

/// Elements of a task.
pub(crate) const PART: usize = 8192;

/// Rows of a turned view that are read together: a cache line of `f32`.
const TURNED_ROWS: usize = 16;
/// Rows longer than this are not read together: a task would be too large.
const WIDEST: usize = 1 << 16;

/// A view to read from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// From the view's first element to its last.
    bytes: &'a [u8],
    view: View,
}

impl<'a> Source<'a> {
    pub(crate) fn new(bytes: &'a [u8], view: View) -> Source<'a> {
        Source { bytes, view }
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The same memory seen by another view, which begins at the same element or later.
    pub(crate) fn seen_as(&self, view: View) -> Source<'a> {
        let range = view.byte_range();
        let start = range.start.saturating_sub(self.view.byte_range().start);
        Source { bytes: self.bytes.get(start..start + range.len()).unwrap_or(&[]), view }
    }

    /// All bytes, where elements lie one after another.
    pub(crate) fn contiguous_bytes(&self) -> Option<&'a [u8]> {
        self.view.is_contiguous().then_some(self.bytes)
    }

    /// Elements that make a good task: where columns lie together, enough rows that a cache line is read for all it holds.
    pub(crate) fn part(&self) -> usize {
        let cols = self.view.cols();
        if self.is_turned() && cols <= WIDEST { (PART / cols).max(TURNED_ROWS) * cols } else { PART }
    }

    /// Whether neighbours lie along the last axis but one.
    fn is_turned(&self) -> bool {
        matches!(self.view.strides(), [.., 1, stride] if *stride > 1)
    }

    /// Elements `start ..` in row-major order, as numbers.
    pub(crate) fn read(&self, start: usize, out: &mut [f32]) {
        let cols = self.view.cols().max(1);
        if self.is_turned() && start.is_multiple_of(cols) && out.len() >= 2 * cols {
            let whole = out.len() / cols * cols;
            self.read_turned(start / cols, &mut out[..whole]);
            self.read_runs(start + whole, &mut out[whole..]);
        } else {
            self.read_runs(start, out);
        }
    }

    /// Whole rows of a turned view: neighbours of a column are read together and spread over the rows.
    fn read_turned(&self, first_row: usize, out: &mut [f32]) {
        let cols = self.view.cols();
        let (height, stride) = (self.view.shape()[self.view.rank() - 2], self.view.col_stride());
        let mut column = [0.0; TURNED_ROWS];
        let (mut row, mut rest) = (first_row, out);
        while !rest.is_empty() {
            // Rows of one matrix, and no more than fit into the buffer.
            let count = (height - row % height).min(rest.len() / cols).min(TURNED_ROWS);
            let (rows, after) = rest.split_at_mut(count * cols);
            let from = self.view.row_offset(row) - self.view.offset();
            for col in 0..cols {
                self.neighbours(from + col * stride, &mut column[..count]);
                for (row, value) in rows.chunks_exact_mut(cols).zip(&column) {
                    row[col] = *value;
                }
            }
            (row, rest) = (row + count, after);
        }
    }

    fn read_runs(&self, start: usize, out: &mut [f32]) {
        each_run(&self.view, start, out.len(), |from, stride, range| {
            self.run(from - self.view.offset(), stride, &mut out[range]);
        });
    }

    /// Elements `start ..` of an integer view.
    pub(crate) fn read_u32(&self, start: usize, out: &mut [u32]) {
        let words = self.bytes.as_chunks::<4>().0;
        each_run(&self.view, start, out.len(), |from, stride, range| {
            let base = from - self.view.offset();
            for (i, out) in out[range].iter_mut().enumerate() {
                *out = u32::from_le_bytes(words[base + i * stride]);
            }
        });
    }

    /// All elements as numbers.
    pub(crate) fn all(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.view.elements()];
        self.read(0, &mut out);
        out
    }

    /// Elements `from, from + stride, ..`, counted from the first of the bytes.
    fn run(&self, from: usize, stride: usize, out: &mut [f32]) {
        let dtype = self.view.dtype();
        if stride == 1 || out.len() == 1 {
            self.neighbours(from, out);
            return;
        }
        if stride == 0 {
            let (first, rest) = out.split_at_mut(1);
            self.neighbours(from, first);
            rest.fill(first[0]);
            return;
        }
        let halves = || self.bytes.as_chunks::<2>().0[from..].iter().step_by(stride);
        match dtype {
            DType::F32 => {
                let words = self.bytes.as_chunks::<4>().0[from..].iter().step_by(stride);
                out.iter_mut().zip(words).for_each(|(out, word)| *out = f32::from_le_bytes(*word));
            }
            DType::F16 => {
                out.iter_mut()
                    .zip(halves())
                    .for_each(|(out, half)| *out = f16::from_le_bytes(*half).to_f32());
            }
            DType::BF16 => {
                out.iter_mut()
                    .zip(halves())
                    .for_each(|(out, half)| *out = bf16::from_le_bytes(*half).to_f32());
            }
            // Quantised views are read along their blocks, and integers as integers.
            _ => out.iter_mut().enumerate().for_each(|(i, out)| {
                self.neighbours(from + i * stride, std::slice::from_mut(out));
            }),
        }
    }

    /// Elements that lie one after another.
    fn neighbours(&self, from: usize, out: &mut [f32]) {
        let dtype = self.view.dtype();
        let block = dtype.block_len();
        // Blocks are decoded whole, whatever part of them is wanted.
        if !(from.is_multiple_of(block) && out.len().is_multiple_of(block)) {
            let first = from / block * block;
            let mut whole = vec![0.0; (from + out.len()).next_multiple_of(block) - first];
            self.neighbours(first, &mut whole);
            out.copy_from_slice(&whole[from - first..][..out.len()]);
            return;
        }
        let start = from / block * dtype.block_bytes();
        let len = out.len() / block * dtype.block_bytes();
        // The lengths belong together; were they not to, it must show.
        if dequantize(dtype, &self.bytes[start..start + len], out).is_err() {
            out.fill(f32::NAN);
        }
    }
}

/// Cuts the elements `start .. start + len` of a view, in row-major order, into runs along its last axis (one run where it
/// is contiguous): `run(first element, stride, which of the len)`.
fn each_run(
    view: &View,
    start: usize,
    len: usize,
    mut run: impl FnMut(usize, usize, std::ops::Range<usize>),
) {
    if len == 0 {
        return;
    }
    if view.is_contiguous() {
        run(view.offset() + start, 1, 0..len);
        return;
    }
    let (cols, stride) = (view.cols(), view.col_stride());
    let (mut row, mut col) = (start / cols, start % cols);
    let mut done = 0;
    while done < len {
        let count = (cols - col).min(len - done);
        run(view.row_offset(row) + col * stride, stride, done..done + count);
        (row, col, done) = (row + 1, 0, done + count);
    }
}

/// A view to write to.
pub(crate) struct Sink<'a> {
    /// From the view's first element to its last.
    bytes: &'a mut [u8],
    view: View,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(bytes: &'a mut [u8], view: View) -> Sink<'a> {
        Sink { bytes, view }
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The same memory seen by another view, which begins at the same element and names the same elements.
    pub(crate) fn seen_as(self, view: View) -> Sink<'a> {
        Sink { bytes: self.bytes, view }
    }

    /// Stores numbers at elements `start ..` in row-major order.
    pub(crate) fn put(&mut self, start: usize, values: &[f32]) {
        let (dtype, base) = (self.view.dtype(), self.view.offset());
        let size = dtype.block_bytes();
        each_run(&self.view, start, values.len(), |from, stride, range| {
            let (from, values) = (from - base, &values[range]);
            if stride == 1 {
                encode(dtype, values, &mut self.bytes[from * size..][..values.len() * size]);
                return;
            }
            for (i, value) in values.iter().enumerate() {
                let at = (from + i * stride) * size;
                encode(dtype, std::slice::from_ref(value), &mut self.bytes[at..at + size]);
            }
        });
    }

    /// Stores integers.
    pub(crate) fn put_u32(&mut self, start: usize, values: &[u32]) {
        let base = self.view.offset();
        let words = self.bytes.as_chunks_mut::<4>().0;
        each_run(&self.view, start, values.len(), |from, stride, range| {
            for (i, value) in values[range].iter().enumerate() {
                words[from - base + i * stride] = value.to_le_bytes();
            }
        });
    }

    /// Makes all elements, `part` at a time: `make(first element, place for them)`. A contiguous view is made by the whole
    /// team, another one by the caller alone.
    pub(crate) fn produce(self, team: &Team, part: usize, make: impl Fn(usize, &mut [f32]) + Sync) {
        let (dtype, elements, part) = (self.view.dtype(), self.view.elements(), part.max(1));
        if elements == 0 {
            return;
        }
        if self.view.is_contiguous() {
            let size = dtype.block_bytes();
            team.for_chunks(self.bytes, part * size, |i, bytes| {
                let mut values = vec![0.0; bytes.len() / size];
                make(i * part, &mut values);
                encode(dtype, &values, bytes);
            });
            return;
        }
        let mut sink = self;
        let mut values = vec![0.0; part.min(elements)];
        for start in (0..elements).step_by(part) {
            let values = &mut values[..part.min(elements - start)];
            make(start, values);
            sink.put(start, values);
        }
    }
}

fn encode(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    // Outputs are floats, whose lengths belong together; were they not to, it must show.
    if quantize(dtype, values, bytes).is_err() {
        bytes.fill(0xff);
    }
}
