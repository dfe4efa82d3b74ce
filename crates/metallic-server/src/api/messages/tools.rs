//! Tools of a request.

use metallic::text::ToolChoice;
use serde_json::{Value, json};

use super::blocks::read_cache_control;
use crate::api::functions::{add_tool, check_count, check_named, read_function};
use crate::error::ApiError;
use crate::fields::Fields;

/// `tools`, as templates take them.
pub(super) fn read_tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let pointer = fields.pointer("tools");
    let Some(list) = fields.list("tools")? else { return Ok(Vec::new()) };
    check_count(list.len(), &pointer)?;
    let mut tools = Vec::with_capacity(list.len());
    for (at, tool) in list {
        let mut fields = Fields::of(tool, &at)?;
        if let Some(kind) = fields.string("type")?.filter(|kind| kind != "custom") {
            let pointer = fields.pointer("type");
            let message = format!("`{pointer}` is `{kind:.40}`: tools are of type `custom` here");
            return Err(ApiError::unsupported(pointer, message));
        }
        read_cache_control(&mut fields)?;
        let strict = fields.bool("strict")?.unwrap_or(false);
        // Arguments come as they are made.
        fields.bool("eager_input_streaming")?;
        fields.refuse("defer_loading", &[json!(false)], "the model is told of every tool at once")?;
        fields.refuse("allowed_callers", &[json!(["direct"])], "the model itself calls tools here")?;
        let schema = fields.required("input_schema")?;
        fields.put("input_schema", schema);
        let mut tool = read_function(&mut fields, "input_schema")?;
        fields.finish()?;
        tool["function"]["strict"] = json!(strict);
        add_tool(&mut tools, tool, &at)?;
    }
    Ok(tools)
}

/// `tool_choice`: whether a tool may, must or must not be called, or which one must; and whether several may be at once.
pub(super) fn read_choice(fields: &mut Fields, tools: &[Value]) -> Result<(ToolChoice, bool), ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    let kinds = &["auto", "any", "tool", "none"];
    let kind = choice.one_of("type", kinds)?.ok_or_else(|| choice.missing("type"))?;
    let read = match kind {
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => {
            let pointer = choice.pointer("name");
            let name = choice.required_string("name")?;
            check_named(&name, tools, &pointer)?;
            ToolChoice::Named(name)
        }
        _ => ToolChoice::Auto,
    };
    if read == ToolChoice::Required && tools.is_empty() {
        let message = "`/tool_choice` asks for a call, and there are no `tools`";
        return Err(ApiError::invalid("/tool_choice", message));
    }
    let alone = kind != "none" && choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    choice.finish()?;
    Ok((read, !alone))
}
