//! The messages of a request and the blocks that they are made of.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::api::turns::Turns;
use crate::error::ApiError;
use crate::fields::{Fields, as_list, kind};

/// `system`: a text, or blocks of text.
pub(super) fn read_system(fields: &mut Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let pointer = fields.pointer("system");
    if let Some(system) = fields.take("system") {
        let text = read_texts(system, &pointer)?;
        turns.say("system", text);
    }
    Ok(())
}

/// `messages`, of which the last must not be the model's.
pub(super) fn read_messages(fields: &mut Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    let Some(last) = list.len().checked_sub(1) else {
        return Err(ApiError::invalid("/messages", "`/messages` is empty, it needs at least one message"));
    };
    for (at, message) in list {
        let mut message = Fields::of(message, at)?;
        let roles = &["user", "assistant", "system"];
        let role = message.one_of("role", roles)?.ok_or_else(|| message.missing("role"))?;
        let pointer = message.pointer("content");
        let content = message.required("content")?;
        message.finish()?;
        match role {
            "system" => turns.say("system", read_texts(content, &pointer)?),
            role => read_blocks(content, &pointer, role == "assistant", turns)?,
        }
    }
    if turns.ends_with_answer() {
        let message =
            "the last message is the model's own, which is not supported: answers cannot be begun for it";
        return Err(ApiError::unsupported(format!("/messages/{last}/role"), message));
    }
    Ok(())
}

fn read_blocks(content: Value, pointer: &str, is_answer: bool, turns: &mut Turns) -> Result<(), ApiError> {
    let blocks = match content {
        Value::String(text) if is_answer => {
            turns.answer(text);
            return Ok(());
        }
        Value::String(text) => {
            turns.say("user", text);
            return Ok(());
        }
        blocks @ Value::Array(_) => as_list(blocks, pointer)?,
        other => return Err(wrong_content(&other, pointer)),
    };
    if blocks.is_empty() {
        return Err(ApiError::invalid(pointer, format!("`{pointer}` is empty, it needs a block")));
    }
    // What a user says in several blocks is one message.
    let mut said = Vec::new();
    for (at, block) in blocks {
        let mut block = Fields::of(block, at)?;
        let kind = block.required_string("type")?;
        read_cache_control(&mut block)?;
        match (kind.as_str(), is_answer) {
            ("text", true) => turns.answer(read_text(&mut block)?),
            ("text", false) => said.push(read_text(&mut block)?),
            ("tool_use", true) => read_call(&mut block, turns)?,
            ("thinking", true) => turns.think(read_thoughts(&mut block)?),
            ("tool_result", false) => {
                flush(&mut said, turns);
                read_result(&mut block, turns)?;
            }
            _ => {
                return Err(wrong_kind(
                    &block,
                    &kind,
                    if is_answer { "an answer" } else { "a user's message" },
                ));
            }
        }
        block.finish()?;
    }
    flush(&mut said, turns);
    Ok(())
}

fn flush(said: &mut Vec<String>, turns: &mut Turns) {
    if !said.is_empty() {
        turns.say("user", said.join("\n"));
        said.clear();
    }
}

fn wrong_kind(block: &Fields, kind: &str, place: &str) -> ApiError {
    let pointer = block.pointer("type");
    let message = format!("`{pointer}` is `{kind:.40}`, which is not supported in {place}");
    ApiError::unsupported(pointer, message)
}

fn wrong_content(found: &Value, pointer: &str) -> ApiError {
    let message = format!("`{pointer}` is {}, it must be a string or an array of blocks", kind(found));
    ApiError::Field { pointer: pointer.to_owned(), message, code: "invalid_type" }
}

/// Prompts are cached whether asked for or not.
pub(super) fn read_cache_control(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(mut control) = fields.object("cache_control")? {
        control.one_of("type", &["ephemeral"])?.ok_or_else(|| control.missing("type"))?;
        control.one_of("ttl", &["5m", "1h"])?;
        control.finish()?;
    }
    Ok(())
}

/// Toolsets are Anthropic's own.
fn refuse_toolset(block: &mut Fields) -> Result<(), ApiError> {
    block.refuse("toolset_name", &[], "tools are those of the request here")
}

fn read_text(block: &mut Fields) -> Result<String, ApiError> {
    block.refuse("citations", &[serde_json::json!([])], "texts have no citations here")?;
    block.required_string("text")
}

/// A text, or blocks that are texts.
fn read_texts(content: Value, pointer: &str) -> Result<String, ApiError> {
    let blocks = match content {
        Value::String(text) => return Ok(text),
        blocks @ Value::Array(_) => as_list(blocks, pointer)?,
        other => return Err(wrong_content(&other, pointer)),
    };
    let texts = blocks.into_iter().map(|(at, block)| {
        let mut block = Fields::of(block, at)?;
        let kind = block.required_string("type")?;
        read_cache_control(&mut block)?;
        if kind != "text" {
            let pointer = block.pointer("type");
            let message =
                format!("`{pointer}` is `{kind:.40}`: the model takes blocks of type `text` alone here");
            return Err(ApiError::unsupported(pointer, message));
        }
        let text = read_text(&mut block)?;
        block.finish()?;
        Ok(text)
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn read_call(block: &mut Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let (id, name) = (block.required_string("id")?, block.required_string("name")?);
    let input = block.object("input")?.ok_or_else(|| block.missing("input"))?;
    // Who called is always the model itself.
    if let Some(mut caller) = block.object("caller")? {
        caller.one_of("type", &["direct"])?.ok_or_else(|| caller.missing("type"))?;
        caller.finish()?;
    }
    refuse_toolset(block)?;
    turns.call(id, name, &Value::Object(input.rest()));
    Ok(())
}

/// Templates have no word for results that are errors, so the text says it.
fn read_result(block: &mut Fields, turns: &mut Turns) -> Result<(), ApiError> {
    let (pointer, id) = (block.pointer("tool_use_id"), block.required_string("tool_use_id")?);
    let content = block.pointer("content");
    let text =
        block.take("content").map(|value| read_texts(value, &content)).transpose()?.unwrap_or_default();
    let failed = block.bool("is_error")?.unwrap_or(false);
    refuse_toolset(block)?;
    turns.result(&id, if failed { format!("Error: {text}") } else { text }, &pointer)
}

/// Thoughts of before: in clear, or as they were kept back here.
fn read_thoughts(block: &mut Fields) -> Result<String, ApiError> {
    let (thoughts, pointer) = (block.required_string("thinking")?, block.pointer("signature"));
    let signature = block.string("signature")?.unwrap_or_default();
    if !thoughts.is_empty() || signature.is_empty() {
        return Ok(thoughts);
    }
    let opened = STANDARD.decode(signature).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    opened.ok_or_else(|| ApiError::invalid(&pointer, format!("`{pointer}` does not come from this server")))
}
