//! Keywords of JSON schemas, one by one.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::ConstrainError;
use super::format::{FORMATS, expression};
use super::number::{WHOLE, bound, is_exact, multiple, narrow_multiples};
use super::pattern::{Agreement, translate};
use super::schema::{ANY_DEPTH, any};

/// Values in a schema, each of which may become a rule.
const MOST_VALUES: usize = 20_000;
/// Bytes of names and texts in a schema.
const MOST_TEXT: usize = 512 << 10;
/// How deep a schema nests.
const DEEPEST: usize = 48;
/// Longest string that is asked for.
const LONGEST: u64 = 1 << 16;

/// Reads a document's schemas one by one.
pub(super) struct Checker<'a> {
    root: &'a Value,
    /// Names of the definitions that references have become, by pointer.
    names: HashMap<String, String>,
    /// Definitions that are still to be written.
    pub(super) pending: Vec<(String, String)>,
    /// Alternatives of which one alone may hold, by place.
    pub(super) one_of: Vec<(String, Value)>,
    values: usize,
    text: usize,
    joins: bool,
}

pub(super) type Written = Result<Value, ConstrainError>;

impl<'a> Checker<'a> {
    /// A checker of a document; whether parts of it hold for the same values.
    pub(super) fn new(root: &'a Value, joins: bool) -> Self {
        Checker {
            root,
            names: HashMap::new(),
            pending: Vec::new(),
            one_of: Vec::new(),
            values: 0,
            text: 0,
            joins,
        }
    }

