//! Numbers of schemas: bounds and steps that the matcher enforces exactly.

use serde_json::{Map, Number, Value};

use super::ConstrainError;
use super::keywords::{Written, invalid};

/// Whole numbers beyond are not told apart by doubles.
pub(super) const WHOLE: i64 = (1 << 53) - 1;
/// Decimal places of a bound.
const PLACES: usize = 12;

/// Whether a constant is written so that it is read as the same number.
pub(super) fn is_exact(number: &Number) -> bool {
    if number.is_f64() {
        return number
            .as_f64()
            .is_some_and(|x| x.is_finite() && (x == 0.0 || (1e-12..1e15).contains(&x.abs())));
    }
    number.as_i64().is_some_and(|n| n.unsigned_abs() <= WHOLE as u64)
}

/// A bound of numbers. Those past [`WHOLE`] are drawn in where that leaves numbers; an exclusive one of numbers with decimal places
/// becomes the next billionth.
pub(super) fn bound(
    keyword: &str,
    value: &Value,
    map: &Map<String, Value>,
    at: &str,
    out: &mut Map<String, Value>,
) -> Result<(), ConstrainError> {
    let below = keyword.ends_with("inimum");
    let target = if below { "minimum" } else { "maximum" };
    let exclusive = keyword.starts_with("exclusive");
    // In draft 4, a flag beside the bound.
    let flag = exclusive.then_some(value.as_bool()).flatten();
    let number = match flag {
        Some(false) => return Ok(()),
        Some(true) => map.get(target).ok_or_else(|| invalid(at, value, "a number"))?,
        None => value,
    };
    let limit = number.as_f64().filter(|x| x.is_finite()).ok_or_else(|| invalid(at, value, "a number"))?;
    let whole = WHOLE as f64;
    if (below && limit > whole) || (!below && limit < -whole) {
        return Err(invalid(at, value, "between -9007199254740991 and 9007199254740991"));
    }
    let limit = limit.clamp(-whole, whole);
    let whole_only = map.get("type").is_some_and(|kind| kind == "integer");
    let step = if !exclusive {
        0.0
    } else if whole_only && limit.fract() == 0.0 {
        1.0
    } else {
        1e-9_f64.max(limit.abs() * 1e-12)
    };
    let limit = if below { limit + step } else { limit - step };
    let written = if limit.fract() == 0.0 && limit.abs() <= whole {
        Number::from(limit as i64)
    } else {
        rounded(limit, below).ok_or_else(|| invalid(at, value, "a number"))?
    };
    if format!("{limit}").split('.').nth(1).is_some_and(|places| places.len() > PLACES) && !exclusive {
        return Err(invalid(at, value, "a number of at most 12 decimal places"));
    }
    // Two bounds of the same side: the narrower.
    let held = out.get(target).and_then(Value::as_f64);
    let narrower = held.is_none_or(|held| if below { limit > held } else { limit < held });
    if narrower {
        out.insert(target.into(), Value::Number(written));
    }
    Ok(())
}

/// A bound at twelve decimal places, drawn in.
fn rounded(limit: f64, below: bool) -> Option<Number> {
    if limit.abs() > 1e6 {
        return Number::from_f64(if below { limit.ceil() } else { limit.floor() });
    }
    let text = format!("{limit:.9}");
    let near: f64 = text.parse().ok()?;
    let drawn = match below {
        true if near < limit => near + 1e-9,
        false if near > limit => near - 1e-9,
        _ => near,
    };
    Number::from_f64(format!("{drawn:.9}").parse().ok()?)
}

/// What numbers must be a multiple of.
pub(super) fn multiple(value: &Value, at: &str) -> Written {
    const NEEDED: &str = "1000, or at most 100 steps of its last decimal place, which is the 4th at most";
    let step = value.as_f64().filter(|x| *x > 0.0 && *x <= 1000.0);
    // There is a state for each remainder, beside those that the bounds need: more cost too much in the middle of an answer.
    let is_cheap = |(scaled, _): &(f64, i32)| *scaled <= 100.0 || step == Some(1000.0);
    let known = step.and_then(scaled).filter(is_cheap);
    known.map(|_| value.clone()).ok_or_else(|| invalid(at, value, NEEDED))
}

/// A number as a whole one, and by how many decimal places, at most four, it was moved. The matcher finds them in this way.
fn scaled(step: f64) -> Option<(f64, i32)> {
    let (mut scaled, mut places) = (step, 0);
    while scaled.fract() != 0.0 && places < 5 {
        scaled *= 10.0;
        places += 1;
    }
    (places < 5).then_some((scaled, places))
}

/// Bounds multiples of a fraction by what doubles hold with its decimal places: beyond, they are read as other numbers.
pub(super) fn narrow_multiples(out: &mut Map<String, Value>) {
    let step = out.get("multipleOf").and_then(Value::as_f64).and_then(scaled);
    let Some((_, places)) = step.filter(|(_, places)| *places > 0) else { return };
    let far = 10_i64.pow((15 - places).unsigned_abs()) - 1;
    let bound = |keyword: &str| out.get(keyword).and_then(Value::as_f64);
    let (least, most) = (bound("minimum"), bound("maximum"));
    if least.is_none_or(|least| least < -far as f64) {
        out.insert("minimum".into(), (-far).into());
    }
    if most.is_none_or(|most| most > far as f64) {
        out.insert("maximum".into(), far.into());
    }
}
