//! Fields of a request, read one by one: what is left over at the end is refused by name.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object of a request, and where it stands there.
#[derive(Debug)]
pub(crate) struct Fields {
    pointer: String,
    map: Map<String, Value>,
}

/// A JSON pointer to a member of what `pointer` points to.
pub(crate) fn child(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// As much as an error repeats of what a client wrote.
pub(crate) fn excerpt(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

/// What a value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn wrong_type(pointer: &str, value: &Value, needed: &str) -> ApiError {
    let message = format!("`{pointer}` is {}, it must be {needed}", kind(value));
    ApiError::Field { pointer: pointer.to_owned(), message, code: "invalid_type" }
}

impl Fields {
    /// The fields of a value that must be an object.
    pub(crate) fn of(value: Value, pointer: impl Into<String>) -> Result<Self, ApiError> {
        let pointer = pointer.into();
        match value {
            Value::Object(map) => Ok(Self { pointer, map }),
            other if pointer.is_empty() => {
                Err(ApiError::Body(format!("the body is {}, it must be an object", kind(&other))))
            }
            other => Err(wrong_type(&pointer, &other, "an object")),
        }
    }

    /// JSON pointer to a field.
    pub(crate) fn pointer(&self, name: &str) -> String {
        child(&self.pointer, name)
    }

    /// Takes a field; `null` counts as not given.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Puts a field back, as another reader is to find it.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    /// What is missing, as an error.
    pub(crate) fn missing(&self, name: &str) -> ApiError {
        let pointer = self.pointer(name);
        let message = format!("`{pointer}` is missing");
        ApiError::Field { pointer, message, code: "missing_required_parameter" }
    }

    /// A field that cannot be done without.
    pub(crate) fn required(&mut self, name: &str) -> Result<Value, ApiError> {
        self.take(name).ok_or_else(|| self.missing(name))
    }

    /// A text.
    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let pointer = self.pointer(name);
        self.take(name).map(|value| as_string(value, &pointer)).transpose()
    }

    /// A text that cannot be done without.
    pub(crate) fn required_string(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    /// One of the texts that are allowed.
    pub(crate) fn one_of(
        &mut self,
        name: &str,
        allowed: &'static [&'static str],
    ) -> Result<Option<&'static str>, ApiError> {
        let Some(found) = self.string(name)? else { return Ok(None) };
        allowed.iter().find(|value| **value == found).copied().map(Some).ok_or_else(|| {
            let pointer = self.pointer(name);
            let (found, allowed) = (excerpt(&found), allowed.join(", "));
            let message = format!("`{pointer}` is {found:?}, it must be one of {allowed}");
            ApiError::invalid(pointer, message)
        })
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        let pointer = self.pointer(name);
        self.take(name)
            .map(|value| value.as_bool().ok_or_else(|| wrong_type(&pointer, &value, "true or false")))
            .transpose()
    }

    /// A number within a range.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let pointer = self.pointer(name);
        self.take(name).map(|value| as_number(&value, &pointer, range)).transpose()
    }

    /// A whole number within a range.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let pointer = self.pointer(name);
        self.take(name).map(|value| as_integer(&value, &pointer, range)).transpose()
    }

    /// A whole number that counts something.
    pub(crate) fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let bound = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let found = self.integer(name, bound(*range.start())..=bound(*range.end()))?;
        Ok(found.and_then(|count| usize::try_from(count).ok()))
    }

    /// A list, each entry with its pointer.
    pub(crate) fn list(&mut self, name: &str) -> Result<Option<List>, ApiError> {
        let pointer = self.pointer(name);
        self.take(name).map(|value| as_list(value, &pointer)).transpose()
    }

    /// An object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let pointer = self.pointer(name);
        self.take(name).map(|value| Fields::of(value, pointer)).transpose()
    }

    /// Refuses fields that the API has and this server has not, unless they say what holds anyway.
    pub(crate) fn refuse(&mut self, name: &str, unless: &[Value], why: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !unless.contains(&value) => {
                let pointer = self.pointer(name);
                let message = format!("`{pointer}` is not supported: {why}");
                Err(ApiError::unsupported(pointer, message))
            }
            _ => Ok(()),
        }
    }

    /// The rest as it is.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses what nobody has taken.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(name) => {
                let pointer = child(&self.pointer, excerpt(name));
                let message = format!("`{pointer}` is not a field of this request");
                Err(ApiError::Field { pointer, message, code: "unknown_parameter" })
            }
        }
    }
}