    /// A schema at its place, written anew.
    pub(super) fn schema(&mut self, schema: &'a Value, at: &str, depth: usize) -> Written {
        self.count(1, at.len().min(64))?;
        if depth > DEEPEST {
            return Err(ConstrainError::TooLarge {
                what: "depth of the schema",
                found: depth,
                limit: DEEPEST,
            });
        }
        let map = match schema {
            Value::Bool(true) => return Ok(any(ANY_DEPTH)),
            Value::Bool(false) => return Ok(Value::Bool(false)),
            Value::Object(map) => map,
            other => return Err(invalid(at, other, "an object, true or false")),
        };
        let mut out = Map::new();
        for (keyword, value) in map {
            let place = child(at, keyword);
            self.keyword(keyword, value, map, Node { at: &place, depth, out: &mut out })?;
        }
        self.close(map, &mut out);
        Ok(if out.is_empty() { any(ANY_DEPTH) } else { Value::Object(out) })
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        map: &Map<String, Value>,
        node: Node<'_>,
    ) -> Result<(), ConstrainError> {
        let Node { at, depth, out } = node;
        let written = match keyword {
            "type" => types(value, at)?,
            "const" => {
                self.constant(value, at)?;
                value.clone()
            }
            "enum" => {
                let options = array(value, at)?;
                for (i, option) in options.iter().enumerate() {
                    self.constant(option, &child(at, &i.to_string()))?;
                }
                value.clone()
            }
            "anyOf" | "allOf" | "prefixItems" => self.schemas(value, at, depth)?,
            "oneOf" => {
                let options = self.schemas(value, at, depth)?;
                self.one_of.push((at.to_owned(), options.clone()));
                options
            }
            "$ref" => self.reference(value, at)?,
            "patternProperties" => {
                told_apart(value, map, at)?;
                self.properties(keyword, value, at, depth)?
            }
            "properties" => self.properties(keyword, value, at, depth)?,
            "items" if value.is_array() => {
                if map.contains_key("prefixItems") {
                    return Err(invalid(at, value, "a schema, as there are `prefixItems`"));
                }
                let items = self.schemas(value, at, depth)?;
                out.insert("prefixItems".into(), items);
                return Ok(());
            }
            "items" | "additionalProperties" => self.schema(value, at, depth + 1)?,
            "additionalItems" if map.get("items").is_some_and(Value::is_array) => {
                let items = self.schema(value, at, depth + 1)?;
                out.insert("items".into(), items);
                return Ok(());
            }
            "required" => {
                for (i, name) in array_or_empty(value, at)?.iter().enumerate() {
                    name.as_str().ok_or_else(|| invalid(&child(at, &i.to_string()), name, "a string"))?;
                }
                self.count(
                    0,
                    value
                        .as_array()
                        .map_or(0, |names| names.iter().map(|n| n.as_str().map_or(0, str::len)).sum()),
                )?;
                value.clone()
            }
            "minLength" | "minItems" => whole(value, at, LONGEST)?.into(),
            "maxLength" | "maxItems" => whole(value, at, u64::MAX)?.min(LONGEST * 16).into(),
            "minProperties" => {
                let least = whole(value, at, LONGEST)?;
                // Names may come twice, and count once.
                let sure = map
                    .get("required")
                    .and_then(Value::as_array)
                    .map_or(0, |names| names.iter().filter_map(Value::as_str).collect::<HashSet<_>>().len());
                if least > sure as u64 + 1 {
                    return Err(unsupported(at, keyword));
                }
                least.into()
            }
            "maxProperties" => whole(value, at, u64::MAX)?.min(LONGEST).into(),
            "pattern" => {
                let pattern = value.as_str().ok_or_else(|| invalid(at, value, "a string"))?;
                add_pattern(out, &self.pattern(pattern, at, keyword)?);
                return Ok(());
            }
            "format" => return format(value, map, at, out),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                return bound(keyword, value, map, at, out);
            }
            "multipleOf" => multiple(value, at)?,
            "uniqueItems" if value == &Value::Bool(false) => return Ok(()),
            // One item is unlike all others.
            "uniqueItems"
                if value == &Value::Bool(true)
                    && map.get("maxItems").and_then(Value::as_u64).is_some_and(|n| n < 2) =>
            {
                return Ok(());
            }
            "propertyNames" if is_any_name(value) => return Ok(()),
            "$schema" => return draft(value, at),
            "$id" | "id" if at.matches('/').count() == 1 => return Ok(()),
            "$defs" | "definitions" | "$anchor" | "$comment" | "title" | "description" | "default"
            | "examples" | "example" | "deprecated" | "readOnly" | "writeOnly" | "externalDocs"
            | "discriminator" => return Ok(()),
            other if other.starts_with("x-") && other != "x-guidance" => return Ok(()),
            other => return Err(unsupported(at, other)),
        };
        out.insert(keyword.into(), written);
        Ok(())
    }

    fn schemas(&mut self, value: &'a Value, at: &str, depth: usize) -> Written {
        let schemas = array(value, at)?.iter().enumerate();
        schemas.map(|(i, schema)| self.schema(schema, &child(at, &i.to_string()), depth + 1)).collect()
    }

    fn properties(&mut self, keyword: &str, value: &'a Value, at: &str, depth: usize) -> Written {
        let map = value.as_object().ok_or_else(|| invalid(at, value, "an object"))?;
        let mut out = Map::new();
        for (name, schema) in map {
            let place = child(at, name);
            self.count(0, name.len())?;
            let name =
                if keyword == "properties" { name.clone() } else { self.pattern(name, &place, keyword)? };
            out.insert(name, self.schema(schema, &place, depth + 1)?);
        }
        Ok(Value::Object(out))
    }

    fn pattern(&mut self, pattern: &str, at: &str, keyword: &str) -> Result<String, ConstrainError> {
        self.count(0, pattern.len())?;
        let translated = translate(pattern).ok_or_else(|| unsupported(at, keyword))?.expression;
        let mut builder = llguidance::derivre::RegexBuilder::new();
        builder.mk_regex_for_serach(&translated).map_err(|_| unsupported(at, keyword))?;
        Ok(translated)
    }

    /// A reference into the same document, as a definition of ours.
    fn reference(&mut self, value: &Value, at: &str) -> Written {
        let pointer = value.as_str().ok_or_else(|| invalid(at, value, "a string"))?;
        let pointer = pointer.strip_prefix('#').ok_or_else(|| unsupported(at, "$ref"))?;
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err(unsupported(at, "$ref"));
        }
        let pointer =
            percent_decoded(pointer).ok_or_else(|| invalid(at, value, "a JSON pointer into the schema"))?;
        // `#/` is what some write for the whole.
        let pointer = if pointer == "/" { String::new() } else { pointer };
        if self.resolve(&pointer).is_err() {
            return Err(invalid(at, value, "a JSON pointer to a part of the schema"));
        }
        let count = self.names.len();
        let name = self.names.entry(pointer.clone()).or_insert_with(|| {
            let name = format!("ref{count}");
            self.pending.push((pointer, name.clone()));
            name
        });
        Ok(format!("#/$defs/{name}").into())
    }

    /// What a pointer points to.
    pub(super) fn resolve(&self, pointer: &str) -> Result<&'a Value, ConstrainError> {
        let found = self.root.pointer(pointer);
        found.ok_or_else(|| ConstrainError::Grammar {
            kind: "JSON schema",
            reason: format!("there is no `{pointer}`"),
        })
    }

    /// A value that is to be written as it is.
    fn constant(&mut self, value: &Value, at: &str) -> Result<(), ConstrainError> {
        self.count(1, value.as_str().map_or(0, str::len))?;
        match value {
            Value::Number(number) if !is_exact(number) => {
                Err(invalid(at, value, "a number that doubles hold exactly"))
            }
            Value::String(text) if !is_plain(text) => {
                Err(invalid(at, value, "a text without control characters"))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.constant(item, at)),
            Value::Object(map) => map.iter().try_for_each(|(name, value)| {
                self.count(0, name.len())?;
                self.constant(value, at)
            }),
            _ => Ok(()),
        }
    }

    /// Says what a schema leaves open: bounds of numbers, and what items and further properties may be.
    fn close(&self, map: &Map<String, Value>, out: &mut Map<String, Value>) {
        if map.contains_key("enum") || map.contains_key("const") {
            return;
        }
        let of_numbers = ["minimum", "maximum", "multipleOf"];
        let of_items = ["items", "prefixItems", "minItems", "maxItems"];
        let of_objects = [
            "properties",
            "patternProperties",
            "additionalProperties",
            "required",
            "minProperties",
            "maxProperties",
        ];
        let of_strings = ["minLength", "maxLength", "pattern"];
        let mut specific = of_numbers.iter().chain(&of_items).chain(&of_objects).chain(&of_strings);
        let untyped = !out.contains_key("type");
        if untyped && !specific.any(|keyword| out.contains_key(*keyword)) {
            return;
        }
        let may_be = |out: &Map<String, Value>, kind: &str| match out.get("type") {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(|k| k == kind),
            Some(one) => one == kind,
        };
        if may_be(out, "number") || may_be(out, "integer") {
            narrow_multiples(out);
            out.entry("minimum").or_insert((-WHOLE).into());
            out.entry("maximum").or_insert(WHOLE.into());
        }
        if may_be(out, "array") {
            out.entry("items").or_insert_with(|| any(ANY_DEPTH));
        }
        if may_be(out, "object") && agreement(map.get("patternProperties")) < Agreement::Full {
            // A name that only some take for one of those would have to be valid by both schemas.
            out.insert("additionalProperties".into(), Value::Bool(false));
        } else if may_be(out, "object") && !out.contains_key("additionalProperties") {
            let shut = !self.joins && names_all(out);
            out.insert("additionalProperties".into(), if shut { Value::Bool(false) } else { any(ANY_DEPTH) });
        }
    }

    fn count(&mut self, values: usize, text: usize) -> Result<(), ConstrainError> {
        self.values += values;
        self.text += text;
        let too_large = |what, found, limit| Err(ConstrainError::TooLarge { what, found, limit });
        match (self.values > MOST_VALUES, self.text > MOST_TEXT) {
            (true, _) => too_large("number of values in the schema", self.values, MOST_VALUES),
            (_, true) => too_large("length of names and texts in the schema", self.text, MOST_TEXT),
            _ => Ok(()),
        }
    }
}

