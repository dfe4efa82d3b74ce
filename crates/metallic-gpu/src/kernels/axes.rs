//! Tensors whose elements lie anywhere: axes brought into the form kernels walk them in.

use super::typed;
use crate::error::GpuError;

pub(crate) const RANK: usize = 4;

/// `N` operands of one shape, the result last. Axes are in the order of the result's strides, the innermost last; what lies
/// one after another in all operands is one axis. Missing axes are of length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axes<const N: usize> {
    pub(crate) shape: [u32; RANK],
    pub(crate) strides: [[u32; RANK]; N],
}

impl<const N: usize> Axes<N> {
    /// Of a shape and the strides of each operand, all in elements.
    pub(crate) fn new(
        op: &'static str,
        shape: &[usize],
        strides: [&[usize]; N],
    ) -> Result<Axes<N>, GpuError> {
        if shape.contains(&0) {
            return Err(GpuError::unsupported(op, format!("a tensor {shape:?} without elements")));
        }
        let mut axes: Vec<(usize, [usize; N])> = shape
            .iter()
            .enumerate()
            .filter(|(_, len)| **len != 1)
            .map(|(axis, len)| (*len, strides.map(|s| s.get(axis).copied().unwrap_or(0))))
            .collect();
        // Stable: axes that repeat an element keep their order.
        axes.sort_by(|a, b| b.1[N - 1].cmp(&a.1[N - 1]));
        let mut merged: Vec<(usize, [usize; N])> = Vec::new();
        for (len, strides) in axes {
            match merged.last_mut() {
                Some((outer, s)) if (0..N).all(|i| Some(s[i]) == strides[i].checked_mul(len)) => {
                    *outer *= len;
                    *s = strides;
                }
                _ => merged.push((len, strides)),
            }
        }
        if merged.len() > RANK {
            let reason = format!("{} axes that do not lie one inside another, at most {RANK}", merged.len());
            return Err(GpuError::unsupported(op, reason));
        }
        let mut made = Axes { shape: [1; RANK], strides: [[0; RANK]; N] };
        let first = RANK - merged.len();
        for (axis, (len, strides)) in merged.into_iter().enumerate() {
            made.shape[first + axis] = typed::count(op, len)?;
            for (i, stride) in strides.into_iter().enumerate() {
                made.strides[i][first + axis] = typed::count(op, stride)?;
            }
        }
        made.threads(op)?;
        Ok(made)
    }

    /// Threads of four neighbours along the innermost axis each.
    pub(crate) fn threads(&self, op: &'static str) -> Result<u32, GpuError> {
        let [outer @ .., n] = self.shape;
        let rows: u64 = outer.iter().map(|len| u64::from(*len)).product();
        typed::count(op, usize::try_from(rows * u64::from(n.div_ceil(4))).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_one_after_another_is_one_axis() {
        let axes = Axes::new("test", &[2, 3, 5], [&[15, 5, 1], &[15, 5, 1]]).unwrap();
        assert_eq!((axes.shape, axes.strides), ([1, 1, 1, 30], [[0, 0, 0, 1]; 2]));
        let axes = Axes::new("test", &[2, 3, 5], [&[0, 5, 1], &[15, 5, 1]]).unwrap();
        assert_eq!((axes.shape, axes.strides[0]), ([1, 1, 2, 15], [0, 0, 0, 1]));
        assert_eq!(axes.threads("test").unwrap(), 8);
        assert_eq!(Axes::new("test", &[], [&[]]).unwrap().shape, [1; 4]);
    }

    #[test]
    fn axes_follow_the_result() {
        let axes = Axes::new("test", &[3, 7], [&[7, 1], &[1, 3]]).unwrap();
        assert_eq!(axes.shape, [1, 1, 7, 3]);
        assert_eq!(axes.strides, [[0, 0, 1, 7], [0, 0, 3, 1]]);
    }

    #[test]
    fn strides_that_do_not_fit_are_refused() {
        let error = Axes::new("test", &[2, 2], [&[1 << 40, 3]]).unwrap_err();
        assert!(error.to_string().contains("1099511627776"), "{error}");
    }
}
