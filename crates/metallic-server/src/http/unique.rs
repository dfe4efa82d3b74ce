//! JSON in which no name is given twice: readers differ in which of the values they take, so none is.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::ApiError;
use crate::fields::child;

/// The value that a text is.
pub(super) fn parse(text: &str) -> Result<Value, ApiError> {
    let twice = Twice::default();
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Unique(&twice).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| match twice.pointer() {
        Some(pointer) => ApiError::invalid(&pointer, format!("`{pointer:.200}` is given twice")),
        None => ApiError::Body(format!("the body is not JSON: {error}")),
    })
}

/// The name that was given twice, and those around it, the innermost first.
#[derive(Default)]
struct Twice(RefCell<Vec<String>>);

impl Twice {
    /// Goes up, where something was found.
    fn leave(&self, name: impl FnOnce() -> String) {
        let mut names = self.0.borrow_mut();
        if !names.is_empty() {
            names.push(name());
        }
    }

    fn pointer(&self) -> Option<String> {
        let names = self.0.borrow();
        let pointer = names.iter().rev().fold(String::new(), |pointer, name| child(&pointer, name));
        Some(pointer).filter(|_| !names.is_empty())
    }
}

#[derive(Clone, Copy)]
struct Unique<'a>(&'a Twice);

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            match entries.next_element_seed(self) {
                Ok(Some(entry)) => list.push(entry),
                Ok(None) => return Ok(Value::Array(list)),
                Err(error) => {
                    self.0.leave(|| list.len().to_string());
                    return Err(error);
                }
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if map.contains_key(&name) {
                self.0.0.borrow_mut().push(name);
                return Err(A::Error::custom("a name is given twice"));
            }
            match entries.next_value_seed(self) {
                Ok(value) => map.insert(name, value),
                Err(error) => {
                    self.0.leave(|| name);
                    return Err(error);
                }
            };
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_any_reader_makes() {
        let nested = "[".repeat(100) + &"]".repeat(100);
        for text in [
            "null",
            "[1, -2, 0.5, 1e3, 18446744073709551615, 1e30]",
            "{\"a\": {\"b\": \"\\u00e9\\n\"}, \"c\": true}",
            &nested,
        ] {
            assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        let deep = "[".repeat(10_000);
        for text in ["", "{", "[1,]", "{\"a\": 1} x", "1e400", "NaN", &deep] {
            assert!(matches!(parse(text), Err(ApiError::Body(_))), "{text:.40}");
        }
    }

    #[test]
    fn what_is_given_twice_is_refused_by_its_pointer() {
        for (text, pointer) in [
            ("{\"n\": 1, \"n\": 1}", "/n"),
            ("{\"a\": [0, {\"b/c\": {\"d\": 1, \"d\": 2}}]}", "/a/1/b~1c/d"),
            ("{\"\": {\"\": 1, \"\": 2}}", "//"),
        ] {
            assert_eq!(parse(text).unwrap_err().param(), Some(pointer));
        }
    }
}
