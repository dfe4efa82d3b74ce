//! The messages of a conversation.

use std::collections::BTreeSet;

use metallic::Message;
use serde_json::{Map, Value, json};

use crate::api::common::read_breakpoint;
use crate::error::ApiError;
use crate::fields::{Fields, List, as_list, as_string, child, kind};

/// The highest number of a call of a stream.
pub(crate) const MOST_CALLS: usize = u32::MAX as usize;

/// Reads the messages, in the form that chat templates take them.
pub(crate) fn read_messages(list: List, pointer: &str) -> Result<Vec<Message>, ApiError> {
    if list.is_empty() {
        return Err(ApiError::invalid(
            pointer,
            format!("`{pointer}` is empty, it needs at least one message"),
        ));
    }
    let (mut messages, mut called) = (Vec::with_capacity(list.len()), BTreeSet::new());
    for (at, message) in list {
        let message = read_message(Fields::of(message, &at)?)?;
        for call in message.extra.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            called.extend(call["id"].as_str().map(str::to_owned));
        }
        if let Some(id) = message.extra.get("tool_call_id").and_then(Value::as_str)
            && !called.contains(id)
        {
            let pointer = child(&at, "tool_call_id");
            let message = format!("`{pointer}` is `{id:.100}`, and no tool was called with that id before");
            return Err(ApiError::invalid(pointer, message));
        }
        messages.push(message);
    }
    Ok(messages)
}

fn read_message(mut fields: Fields) -> Result<Message, ApiError> {
    let roles = &["system", "developer", "user", "assistant", "tool", "function"];
    let role = fields.one_of("role", roles)?.ok_or_else(|| fields.missing("role"))?;
    // Some clients say what a message is.
    fields.one_of("type", &["message", "text"])?;
    let mut extra = Map::new();
    if let Some(name) = fields.string("name")? {
        extra.insert("name".into(), json!(name));
    }
    let content = match role {
        "assistant" => read_assistant(&mut fields, &mut extra)?,
        "tool" => {
            extra.insert("tool_call_id".into(), json!(fields.required_string("tool_call_id")?));
            required_content(&mut fields)?
        }
        "function" => {
            let pointer = fields.pointer("role");
            let message = format!("`{pointer}` is `function`, which is not supported: use `tool`");
            return Err(ApiError::unsupported(pointer, message));
        }
        _ => required_content(&mut fields)?,
    };
    fields.finish()?;
    // The API's new name for what templates call so.
    let role = if role == "developer" { "system" } else { role };
    Ok(Message { role: role.to_owned(), content: Some(Value::String(content)), extra })
}

fn required_content(fields: &mut Fields) -> Result<String, ApiError> {
    read_content(fields)?.ok_or_else(|| fields.missing("content"))
}

/// What a model said before: text, calls of tools, thoughts.
fn read_assistant(fields: &mut Fields, extra: &mut Map<String, Value>) -> Result<String, ApiError> {
    let content = read_content(fields)?;
    let refusal = fields.string("refusal")?;
    if let Some(thoughts) = fields.string("reasoning_content")? {
        extra.insert("reasoning_content".into(), json!(thoughts));
    }
    if let Some(calls) = fields.list("tool_calls")? {
        let calls = calls.map(|(at, call)| read_call(Fields::of(call, at)?));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        if !calls.is_empty() {
            extra.insert("tool_calls".into(), Value::Array(calls));
        }
    }
    fields.refuse("function_call", &[], "use `tool_calls`")?;
    fields.refuse("audio", &[], "messages are text")?;
    // What a client made of the answer when it came; the answer says it.
    fields.take("parsed");
    fields.take("provider_specific_fields");
    // Notes on where an answer came from, which clients send back with it.
    fields.refuse("annotations", &[json!([])], "messages are text")?;
    match content.or(refusal) {
        Some(text) => Ok(text),
        // Templates add it to text, which `null` is not.
        None if extra.contains_key("tool_calls") => Ok(String::new()),
        None => Err(fields.missing("content")),
    }
}

/// A text, or parts that are texts.
fn read_content(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let pointer = fields.pointer("content");
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(parts @ Value::Array(_)) => {
            let parts = as_list(parts, &pointer)?;
            if parts.is_empty() {
                return Err(ApiError::invalid(&pointer, format!("`{pointer}` is empty, it needs a part")));
            }
            let texts = parts.into_iter().map(|(at, part)| read_part(Fields::of(part, at)?));
            Ok(Some(texts.collect::<Result<Vec<_>, _>>()?.join("\n")))
        }
        Some(other) => {
            let message =
                format!("`{pointer}` is {}, it must be a string or an array of parts", kind(&other));
            Err(ApiError::Field { pointer, message, code: "invalid_type" })
        }
    }
}

fn read_part(mut fields: Fields) -> Result<String, ApiError> {
    let kind = fields.required_string("type")?;
    let text = match kind.as_str() {
        "text" => {
            read_breakpoint(&mut fields)?;
            fields.required_string("text")?
        }
        "refusal" => fields.required_string("refusal")?,
        _ => {
            let pointer = fields.pointer("type");
            let message = format!("`{pointer}` is `{kind:.40}`: the model takes parts of type `text` alone");
            return Err(ApiError::unsupported(pointer, message));
        }
    };
    fields.finish()?;
    Ok(text)
}

/// A call of a tool, with its arguments as the object that they are: templates print it in ways of their own.
fn read_call(mut fields: Fields) -> Result<Value, ApiError> {
    let id = fields.required_string("id")?;
    let kind = fields.required_string("type")?;
    if kind != "function" {
        let pointer = fields.pointer("type");
        let message = format!("`{pointer}` is `{kind:.40}`, it must be `function`");
        return Err(ApiError::unsupported(pointer, message));
    }
    let mut function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
    let name = function.required_string("name")?;
    let pointer = function.pointer("arguments");
    let arguments = as_string(function.required("arguments")?, &pointer)?;
    // What a client made of them, as above.
    function.take("parsed_arguments");
    function.finish()?;
    // Clients number the calls of a stream, and send the number back.
    fields.count("index", 0..=MOST_CALLS)?;
    fields.finish()?;
    let arguments =
        serde_json::from_str::<Map<String, Value>>(&arguments).map_or(json!(arguments), Value::Object);
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}
