//! The tools a conversation offers, as parsers and grammars need them.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Value, json};

use crate::text::TextError;

/// Name and schema of one tool.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    /// The JSON schema of its arguments; an empty object where it takes any.
    pub(super) parameters: Value,
}

/// The tools that may be called.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools(pub(super) Vec<Tool>);

/// The part of a definition that describes the function: definitions are wrapped as the OpenAI API does, or bare.
fn function(tool: &Value) -> &Value {
    tool.get("function").filter(|f| f.is_object()).unwrap_or(tool)
}

/// The name in a definition.
pub(super) fn name(tool: &Value) -> Option<&str> {
    function(tool).get("name").and_then(Value::as_str)
}

impl Tools {
    /// The tools of these definitions; those without a name cannot be called.
    pub(super) fn new(tools: &[Value]) -> Self {
        Self(tools.iter().filter_map(|tool| Self::read(tool).ok()).collect())
    }

    /// The tools of these definitions, which must be well formed.
    pub(super) fn checked(tools: &[Value]) -> Result<Self, TextError> {
        tools.iter().map(Self::read).collect::<Result<_, _>>().map(Self)
    }

    fn read(tool: &Value) -> Result<Tool, TextError> {
        let bad = |reason: &str| TextError::Tools { reason: reason.to_owned() };
        let name = name(tool).filter(|n| !n.is_empty()).ok_or_else(|| bad("a tool has no name"))?;
        let schema = ["parameters", "input_schema"].iter().find_map(|key| function(tool).get(*key));
        let parameters = match schema {
            None | Some(Value::Null) => json!({"type": "object"}),
            Some(Value::Object(map)) if map.is_empty() => json!({"type": "object"}),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => return Err(bad(&format!("the parameters of tool `{name}` are no JSON schema"))),
        };
        Ok(Tool { name: name.to_owned(), parameters })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// Whether something of this name may be called; anything where no tools are known.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.0.is_empty() || self.get(name).is_some()
    }

    /// [`kinds`](Self::kinds) for the arguments of one tool.
    pub(super) fn kinds_of(&self, name: &str) -> impl Fn(&str) -> Vec<String> {
        move |key| self.kinds(name, key)
    }

    /// The kinds of JSON that an argument may be; empty where nothing is known of it.
    pub(super) fn kinds(&self, name: &str, key: &str) -> Vec<String> {
        let Some(tool) = self.get(name) else { return Vec::new() };
        let schema = tool.parameters.get("properties").and_then(|p| p.get(key));
        schema.map_or_else(Vec::new, |schema| kinds(&tool.parameters, schema, &mut STEPS.clone()))
    }

    /// Bytes of all names and schemas.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|tool| tool.name.len() + json_len(&tool.parameters)).sum()
    }
}

/// The schemas of an object's properties by name, and whether each must be there.
pub(super) fn properties(schema: &Value) -> Vec<(&str, &Value, bool)> {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    properties.map(|(key, schema)| (key.as_str(), schema, required.contains(key.as_str()))).collect()
}

/// Schemas, and values in them, that are looked at to find what one argument may be.
pub(super) const STEPS: usize = 4096;
/// Kinds that are told of one argument: more than JSON has are kept, so that what is no kind stays known as one.
const KINDS: usize = 16;

/// The kinds of JSON that a schema allows, as far as its words tell; fewer where the steps run out.
pub(super) fn kinds(root: &Value, schema: &Value, steps: &mut usize) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    let mut add = |kind: &str| {
        if kinds.len() < KINDS && !kinds.iter().any(|known| known == kind) {
            kinds.push(kind.to_owned());
        }
    };
    let mut walk = Walk::new(schema);
    while let Some(schema) = walk.next(steps) {
        match schema.get("type") {
            Some(Value::String(kind)) => add(kind),
            Some(Value::Array(list)) => spent(list, steps).filter_map(Value::as_str).for_each(&mut add),
            Some(_) => {}
            None => {
                let fixed =
                    schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                spent(fixed, steps).chain(schema.get("const")).map(kind_of).for_each(&mut add);
            }
        }
        let parts = ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema.get(*key)?.as_array());
        walk.add(parts.flatten().chain(target(root, schema, steps)));
    }
    kinds
}

