//! How much longer an answer may have to become by one more token.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// What an expression is taken to ask for at least.
const PATTERN: usize = 48;
/// A number, with its sign and what follows it.
const NUMBER: usize = 20;
/// Past this an answer is not steered any earlier.
const MOST: usize = 2048;

/// Bytes of the longest among the shortest values of a schema's parts: no token commits an answer to more than one of them, and to what
/// stands around it.
pub(super) fn growth(root: &Value, definitions: &Map<String, Value>) -> usize {
    let mut sizes = Sizes { definitions, known: HashMap::new(), largest: 0 };
    sizes.least(root);
    (sizes.largest + 16).min(MOST)
}

struct Sizes<'a> {
    definitions: &'a Map<String, Value>,
    /// By name; 0 while it is being measured, since a value within itself is optional or there is no value.
    known: HashMap<&'a str, usize>,
    largest: usize,
}

impl<'a> Sizes<'a> {
    fn least(&mut self, schema: &'a Value) -> usize {
        let Value::Object(map) = schema else { return 0 };
        let mut size = 0;
        for (keyword, value) in map {
            let options = value.as_array().map(Vec::as_slice).unwrap_or_default();
            size += match keyword.as_str() {
                "$ref" => value.as_str().map_or(0, |name| self.definition(name)),
                "const" => length(value),
                "enum" => options.iter().map(length).max().unwrap_or(0),
                "anyOf" | "oneOf" => options.iter().map(|option| self.least(option)).max().unwrap_or(0),
                "allOf" => options.iter().map(|option| self.least(option)).sum(),
                "pattern" => PATTERN,
                "minLength" => value.as_u64().unwrap_or(0) as usize,
                "minimum" => NUMBER,
                _ => 0,
            };
        }
        size += 2 + self.members(map) + self.items(map);
        size = size.min(MOST);
        self.largest = self.largest.max(size);
        size
    }

    fn definition(&mut self, reference: &'a str) -> usize {
        let name = reference.trim_start_matches("#/$defs/");
        if let Some(&size) = self.known.get(name) {
            return size;
        }
        self.known.insert(name, 0);
        let size = self.definitions.get(name).map_or(0, |schema| self.least(schema));
        self.known.insert(name, size);
        size
    }

    fn members(&mut self, map: &'a Map<String, Value>) -> usize {
        let required = map.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut size: usize = required.iter().map(|name| length(name) + 2).sum();
        for group in ["properties", "patternProperties"] {
            for (name, schema) in map.get(group).and_then(Value::as_object).into_iter().flatten() {
                let member = self.least(schema) + name.len() + 4;
                self.largest = self.largest.max(member.min(MOST));
                if required.iter().any(|required| required == name) {
                    size += member;
                }
            }
        }
        let further = map.get("additionalProperties").map_or(0, |schema| self.least(schema));
        let least = map.get("minProperties").and_then(Value::as_u64).unwrap_or(0) as usize;
        size + least.min(MOST) * (further + 4)
    }

    fn items(&mut self, map: &'a Map<String, Value>) -> usize {
        let first = map.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let first: Vec<usize> = first.iter().map(|schema| self.least(schema) + 1).collect();
        let further = map.get("items").map_or(0, |schema| self.least(schema)) + 1;
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        first.iter().take(least).sum::<usize>() + least.saturating_sub(first.len()).min(MOST) * further
    }
}

fn length(value: &Value) -> usize {
    value.to_string().len()
}