pub(crate) fn as_string(value: Value, pointer: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong_type(pointer, &other, "a string")),
    }
}

/// Entries of a list, each with its pointer, which is made when the entry is looked at: lists are as long as clients like.
#[derive(Debug, Default)]
pub(crate) struct List {
    pointer: String,
    entries: std::iter::Enumerate<std::vec::IntoIter<Value>>,
}

impl List {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }
}

impl Iterator for List {
    type Item = (String, Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|(i, value)| (format!("{}/{i}", self.pointer), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for List {}

pub(crate) fn as_list(value: Value, pointer: &str) -> Result<List, ApiError> {
    match value {
        Value::Array(list) => Ok(List { pointer: pointer.to_owned(), entries: list.into_iter().enumerate() }),
        other => Err(wrong_type(pointer, &other, "an array")),
    }
}

pub(crate) fn as_number(value: &Value, pointer: &str, range: RangeInclusive<f64>) -> Result<f64, ApiError> {
    let found = value.as_f64().ok_or_else(|| wrong_type(pointer, value, "a number"))?;
    if range.contains(&found) {
        return Ok(found);
    }
    let message = format!("`{pointer}` is {found}, it must be between {} and {}", range.start(), range.end());
    Err(ApiError::invalid(pointer, message))
}

/// `2.0` is a whole number too: JSON does not tell them apart.
pub(crate) fn as_integer(value: &Value, pointer: &str, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    if !value.is_number() {
        return Err(wrong_type(pointer, value, "a whole number"));
    }
    let whole = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9.0e15).map(|x| x as i64);
    let found = value.as_i64().or_else(whole).filter(|found| range.contains(found));
    found.ok_or_else(|| {
        let needed = format!("a whole number between {} and {}", range.start(), range.end());
        ApiError::invalid(pointer, format!("`{pointer}` is {value}, it must be {needed}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::of(value, "").unwrap()
    }

    #[test]
    fn what_nobody_takes_is_refused_with_its_pointer() {
        let mut of = fields(json!({"a": 1, "b/c~": 2}));
        assert_eq!(of.integer("a", 0..=5), Ok(Some(1)));
        assert_eq!(of.finish().unwrap_err().param(), Some("/b~1c~0"));
    }

    #[test]
    fn errors_repeat_a_little_of_what_was_written() {
        let long = "ä".repeat(1 << 20);
        let error = fields(json!({"role": long})).one_of("role", &["user"]).unwrap_err();
        assert!(error.to_string().len() < 300, "{error:.400}");
        let error = fields(json!({long: 1})).finish().unwrap_err();
        assert!(error.to_string().len() < 300 && error.param().is_some_and(|param| param.len() < 200));
    }

    #[test]
    fn entries_of_a_list_have_their_pointers() {
        let mut list = fields(json!({"of": [3, "x"]})).list("of").unwrap().unwrap();
        assert_eq!((list.len(), list.next()), (2, Some(("/of/0".into(), json!(3)))));
        assert_eq!((list.next(), list.next()), (Some(("/of/1".into(), json!("x"))), None));
    }

    #[test]
    fn null_is_as_good_as_nothing() {
        let mut of = fields(json!({"a": null, "b": null}));
        assert_eq!((of.string("a"), of.required("b").is_err()), (Ok(None), true));
        assert_eq!(of.finish(), Ok(()));
    }

    #[test]
    fn numbers_keep_to_their_ranges_and_whole_numbers_may_have_a_point() {
        for (value, fits) in [(json!(2.0), true), (json!(2.5), false), (json!(9), false), (json!("2"), false)]
        {
            assert_eq!(fields(json!({"n": value})).count("n", 1..=4).is_ok(), fits, "{value}");
        }
        assert!(fields(json!({"x": 1e300})).number("x", 0.0..=2.0).is_err());
    }
}
