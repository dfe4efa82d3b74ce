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
        self.shape.iter().product()
    }
}

/// Bytes of a tensor; `None` where its rows do not fill blocks or a product overflows.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    let (row, outer) = match shape.split_last() {
        Some((row, outer)) => (*row, outer),
        None => (1, shape),
    };
    // With an axis of 0 there is nothing to overflow, however long the other axes claim to be.
    if shape.contains(&0) {
        return dtype.bytes_for(row).map(|_| 0);
    }
    let rows = outer.iter().try_fold(1_usize, |n, axis| n.checked_mul(*axis))?;
    dtype.bytes_for(row)?.checked_mul(rows)
}
