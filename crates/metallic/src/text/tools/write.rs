//! Calls as a family writes them.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::families::{Attributes, Body, Family, Tagged};
use super::tagged::write_string;

/// Writes calls with all that stands around them.
pub(super) fn calls(family: &Family, calls: &[(String, Map<String, Value>)]) -> String {
    let frame = &family.frame;
    let mut out = frame.begin.to_owned();
    let list = matches!(family.body, Body::Objects { list: true, .. } | Body::Python { list: true });
    if list {
        out.push('[');
    }
    for (i, (name, arguments)) in calls.iter().enumerate() {
        if i > 0 {
            out.push_str(frame.between);
        }
        out.push_str(frame.open);
        out.push_str(frame.head);
        call(family, (i, name), arguments, &mut out);
        out.push_str(frame.tail);
        out.push_str(frame.close);
    }
    if list {
        out.push(']');
    }
    out.push_str(frame.end);
    out
}

/// A text with the running number of a call in it.
pub(super) fn numbered(text: &str, i: usize) -> String {
    text.replace('#', &i.to_string())
}

fn call(family: &Family, (i, name): (usize, &str), arguments: &Map<String, Value>, out: &mut String) {
    match &family.body {
        Body::Objects { keys: Some((name_key, key)), ids, .. } => {
            out.push('{');
            if *ids {
                let _ = write!(out, "\"tool_call_id\": \"{i}\", ");
            }
            let _ = write!(out, "\"{name_key}\": {}, \"{key}\": {}}}", quoted(name), json(arguments));
        }
        Body::Objects { keys: None, .. } => {
            let _ = write!(out, "{{{}: {}}}", quoted(name), json(arguments));
        }
        Body::Named(named) => {
            let _ = write!(
                out,
                "{}{name}{}{}",
                numbered(named.before, i),
                numbered(named.after, i),
                json(arguments)
            );
        }
        Body::Tagged(tagged) => tags(tagged, (i, name), arguments, out),
        Body::Python { .. } => {
            let arguments = arguments.iter().map(|(key, value)| format!("{key}={}", python(value)));
            let _ = write!(out, "{name}({})", arguments.collect::<Vec<_>>().join(", "));
        }
        Body::Braces { quote } => {
            out.push_str(name);
            braces(&Value::Object(arguments.clone()), quote, out);
        }
        Body::Elements { prefix } => {
            let _ = write!(out, "{name}\">");
            for (key, value) in arguments {
                element(prefix, key, value, out);
            }
        }
        Body::Harmony => {
            let _ = write!(
                out,
                " to=functions.{name}<|channel|>commentary json<|message|>{}<|call|>",
                json(arguments)
            );
        }
    }
}

fn tags(tagged: &Tagged, (i, name): (usize, &str), arguments: &Map<String, Value>, out: &mut String) {
    out.push_str(name);
    out.push_str(&numbered(tagged.name_end, i + 1));
    for (key, value) in arguments {
        out.push_str(tagged.key);
        out.push_str(key);
        out.push_str(tagged.key_end);
        match tagged.attributes {
            Attributes::Nothing => {}
            Attributes::IsText => {
                let _ = write!(out, "string=\"{}\">", value.is_string());
            }
            Attributes::Kind => {
                let _ = write!(out, "type=\"{}\"<|sep|>", kind(value));
            }
        }
        let line = if tagged.lines { "\n" } else { "" };
        let _ = write!(out, "{line}{}{line}{}{}", text(value), tagged.value_end, tagged.after);
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A value without quotes around texts.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => spaced(value),
    }
}

pub(super) fn quoted(text: &str) -> String {
    let mut out = String::new();
    write_string(text, &mut out);
    out
}

fn json(arguments: &Map<String, Value>) -> String {
    spaced(&Value::Object(arguments.clone()))
}

/// JSON as Python's `json.dumps` writes it, with spaces after commas and colons: the way templates do.
pub(super) fn spaced(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(spaced).collect();
            format!("[{}]", list.join(", "))
        }
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| format!("{}: {}", quoted(key), spaced(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => quoted(text),
        value => value.to_string(),
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(python).collect();
            format!("[{}]", list.join(", "))
        }
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| format!("{}: {}", quoted(key), python(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        value => spaced(value),
    }
}

fn braces(value: &Value, quote: &str, out: &mut String) {
    match value {
        Value::String(text) => {
            let _ = write!(out, "{quote}{text}{quote}");
        }
        Value::Array(list) => {
            out.push('[');
            for (i, value) in list.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                braces(value, quote, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                let _ = write!(out, "{}{key}:", if i > 0 { "," } else { "" });
                braces(value, quote, out);
            }
            out.push('}');
        }
        value => out.push_str(&value.to_string()),
    }
}

fn element(prefix: &str, tag: &str, value: &Value, out: &mut String) {
    let _ = write!(out, "{prefix}<{tag}>");
    match value {
        Value::Array(list) => list.iter().for_each(|value| element(prefix, "item", value, out)),
        Value::Object(map) => map.iter().for_each(|(key, value)| element(prefix, key, value, out)),
        value => out.push_str(&text(value)),
    }
    let _ = write!(out, "{prefix}</{tag}>");
}
