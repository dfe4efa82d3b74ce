//! Tools of a request for a response.

use metallic::text::ToolChoice;
use serde_json::{Value, json};

use crate::api::chat::name_of;
use crate::api::functions::{add_tool, check_count, check_named, read_function};
use crate::error::ApiError;
use crate::fields::Fields;

/// `tools`, as templates take them, and as the response repeats them.
pub(super) fn read_tools(fields: &mut Fields) -> Result<(Vec<Value>, Vec<Value>), ApiError> {
    let pointer = fields.pointer("tools");
    let Some(list) = fields.list("tools")? else { return Ok((Vec::new(), Vec::new())) };
    check_count(list.len(), &pointer)?;
    let (mut tools, mut echo) = (Vec::with_capacity(list.len()), Vec::with_capacity(list.len()));
    for (at, tool) in list {
        let mut fields = Fields::of(tool, &at)?;
        let kind = fields.required_string("type")?;
        if kind != "function" {
            let pointer = fields.pointer("type");
            let message = format!("`{pointer}` is `{kind:.40}`: tools are of type `function` here");
            return Err(ApiError::unsupported(pointer, message));
        }
        let strict = fields.bool("strict")?.unwrap_or(true);
        let mut tool = read_function(&mut fields, "parameters")?;
        fields.finish()?;
        let mut repeated = tool["function"].clone();
        repeated["type"] = json!("function");
        repeated.as_object_mut().map(|tool| tool.entry("description").or_insert(Value::Null));
        repeated["strict"] = json!(strict);
        tool["function"]["strict"] = json!(strict);
        echo.push(repeated);
        add_tool(&mut tools, tool, &at)?;
    }
    Ok((tools, echo))
}

/// `tool_choice`, the tools that it leaves, and how the response repeats it.
pub(super) fn read_choice(
    fields: &mut Fields,
    mut tools: Vec<Value>,
) -> Result<(ToolChoice, Vec<Value>, Value), ApiError> {
    let pointer = fields.pointer("tool_choice");
    let Some(value) = fields.take("tool_choice") else { return Ok((ToolChoice::Auto, tools, json!("auto"))) };
    let echo = value.clone();
    let choice = match value {
        Value::String(word) => read_word(&word, &pointer)?,
        value => {
            let mut fields = Fields::of(value, &pointer)?;
            let kind = fields.required_string("type")?;
            let choice = match kind.as_str() {
                "function" => {
                    let at = fields.pointer("name");
                    let name = fields.required_string("name")?;
                    check_named(&name, &tools, &at)?;
                    ToolChoice::Named(name)
                }
                "allowed_tools" => {
                    let (choice, allowed) = read_allowed(&mut fields, &tools)?;
                    tools.retain(|tool| allowed.iter().any(|name| name_of(tool) == Some(name)));
                    choice
                }
                _ => {
                    let pointer = fields.pointer("type");
                    let message =
                        format!("`{pointer}` is `{kind:.40}`, it must be function or allowed_tools");
                    return Err(ApiError::unsupported(pointer, message));
                }
            };
            fields.finish()?;
            choice
        }
    };
    if choice == ToolChoice::Required && tools.is_empty() {
        let message = format!("`{pointer}` asks for a call, and there are no `tools`");
        return Err(ApiError::invalid(pointer, message));
    }
    Ok((choice, tools, echo))
}

fn read_word(word: &str, pointer: &str) -> Result<ToolChoice, ApiError> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => {
            let message = format!("`{pointer}` is `{word:.40}`, it must be auto, none, required or a tool");
            Err(ApiError::invalid(pointer, message))
        }
    }
}

/// Which of the tools may be called, or must.
fn read_allowed(fields: &mut Fields, tools: &[Value]) -> Result<(ToolChoice, Vec<String>), ApiError> {
    let mode = fields.one_of("mode", &["auto", "required"])?.ok_or_else(|| fields.missing("mode"))?;
    let mut names = Vec::new();
    for (at, tool) in fields.list("tools")?.ok_or_else(|| fields.missing("tools"))? {
        let mut tool = Fields::of(tool, at)?;
        tool.one_of("type", &["function"])?.ok_or_else(|| tool.missing("type"))?;
        let pointer = tool.pointer("name");
        let name = tool.required_string("name")?;
        tool.finish()?;
        check_named(&name, tools, &pointer)?;
        names.push(name);
    }
    Ok((if mode == "required" { ToolChoice::Required } else { ToolChoice::Auto }, names))
}
