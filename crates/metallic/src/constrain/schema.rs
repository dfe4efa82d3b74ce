//! JSON schemas, strictly: every keyword is enforced or refused by name.
//!
//! The matcher knows more of JSON schema than it enforces. What reaches it is written anew here, from keywords that are known to
//! hold: references are resolved, formats and patterns are expressions that all validators agree on, numbers have bounds that
//! doubles hold, and values of any kind nest only so deep.

use serde_json::{Map, Value, json};

use super::ConstrainError;
use super::finite::close_endless;
use super::keywords::Checker;
use super::number::WHOLE;

/// How deep values nest whose kind is left open.
pub(super) const ANY_DEPTH: usize = 6;
/// Bytes of definitions that are put in the place of references.
const INLINED: usize = 64 << 10;

/// A schema for the matcher.
#[derive(Debug)]
pub(super) struct Checked {
    /// The schema itself.
    pub(super) schema: Value,
    /// Bytes by which one more token can at most put off the end of an answer.
    pub(super) growth: usize,
    /// Alternatives of which one alone may hold.
    pub(super) one_of: Vec<OneOf>,
}

/// Alternatives of which one alone may hold.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OneOf {
    /// Where they stand, as a JSON pointer.
    pub(super) pointer: String,
    /// They alone, as a schema for the matcher, with objects as open as the document leaves them.
    pub(super) schema: Value,
    /// What was written of the whole document closes objects that it leaves open: two of them may pass for different there that a
    /// value can have both of.
    pub(super) closed: bool,
}

/// Checks a schema and writes it anew.
pub(super) fn check(schema: &Value) -> Result<Checked, ConstrainError> {
    let joins = joins(schema);
    let mut checked = write(schema, joins)?;
    if !joins && !checked.one_of.is_empty() {
        checked.one_of = write(schema, true)?.one_of;
        checked.one_of.iter_mut().for_each(|one_of| one_of.closed = true);
    }
    Ok(checked)
}

/// Writes a schema anew; objects that list properties stay open where parts of it hold for the same values.
fn write(schema: &Value, joins: bool) -> Result<Checked, ConstrainError> {
    let mut checker = Checker::new(schema, joins);
    let mut definitions = any_definitions();
    let mut root = checker.schema(schema, "", 0)?;
    while let Some((pointer, name)) = checker.pending.pop() {
        let target = checker.resolve(&pointer)?;
        let written = checker.schema(target, &pointer, 0)?;
        definitions.insert(name, written);
    }
    close_endless(&mut root, &mut definitions);
    let known = definitions.clone();
    let mut budget = INLINED;
    definitions.values_mut().for_each(|schema| inline_alternatives(schema, &known, &mut budget));
    let mut root = match root {
        Value::Object(_) => root,
        _ => {
            return Err(ConstrainError::Grammar {
                kind: "JSON schema",
                reason: "no value is allowed".to_owned(),
            });
        }
    };
    inline_alternatives(&mut root, &known, &mut budget);
    let growth = super::growth::growth(&root, &definitions);
    let whole = |mut schema: Value| {
        schema["$defs"] = Value::Object(definitions.clone());
        schema["x-guidance"] = guidance();
        schema
    };
    let alone = |(pointer, mut options): (String, Value)| {
        let list = options.as_array_mut().into_iter().flatten();
        list.for_each(|option| inline(option, &known, &mut INLINED.clone()));
        OneOf { pointer, schema: whole(json!({ "oneOf": options })), closed: false }
    };
    let one_of = checker.one_of.into_iter().map(alone).collect();
    Ok(Checked { schema: whole(root), growth, one_of })
}

/// Puts definitions in the place of references to them among alternatives of which one alone may hold: only what is seen can be told
/// apart.
fn inline_alternatives(schema: &mut Value, definitions: &Map<String, Value>, budget: &mut usize) {
    match schema {
        Value::Array(items) => {
            for item in items {
                inline_alternatives(item, definitions, budget);
            }
        }
        Value::Object(map) => {
            for (keyword, value) in map {
                inline_alternatives(value, definitions, budget);
                if let ("oneOf", Value::Array(options)) = (keyword.as_str(), value) {
                    for option in options {
                        inline(option, definitions, budget);
                    }
                }
            }
        }
        _ => {}
    }
}

fn inline(option: &mut Value, definitions: &Map<String, Value>, budget: &mut usize) {
    let reference = option.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("$ref")?.as_str());
    let found = reference.and_then(|name| definitions.get(name.trim_start_matches("#/$defs/")));
    if let Some(found) = found {
        let size = found.to_string().len();
        if size <= *budget {
            *budget -= size;
            *option = found.clone();
        }
    }
}

/// How the matcher writes JSON: where white space may be there is none, one space, or a new line with its indent, so that a weak
/// model cannot write it for ever. Escapes spell each character in one way only: a name that is spelled in another way would pass for
/// a different one.
fn guidance() -> Value {
    json!({ "whitespace_flexible": true, "whitespace_pattern": r"\x20|\n\x20{0,24}", "json_allowed_escapes": "nrbtf\\\"" })
}

/// A value of any kind, `ANY_DEPTH` levels deep.
fn any_definitions() -> Map<String, Value> {
    (0..=ANY_DEPTH)
        .map(|depth| {
            let mut schema = json!({
                "type": ["null", "boolean", "number", "string"], "minimum": -WHOLE, "maximum": WHOLE
            });
            if let Some(inner) = depth.checked_sub(1) {
                let inner = any(inner);
                schema["type"] = json!(["null", "boolean", "number", "string", "array", "object"]);
                schema["items"] = inner.clone();
                schema["additionalProperties"] = inner;
            }
            (format!("any{depth}"), schema)
        })
        .collect()
}

pub(super) fn any(depth: usize) -> Value {
    json!({ "$ref": format!("#/$defs/any{depth}") })
}

/// Whether parts of a schema hold for the same value, so that what one leaves open another may fill.
fn joins(schema: &Value) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(joins),
        Value::Object(map) => {
            let own = ["type", "properties", "required", "additionalProperties", "patternProperties"];
            let beside = own.iter().any(|key| map.contains_key(*key));
            let applied = ["$ref", "anyOf", "oneOf"].iter().filter(|key| map.contains_key(**key)).count();
            map.contains_key("allOf") || applied > usize::from(!beside) || map.values().any(joins)
        }
        _ => false,
    }
}
