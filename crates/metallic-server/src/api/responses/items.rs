//! The items of a request: messages, thoughts, calls of tools and their results.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use metallic::Message;
use serde_json::{Map, Value, json};

use super::store::Store;
use crate::api::common::read_breakpoint;
use crate::api::turns::Turns;
use crate::error::ApiError;
use crate::fields::{Fields, as_list, kind};

/// What the conversation begins with: a text, or a list of items.
pub(super) fn read_input(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let pointer = fields.pointer("input");
    match fields.required("input")? {
        Value::String(text) => Ok(vec![json!({"type": "message", "role": "user", "content": text})]),
        Value::Array(items) if items.is_empty() => {
            Err(ApiError::invalid(&pointer, format!("`{pointer}` is empty, it needs an item")))
        }
        Value::Array(items) => Ok(items),
        other => {
            let message =
                format!("`{pointer}` is {}, it must be a string or an array of items", kind(&other));
            Err(ApiError::Field { pointer, message, code: "invalid_type" })
        }
    }
}

/// Puts the items that are kept here in the place of references to them. Each may be referred to once: what is kept is long, and a
/// reference is short.
pub(super) fn resolve(input: &mut [Value], store: &Store, key: Option<usize>) -> Result<(), ApiError> {
    let mut places = BTreeMap::new();
    for (index, item) in input.iter().enumerate().filter(|(_, item)| is_reference(item)) {
        let mut fields = Fields::of(item.clone(), format!("/input/{index}"))?;
        let (pointer, id) = (fields.pointer("id"), fields.required_string("id")?);
        fields.take("type");
        fields.finish()?;
        if places.contains_key(&id) {
            let message = format!("`{pointer}` is `{id:.100}`, which another reference has already");
            return Err(ApiError::invalid(pointer, message));
        }
        places.insert(id, index);
    }
    let mut found = store.items(places.keys().map(String::as_str), key);
    for (id, index) in places {
        let Some(item) = found.remove(&id) else {
            let pointer = format!("/input/{index}/id");
            let message = format!("`{pointer}` is `{id:.100}`: there is no such item here, or not any more");
            return Err(ApiError::invalid(pointer, message));
        };
        input[index] = item;
    }
    Ok(())
}

/// Whether an item says so, or has nothing but an id.
fn is_reference(item: &Value) -> bool {
    let Value::Object(fields) = item else { return false };
    match fields.get("type") {
        Some(Value::String(kind)) => kind == "item_reference",
        None | Some(Value::Null) => {
            let mut given = fields.iter().filter(|(_, value)| !value.is_null());
            given.next().is_some_and(|(name, _)| name == "id") && given.next().is_none()
        }
        Some(_) => false,
    }
}

/// The messages that instructions, items of before and new ones become.
pub(super) fn conversation(
    instructions: Option<&str>,
    before: &[Value],
    input: &[Value],
) -> Result<Vec<Message>, ApiError> {
    let mut turns = Turns::default();
    if let Some(text) = instructions {
        turns.say("system", text.to_owned());
    }
    for item in before {
        read_item(Fields::of(item.clone(), "/previous_response_id")?, &mut turns)?;
    }
    for (index, item) in input.iter().enumerate() {
        read_item(Fields::of(item.clone(), format!("/input/{index}"))?, &mut turns)?;
    }
    Ok(turns.finish())
}

fn read_item(mut fields: Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let kind = fields.string("type")?;
    // Items of an answer come back as they were told.
    fields.string("id")?;
    fields.one_of("status", &["in_progress", "completed", "incomplete"])?;
    match kind.as_deref() {
        None | Some("message") => read_message(&mut fields, turns)?,
        Some("function_call") => read_call(&mut fields, turns)?,
        Some("function_call_output") => {
            let (pointer, id) = (fields.pointer("call_id"), fields.required_string("call_id")?);
            let output = read_content(&mut fields, "output")?;
            // What it is called is known by the call.
            fields.string("name")?;
            read_caller(&mut fields)?;
            turns.result(&id, output, &pointer)?;
        }
        Some("reasoning") => turns.think(read_reasoning(&mut fields)?),
        Some(other) => {
            let pointer = fields.pointer("type");
            let message = format!(
                "`{pointer}` is `{other:.40}`: items are of type message, function_call, function_call_output, reasoning or item_reference here"
            );
            return Err(ApiError::unsupported(pointer, message));
        }
    }
    fields.finish()
}