/// A keyword's place, and what its schema has become so far.
struct Node<'o> {
    at: &'o str,
    depth: usize,
    out: &'o mut Map<String, Value>,
}

/// Whether a schema of objects lists properties, and among them all that it asks for: then it means those.
fn names_all(out: &Map<String, Value>) -> bool {
    let Some(properties) = out.get("properties").and_then(Value::as_object).filter(|map| !map.is_empty())
    else {
        return false;
    };
    let required = out.get("required").and_then(Value::as_array);
    let named = required
        .is_none_or(|names| names.iter().all(|n| n.as_str().is_some_and(|n| properties.contains_key(n))));
    let least = out.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    named && least <= properties.len() as u64
}

/// Who reads patterns of names as they are translated.
fn agreement(patterns: Option<&Value>) -> Agreement {
    let patterns = patterns.and_then(Value::as_object).into_iter().flatten();
    let agreements = patterns.filter_map(|(pattern, _)| Some(translate(pattern)?.agreement));
    agreements.min().unwrap_or(Agreement::Full)
}

/// Refuses names of which it is not the same for all validators whether they match a pattern beside them.
fn told_apart(patterns: &Value, map: &Map<String, Value>, at: &str) -> Result<(), ConstrainError> {
    let agreement = agreement(Some(patterns));
    let is_plain = |name: &String| name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let mut names = map.get("properties").and_then(Value::as_object).into_iter().flatten();
    let odd = names.any(|(name, _)| !is_plain(name));
    let several = patterns.as_object().is_some_and(|patterns| patterns.len() > 1);
    if (agreement < Agreement::Full && odd) || (agreement == Agreement::Partial && several) {
        return Err(unsupported(at, "patternProperties"));
    }
    Ok(())
}

