//! How Python writes values: `str`, `repr` and `json.dumps`. Templates are written for it, and print what it prints.

use std::fmt::Write;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::budget::{charge, room};

/// Values nested deeper than this are not written.
const MAX_DEPTH: usize = 128;

/// A list that Python writes in parentheses.
#[derive(Debug)]
pub(super) struct Tuple(pub Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

impl Tuple {
    pub(super) fn value(items: impl IntoIterator<Item = Value>) -> Value {
        Value::from_object(Tuple(items.into_iter().collect()))
    }
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => out.push_str(text),
        (ValueKind::Undefined, _) => {}
        _ => repr(value, 0, &mut out)?,
    }
    charge(out.len())?;
    Ok(out)
}

/// Appends `repr(value)`.
fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check(depth)?;
    room(out.len())?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if is_tuple { '(' } else { '[' });
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
            }
            out.push_str(match (is_tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if u32::from(c) < 0x20 || (0x7F..=0xA0).contains(&u32::from(c)) => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(x) if !value.is_integer() => float(x, out),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn float(x: f64, out: &mut String) {
    let _ = if x.is_nan() {
        write!(out, "nan")
    } else if x.is_infinite() {
        write!(out, "{}inf", if x < 0.0 { "-" } else { "" })
    } else if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let digits = format!("{x:e}");
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        write!(out, "{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
    } else {
        write!(out, "{x:?}")
    };
}

/// The filter `tojson(ensure_ascii, indent, separators, sort_keys)`, each by place or by name, with the defaults that chat
/// templates are written for: not ASCII only, no HTML escapes.
pub(super) fn tojson(value: &Value, places: &[Value], options: &Kwargs) -> Result<Value, Error> {
    let option = |place: usize, name: &str| match places.get(place) {
        Some(given) => Ok(Some(given.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let indent = option(1, "indent")?;
    let indent = match indent.filter(|i| !i.is_none()) {
        Some(indent) if indent.as_str().is_some() => indent.as_str().map(ToOwned::to_owned),
        Some(indent) => Some(" ".repeat(usize::try_from(indent)?.min(64))),
        None => None,
    };
    let separators: Option<Vec<String>> = option(2, "separators")?
        .filter(|s| !s.is_none())
        .map(|s| Ok::<_, Error>(s.try_iter()?.map(|s| s.to_string()).collect()))
        .transpose()?;
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item, key) = match separators.as_deref() {
        None => (default_item.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two texts"));
        }
    };
    let writer = JsonWriter {
        indent,
        item,
        key,
        ascii: option(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        sorted: option(3, "sort_keys")?.is_some_and(|v| v.is_true()),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    charge(out.len())?;
    Ok(Value::from(out))
}

struct JsonWriter {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl JsonWriter {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        check(depth)?;
        room(out.len())?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(x) if x.is_nan() => out.push_str("NaN"),
                Ok(x) if x.is_infinite() => {
                    out.push_str(if x < 0.0 { "-Infinity" } else { "Infinity" });
                }
                _ => number(value, out),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.group(('[', ']'), &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.group(('{', '}'), &keys, depth, out, |key, out| {
                    if let Some(text) = key.as_str() {
                        self.string(text, out);
                    } else {
                        let mut name = String::new();
                        self.write(key, depth + 1, &mut name)?;
                        self.string(&name, out);
                    }
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of kind {other} cannot be written as JSON"),
                ));
            }
        }
        Ok(())
    }

    fn group(
        &self,
        (open, close): (char, char),
        items: &[Value],
        depth: usize,
        out: &mut String,
        write: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn check(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value is nested deeper than {MAX_DEPTH}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: serde_json::Value) -> (String, String) {
        let value = Value::from_serialize(value);
        let json = tojson(&value, &[], &std::iter::empty::<(&str, Value)>().collect::<Kwargs>()).unwrap();
        (str(&value).unwrap(), json.to_string())
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let (text, json) =
            written(serde_json::json!({"b": [1, 2.5, true, null], "a": "it's é\n", "c": 1e20, "d": -1e-7}));
        assert_eq!(text, r#"{'b': [1, 2.5, True, None], 'a': "it's é\n", 'c': 1e+20, 'd': -1e-07}"#);
        assert_eq!(json, r#"{"b": [1, 2.5, true, null], "a": "it's é\n", "c": 1e+20, "d": -1e-07}"#);
        assert_eq!(written(serde_json::json!(100.0)).0, "100.0");
        assert_eq!(written(serde_json::json!([])).1, "[]");
        assert_eq!(written(serde_json::json!("<a & 'b'>")).1, r#""<a & 'b'>""#);
    }
}
