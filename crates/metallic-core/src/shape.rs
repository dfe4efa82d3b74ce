//! Shapes with symbolic leading axes, and tensor types.

use std::fmt;

use crate::DType;

/// The length of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known when the graph is built.
    Fixed(usize),
    /// The tokens of the step, over all sequences.
    Tokens,
    /// The tokens of the step whose result was asked for; never more than `Tokens`.
    Outputs,
}

impl From<usize> for Dim {
    fn from(len: usize) -> Dim {
        Dim::Fixed(len)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(len) => write!(f, "{len}"),
            Dim::Tokens => f.write_str("tokens"),
            Dim::Outputs => f.write_str("outputs"),
        }
    }
}

/// How long the symbolic axes are in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Tokens in the step.
    pub tokens: usize,
    /// Tokens whose result was asked for.
    pub outputs: usize,
}

impl Sizes {
    /// The length of `dim` in this step.
    pub fn of(self, dim: Dim) -> usize {
        match dim {
            Dim::Fixed(len) => len,
            Dim::Tokens => self.tokens,
            Dim::Outputs => self.outputs,
        }
    }
}

/// The most axes a tensor may have.
pub const MAX_RANK: usize = 4;

/// Axis lengths, outermost first. Only the outermost may be symbolic.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [Dim; MAX_RANK],
    rank: usize,
}

impl Shape {
    /// A shape of at most [`MAX_RANK`] axes; `None` where there are more or an inner one is symbolic.
    pub fn new(dims: &[Dim]) -> Option<Shape> {
        let inner_fixed = dims.iter().skip(1).all(|d| matches!(d, Dim::Fixed(_)));
        (dims.len() <= MAX_RANK && inner_fixed).then(|| Shape::of(dims))
    }

    /// A shape of these lengths; axes past [`MAX_RANK`] are left out.
    pub(crate) fn of<D: Copy + Into<Dim>>(lengths: &[D]) -> Shape {
        let mut dims = [Dim::Fixed(1); MAX_RANK];
        dims.iter_mut().zip(lengths).for_each(|(dim, len)| *dim = (*len).into());
        Shape { dims, rank: lengths.len().min(MAX_RANK) }
    }

    /// `[rows, cols]`, a matrix whose rows may be symbolic.
    pub fn matrix(rows: impl Into<Dim>, cols: usize) -> Shape {
        Shape::of(&[rows.into(), cols.into()])
    }

    /// `[count, rows, cols]`, so many matrices.
    pub fn stack(count: usize, rows: usize, cols: usize) -> Shape {
        Shape::of(&[count, rows, cols])
    }

    /// `[len]`.
    pub fn vector(len: impl Into<Dim>) -> Shape {
        Shape::of(&[len.into()])
    }

    /// The axes.
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.rank]
    }

    /// Length of the innermost axis; 1 where that axis is symbolic or missing.
    pub fn cols(&self) -> usize {
        match self.dims().last() {
            Some(Dim::Fixed(len)) => *len,
            _ => 1,
        }
    }

    /// Product of all axes but the innermost, in a step of these sizes.
    pub fn rows(&self, sizes: Sizes) -> usize {
        let cols = matches!(self.dims().last(), Some(Dim::Fixed(_)));
        self.product(self.rank - usize::from(cols), sizes)
    }

    /// Number of elements in a step of these sizes; as many as can be counted, where there are more.
    pub fn elements(&self, sizes: Sizes) -> usize {
        self.product(self.rank, sizes)
    }

    fn product(&self, axes: usize, sizes: Sizes) -> usize {
        self.dims[..axes].iter().fold(1, |n: usize, dim| n.saturating_mul(sizes.of(*dim)))
    }

    /// The outermost axis.
    pub fn leading(&self) -> Dim {
        self.dims[0]
    }

    /// This shape with another innermost axis.
    #[must_use]
    pub fn with_cols(mut self, cols: usize) -> Shape {
        if self.rank > 0 {
            self.dims[self.rank - 1] = Dim::Fixed(cols);
        }
        self
    }

    /// This shape without its innermost axis.
    #[must_use]
    pub fn without_cols(self) -> Shape {
        Shape::of(&self.dims[..self.rank.saturating_sub(1)])
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims().iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a tensor is: element type and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Axes.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        TensorType { dtype, shape }
    }

    /// The same rows with another number of columns.
    #[must_use]
    pub fn with_cols(self, cols: usize) -> TensorType {
        TensorType { shape: self.shape.with_cols(cols), ..self }
    }

    /// `F32` of this shape.
    pub fn f32(shape: Shape) -> TensorType {
        TensorType { dtype: DType::F32, shape }
    }

    /// Bytes in a step of these sizes; `None` where rows are not whole blocks or the size overflows.
    pub fn bytes(&self, sizes: Sizes) -> Option<usize> {
        let rows = self.shape.rows(sizes);
        self.dtype.bytes_for(self.shape.cols())?.checked_mul(rows)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outermost_axis_may_be_symbolic() {
        assert!(Shape::new(&[Dim::Tokens, Dim::Fixed(4)]).is_some());
        assert!(Shape::new(&[Dim::Fixed(4), Dim::Tokens]).is_none());
        assert!(Shape::new(&[Dim::Fixed(1); 5]).is_none());
    }

    #[test]
    fn sizes_beyond_the_address_space_are_counted_as_far_as_can_be() {
        let ty = TensorType::f32(Shape::stack(usize::MAX, 3, 2));
        assert_eq!((ty.shape.elements(Sizes::default()), ty.bytes(Sizes::default())), (usize::MAX, None));
        let empty = TensorType::f32(Shape::stack(usize::MAX, 3, 0));
        assert_eq!((empty.shape.elements(Sizes::default()), empty.bytes(Sizes::default())), (0, Some(0)));
        assert_eq!(Shape::matrix(3, 0).rows(Sizes::default()), 3, "rows may be empty");
    }

    #[test]
    fn sizes_resolve_rows_and_bytes() {
        let ty = TensorType::new(DType::Q4_0, Shape::matrix(Dim::Tokens, 64));
        let sizes = Sizes { tokens: 3, outputs: 1 };
        assert_eq!(ty.shape.rows(sizes), 3);
        assert_eq!(ty.bytes(sizes), Some(3 * 2 * 18));
        assert_eq!(ty.to_string(), "Q4_0 [tokens, 64]");
    }
}
