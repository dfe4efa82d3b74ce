//! How far a result may be from the reference.

use metallic_core::DType;

/// How far a number may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute difference.
    pub absolute: f32,
    /// Difference as a share of the expected value.
    pub relative: f32,
}

impl Tolerance {
    /// Nothing but the same value.
    pub const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// Room for one more rounding to the type a result is stored in.
    #[must_use]
    pub fn stored_as(self, dtype: DType) -> Tolerance {
        // The smallest steps of a half are absolute.
        let least = if dtype == DType::F16 { 6e-8 } else { 0.0 };
        Tolerance { absolute: self.absolute + least, relative: self.relative + unit(dtype) }
    }

    fn allows(self, expected: f32, found: f32) -> bool {
        if expected.is_nan() {
            return found.is_nan();
        }
        if expected.is_infinite() {
            return expected == found;
        }
        (found - expected).abs() <= self.absolute + self.relative * expected.abs()
    }
}

/// A unit in the last place of 1, where a type has fewer digits than results are compared in.
pub(crate) fn unit(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        _ => 0.0,
    }
}

/// The largest number among those that are finite.
pub(crate) fn peak(values: &[f32]) -> f32 {
    values.iter().filter(|x| x.is_finite()).fold(0.0, |peak, x| peak.max(x.abs()))
}

/// Whether all numbers agree.
pub(crate) fn floats(expected: &[f32], found: &[f32], tolerance: Tolerance) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{} numbers instead of {}", found.len(), expected.len()));
    }
    let pairs = || expected.iter().zip(found).enumerate();
    let Some((index, (a, b))) = pairs().find(|(_, (a, b))| !tolerance.allows(**a, **b)) else {
        return Ok(());
    };
    let worst = pairs().map(|(_, (a, b))| (a - b).abs()).fold(0.0, f32::max);
    let Tolerance { absolute, relative } = tolerance;
    Err(format!(
        "element {index} is {b}, not {a}; allowed are {absolute} + {relative} of it, the worst is off by {worst}"
    ))
}

/// Whether all indices agree.
pub(crate) fn ids(expected: &[u32], found: &[u32]) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{} indices instead of {}", found.len(), expected.len()));
    }
    match expected.iter().zip(found).position(|(a, b)| a != b) {
        Some(index) => Err(format!("index {index} is {}, not {}", found[index], expected[index])),
        None => Ok(()),
    }
}

/// Were results as small as the tolerance, anything would pass.
pub(crate) fn proves(peak: f32, tolerance: Tolerance) -> Result<(), String> {
    if peak > 8.0 * tolerance.absolute && tolerance.relative <= 0.1 {
        return Ok(());
    }
    Err(format!("results of at most {peak} prove nothing at {tolerance:?}"))
}