/// The values a schema allows, where it lists them and none of them has parts; `None` where the steps run out.
pub(super) fn listed<'v>(root: &'v Value, schema: &'v Value, steps: &mut usize) -> Option<Vec<&'v Value>> {
    static NULL: Value = Value::Null;
    let mut values = Vec::new();
    let mut walk = Walk::new(schema);
    while let Some(schema) = walk.next(steps) {
        if let Some(fixed) = schema.get("enum").and_then(Value::as_array) {
            values.extend(spent(fixed, steps));
        } else if let Some(value) = schema.get("const") {
            values.push(value);
        } else if let Some(options) = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array()) {
            walk.add(options.iter());
        } else if schema.get("$ref").is_some() {
            walk.add([target(root, schema, steps)?].into_iter());
        } else if schema.get("type").is_some_and(|kind| kind == "null") {
            values.push(&NULL);
        } else {
            return None;
        }
    }
    let plain = values.iter().all(|value| !value.is_array() && !value.is_object());
    Some(values).filter(|values| plain && *steps > 0 && !values.is_empty())
}

/// Schemas that hold for one value, each once however often it is referred to.
struct Walk<'v> {
    open: Vec<&'v Value>,
    seen: HashSet<*const Value>,
}

impl<'v> Walk<'v> {
    fn new(schema: &'v Value) -> Self {
        Self { open: vec![schema], seen: HashSet::new() }
    }

    fn next(&mut self, steps: &mut usize) -> Option<&'v Value> {
        while let Some(schema) = self.open.pop() {
            *steps = steps.checked_sub(1)?;
            if self.seen.insert(std::ptr::from_ref(schema)) {
                return Some(schema);
            }
        }
        None
    }

    /// Adds schemas that come next, in their order.
    fn add(&mut self, schemas: impl Iterator<Item = &'v Value>) {
        let from = self.open.len();
        self.open.extend(schemas);
        self.open[from..].reverse();
    }
}

/// Values, each of which is a step.
fn spent<'v>(values: &'v [Value], steps: &mut usize) -> impl Iterator<Item = &'v Value> + use<'v> {
    let most = values.len().min(*steps);
    *steps -= most;
    values[..most].iter()
}

/// What a schema refers to. Long references are many steps.
fn target<'v>(root: &'v Value, schema: &Value, steps: &mut usize) -> Option<&'v Value> {
    let reference = schema.get("$ref").and_then(Value::as_str)?;
    *steps = steps.saturating_sub(reference.len() / 64);
    root.pointer(&decoded(reference.strip_prefix('#')?))
}

/// A reference's text, with what it has in hexadecimal put back.
fn decoded(reference: &str) -> Cow<'_, str> {
    let mut parts = reference.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    if bytes.len() == reference.len() {
        return reference.into();
    }
    for part in parts {
        if let Some(byte) = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            bytes.extend_from_slice(&part.as_bytes()[2..]);
        } else {
            bytes.push(b'%');
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// A part of a document as a document of its own, with the definitions that it refers to and those that they do.
pub(super) fn rooted(root: &Value, schema: &Value) -> Value {
    let mut out = schema.clone();
    let mut seen = HashSet::new();
    let mut open = vec![schema];
    while let Some(schema) = open.pop() {
        match schema {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => {
                open.extend(map.values());
                let Some((group, name)) = map.get("$ref").and_then(Value::as_str).and_then(definition) else {
                    continue;
                };
                let Some(found) = root.get(group).and_then(|group| group.get(&name)) else { continue };
                if seen.insert((group, name.clone())) {
                    open.push(found);
                    define(&mut out, (group, name), found);
                }
            }
            _ => {}
        }
    }
    out
}

/// In which group of definitions a reference points to which, or to a part of which.
fn definition(reference: &str) -> Option<(&'static str, String)> {
    let reference = decoded(reference);
    let pointer = reference.strip_prefix("#/")?;
    let (group, rest) = pointer.split_once('/')?;
    let group = ["$defs", "definitions"].into_iter().find(|known| *known == group)?;
    let name = rest.split('/').next().unwrap_or_default();
    Some((group, name.replace("~1", "/").replace("~0", "~")))
}

fn define(schema: &mut Value, (group, name): (&str, String), definition: &Value) {
    let Value::Object(map) = schema else { return };
    let held = map.entry(group).or_insert_with(|| json!({}));
    if let Value::Object(definitions) = held {
        definitions.insert(name, definition.clone());
    }
}

/// Bytes of a value's JSON.
fn json_len(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // A count takes whatever it is given.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a value is of one of these kinds.
pub(super) fn fits(value: &Value, kinds: &[String]) -> bool {
    let kind = kind_of(value);
    kinds.iter().any(|k| k == kind || (k == "number" && kind == "integer"))
        // 3.0 is an integer to JSON schema.
        || (kinds.iter().any(|k| k == "integer") && value.as_f64().is_some_and(|x| x.fract() == 0.0))
}
