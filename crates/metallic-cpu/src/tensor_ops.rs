//! Element-wise and row-wise operations on strided tensors.

use std::cmp::Reverse;

use metallic_core::sample::{self, rank};
use metallic_core::tensor::{Sample, View};
use metallic_core::{Binary, DType, Rope};

use crate::ops::Angles;
use crate::simd::{self, Isa, Team};
use crate::tensor_data::{PART, Sink, Source};

/// Bytes that an operation on rows takes at most, `tasks` at a time. A task has its rows twice as numbers, or once with as
/// many counts and candidates; vectors that meet every row are there once, and so are `chosen` numbers with their indices.
pub(crate) fn scratch(tasks: usize, row: usize, chosen: usize) -> usize {
    let rows = row.max(PART).saturating_mul(tasks + 1);
    rows.saturating_add(chosen).saturating_mul(16)
}

/// `out = f(x)`, where `f` works in place on a run of elements.
pub(crate) fn map(team: &Team, x: &Source<'_>, out: Sink<'_>, f: impl Fn(&mut [f32]) + Sync) {
    out.produce(team, x.part(), |start, values| {
        x.read(start, values);
        f(values);
    });
}

/// `out = f(a, b)`, where `f` leaves its result in place of `a`.
pub(crate) fn zip(
    team: &Team,
    (a, b): (&Source<'_>, &Source<'_>),
    out: Sink<'_>,
    f: impl Fn(&mut [f32], &[f32]) + Sync,
) {
    out.produce(team, a.part().max(b.part()), |start, values| {
        a.read(start, values);
        let mut other = vec![0.0; values.len()];
        b.read(start, &mut other);
        f(values, &other);
    });
}

/// `a = f(a, b)`
pub(crate) fn binary(f: Binary, a: &mut [f32], b: &[f32]) {
    let pairs = a.iter_mut().zip(b);
    match f {
        Binary::Add => pairs.for_each(|(a, b)| *a += b),
        Binary::Sub => pairs.for_each(|(a, b)| *a -= b),
        Binary::Mul => pairs.for_each(|(a, b)| *a *= b),
        Binary::Div => pairs.for_each(|(a, b)| *a /= b),
    }
}

/// `x = f(x, value)`, or `f(value, x)` where it is reversed.
pub(crate) fn scalar(f: Binary, value: f32, reversed: bool, x: &mut [f32]) {
    let x = x.iter_mut();
    match (f, reversed) {
        (Binary::Add, _) => x.for_each(|x| *x += value),
        (Binary::Mul, _) => x.for_each(|x| *x *= value),
        (Binary::Sub, false) => x.for_each(|x| *x -= value),
        (Binary::Sub, true) => x.for_each(|x| *x = value - *x),
        (Binary::Div, false) => x.for_each(|x| *x /= value),
        (Binary::Div, true) => x.for_each(|x| *x = value / *x),
    }
}

/// Copies and casts.
pub(crate) fn copy(team: &Team, x: &Source<'_>, mut out: Sink<'_>) {
    let (from, to) = (*x.view(), *out.view());
    if matches!(from.dtype(), DType::U32 | DType::I32) {
        let mut values = vec![0; PART.min(from.elements())];
        for start in (0..from.elements()).step_by(PART) {
            let values = &mut values[..PART.min(from.elements() - start)];
            x.read_u32(start, values);
            out.put_u32(start, values);
        }
        return;
    }
    // A copy is the same in any order of axes: a quantised view is read along its blocks.
    let rows = from.strides().iter().position(|stride| *stride == 1);
    if let (true, Some(axis)) = (from.dtype().is_quantized(), rows) {
        let last = from.rank() - 1;
        if let (Ok(from), Ok(to)) = (from.transpose(axis, last), to.transpose(axis, last)) {
            map(team, &x.seen_as(from), out.seen_as(to), |_| {});
            return;
        }
    }
    map(team, x, out, |_| {});
}

pub(crate) fn fill(team: &Team, value: f32, out: Sink<'_>) {
    out.produce(team, PART, |_, values| values.fill(value));
}

/// Elements of whole rows that make a task.
fn row_part(view: &View) -> usize {
    (PART / view.cols().max(1)).max(1) * view.cols()
}

/// `out = f(row)` of each row, where `f` leaves its result in place.
fn map_rows(team: &Team, x: &Source<'_>, out: Sink<'_>, f: impl Fn(&mut [f32]) + Sync) {
    let cols = x.view().cols().max(1);
    out.produce(team, row_part(x.view()), |start, values| {
        x.read(start, values);
        values.chunks_mut(cols).for_each(&f);
    });
}

