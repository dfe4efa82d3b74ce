//! Matrix products of strided tensors: packed for many rows, read once for few.

use metallic_core::tensor::View;
use metallic_core::{BackendError, DType};

use crate::DEVICE;
use crate::simd::{
    Accumulate, Activations, Isa, Matmul, PackedMatrix, SharedOut, Team, Weights, axpy, dot_f32,
};
use crate::tensor_data::{Sink, Source};

/// With fewer rows than this, packing the right side costs more than it saves.
const FEW_ROWS: usize = 5;
/// Elements of the right side that are packed at a time: a few MiB beside the operands, whatever their size.
const PACKED: usize = 1 << 21;
/// Columns of the right side that a task packs.
const COLUMNS: usize = 64;
/// The most columns that a task of few rows takes.
const MOST_COLUMNS: usize = 1024;

/// One matrix product of a batch.
struct Product<'a> {
    isa: Isa,
    team: &'a Team,
    /// `[m, k]` as numbers.
    a: &'a [f32],
    /// `[n, k]`: the right side, transposed.
    b: Source<'a>,
    m: usize,
    k: usize,
    n: usize,
}

/// Bytes that a product takes at most: the left side and the result as numbers, the result turned, and for each thread
/// and for packing, columns of the right side.
pub(crate) fn scratch(threads: usize, a: &View, b: &View) -> usize {
    let (m, k, n) = (a.shape()[a.rank() - 2], a.cols(), b.cols());
    let columns = packed_columns(k, n).saturating_mul(2).saturating_add(threads);
    let sides = m.saturating_mul(k).saturating_add(m.saturating_mul(n).saturating_mul(2));
    k.saturating_mul(columns).saturating_add(sides).saturating_mul(size_of::<f32>())
}

/// Columns of the right side that are packed at a time.
fn packed_columns(k: usize, n: usize) -> usize {
    (PACKED / k.max(1)).clamp(1, n.max(1)).next_multiple_of(COLUMNS).min(n)
}

/// `out = a · b`, batch by batch.
pub(crate) fn matmul(
    (isa, team): (Isa, &Team),
    (a, b): (&Source<'_>, &Source<'_>),
    mut out: Sink<'_>,
) -> Result<(), BackendError> {
    let rank = a.view().rank();
    let [m, k] = [rank - 2, rank - 1].map(|axis| a.view().shape()[axis]);
    let n = b.view().cols();
    if out.view().is_empty() {
        return Ok(());
    }
    let batches: usize = a.view().shape()[..rank - 2].iter().product();
    let mut left = vec![0.0; m * k];
    for batch in 0..batches {
        let mut result = vec![0.0; m * n];
        if k > 0 {
            a.read(batch * m * k, &mut left);
            let b = b.seen_as(matrix(b.view(), batch)?);
            let product = Product { isa, team, a: &left, b, m, k, n };
            if m < FEW_ROWS { product.few(&mut result) } else { product.many(&mut result)? }
        }
        out.put(batch * m * n, &result);
    }
    Ok(())
}

/// Matrix `batch` of a view, transposed.
fn matrix(view: &View, batch: usize) -> Result<View, BackendError> {
    let mut view = *view;
    let mut rest = batch;
    while view.rank() > 2 {
        let axis = view.rank() - 3;
        let len = view.shape()[axis];
        view = view.select(axis, rest % len)?;
        rest /= len;
    }
    Ok(view.transpose(0, 1)?)
}

