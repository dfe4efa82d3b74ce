//! What form an answer takes: a format that was asked for, calls of tools, or either.

use metallic::Llm;
use metallic::constrain::Format;
use metallic::text::{ToolChoice, ToolFormat};

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
            let grammar = calls.grammar(&task.tools, choice, task.parallel_calls);
            grammar.map_err(|error| ApiError::of_text(&error, "/tools"))
        };
        let held = match (grammar(&task.tool_choice)?, &task.format) {
            (Some(grammar), _) => Some((Format::Lark(grammar), "/tools".to_owned())),
            (None, None) => None,
            (None, Some((format, at))) => {
                let calls = grammar(&ToolChoice::Required)?.unwrap_or_default();
                Some((either(&calls, format, at)?, at.clone()))
            }
        };
        Ok(Self { calls: Some(calls), held })
    }
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