/// `(x, w)`
pub(crate) fn rms_norm((isa, team): (Isa, &Team), inputs: &[Source<'_>], eps: f32, out: Sink<'_>) {
    if out.view().is_empty() {
        return;
    }
    let w = inputs[1].all();
    let (x, cols) = (&inputs[0], w.len().max(1));
    out.produce(team, row_part(x.view()), |start, values| {
        let mut rows = vec![0.0; values.len()];
        x.read(start, &mut rows);
        for (row, out) in rows.chunks(cols).zip(values.chunks_mut(cols)) {
            simd::rms_norm(isa, row, &w, eps, out);
        }
    });
}

/// `(x, w, b)`
pub(crate) fn layer_norm(team: &Team, inputs: &[Source<'_>], eps: f32, out: Sink<'_>) {
    if out.view().is_empty() {
        return;
    }
    let (w, b) = (inputs[1].all(), inputs[2].all());
    map_rows(team, &inputs[0], out, |row| {
        // In f64: the variance of numbers far from zero is a small difference of large ones.
        let n = row.len() as f64;
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let inverse = 1.0 / (variance + f64::from(eps)).sqrt();
        for ((x, w), b) in row.iter_mut().zip(&w).zip(&b) {
            *x = ((f64::from(*x) - mean) * inverse) as f32 * w + b;
        }
    });
}

pub(crate) fn softmax((isa, team): (Isa, &Team), x: &Source<'_>, out: Sink<'_>) {
    map_rows(team, x, out, |row| simd::softmax(isa, row));
}

/// `(x [tokens, heads, head_dim], positions, freqs)`
pub(crate) fn rope(team: &Team, rope: &Rope, inputs: &[Source<'_>], out: Sink<'_>) {
    if out.view().is_empty() {
        return;
    }
    let (x, freqs) = (&inputs[0], inputs[2].all());
    let token = x.view().shape()[1] * rope.head_dim;
    let part = (PART / token).max(1) * token;
    out.produce(team, part, |start, values| {
        x.read(start, values);
        let mut positions = vec![0; values.len() / token];
        inputs[1].read_u32(start / token, &mut positions);
        let mut angles = Angles::default();
        angles.set(&positions, &freqs, rope.magnitude);
        for (i, row) in values.chunks_mut(token).enumerate() {
            angles.rotate(rope, freqs.len(), i, row);
        }
    });
}

/// Makes one `T` of each row of numbers, by the whole team.
fn of_rows<T: Clone + Default + Send>(
    team: &Team,
    x: &Source<'_>,
    width: usize,
    f: impl Fn(usize, &[f32], &mut [T]) + Sync,
) -> Vec<T> {
    let (rows, cols) = (x.view().rows(), x.view().cols());
    let mut out = vec![T::default(); rows * width];
    if out.is_empty() {
        return out;
    }
    let part = (PART / cols.max(1)).max(1);
    team.for_chunks(&mut out, part * width, |i, out| {
        let mut row = vec![0.0; cols];
        for (j, out) in out.chunks_mut(width).enumerate() {
            let index = i * part + j;
            x.read(index * cols, &mut row);
            f(index, &row, out);
        }
    });
    out
}

pub(crate) fn argmax(team: &Team, x: &Source<'_>) -> Vec<u32> {
    of_rows(team, x, 1, |_, row, out| {
        out[0] = sample::argmax(row).unwrap_or(0);
    })
}

/// The `k` best of each row, best first.
pub(crate) fn top_k(team: &Team, x: &Source<'_>, k: usize) -> Vec<(u32, f32)> {
    of_rows(team, x, k, |_, row, out| {
        let mut order: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        let by_rank = |(id, x): &(u32, f32)| Reverse(rank(*id, *x));
        if k < order.len() {
            order.select_nth_unstable_by_key(k - 1, by_rank);
            order.truncate(k);
        }
        order.sort_unstable_by_key(by_rank);
        out.copy_from_slice(&order);
    })
}

/// `(logits, counts?)`
pub(crate) fn sample(team: &Team, sample: &Sample, inputs: &[Source<'_>]) -> Vec<u32> {
    of_rows(team, &inputs[0], 1, |index, row, out| {
        let mut counts = Vec::new();
        if let Some(source) = inputs.get(1) {
            counts.resize(row.len(), 0);
            source.read_u32(index * row.len(), &mut counts);
        }
        out[0] = sample.draw(index as u32, row, &counts);
    })
}
