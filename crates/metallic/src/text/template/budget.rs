//! What one rendering may use. A template is a stranger's program, and the engine counts its instructions, not what each of
//! them makes: here it pays for the texts and lists it makes, and for its time.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::sync::Arc;

/// Bytes a template may make of nothing, and for each byte of the conversation. Real ones copy a text about ten times.
const BYTES: u64 = 64 << 20;
const BYTES_EACH: u64 = 256;
/// How long it may take, and how long for each byte of the conversation.
const TIME: Duration = Duration::from_secs(1);
const TIME_EACH: Duration = Duration::from_micros(2);
/// How deep lists and dictionaries that a template keeps may be nested.
const DEPTH: usize = 64;
/// What an element of a list counts for.
const ELEMENT: usize = 32;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(BYTES) };
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
    static LATE: Cell<bool> = const { Cell::new(false) };
}

/// Thrown when a template has used what it may.
#[derive(Debug)]
pub(super) struct Exhausted;

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("more text, lists or time than any real template needs")
    }
}

impl std::error::Error for Exhausted {}

fn exhausted() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the template was stopped").with_source(Exhausted)
}

/// Begins a rendering on this thread, for a conversation of so many bytes.
pub(super) fn begin(input: u64) {
    LEFT.set(input.saturating_mul(BYTES_EACH).saturating_add(BYTES));
    let time = TIME + TIME_EACH.saturating_mul(u32::try_from(input).unwrap_or(u32::MAX));
    UNTIL.set(Instant::now().checked_add(time));
    LATE.set(false);
}

/// Whether the rendering on this thread was cut short.
pub(super) fn is_late() -> bool {
    LATE.get()
}

/// Pays for `bytes` before they are made.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes as u64 + 1) {
        Some(left) => LEFT.set(left),
        None => return Err(exhausted()),
    }
    if LEFT.get().is_multiple_of(64) && UNTIL.get().is_some_and(|until| Instant::now() > until) {
        return Err(exhausted());
    }
    Ok(())
}

/// Pays for `count` times `each` bytes.
pub(super) fn charge_times(count: usize, each: usize) -> Result<(), Error> {
    charge(count.checked_mul(each).filter(|&n| n < usize::MAX / 2).ok_or_else(exhausted)?)
}

/// An error if so many bytes, which are being made, are more than is left.
pub(super) fn room(bytes: usize) -> Result<(), Error> {
    if bytes as u64 > LEFT.get() { Err(exhausted()) } else { Ok(()) }
}

/// The elements of `value`, paid for.
pub(super) fn elements(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(text) = value.as_str() {
        charge_times(text.len(), ELEMENT)?;
        return Ok(text.chars().map(Value::from).collect());
    }
    if let Some(len) = value.len() {
        charge_times(len, ELEMENT)?;
    }
    let mut out = Vec::new();
    for item in value.try_iter()? {
        if value.len().is_none() {
            charge(ELEMENT)?;
        }
        out.push(item);
    }
    Ok(out)
}

/// Bytes of the texts in `value`, two levels deep: what a filter over a list looks at.
pub(super) fn weight(value: &Value) -> Result<usize, Error> {
    fn of(value: &Value, levels: usize) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len());
        }
        if levels == 0 || !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            return Ok(1);
        }
        let mut sum = 0_usize;
        for item in value.try_iter()? {
            charge(1)?;
            let item = if value.kind() == ValueKind::Map { value.get_item(&item)? } else { item };
            sum = sum.saturating_add(of(&item, levels - 1)?).saturating_add(8);
        }
        Ok(sum)
    }
    of(value, 2)
}

/// Bytes of all texts in what the caller gave, for the size of the budget.
pub(super) fn size(value: &Value, levels: usize) -> u64 {
    if let Some(text) = value.as_str() {
        return text.len() as u64;
    }
    if levels == 0 || !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return 8;
    }
    let Ok(items) = value.try_iter() else { return 8 };
    items
        .map(|item| match value.kind() {
            ValueKind::Map => value.get_item(&item).map_or(8, |v| 8 + size(&v, levels - 1)),
            _ => size(&item, levels - 1),
        })
        .fold(8, u64::saturating_add)
}

/// What `{% set %}` keeps. A list that is made as it is read becomes one that is there, and nothing is nested without end:
/// dropping and comparing take a stack frame for each level.
pub(super) fn keep(value: Value) -> Result<Value, Error> {
    let value = if value.kind() == ValueKind::Iterable { Value::from(elements(&value)?) } else { value };
    nested(&value, 0)?;
    Ok(value)
}

fn nested(value: &Value, depth: usize) -> Result<(), Error> {
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if depth > DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value is nested deeper than {DEPTH}"),
        ));
    }
    for item in value.try_iter()? {
        charge(8)?;
        let item = if kind == ValueKind::Map { value.get_item(&item)? } else { item };
        nested(&item, depth + 1)?;
    }
    Ok(())
}

/// What `{% for %}` goes through: the elements of a value, until the time is over.
#[derive(Debug)]
struct Timed(Vec<Value>);

impl Object for Timed {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Walk { list: Arc::clone(self), next: 0 }))
    }
}

struct Walk {
    list: Arc<Timed>,
    next: usize,
}

impl Iterator for Walk {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        if self.next.is_multiple_of(16) && UNTIL.get().is_some_and(|until| Instant::now() > until) {
            LATE.set(true);
            return None;
        }
        self.next += 1;
        self.list.0.get(self.next - 1).cloned()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.0.len() - self.next.min(self.list.0.len());
        (left, Some(left))
    }
}

/// The elements that a loop goes through.
pub(super) fn walk(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::String => {
            Ok(Value::from_object(Timed(elements(&value)?)))
        }
        _ => Ok(value),
    }
}
