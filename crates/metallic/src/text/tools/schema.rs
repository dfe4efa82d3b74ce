//! The tools a conversation offers, as parsers and grammars need them.

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
        let mut kinds = Vec::new();
        if let Some(schema) = schema {
            add_kinds(&tool.parameters, schema, 8, &mut kinds);
        }
        kinds
    }
}

impl Tool {
    /// The schemas of its arguments by name, and whether each must be there.
    pub(super) fn properties(&self) -> Vec<(&String, Value, bool)> {
        let required: Vec<&str> = self
            .parameters
            .get("required")
            .and_then(Value::as_array)
            .map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_str).collect());
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        properties
            .into_iter()
            .flatten()
            .map(|(key, schema)| (key, self.rooted(schema), required.contains(&key.as_str())))
            .collect()
    }

    /// A part of the schema with the definitions that it may refer to.
    fn rooted(&self, schema: &Value) -> Value {
        let mut schema = schema.clone();
        if let Value::Object(map) = &mut schema {
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = self.parameters.get(key) {
                    map.entry(key).or_insert_with(|| definitions.clone());
                }
            }
        }
        schema
    }
}

/// Adds the kinds of JSON that a schema allows, as far as its words tell.
pub(super) fn add_kinds(root: &Value, schema: &Value, levels: usize, kinds: &mut Vec<String>) {
    if levels == 0 {
        return;
    }
    match schema.get("type") {
        Some(Value::String(kind)) => kinds.push(kind.clone()),
        Some(Value::Array(list)) => kinds.extend(list.iter().filter_map(Value::as_str).map(str::to_owned)),
        _ => {}
    }
    let fixed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !schema.as_object().is_some_and(|s| s.contains_key("type")) {
        let fixed = fixed.iter().chain(schema.get("const"));
        kinds.extend(fixed.map(|value| kind_of(value).to_owned()));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            add_kinds(root, part, levels - 1, kinds);
        }
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
    if let Some(target) = target.and_then(|target| root.pointer(target)) {
        add_kinds(root, target, levels - 1, kinds);
    }
    kinds.dedup();
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