impl Product<'_> {
    /// Each column of the right side is read once and meets all rows.
    fn few(&self, out: &mut [f32]) {
        let (m, k, n) = (self.m, self.k, self.n);
        // `[columns, m]`: a task has its own columns.
        let mut turned = vec![0.0; n * m];
        let [along_n, along_k] = [self.b.view().strides()[0], self.b.view().strides()[1]];
        // A few tasks for each thread; wide ones, so that rows are read in long runs.
        let columns = (n / (4 * self.team.threads())).clamp(COLUMNS, MOST_COLUMNS);
        self.team.for_chunks(&mut turned, columns * m, |i, out| {
            let from = i * columns;
            let count = out.len() / m;
            if along_n == 1 && along_k != 1 {
                self.sum_of_rows(from, count, out);
                return;
            }
            let mut column = vec![0.0; k];
            for (j, out) in out.chunks_mut(m).enumerate() {
                self.b.read((from + j) * k, &mut column);
                for (out, row) in out.iter_mut().zip(self.a.chunks(k)) {
                    *out = dot_f32(self.isa, row, &column);
                }
            }
        });
        for (j, column) in turned.chunks(m).enumerate() {
            for (i, value) in column.iter().enumerate() {
                out[i * n + j] = *value;
            }
        }
    }

    /// Columns `from .. from + count` where each row of the right side lies together: a sum of scaled rows.
    fn sum_of_rows(&self, from: usize, count: usize, out: &mut [f32]) {
        let (m, k) = (self.m, self.k);
        let mut sums = vec![0.0; m * count];
        let mut row = vec![0.0; count];
        let plain = self.right_rows(from, count);
        for at in 0..k {
            if let Some(plain) = &plain {
                plain.read(at * count, &mut row);
            }
            for (i, sums) in sums.chunks_mut(count).enumerate() {
                axpy(self.isa, self.a[i * k + at], &row, sums);
            }
        }
        for (j, out) in out.chunks_mut(m).enumerate() {
            for (i, out) in out.iter_mut().enumerate() {
                *out = sums[i * count + j];
            }
        }
    }

    /// Columns `from .. from + count` of the right side as `[k, count]`.
    fn right_rows(&self, from: usize, count: usize) -> Option<Source<'_>> {
        let view = self.b.view().slice(0, from..from + count).ok()?.transpose(0, 1).ok()?;
        Some(self.b.seen_as(view))
    }

    /// Columns of the right side are packed, some at a time, and multiplied as weights are.
    fn many(&self, out: &mut [f32]) -> Result<(), BackendError> {
        let (k, n) = (self.k, self.n);
        let columns = packed_columns(k, n);
        for from in (0..n).step_by(columns) {
            let count = columns.min(n - from);
            let view = self.b.view().slice(0, from..from + count)?;
            let part = self.b.seen_as(view);
            let dtype = view.dtype();
            let packed = match part.contiguous_bytes() {
                Some(bytes) if dtype.is_float() => PackedMatrix::pack(self.team, dtype, (count, k), bytes),
                _ => {
                    let bytes = self.turned(from, count);
                    PackedMatrix::pack(self.team, DType::F32, (count, k), &bytes)
                }
            };
            let packed = packed.map_err(|error| BackendError::Unsupported {
                device: DEVICE,
                op: "matmul",
                reason: error.to_string(),
            })?;
            let product = Matmul {
                weights: Weights::Plain(&packed),
                x: Activations::F32 { values: self.a, cols: k },
                bias: None,
                accumulate: Accumulate::Replace,
                out: SharedOut::new(&mut out[from..], n),
            };
            crate::simd::matmul(self.isa, self.team, &mut [product]);
        }
        Ok(())
    }

    /// Columns `from .. from + count` of the right side as the bytes of `F32 [count, k]`.
    fn turned(&self, from: usize, count: usize) -> Vec<u8> {
        let k = self.k;
        let mut bytes = vec![0; count * k * size_of::<f32>()];
        let along_k = self.b.view().strides()[1] == 1;
        self.team.for_chunks(&mut bytes, COLUMNS * k * size_of::<f32>(), |i, bytes| {
            let words = bytes.as_chunks_mut::<4>().0;
            let (first, count) = (from + i * COLUMNS, words.len() / k);
            if along_k {
                let mut column = vec![0.0; k];
                for (j, words) in words.chunks_mut(k).enumerate() {
                    self.b.read((first + j) * k, &mut column);
                    words.iter_mut().zip(&column).for_each(|(word, x)| *word = x.to_le_bytes());
                }
                return;
            }
            let mut row = vec![0.0; count];
            let Some(rows) = self.right_rows(first, count) else { return };
            for at in 0..k {
                rows.read(at * count, &mut row);
                for (j, x) in row.iter().enumerate() {
                    words[j * k + at] = x.to_le_bytes();
                }
            }
        });
        bytes
    }
}
