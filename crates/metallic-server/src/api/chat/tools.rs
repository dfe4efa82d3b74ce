//! Tools that a model may call.

use metallic::text::ToolChoice;
use serde_json::Value;

use crate::api::functions::{check_named, read_parameters};
use crate::error::ApiError;
use crate::fields::Fields;

/// Most tools of a request.
pub(crate) const TOOLS: usize = 128;
const NAME: &str = "1 to 64 letters, digits, underscores and dashes";

/// `tools`: definitions of functions, as templates take them.
pub(crate) fn read_tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let pointer = fields.pointer("tools");
    let Some(list) = fields.list("tools")? else { return Ok(Vec::new()) };
    if list.len() > TOOLS {
        let message = format!("`{pointer}` has {} tools, at most {TOOLS} are allowed", list.len());
        return Err(ApiError::invalid(pointer, message));
    }
    let mut tools: Vec<Value> = Vec::with_capacity(list.len());
    for (at, mut tool) in list {
        let parameters = check_tool(Fields::of(tool.clone(), &at)?)?;
        tool["function"]["parameters"] = parameters;
        if tools.iter().any(|other| name_of(other) == name_of(&tool)) {
            let message = format!("`{at}/function/name` is the name of another tool too");
            return Err(ApiError::invalid(format!("{at}/function/name"), message));
        }
        tools.push(tool);
    }
    Ok(tools)
}

/// The name of a tool that was read.
pub(crate) fn name_of(tool: &Value) -> Option<&str> {
    tool.pointer("/function/name").and_then(Value::as_str)
}

/// Checks a definition, and gives the schema of its arguments.
fn check_tool(mut fields: Fields) -> Result<Value, ApiError> {
    let found = fields.required_string("type")?;
    if found != "function" {
        let pointer = fields.pointer("type");
        let message = format!("`{pointer}` is `{found:.40}`: tools are of type `function` here");
        return Err(ApiError::unsupported(pointer, message));
    }
    let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
    let name = function.required_string("name")?;
    if !is_name(&name) {
        let pointer = function.pointer("name");
        return Err(ApiError::invalid(&pointer, format!("`{pointer}` must have {NAME}")));
    }
    function.string("description")?;
    function.bool("strict")?;
    let parameters = read_parameters(&mut function, "parameters")?;
    function.finish()?;
    fields.finish()?;
    Ok(parameters)
}

pub(crate) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// `tool_choice`: whether a tool may, must or must not be called, or which one must; and the tools that it leaves.
pub(super) fn read_choice(
    fields: &mut Fields,
    mut tools: Vec<Value>,
) -> Result<(ToolChoice, Vec<Value>), ApiError> {
    let pointer = fields.pointer("tool_choice");
    let choice = match fields.take("tool_choice") {
        None => return Ok((ToolChoice::Auto, tools)),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => {
                let message =
                    format!("`{pointer}` is `{word:.40}`, it must be auto, none, required or a tool");
                return Err(ApiError::invalid(pointer, message));
            }
        },
        Some(value) => read_object(Fields::of(value, &pointer)?, &mut tools)?,
    };
    match &choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            Err(ApiError::invalid(&pointer, format!("`{pointer}` asks for a call, and there are no `tools`")))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| name_of(tool) == Some(name)) => {
            let message = format!("`{pointer}` names the tool `{name:.80}`, which is not among `tools`");
            Err(ApiError::invalid(pointer, message))
        }
        _ => Ok((choice, tools)),
    }
}

/// Whether a choice is for one call: who names a function wants that call, and no other beside it.
pub(crate) fn names_one(choice: &ToolChoice) -> bool {
    matches!(choice, ToolChoice::Named(_))
}

/// The tool that must be called, or those that may be: the others go.
fn read_object(mut fields: Fields, tools: &mut Vec<Value>) -> Result<ToolChoice, ApiError> {
    let found = fields.required_string("type")?;
    match found.as_str() {
        "function" => read_named(fields).map(ToolChoice::Named),
        "allowed_tools" => {
            let mut allowed =
                fields.object("allowed_tools")?.ok_or_else(|| fields.missing("allowed_tools"))?;
            fields.finish()?;
            let mode =
                allowed.one_of("mode", &["auto", "required"])?.ok_or_else(|| allowed.missing("mode"))?;
            let mut names = Vec::new();
            for (at, tool) in allowed.list("tools")?.ok_or_else(|| allowed.missing("tools"))? {
                let mut tool = Fields::of(tool, &at)?;
                tool.one_of("type", &["function"])?.ok_or_else(|| tool.missing("type"))?;
                let name = read_named(tool)?;
                check_named(&name, tools, &format!("{at}/function/name"))?;
                names.push(name);
            }
            allowed.finish()?;
            tools.retain(|tool| names.iter().any(|name| name_of(tool) == Some(name)));
            Ok(if mode == "required" { ToolChoice::Required } else { ToolChoice::Auto })
        }
        _ => {
            let pointer = fields.pointer("type");
            let message = format!("`{pointer}` is `{found:.40}`, it must be function or allowed_tools");
            Err(ApiError::unsupported(pointer, message))
        }
    }
}

/// The name of a tool, of an object whose type was read.
fn read_named(mut fields: Fields) -> Result<String, ApiError> {
    let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
    let name = function.required_string("name")?;
    function.finish()?;
    fields.finish()?;
    Ok(name)
}
