//! The right-hand side of a matrix product: rows of f32, or rows quantised to 8 bits.

use std::ops::Range;

use super::isa::{Isa, dispatch};
use super::team::Team;

/// Up to so many groups a fork costs more than it saves.
const FEW: usize = 512;
/// Groups of a task, about.
const PART: usize = 128;

/// Values that share one activation scale.
pub const GROUP: usize = 32;

/// How many values share a scale. A value far above the others costs them their precision: with halves, fewer of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// All of a group. Every kernel takes it.
    Group,
    /// Each half of a group: for matrices that [take it](super::PackedMatrix::takes).
    Half,
}

/// 32 values of a row: `scale[i / 16] * values[i]`. One record, so that a kernel follows one pointer a row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct QGroup {
    pub(super) values: [i8; GROUP],
    /// Of each half: absmax / 127; NaN where a value was NaN or infinite, so that it reaches the output.
    pub(super) scales: [f32; 2],
    /// Sums of the values of each half.
    pub(super) sums: [i16; 2],
    /// `scales[0] * sums[0] + scales[1] * sums[1]`.
    pub(super) scaled_sum: f32,
}

impl QGroup {
    const ZERO: QGroup = QGroup { values: [0; GROUP], scales: [0.0; 2], sums: [0; 2], scaled_sum: 0.0 };
}

/// Rows of activations in 8 bits, in a buffer that grows on use and is kept between steps.
#[derive(Debug)]
pub struct QuantizedRows {
    cols: usize,
    grain: Grain,
    /// `[rows, cols / 32]`.
    groups: Vec<QGroup>,
}

impl Default for QuantizedRows {
    fn default() -> QuantizedRows {
        QuantizedRows { cols: 0, grain: Grain::Group, groups: Vec::new() }
    }
}

impl QuantizedRows {
    /// Quantises `x` (`[rows, cols]`), replacing what was held. Does not allocate within the capacity.
    pub fn quantize(&mut self, isa: Isa, team: &Team, x: &[f32], cols: usize, grain: Grain) {
        self.resize(x.len(), cols, grain);
        let count = self.groups.len();
        if count <= FEW {
            quantize_groups(isa, x, grain, &mut self.groups);
        } else {
            team.for_chunks(&mut self.groups, PART, |i, groups| {
                let x = &x[i * PART * GROUP..];
                quantize_groups(isa, &x[..groups.len() * GROUP], grain, groups);
            });
        }
    }

    /// Quantises rows that `make` writes to `x` (`[rows, cols]`), each with its index: threads have them while they are warm.
    pub fn quantize_made(
        &mut self,
        isa: Isa,
        team: &Team,
        (x, cols): (&mut [f32], usize),
        grain: Grain,
        make: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        self.resize(x.len(), cols, grain);
        let groups = cols / GROUP;
        let rows = PART.div_ceil(groups);
        team.for_both(x, &mut self.groups, [rows * cols, rows * groups], |part, x, groups| {
            for (i, row) in x.chunks_exact_mut(cols).enumerate() {
                make(part * rows + i, row);
            }
            quantize_groups(isa, x, grain, groups);
        });
    }

    /// Makes room for the groups of so many values.
    fn resize(&mut self, values: usize, cols: usize, grain: Grain) {
        assert!(cols > 0 && cols.is_multiple_of(GROUP), "{cols} columns do not fill groups of {GROUP}");
        assert!(values.is_multiple_of(cols), "{values} values do not fill rows of {cols}");
        (self.cols, self.grain) = (cols, grain);
        let count = values / GROUP;
        self.groups.truncate(count);
        self.groups.resize(count, QGroup::ZERO);
    }

    /// All rows.
    pub fn all(&self) -> Activations<'_> {
        Activations::Q8 { groups: &self.groups, cols: self.cols, grain: self.grain }
    }
}

/// The right-hand side of a matrix product, `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the variants say what the fields are")]
pub enum Activations<'a> {
    /// For F32, F16 and BF16 weights: values `[rows, cols]`.
    F32 { values: &'a [f32], cols: usize },
    /// For quantised weights: groups `[rows, cols / 32]`.
    Q8 { groups: &'a [QGroup], cols: usize, grain: Grain },
}

impl Activations<'_> {
    /// Some of its rows.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        match self {
            Activations::F32 { values, cols } => {
                Activations::F32 { values: &values[rows.start * cols..rows.end * cols], cols }
            }
            Activations::Q8 { groups, cols, grain } => {
                let row = cols / GROUP;
                Activations::Q8 { groups: &groups[rows.start * row..rows.end * row], cols, grain }
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

/// What a value is multiplied by to become one of 8 bits, and back.
#[derive(Clone, Copy)]
struct Scale {
    inverse: f32,
    scale: f32,
}

impl Scale {
    /// For values up to this one, given as bits.
    #[inline(always)]
    fn of(top: u32) -> Scale {
        let absmax = f32::from_bits(top);
        // Below this 127 / absmax overflows: such values are zero.
        if !absmax.is_finite() {
            Scale { inverse: 0.0, scale: f32::NAN }
        } else if absmax < 128.0 * f32::MIN_POSITIVE {
            Scale { inverse: 0.0, scale: 0.0 }
        } else {
            Scale { inverse: 127.0 / absmax, scale: absmax / 127.0 }
        }
    }
}

fn quantize_groups(isa: Isa, x: &[f32], grain: Grain, groups: &mut [QGroup]) {
    dispatch!(isa, fn<L>(x: &[f32], grain: Grain, groups: &mut [QGroup]) {
        for (x, group) in x.as_chunks::<GROUP>().0.iter().zip(groups) {
            // SAFETY: features by the caller; 32 values.
            let tops = unsafe { L::tops(x.as_ptr()) };
            let scales = if grain == Grain::Half {
                tops.map(Scale::of)
            } else {
                [Scale::of(tops[0].max(tops[1])); 2]
            };
            let mut sums = [0; 2];
            for half in 0..2 {
                let (x, out) = (x[16 * half..].as_ptr(), group.values[16 * half..].as_mut_ptr());
                // SAFETY: features by the caller; 16 values and 16 places remain.
                sums[half] = unsafe { L::quantize16(x, scales[half].inverse, out) };
                group.scales[half] = scales[half].scale;
            }
            group.sums = [sums[0] as i16, sums[1] as i16];
            group.scaled_sum = if grain == Grain::Half {
                group.scales[0] * sums[0] as f32 + group.scales[1] * sums[1] as f32
            } else {
                group.scales[0] * (sums[0] + sums[1]) as f32
            };
        }
    });
}
