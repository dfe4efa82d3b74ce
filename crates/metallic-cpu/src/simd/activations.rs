//! The right-hand side of a matrix product: rows of f32, or rows quantised to 8 bits.

use std::ops::Range;

use super::isa::{Isa, dispatch};
use super::team::Team;

/// Groups of a task; below this a fork costs more than it saves.
const PART: usize = 512;

/// Values that share one activation scale.
pub const GROUP: usize = 32;

/// 32 values of a row: `scale * values[i]`. One record, so that a kernel follows one pointer a row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct QGroup {
    pub(super) values: [i8; GROUP],
    /// absmax / 127; NaN where a value was NaN or infinite, so that it reaches the output.
    pub(super) scale: f32,
    /// Sums of the values of each half.
    pub(super) sums: [i16; 2],
    /// `scale * (sums[0] + sums[1])`.
    pub(super) scaled_sum: f32,
}

impl QGroup {
    const ZERO: QGroup = QGroup { values: [0; GROUP], scale: 0.0, sums: [0; 2], scaled_sum: 0.0 };
}

/// Rows of activations in 8 bits, in a buffer that grows on use and is kept between steps.
#[derive(Debug, Default)]
pub struct QuantizedRows {
    cols: usize,
    /// `[rows, cols / 32]`.
    groups: Vec<QGroup>,
}

impl QuantizedRows {
    /// Quantises `x` (`[rows, cols]`), replacing what was held. Does not allocate within the capacity.
    pub fn quantize(&mut self, isa: Isa, team: &Team, x: &[f32], cols: usize) {
        assert!(cols > 0 && cols.is_multiple_of(GROUP), "{cols} columns do not fill groups of {GROUP}");
        assert!(x.len().is_multiple_of(cols), "{} values do not fill rows of {cols}", x.len());
        self.cols = cols;
        let count = x.len() / GROUP;
        self.groups.truncate(count);
        self.groups.resize(count, QGroup::ZERO);
        if count <= PART {
            quantize_groups(isa, x, &mut self.groups);
        } else {
            team.for_chunks(&mut self.groups, PART, |i, groups| {
                let x = &x[i * PART * GROUP..];
                quantize_groups(isa, &x[..groups.len() * GROUP], groups);
            });
        }
    }

    /// All rows.
    pub fn all(&self) -> Activations<'_> {
        Activations::Q8 { groups: &self.groups, cols: self.cols }
    }
}

/// The right-hand side of a matrix product, `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the variants say what the fields are")]
pub enum Activations<'a> {
    /// For F32, F16 and BF16 weights: values `[rows, cols]`.
    F32 { values: &'a [f32], cols: usize },
    /// For quantised weights: groups `[rows, cols / 32]`.
    Q8 { groups: &'a [QGroup], cols: usize },
}

impl Activations<'_> {
    /// Some of its rows.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        match self {
            Activations::F32 { values, cols } => {
                Activations::F32 { values: &values[rows.start * cols..rows.end * cols], cols }
            }
            Activations::Q8 { groups, cols } => {
                let row = cols / GROUP;
                Activations::Q8 { groups: &groups[rows.start * row..rows.end * row], cols }
            }
        }
    }

    /// Rows (tokens).
    pub fn rows(&self) -> usize {
        let values = match self {
            Activations::F32 { values, .. } => values.len(),
            Activations::Q8 { groups, .. } => groups.len() * GROUP,
        };
        values.checked_div(self.cols()).unwrap_or(0)
    }

    /// Values of a row.
    pub fn cols(&self) -> usize {
        let (Activations::F32 { cols, .. } | Activations::Q8 { cols, .. }) = self;
        *cols
    }
}

fn quantize_groups(isa: Isa, x: &[f32], groups: &mut [QGroup]) {
    dispatch!(isa, fn<L>(x: &[f32], groups: &mut [QGroup]) {
        for (x, group) in x.as_chunks::<GROUP>().0.iter().zip(groups) {
            // SAFETY: features by the caller; 32 values.
            let absmax = f32::from_bits(unsafe { L::top32(x.as_ptr()) });
            // Below this 127 / absmax overflows: such a group is zero.
            let (scale, inverse) = if !absmax.is_finite() {
                (f32::NAN, 0.0)
            } else if absmax < 128.0 * f32::MIN_POSITIVE {
                (0.0, 0.0)
            } else {
                (absmax / 127.0, 127.0 / absmax)
            };
            let mut sums = [0; 2];
            for half in 0..2 {
                let (x, out) = (x[16 * half..].as_ptr(), group.values[16 * half..].as_mut_ptr());
                // SAFETY: features by the caller; 16 values and 16 places remain.
                sums[half] = unsafe { L::quantize16(x, inverse, out) };
            }
            group.scale = scale;
            group.sums = [sums[0] as i16, sums[1] as i16];
            group.scaled_sum = scale * (sums[0] + sums[1]) as f32;
        }
    });
}