fn read_message(fields: &mut Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let roles = &["user", "assistant", "system", "developer"];
    let role = fields.one_of("role", roles)?.ok_or_else(|| fields.missing("role"))?;
    fields.one_of("phase", &["commentary", "final_answer"])?;
    let text = read_content(fields, "content")?;
    match role {
        "assistant" => turns.answer(text),
        // The API's new name for what templates call so.
        "developer" => turns.say("system", text),
        role => turns.say(role, text),
    }
    Ok(())
}

fn read_call(fields: &mut Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let id = fields.required_string("call_id")?;
    let name = fields.required_string("name")?;
    let arguments = fields.required_string("arguments")?;
    // Python's clients name it so, where `async` is a word of the language.
    for name in ["async", "async_"] {
        fields.refuse(name, &[json!(false)], "calls are waited for here")?;
    }
    read_caller(fields)?;
    // What a client made of them.
    fields.take("parsed_arguments");
    let object = serde_json::from_str::<Map<String, Value>>(&arguments);
    turns.call(id, name, &object.map_or(Value::String(arguments), Value::Object));
    Ok(())
}

/// Who called, which is always the model itself, and what of: tools have no namespaces here.
fn read_caller(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("caller", &[json!({"type": "direct"})], "the model itself calls tools here")?;
    fields.refuse("namespace", &[], "tools are those of the request here")
}

/// Thoughts of before: in clear, or as they were sealed here.
fn read_reasoning(fields: &mut Fields) -> Result<String, ApiError> {
    let mut texts = Vec::new();
    for (name, kind) in [("content", "reasoning_text"), ("summary", "summary_text")] {
        let mut found = Vec::new();
        for (at, part) in fields.list(name)?.unwrap_or_default() {
            let mut part = Fields::of(part, at)?;
            let pointer = part.pointer("type");
            if part.required_string("type")? != kind {
                return Err(ApiError::invalid(&pointer, format!("`{pointer}` must be `{kind}`")));
            }
            found.push(part.required_string("text")?);
            part.finish()?;
        }
        if texts.is_empty() {
            texts = found;
        }
    }
    let pointer = fields.pointer("encrypted_content");
    if let Some(sealed) = fields.string("encrypted_content")? {
        let opened = STANDARD.decode(sealed).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let wrong = || ApiError::invalid(&pointer, format!("`{pointer}` does not come from this server"));
        texts = vec![opened.ok_or_else(wrong)?];
    }
    Ok(texts.join("\n"))
}

/// A text, or parts that are texts.
fn read_content(fields: &mut Fields, name: &str) -> Result<String, ApiError> {
    let pointer = fields.pointer(name);
    match fields.required(name)? {
        Value::String(text) => Ok(text),
        parts @ Value::Array(_) => {
            let texts = as_list(parts, &pointer)?.map(|(at, part)| read_part(Fields::of(part, at)?));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        other => {
            let message =
                format!("`{pointer}` is {}, it must be a string or an array of parts", kind(&other));
            Err(ApiError::Field { pointer, message, code: "invalid_type" })
        }
    }
}

fn read_part(mut fields: Fields) -> Result<String, ApiError> {
    let kind = fields.required_string("type")?;
    let text = match kind.as_str() {
        "input_text" => {
            read_breakpoint(&mut fields)?;
            fields.required_string("text")?
        }
        "output_text" => {
            // Notes on a text that was told by a model; the text is what counts.
            fields.refuse("annotations", &[json!([])], "texts have no annotations here")?;
            fields.list("logprobs")?;
            // What a client made of it when it came.
            fields.take("parsed");
            fields.required_string("text")?
        }
        "refusal" => fields.required_string("refusal")?,
        _ => {
            let pointer = fields.pointer("type");
            let message = format!(
                "`{pointer}` is `{kind:.40}`: the model takes parts of type `input_text` and `output_text` alone"
            );
            return Err(ApiError::unsupported(pointer, message));
        }
    };
    fields.finish()?;
    Ok(text)
}
