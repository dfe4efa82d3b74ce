//! Two lists of numbers beside each other.

use serde::{Deserialize, Serialize};

/// Where an element stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The row: a token of the step, or one whose result was asked for.
    pub row: usize,
    /// The element of it.
    pub column: usize,
}

/// How far results are off what the reference makes of the same inputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Deviation {
    /// The largest difference in units of what 32-bit arithmetic explains there: above 1 it does not.
    pub tight: f64,
    /// The same in units of what rounding of products by design explains.
    pub loose: f64,
    /// Where the latter is largest.
    pub place: Place,
    /// What stands there.
    pub found: f32,
    /// What should.
    pub expected: f32,
    /// The largest difference.
    pub largest: f64,
    /// The largest number of what is expected.
    pub scale: f64,
    /// By what factor results are too large, all together: 1 where they are not.
    pub gain: f64,
    /// Results that are no numbers where the reference has some.
    pub not_finite: usize,
}

/// By how much all results together may be too large or too small, where products round: on real models a few thousandths.
const GAIN: f64 = 0.0075;

/// Compares with what is expected; `bounds` are what 32 bits, and what products by design, explain.
pub(crate) fn errors(found: &[f32], expected: &[f32], bounds: [&[f32]; 2], cols: usize) -> Deviation {
    let mut error = Deviation { gain: 1.0, ..Deviation::default() };
    if found.len() != expected.len() {
        return Deviation { tight: f64::INFINITY, loose: f64::INFINITY, not_finite: expected.len(), ..error };
    }
    let (mut along, mut squares, mut spread) = (0f64, 0f64, 0f64);
    let place = |at: usize| Place { row: at / cols.max(1), column: at % cols.max(1) };
    for (at, (&a, &r)) in found.iter().zip(expected).enumerate() {
        // The same bits, the same infinity, and neither a number are all as expected.
        if a.to_bits() == r.to_bits() || (a.is_nan() && r.is_nan()) {
            if r.is_finite() {
                along += f64::from(r).powi(2);
                squares += f64::from(r).powi(2);
                error.scale = error.scale.max(f64::from(r.abs()));
            }
            continue;
        }
        let off = f64::from(a) - f64::from(r);
        let units = |bounds: &[f32]| match bounds.get(at).map(|bound| f64::from(*bound)) {
            Some(bound) if off.is_finite() && bound.is_finite() => off.abs() / bound.max(f64::MIN_POSITIVE),
            _ => f64::INFINITY,
        };
        let (tight, loose) = (units(bounds[0]), units(bounds[1]));
        error.tight = error.tight.max(tight);
        if loose > error.loose {
            (error.loose, error.place, error.found, error.expected) = (loose, place(at), a, r);
        }
        if off.is_finite() {
            let bound = bounds[1].get(at).map_or(0.0, |bound| f64::from(*bound));
            spread += (f64::from(r) * bound).powi(2);
            along += f64::from(a) * f64::from(r);
            squares += f64::from(r).powi(2);
            error.largest = error.largest.max(off.abs());
            error.scale = error.scale.max(f64::from(r.abs()));
        } else {
            error.not_finite += 1;
        }
    }
    if squares > 0.0 {
        error.gain = along / squares;
        // Errors that are independent leave all results together where they are, however large each may be.
        let allowed = (spread.sqrt() / squares).max(GAIN);
        error.loose = error.loose.max((error.gain - 1.0).abs() / allowed);
    }
    error
}

/// Upper ends of the classes of [`Figures::histogram`], in units of what rounding explains; the last class has none.
pub const CLASSES: [f64; 6] = [0.0, 1.0 / 16.0, 0.25, 1.0, 4.0, 16.0];

/// Two sides' results of one operation beside each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Whether they are equal to the bit.
    pub equal: bool,
    /// The largest difference.
    pub absolute: f64,
    /// That, relative to the largest number of the first side.
    pub relative: f64,
    /// Where it is.
    pub place: Place,
    /// What the first side has there.
    pub a: f32,
    /// What the second has.
    pub b: f32,
    /// The cosine of the angle between them: 1 where they point the same way.
    pub cosine: f64,
    /// Elements by their difference in units of what rounding explains of both, in [`CLASSES`]: equal, up to a sixteenth, a quarter, 1,
    /// 4, 16, and above.
    pub histogram: [usize; 7],
    /// NaNs of each side.
    pub nan: [usize; 2],
    /// Infinities of each side.
    pub infinite: [usize; 2],
}

/// Puts two sides beside each other; `explained` is what rounding explains of their difference, element by element.
pub(crate) fn figures(a: &[f32], b: &[f32], explained: impl Fn(usize) -> f32, cols: usize) -> Figures {
    let mut figures = Figures { equal: a.len() == b.len(), cosine: 1.0, ..Figures::default() };
    let count = |of: &[f32], is: fn(f32) -> bool| of.iter().filter(|x| is(**x)).count();
    figures.nan = [a, b].map(|of| count(of, f32::is_nan));
    figures.infinite = [a, b].map(|of| count(of, f32::is_infinite));
    let (mut along, mut of_a, mut of_b, mut top) = (0f64, 0f64, 0f64, 0f64);
    for (at, (&x, &y)) in a.iter().zip(b).enumerate() {
        let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        figures.equal &= same;
        let off = if same { 0.0 } else { (f64::from(x) - f64::from(y)).abs() };
        let units = if same { 0.0 } else { off / f64::from(explained(at)).max(f64::MIN_POSITIVE) };
        let class = CLASSES.iter().position(|end| units <= *end).unwrap_or(CLASSES.len());
        figures.histogram[class] += 1;
        // What is no number is worse than any difference.
        let worse = if off.is_nan() { f64::INFINITY } else { off };
        if worse > figures.absolute {
            (figures.absolute, figures.a, figures.b) = (worse, x, y);
            figures.place = Place { row: at / cols.max(1), column: at % cols.max(1) };
        }
        if x.is_finite() && y.is_finite() {
            along += f64::from(x) * f64::from(y);
            of_a += f64::from(x).powi(2);
            of_b += f64::from(y).powi(2);
            top = top.max(f64::from(x.abs()));
        }
    }
    figures.relative = if top > 0.0 { figures.absolute / top } else { figures.absolute };
    if of_a > 0.0 && of_b > 0.0 {
        figures.cosine = (along / (of_a.sqrt() * of_b.sqrt())).clamp(-1.0, 1.0);
    }
    figures
}
