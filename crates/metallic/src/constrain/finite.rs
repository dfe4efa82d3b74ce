//! Schemas whose values would have no end: what refers to itself, and cannot do without.
//!
//! The matcher takes a rule that is nothing but itself for the empty text, which is no JSON.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Puts `false` in the place of schemas, in the definitions and the root, that no value of finite length is valid by.
pub(super) fn close_endless(root: &mut Value, definitions: &mut Map<String, Value>) {
    let finite = finite(definitions);
    if finite.len() == definitions.len() {
        return;
    }
    definitions.retain(|name, _| finite.contains(name));
    definitions.values_mut().for_each(|schema| replace(schema, &finite));
    replace(root, &finite);
}

/// The names of definitions by which there is a value.
fn finite(definitions: &Map<String, Value>) -> HashSet<String> {
    // Who is to be looked at again when a definition turns out to have a value.
    let mut users: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, schema) in definitions {
        let mut names = HashSet::new();
        references(schema, &mut names);
        for used in names {
            users.entry(used).or_default().push(name);
        }
    }
    let mut known: HashSet<String> = HashSet::new();
    let mut open: Vec<&str> = definitions.keys().map(String::as_str).collect();
    while let Some(name) = open.pop() {
        if !known.contains(name) && definitions.get(name).is_some_and(|schema| has_value(schema, &known)) {
            known.insert(name.to_owned());
            open.extend(users.get(name).into_iter().flatten());
        }
    }
    known
}

fn references<'a>(schema: &'a Value, names: &mut HashSet<&'a str>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| references(item, names)),
        Value::Object(map) => {
            names.extend(target(map));
            map.values().for_each(|value| references(value, names));
        }
        _ => {}
    }
}

fn target(map: &Map<String, Value>) -> Option<&str> {
    map.get("$ref").and_then(Value::as_str).map(|name| name.trim_start_matches("#/$defs/"))
}

/// Whether there is a value, where those definitions have one that are known to.
fn has_value(schema: &Value, known: &HashSet<String>) -> bool {
    let Value::Object(map) = schema else { return schema != &Value::Bool(false) };
    let list = |keyword| map.get(keyword).and_then(Value::as_array);
    let is_any = |keyword| list(keyword).is_none_or(|of| of.iter().any(|schema| has_value(schema, known)));
    let is_all = list("allOf").is_none_or(|of| of.iter().all(|schema| has_value(schema, known)));
    let is_known = target(map).is_none_or(|name| known.contains(name));
    let is_written = map.contains_key("enum") || map.contains_key("const");
    let kind = |kind: &Value| match kind.as_str() {
        Some("array") => has_items(map, known),
        Some("object") => has_members(map, known),
        _ => true,
    };
    let is_kind = is_written
        || match map.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().any(kind),
            Some(one) => kind(one),
            None => true,
        };
    is_known && is_all && is_any("anyOf") && is_any("oneOf") && is_kind
}

fn has_items(map: &Map<String, Value>, known: &HashSet<String>) -> bool {
    let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    let first = map.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let further = least <= first.len() || map.get("items").is_none_or(|items| has_value(items, known));
    further && first.iter().take(least).all(|schema| has_value(schema, known))
}

fn has_members(map: &Map<String, Value>, known: &HashSet<String>) -> bool {
    let properties = map.get("properties").and_then(Value::as_object);
    let names = map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    names
        .filter_map(|name| properties.and_then(|properties| properties.get(name)))
        .all(|schema| has_value(schema, known))
}

fn replace(schema: &mut Value, finite: &HashSet<String>) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, finite)),
        Value::Object(map) if target(map).is_some_and(|name| !finite.contains(name)) => {
            *schema = Value::Bool(false);
        }
        Value::Object(map) => map.values_mut().for_each(|value| replace(value, finite)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_do_without_itself_has_no_value() {
        let mut definitions = json!({
            "self": { "$ref": "#/$defs/self" },
            "turn": { "allOf": [{ "$ref": "#/$defs/back" }] },
            "back": { "anyOf": [{ "$ref": "#/$defs/turn" }, false] },
            "list": { "type": "object", "properties": { "next": { "$ref": "#/$defs/list" } }, "required": ["next"] },
            "items": { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/items" } },
            "first": { "type": "array", "minItems": 1, "prefixItems": [{ "$ref": "#/$defs/first" }], "items": true },
            "tree": { "type": "array", "items": { "$ref": "#/$defs/tree" } },
            "end": { "type": ["object", "null"], "properties": { "next": { "$ref": "#/$defs/end" } }, "required": ["next"] },
            "may": { "type": "object", "properties": { "next": { "$ref": "#/$defs/may" } } },
            "uses": { "type": "object", "properties": { "a": { "$ref": "#/$defs/self" }, "b": { "$ref": "#/$defs/may" } } },
        });
        let definitions = definitions.as_object_mut().expect("an object");
        let mut root = json!({ "anyOf": [{ "$ref": "#/$defs/list" }, { "$ref": "#/$defs/end" }] });
        close_endless(&mut root, definitions);
        let left: Vec<&str> = definitions.keys().map(String::as_str).collect();
        assert_eq!(left, ["tree", "end", "may", "uses"]);
        assert_eq!(root, json!({ "anyOf": [false, { "$ref": "#/$defs/end" }] }));
        assert_eq!(definitions["uses"]["properties"]["a"], json!(false));
    }
}
