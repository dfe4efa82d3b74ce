//! Views: the same elements, seen differently. Nothing is copied.

use std::ops::{Bound, RangeBounds};

use super::{Error, Tensor, TensorError, View};

impl Tensor {
    fn seen(&self, view: Result<View, TensorError>) -> Result<Tensor, Error> {
        Ok(Tensor { view: view?, ..self.clone() })
    }

    /// A part of an axis.
    ///
    /// ```
    /// # use metallic::{Device, tensor::{OpenDevice, Tensor}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let x = Tensor::from_slice(&device, &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3])?;
    /// let right = x.slice(1, 1..)?;
    /// assert_eq!((right.shape(), right.view().offset()), (&[2, 2][..], 1));
    /// assert_eq!(right.to_vec::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
    /// assert!(x.slice(1, 2..9).is_err());
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn slice(&self, axis: usize, range: impl RangeBounds<usize>) -> Result<Tensor, Error> {
        let len = self.shape().get(axis).copied().unwrap_or(0);
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => len,
        };
        self.seen(self.view.slice(axis, start..end))
    }

    /// Every `step`-th element of an axis, from its first.
    pub fn step(&self, axis: usize, step: usize) -> Result<Tensor, Error> {
        self.seen(self.view.step(axis, step))
    }

    /// One index of an axis; the axis is gone.
    pub fn select(&self, axis: usize, index: usize) -> Result<Tensor, Error> {
        self.seen(self.view.select(axis, index))
    }

    /// The same elements in the same order with other axes. Refused where that would need a copy: see [`Tensor::contiguous`].
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        self.seen(self.view.reshape(shape.as_ref()))
    }

    /// Two axes exchanged.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Tensor, Error> {
        self.seen(self.view.transpose(a, b))
    }

    /// The last two axes exchanged: a matrix, transposed. What has fewer than two axes is its own transpose, as in NumPy
    /// and PyTorch.
    ///
    /// ```
    /// # use metallic::{Device, tensor::{OpenDevice, Tensor}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0], [1, 3])?;
    /// assert_eq!(x.t()?.shape(), [3, 1]);
    /// assert_eq!(x.select(0, 0)?.t()?.shape(), [3]);
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn t(&self) -> Result<Tensor, Error> {
        match self.shape().len() {
            0 | 1 => Ok(self.clone()),
            rank => self.transpose(rank - 2, rank - 1),
        }
    }

    /// Axes in another order: axis `i` of the result is axis `order[i]` of this.
    pub fn permute(&self, order: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        self.seen(self.view.permute(order.as_ref()))
    }

    /// Axes of length 1 repeated, and outer axes added, until the shape is this one.
    pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        self.seen(self.view.broadcast(shape.as_ref()))
    }
}
