//! Strided views: which elements of a memory a tensor is made of.

use std::fmt;
use std::ops::Range;

use super::TensorError;
use crate::{DType, MAX_RANK, Shape, TensorType};

/// Which elements of a memory a tensor is made of: element `[i, j, ..]` lies at `offset + i * strides[0] + j * strides[1] + ..`.
///
/// Offset and strides count *elements*. A view of a quantised type has one axis of stride 1 whose length is a multiple of
/// the block length, and all other strides and the offset are multiples of it, so that no view cuts a block. A stride of 0
/// repeats its axis without a copy. Strides are never negative.
///
/// ```
/// use metallic_core::DType;
/// use metallic_core::tensor::View;
///
/// let matrix = View::contiguous(DType::F32, &[3, 4])?;
/// let columns = matrix.slice(1, 1..3)?.transpose(0, 1)?;
/// assert_eq!((columns.shape(), columns.strides(), columns.offset()), (&[2, 3][..], &[1, 4][..], 1));
/// assert_eq!(columns.offsets().collect::<Vec<_>>(), [1, 5, 9, 2, 6, 10]);
/// # Ok::<(), metallic_core::tensor::TensorError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    dtype: DType,
    offset: usize,
    rank: usize,
    /// Axes past the rank are 1 with stride 0.
    shape: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl View {
    /// All elements of a row-major tensor that begins at the memory's first byte.
    pub fn contiguous(dtype: DType, shape: &[usize]) -> Result<View, TensorError> {
        let mut strides = vec![1usize; shape.len()];
        for axis in (1..shape.len()).rev() {
            let stride = strides[axis].checked_mul(shape[axis].max(1));
            strides[axis - 1] = stride.ok_or_else(|| too_large(dtype, shape))?;
        }
        View::strided(dtype, 0, shape, &strides)
    }

    /// Any view.
    pub fn strided(
        dtype: DType,
        offset: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<View, TensorError> {
        let rank = shape.len();
        if rank > MAX_RANK || strides.len() != rank {
            return Err(TensorError::Rank { axes: rank, strides: strides.len() });
        }
        let mut view = View { dtype, offset, rank, shape: [1; MAX_RANK], strides: [0; MAX_RANK] };
        view.shape[..rank].copy_from_slice(shape);
        view.strides[..rank].copy_from_slice(strides);
        view.checked()
    }

    /// Holds the invariants: everything can be counted, no block is cut.
    fn checked(self) -> Result<View, TensorError> {
        // Also without elements: any product of axes may be taken.
        let countable = self.shape.iter().try_fold(1usize, |n, len| n.checked_mul((*len).max(1)));
        countable.ok_or_else(|| too_large(self.dtype, self.shape()))?;
        if self.is_empty() {
            return Ok(self);
        }
        let further =
            |last: usize, (len, stride): (usize, usize)| last.checked_add((len - 1).checked_mul(stride)?);
        let last = self.axes().try_fold(self.offset, further);
        let block = self.dtype.block_len();
        let bytes = last.and_then(|last| (last / block + 1).checked_mul(self.dtype.block_bytes()));
        bytes.ok_or_else(|| too_large(self.dtype, self.shape()))?;
        if block > 1 {
            let is_rows = |(len, stride): (usize, usize)| stride == 1 && len.is_multiple_of(block);
            let whole = self.axes().filter(|axis| is_rows(*axis)).count() == 1
                && self.axes().all(|axis| is_rows(axis) || axis.1.is_multiple_of(block))
                && self.offset.is_multiple_of(block);
            if !whole {
                return Err(TensorError::Blocks { dtype: self.dtype, found: self.to_string() });
            }
        }
        Ok(self)
    }

    fn axes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.shape().iter().copied().zip(self.strides().iter().copied())
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Element type and shape.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, Shape::of(self.shape()))
    }

    /// Where element `[0, 0, ..]` lies, in elements.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Axis lengths, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// How far apart neighbours along each axis lie, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// Number of axes; 0 for a single number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.elements() == 0
    }

    /// Length of the innermost axis; 1 for a single number.
    pub fn cols(&self) -> usize {
        self.shape().last().copied().unwrap_or(1)
    }

    /// Product of all axes but the innermost.
    pub fn rows(&self) -> usize {
        self.shape().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Stride of the innermost axis; 1 for a single number.
    pub fn col_stride(&self) -> usize {
        self.strides().last().copied().unwrap_or(1)
    }

    /// Whether elements lie one after another in row-major order, wherever they begin.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        // Rows of a quantised type are whole blocks, even where an axis of one element lies across them.
        let block = self.dtype.block_len();
        if block > 1 && !self.is_empty() && !(self.col_stride() == 1 && self.cols().is_multiple_of(block)) {
            return false;
        }
        self.is_empty()
            || self.shape().iter().zip(self.strides()).rev().all(|(len, stride)| {
                let fits = *len == 1 || *stride == expected;
                expected *= len;
                fits
            })
    }

    /// Whether two indices name the same element, as broadcasting makes them do. Also said of views whose axes merely lie
    /// across one another, which slicing and turning a tensor never make.
    pub fn repeats(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut axes: Vec<(usize, usize)> =
            self.axes().filter(|(len, _)| *len > 1).map(|(len, stride)| (stride, len)).collect();
        axes.sort_unstable();
        // Each stride must step over everything the smaller ones reach.
        let mut reach = 0;
        axes.into_iter().any(|(stride, len)| {
            let repeats = stride <= reach;
            reach += (len - 1) * stride;
            repeats
        })
    }

    /// The bytes from its first element to its last, in the memory. Empty at 0 for a view without elements.
    pub fn byte_range(&self) -> Range<usize> {
        if self.is_empty() {
            return 0..0;
        }
        let last = self.axes().fold(self.offset, |last, (len, stride)| last + (len - 1) * stride);
        let (block, bytes) = (self.dtype.block_len(), self.dtype.block_bytes());
        self.offset / block * bytes..(last / block + 1) * bytes
    }

    /// Where the row `row` (counted over all axes but the innermost, in row-major order) begins, in elements.
    pub fn row_offset(&self, row: usize) -> usize {
        let outer = self.rank.saturating_sub(1);
        let mut rest = row;
        let mut at = self.offset;
        for axis in (0..outer).rev() {
            let len = self.shape[axis].max(1);
            at += rest % len * self.strides[axis];
            rest /= len;
        }
        at
    }

    /// Where each element lies, in elements, in row-major order.
    pub fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        let (cols, stride) = (self.cols(), self.col_stride());
        let rows = if self.is_empty() { 0 } else { self.rows() };
        (0..rows).flat_map(move |row| {
            let start = self.row_offset(row);
            (0..cols).map(move |col| start + col * stride)
        })
    }

    fn axis(&self, axis: usize) -> Result<usize, TensorError> {
        if axis < self.rank { Ok(axis) } else { Err(TensorError::Axis { axis, shape: self.shape_text() }) }
    }

    fn outside(&self, range: String, axis: usize) -> TensorError {
        TensorError::Slice { range, axis, shape: self.shape_text() }
    }

    fn refused(&self, action: &'static str, shape: &[usize], reason: &'static str) -> TensorError {
        TensorError::Shape { found: self.to_string(), action, needed: shape_text(shape), reason }
    }

    fn shape_text(&self) -> String {
        shape_text(self.shape())
    }

    /// Elements `range` of an axis.
    pub fn slice(mut self, axis: usize, range: Range<usize>) -> Result<View, TensorError> {
        self.axis(axis)?;
        if range.start > range.end || range.end > self.shape[axis] {
            return Err(self.outside(format!("{range:?}"), axis));
        }
        // Without elements there is no place to begin at, and strides may be anything.
        if !range.is_empty() && !self.is_empty() {
            self.offset += range.start * self.strides[axis];
        }
        self.shape[axis] = range.len();
        self.checked()
    }

    /// Every `step`-th element of an axis, from its first.
    pub fn step(mut self, axis: usize, step: usize) -> Result<View, TensorError> {
        self.axis(axis)?;
        let stride = self.strides[axis].checked_mul(step).filter(|_| step > 0);
        self.strides[axis] = stride.ok_or_else(|| self.outside(format!("a step of {step}"), axis))?;
        self.shape[axis] = self.shape[axis].div_ceil(step);
        self.checked()
    }

    /// The view without an axis, at one index of it.
    pub fn select(self, axis: usize, index: usize) -> Result<View, TensorError> {
        let end = index.checked_add(1).ok_or_else(|| self.outside(index.to_string(), axis))?;
        let one = self.slice(axis, index..end)?;
        let keep = |values: &[usize]| -> Vec<usize> {
            values.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, v)| *v).collect()
        };
        View::strided(one.dtype, one.offset, &keep(one.shape()), &keep(one.strides()))
    }

    /// Two axes exchanged.
    pub fn transpose(mut self, a: usize, b: usize) -> Result<View, TensorError> {
        let (a, b) = (self.axis(a)?, self.axis(b)?);
        self.shape.swap(a, b);
        self.strides.swap(a, b);
        Ok(self)
    }

    /// Axes in another order: axis `i` of the result is axis `order[i]` of this.
    pub fn permute(self, order: &[usize]) -> Result<View, TensorError> {
        let is_named_once = |axis| order.iter().filter(|named| **named == axis).count() == 1;
        if order.len() != self.rank || !(0..self.rank).all(is_named_once) {
            let (order, shape) = (shape_text(order), self.shape_text());
            return Err(TensorError::Order { order, shape, axes: self.rank });
        }
        let mut permuted = self;
        for (to, from) in order.iter().enumerate() {
            permuted.shape[to] = self.shape[*from];
            permuted.strides[to] = self.strides[*from];
        }
        Ok(permuted)
    }

    /// The same elements, in the same order, with other axes. Refused where that would need a copy.
    pub fn reshape(self, shape: &[usize]) -> Result<View, TensorError> {
        let refused = |reason| self.refused("reshaped to", shape, reason);
        let elements = shape.iter().try_fold(1usize, |n, len| n.checked_mul(*len));
        if elements != Some(self.elements()) {
            return Err(refused("the number of elements differs"));
        }
        if self.is_empty() {
            return Ok(View { offset: self.offset, ..View::contiguous(self.dtype, shape)? });
        }
        let otherwise = || refused("its elements do not lie in that order; make it contiguous first");
        View::strided(self.dtype, self.offset, shape, &self.strides_for(shape).ok_or_else(otherwise)?)
    }

    /// The strides that give this view's elements another shape of as many elements, where there are any.
    fn strides_for(&self, shape: &[usize]) -> Option<Vec<usize>> {
        // Runs of axes that lie one inside the other, innermost first: (elements, stride of the innermost).
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (len, stride) in self.axes().filter(|(len, _)| *len > 1).collect::<Vec<_>>().into_iter().rev() {
            match runs.last_mut() {
                Some((elements, inner)) if Some(stride) == elements.checked_mul(*inner) => *elements *= len,
                _ => runs.push((len, stride)),
            }
        }
        let mut runs = runs.into_iter();
        let (mut left, mut stride) = (1, 1);
        let mut strides = vec![0; shape.len()];
        for (axis, len) in shape.iter().enumerate().rev() {
            if *len > 1 && left == 1 {
                (left, stride) = runs.next()?;
            }
            if !left.is_multiple_of(*len) {
                return None;
            }
            strides[axis] = stride;
            // Past the outermost axis of a run there may be no number for it, and no use.
            stride = stride.saturating_mul(*len);
            left /= len;
        }
        Some(strides)
    }

    /// Repeats axes of length 1, and adds outer axes, until the shape is `shape`. Copies nothing: the stride is 0.
    pub fn broadcast(self, shape: &[usize]) -> Result<View, TensorError> {
        if shape.len() > MAX_RANK {
            return Err(TensorError::Rank { axes: shape.len(), strides: shape.len() });
        }
        let refused = |reason| self.refused("broadcast to", shape, reason);
        let outer = shape.len().checked_sub(self.rank).ok_or_else(|| refused("it has more axes"))?;
        let mut strides = vec![0; shape.len()];
        for (axis, (len, stride)) in self.axes().enumerate() {
            if len == shape[outer + axis] {
                strides[outer + axis] = stride;
            } else if len != 1 {
                return Err(refused("an axis is neither 1 nor of the length needed"));
            }
        }
        View::strided(self.dtype, self.offset, shape, &strides)
    }
}

fn too_large(dtype: DType, shape: &[usize]) -> TensorError {
    TensorError::TooLarge { dtype, shape: shape_text(shape) }
}

/// A shape as messages write it.
pub(crate) fn shape_text(shape: &[usize]) -> String {
    format!("{shape:?}")
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape())?;
        if !self.is_contiguous() {
            write!(f, " with strides {:?}", self.strides())?;
        }
        if self.offset > 0 {
            write!(f, " from {}", self.offset)?;
        }
        Ok(())
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
