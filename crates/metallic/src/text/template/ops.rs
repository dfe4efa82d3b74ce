//! The operators that make texts and lists, as Python has them, paid for before they run.

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::{charge, charge_times, elements, keep, walk};
use super::python::{self, Tuple};

pub(super) const ADD: &str = "__add";
pub(super) const CONCAT: &str = "__concat";
pub(super) const MULTIPLY: &str = "__multiply";
pub(super) const MODULO: &str = "__modulo";
pub(super) const POWER: &str = "__power";
pub(super) const TUPLE: &str = "__tuple";
pub(super) const SLICE: &str = "__slice";
pub(super) const KEEP: &str = "__keep";
pub(super) const WALK: &str = "__walk";

pub(super) fn add_to(env: &mut Environment<'_>) {
    env.add_function(ADD, |values: Rest<Value>| {
        let mut values = values.0.into_iter();
        let first = values.next().unwrap_or_default();
        values.try_fold(first, |sum, value| add(&sum, &value))
    });
    env.add_function(CONCAT, |values: Rest<Value>| concat(&values));
    env.add_function(MULTIPLY, |values: Rest<Value>| {
        let mut values = values.0.into_iter();
        let first = values.next().unwrap_or_default();
        values.try_fold(first, |product, value| multiply(&product, &value))
    });
    env.add_function(MODULO, modulo);
    env.add_function(POWER, |values: Rest<Value>| {
        let mut values = values.0.into_iter();
        let first = values.next().unwrap_or_default();
        values.try_fold(first, |base, exponent| power(&base, &exponent))
    });
    env.add_function(TUPLE, |values: Rest<Value>| Tuple::value(values.0));
    env.add_function(SLICE, slice);
    env.add_function(KEEP, keep);
    env.add_function(WALK, walk);
}

#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(i128::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }
    }
}

fn int(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

fn impossible(op: &str, a: &Value, b: &Value) -> Error {
    let what = format!("unsupported operands of {op}: {} and {}", a.kind(), b.kind());
    Error::new(ErrorKind::InvalidOperation, what)
}

fn overflow(op: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the result of {op} is too large"))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        charge(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) {
        let mut list = elements(a)?;
        list.extend(elements(b)?);
        let is_tuple = a.downcast_object_ref::<Tuple>().is_some();
        return Ok(if is_tuple { Tuple::value(list) } else { Value::from(list) });
    }
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            a.checked_add(b).map(int).ok_or_else(|| overflow("+"))
        }
        (Some(a), Some(b)) => Ok(Value::from(a.float() + b.float())),
        _ => Err(impossible("+", a, b)),
    }
}

fn concat(values: &[Value]) -> Result<Value, Error> {
    let mut out = String::new();
    for value in values {
        match value.as_str() {
            Some(text) => {
                charge(text.len())?;
                out.push_str(text);
            }
            None => out.push_str(&python::str(value)?),
        }
    }
    Ok(Value::from(out))
}

fn multiply(a: &Value, b: &Value) -> Result<Value, Error> {
    let times = |n: &Value| match number(n) {
        Some(Number::Int(n)) => usize::try_from(n.max(0)).map_err(|_| overflow("*")),
        _ => Err(impossible("*", a, b)),
    };
    for (what, n) in [(a, b), (b, a)] {
        if let Some(text) = what.as_str() {
            let n = times(n)?;
            charge_times(n, text.len())?;
            return Ok(Value::from(text.repeat(n)));
        }
        if is_list(what) {
            let (n, list) = (times(n)?, elements(what)?);
            charge_times(n, list.len().saturating_mul(32))?;
            return Ok(list.iter().cycle().take(list.len() * n).cloned().collect());
        }
    }
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            a.checked_mul(b).map(int).ok_or_else(|| overflow("*"))
        }
        (Some(a), Some(b)) => Ok(Value::from(a.float() * b.float())),
        _ => Err(impossible("*", a, b)),
    }
}

fn power(base: &Value, exponent: &Value) -> Result<Value, Error> {
    match (number(base), number(exponent)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) if b >= 0 => {
            let power = u32::try_from(b).ok().and_then(|b| a.checked_pow(b));
            power.map(int).ok_or_else(|| overflow("**"))
        }
        (Some(a), Some(b)) => Ok(Value::from(a.float().powf(b.float()))),
        _ => Err(impossible("**", base, exponent)),
    }
}

/// `a % b`: of numbers with the sign of `b`; of a text, what `format` makes of it.
fn modulo(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        let args = if is_list(b) { elements(b)? } else { vec![b.clone()] };
        return format(state, a, Rest(args));
    }
    match (number(a), number(b)) {
        (Some(Number::Int(_)), Some(Number::Int(0))) => {
            Err(Error::new(ErrorKind::InvalidOperation, "modulo by zero"))
        }
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let rest = a.checked_rem(b).unwrap_or(0);
            Ok(int(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        (Some(a), Some(b)) => {
            let (a, b) = (a.float(), b.float());
            Ok(Value::from(a - b * (a / b).floor()))
        }
        _ => Err(impossible("%", a, b)),
    }
}

/// Characters that one field of a format may be wide.
const MAX_WIDTH: usize = 10_000;

/// The filter `format`, and `%` after a text.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]
pub(super) fn format(state: &State, pattern: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let text = pattern.as_str().unwrap_or_default();
    // A width or a precision is a number of any size, and `*` takes one from the arguments.
    let in_text = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let in_text = in_text.map(|digits| digits.parse().unwrap_or(usize::MAX));
    let given = args.iter().filter(|_| text.contains('*')).filter_map(Value::as_usize);
    let mut widths = 0_usize;
    for width in in_text.chain(given) {
        if width > MAX_WIDTH {
            let what = format!("format: a width of {width}; at most {MAX_WIDTH} are allowed");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        widths += width;
    }
    let mut bytes = text.len().saturating_add(widths);
    for arg in args.iter() {
        bytes = bytes.saturating_add(arg.as_str().map_or(64, str::len));
    }
    charge(bytes.min(usize::MAX / 4))?;
    minijinja::filters::format(state, pattern, args)
}

/// `value[start:stop:step]`.
#[allow(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]
fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let bound = |value: &Value| -> Result<Option<i128>, Error> {
        if value.is_none() || value.is_undefined() {
            Ok(None)
        } else {
            i128::try_from(value.clone()).map(Some)
        }
    };
    let step = bound(&step)?.unwrap_or(1);
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    let (start, stop) = (bound(&start)?, bound(&stop)?);
    let places = |len: usize| -> Vec<usize> {
        let len = len as i128;
        // Where a walk in this direction may begin and end.
        let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |at: Option<i128>, default: i128| {
            at.map_or(default, |at| if at < 0 { at.saturating_add(len) } else { at }.clamp(low, high))
        };
        let (mut at, end) = if step > 0 {
            (place(start, low), place(stop, high))
        } else {
            (place(start, high), place(stop, low))
        };
        let mut out = Vec::new();
        while if step > 0 { at < end } else { at > end } {
            out.push(at as usize);
            at = at.saturating_add(step);
        }
        out
    };
    if let Some(text) = value.as_str() {
        charge_times(text.len(), 4)?;
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(places(chars.len()).into_iter().map(|i| chars[i]).collect::<String>()));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let list = elements(&value)?;
            Ok(places(list.len()).into_iter().map(|i| list[i].clone()).collect())
        }
        // As the engine has it: nothing of nothing.
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        kind => {
            let what = format!("a value of kind {kind} cannot be sliced");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}