fn is_any_name(schema: &Value) -> bool {
    schema == &Value::Bool(true)
        || schema
            .as_object()
            .is_some_and(|map| map.is_empty() || (map.len() == 1 && schema["type"] == "string"))
}

fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_ascii_control() && !"\n\r\t\u{8}\u{c}".contains(c))
}

fn types(value: &Value, at: &str) -> Written {
    const KINDS: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    const NEEDED: &str = "null, boolean, integer, number, string, array, object, or a list of these";
    let is_kind = |value: &Value| value.as_str().is_some_and(|kind| KINDS.contains(&kind));
    let known = is_kind(value)
        || value.as_array().is_some_and(|kinds| !kinds.is_empty() && kinds.iter().all(is_kind));
    if known { Ok(value.clone()) } else { Err(invalid(at, value, NEEDED)) }
}

fn draft(value: &Value, at: &str) -> Result<(), ConstrainError> {
    let known = [
        "draft-04/schema",
        "draft-06/schema",
        "draft-07/schema",
        "draft/2019-09/schema",
        "draft/2020-12/schema",
    ];
    let name = value.as_str().unwrap_or_default().trim_end_matches('#');
    if at.matches('/').count() > 1
        || !known.iter().any(|draft| name.ends_with(&format!("json-schema.org/{draft}")))
    {
        return Err(unsupported(at, "$schema"));
    }
    Ok(())
}

/// One expression more that a string must have: beside another it is a schema of its own.
fn add_pattern(out: &mut Map<String, Value>, pattern: &str) {
    if out.contains_key("pattern") {
        let parts = out.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(parts) = parts {
            parts.push(json!({ "type": "string", "pattern": pattern }));
        }
    } else {
        out.insert("pattern".into(), pattern.into());
    }
}

fn format(
    value: &Value,
    map: &Map<String, Value>,
    at: &str,
    out: &mut Map<String, Value>,
) -> Result<(), ConstrainError> {
    let name = value.as_str().ok_or_else(|| invalid(at, value, "a string"))?;
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    match (name, kind) {
        // Of whole numbers no more are allowed anyway.
        ("int64" | "uint64", "integer") | ("float" | "double", "number") | ("password", "string") => Ok(()),
        ("int32", "integer") => {
            bound("minimum", &i32::MIN.into(), map, at, out)?;
            bound("maximum", &i32::MAX.into(), map, at, out)
        }
        _ => {
            add_pattern(out, expression(name).ok_or_else(|| invalid(at, value, FORMATS))?);
            Ok(())
        }
    }
}

fn whole(value: &Value, at: &str, most: u64) -> Result<u64, ConstrainError> {
    let count =
        value.as_u64().or_else(|| value.as_f64().filter(|x| *x >= 0.0 && x.fract() == 0.0).map(|x| x as u64));
    let count = count.ok_or_else(|| invalid(at, value, "a whole number, 0 or more"))?;
    if count > most { Err(invalid(at, value, "at most 65536")) } else { Ok(count) }
}

fn array<'v>(value: &'v Value, at: &str) -> Result<&'v Vec<Value>, ConstrainError> {
    value
        .as_array()
        .filter(|items| !items.is_empty())
        .ok_or_else(|| invalid(at, value, "a list that is not empty"))
}

fn array_or_empty<'v>(value: &'v Value, at: &str) -> Result<&'v Vec<Value>, ConstrainError> {
    value.as_array().ok_or_else(|| invalid(at, value, "a list"))
}

fn unsupported(at: &str, keyword: &str) -> ConstrainError {
    ConstrainError::Unsupported { pointer: at.to_owned(), keyword: keyword.to_owned() }
}

pub(super) fn invalid(at: &str, found: &Value, needed: &'static str) -> ConstrainError {
    let mut found: String = found.to_string().chars().take(60).collect();
    if found.len() == 60 {
        found.push('…');
    }
    ConstrainError::Invalid { pointer: at.to_owned(), found, needed }
}

/// A JSON pointer to a member.
fn child(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || (rest.next()? as char).to_digit(16);
            bytes.push((digit()? * 16 + digit()?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
