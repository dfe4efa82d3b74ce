//! A tensor as a file holds it.

use metallic_core::{Bytes, DType};

/// A named tensor: its type, and its bytes as a window into the file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Row-major, outermost axis first: `[rows, columns]`; a GGUF file's own order is the reverse.
    pub shape: Vec<usize>,
    /// Its elements, little-endian, rows in blocks of `dtype`; of no particular alignment.
    pub data: Bytes,
}

impl Tensor {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().fold(1, |n, axis| n.saturating_mul(*axis)) }
    }
}

/// Bytes of a tensor; `None` where its rows do not fill blocks or a product of axes overflows, in whatever
/// order it is taken: an axis of 0 does not excuse the others.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    let (row, outer) = match shape.split_last() {
        Some((row, outer)) => (*row, outer),
        None => (1, shape),
    };
    let rows = outer.iter().try_fold(1_usize, |n, axis| n.checked_mul((*axis).max(1)))?;
    let full = dtype.bytes_for(row.max(dtype.block_len()))?.checked_mul(rows)?;
    dtype.bytes_for(row)?;
    Some(if shape.contains(&0) { 0 } else { full })
}
