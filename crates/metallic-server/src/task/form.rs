//! What form an answer takes: a format that was asked for, calls of tools, or either.

use metallic::Llm;
use metallic::constrain::{ConstrainError, Format};
use metallic::text::{ToolChoice, ToolFormat};
use serde_json::{Map, Value, json};

use super::Task;
use crate::error::ApiError;

/// The form of an answer.
#[derive(Debug, Default)]
pub(super) struct Form {
    /// How calls of tools are told from text.
    pub(super) calls: Option<ToolFormat>,
    /// What the answer is held to, and the field that says so.
    pub(super) held: Option<(Format, String)>,
}

impl Form {
    pub(super) fn of(task: &Task, llm: &Llm) -> Result<Self, ApiError> {
        if !task.may_call() {
            return Ok(Self { calls: None, held: task.format.clone() });
        }
        let Some(calls) = llm.tools() else {
            let message = "the model has no chat template, so it cannot be told of tools";
            return Err(ApiError::unsupported("/tools", message));
        };
        let grammar = |choice: &ToolChoice| {
            // Whatever is not forced is not held to a schema either.
            if task.format.is_none() && *choice == ToolChoice::Auto {
                return Ok(None);
            }
            let tools = task.tools.iter().map(enforceable).collect::<Result<Vec<_>, _>>()?;
            let grammar = calls.grammar(&tools, choice, task.parallel_calls);
            grammar.map_err(|error| ApiError::of_text(&error, "/tools"))
        };
        let held = match (grammar(&task.tool_choice)?, &task.format) {
            (Some(grammar), _) => Some((Format::Lark(grammar), "/tools".to_owned())),
            (None, None) => None,
            (None, Some((format, at))) => {
                format.check().map_err(|error| ApiError::of_format(&error, at))?;
                let calls = grammar(&ToolChoice::Required)?.unwrap_or_default();
                Some((either(&calls, format, at)?, at.clone()))
            }
        };
        Ok(Self { calls: Some(calls), held })
    }
}

/// A tool with a schema that calls can be held to. Without `strict` a call is as good as can be had, so what nobody can enforce is left to
/// the model, which has the whole schema in its prompt; with it that is an error.
fn enforceable(tool: &Value) -> Result<Value, ApiError> {
    let Some(parameters) = tool.pointer("/function/parameters") else { return Ok(tool.clone()) };
    let Err(error) = check(parameters) else { return Ok(tool.clone()) };
    if tool.pointer("/function/strict") == Some(&json!(true)) {
        let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
        let ApiError::Field { message, code, .. } = ApiError::of_format(&error, "/tools") else {
            return Err(ApiError::internal(&error));
        };
        let message = format!("the arguments of `{name}` cannot be held to their schema: {message}");
        return Err(ApiError::Field { pointer: "/tools".to_owned(), message, code });
    }
    let mut tool = tool.clone();
    tool["function"]["parameters"] = loosened(parameters);
    Ok(tool)
}

fn check(schema: &Value) -> Result<(), ConstrainError> {
    Format::JsonSchema(schema.clone()).check()
}

/// Most bytes that are looked at to find what of a schema can be enforced: all of it may be looked at once for each property.
const MOST_WORK: usize = 1 << 20;

/// What can be enforced of a schema: its properties and which of them there must be, each with as much of its own schema as goes.
fn loosened(schema: &Value) -> Value {
    let any = json!({"type": "object"});
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return any };
    if properties.len().saturating_mul(schema.to_string().len()) > MOST_WORK {
        return any;
    }
    let document = |properties: Map<String, Value>| {
        let mut document = json!({"type": "object", "properties": properties});
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = schema.get(key) {
                document[key] = definitions.clone();
            }
        }
        document
    };
    let loosen = |(name, schema): (&String, &Value)| {
        let alone = document(Map::from_iter([(name.clone(), schema.clone())]));
        let kind = schema.get("type").filter(|kind| kind.is_string());
        let loose = || kind.map_or_else(|| json!({}), |kind| json!({"type": kind}));
        (name.clone(), if check(&alone).is_ok() { schema.clone() } else { loose() })
    };
    let mut loose = document(properties.iter().map(loosen).collect());
    if let Some(required) = schema.get("required") {
        loose["required"] = required.clone();
    }
    if check(&loose).is_ok() { loose } else { any }
}

/// Calls of tools, or an answer in a format.
fn either(calls: &str, format: &Format, at: &str) -> Result<Format, ApiError> {
    let answer = match format {
        Format::JsonObject => "%json {\"type\": \"object\"}".to_owned(),
        Format::JsonSchema(schema) => format!("%json {schema}"),
        _ => {
            let message = format!("`{at}` cannot be combined with `tools`, unless `tool_choice` is none");
            return Err(ApiError::unsupported(at, message));
        }
    };
    let rules: Vec<String> = calls
        .lines()
        .map(|line| match line.strip_prefix("start:") {
            Some(rule) => format!("any_call:{rule}"),
            None => line.to_owned(),
        })
        .collect();
    Ok(Format::Lark(format!("start: any_call | any_answer\nany_answer: {answer}\n{}\n", rules.join("\n"))))
}
