//! Schemas of `/v1/responses` and `/v1/messages`.

use serde_json::{Value, json};

use super::requests::{
    arguments, boolean, breakpoint, common, count, implicit_cache, list, number, object, one_of, text,
};
use crate::api::chat::TOOLS;
use crate::api::common::{EFFORTS, MOST_TOKENS, STOP_CHARACTERS, STOPS};

/// A constant.
fn only(value: impl Into<Value>) -> Value {
    json!({"const": value.into()})
}

/// Most edits of a conversation, each of which keeps everything.
const EDITS: usize = 8;

/// What is in a client's objects and never has a value here.
fn null() -> Value {
    json!({"type": "null"})
}

/// An object of a type, which its field `type` says.
fn typed(kind: &str, required: &[&str], fields: &[(&str, Value)]) -> Value {
    let fields = [&[("type", only(kind))], fields].concat();
    object(&[&["type"], required].concat(), &fields)
}

fn any_of(schemas: &[Value]) -> Value {
    json!({"anyOf": schemas})
}

/// A text, or a list of parts.
fn text_or(part: &Value, least: usize) -> Value {
    any_of(&[text(), json!({"type": "array", "items": part, "minItems": least})])
}

fn tool_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})
}

/// Fields of all endpoints, without those that this one has otherwise or not.
fn common_without(names: &[&str]) -> Vec<(&'static str, Value)> {
    common().into_iter().filter(|(name, _)| !names.contains(name)).collect()
}

/// `/v1/responses`.
pub(super) fn response() -> Value {
    let tool = typed(
        "function",
        &["name"],
        &[("name", tool_name()), ("description", text()), ("parameters", arguments()), ("strict", boolean())],
    );
    let named = typed("function", &["name"], &[("name", text())]);
    let allowed = typed(
        "allowed_tools",
        &["mode", "tools"],
        &[("mode", one_of(&["auto", "required"])), ("tools", json!({"type": "array", "items": named}))],
    );
    let schema = typed(
        "json_schema",
        &["name", "schema"],
        &[
            ("name", text()),
            ("schema", json!({"type": ["object", "boolean"]})),
            ("description", text()),
            ("strict", boolean()),
        ],
    );
    let format = any_of(&[typed("text", &[], &[]), typed("json_object", &[], &[]), schema]);
    let efforts = one_of(EFFORTS);
    let metadata = json!({
        "type": "object", "maxProperties": 16, "propertyNames": {"maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512},
    });
    let include = one_of(&["message.output_text.logprobs", "reasoning.encrypted_content"]);
    let mut fields = common_without(&["stream_options", "metadata", "store"]);
    fields.extend([
        ("model", text()),
        ("input", any_of(&[text(), json!({"type": "array", "items": item(), "minItems": 1})])),
        ("instructions", text()),
        ("previous_response_id", text()),
        ("max_output_tokens", count(1, MOST_TOKENS)),
        ("tools", list(&tool, 0, TOOLS)),
        ("tool_choice", any_of(&[one_of(&["auto", "none", "required"]), named.clone(), allowed])),
        ("parallel_tool_calls", boolean()),
        ("text", object(&[], &[("format", format), ("verbosity", only("medium"))])),
        ("reasoning", object(&[], &[("effort", efforts), ("summary", only("auto"))])),
        ("include", json!({"type": "array", "items": include})),
        ("top_logprobs", count(0, 20)),
        ("client_metadata", json!({"type": "object", "additionalProperties": {"type": "string"}})),
        ("metadata", metadata),
        ("store", boolean()),
        ("stream_options", object(&[], &[("include_obfuscation", only(false))])),
        ("background", only(false)),
        ("truncation", only("disabled")),
        ("prompt_cache_retention", only("in_memory")),
        ("prompt_cache_options", implicit_cache()),
        ("chat_template_kwargs", json!({"type": "object"})),
    ]);
    object(&["model", "input"], &fields)
}

/// What a conversation is made of.
fn item() -> Value {
    let input = typed("input_text", &["text"], &[("text", text()), breakpoint()]);
    let output = typed(
        "output_text",
        &["text"],
        &[
            ("text", text()),
            ("annotations", json!({"const": []})),
            ("logprobs", json!({"type": "array"})),
            ("parsed", json!({})),
        ],
    );
    let refusal = typed("refusal", &["refusal"], &[("refusal", text())]);
    let content = text_or(&any_of(&[input, output, refusal]), 0);
    let status = one_of(&["in_progress", "completed", "incomplete"]);
    let of = |kind: &str, required: &[&str], fields: &[(&str, Value)]| {
        typed(kind, required, &[&[("id", text()), ("status", status.clone())], fields].concat())
    };
    let message = object(
        &["role", "content"],
        &[
            ("type", only("message")),
            ("id", text()),
            ("status", status.clone()),
            ("role", one_of(&["user", "assistant", "system", "developer"])),
            ("content", content.clone()),
            ("phase", one_of(&["commentary", "final_answer"])),
        ],
    );
    let call = of(
        "function_call",
        &["call_id", "name", "arguments"],
        &[
            ("call_id", text()),
            ("name", text()),
            ("arguments", text()),
            ("parsed_arguments", json!({})),
            ("async", only(false)),
            ("async_", only(false)),
            ("caller", typed("direct", &[], &[])),
            ("namespace", null()),
        ],
    );
    let result = of(
        "function_call_output",
        &["call_id", "output"],
        &[
            ("call_id", text()),
            ("output", content),
            ("name", text()),
            ("caller", typed("direct", &[], &[])),
            ("namespace", null()),
        ],
    );
    let reference = object(
        &["id"],
        &[("id", json!({"type": "string", "minLength": 1})), ("type", only("item_reference"))],
    );
    let thought = |kind: &str| json!({"type": "array", "items": typed(kind, &["text"], &[("text", text())])});
    let reasoning = of(
        "reasoning",
        &[],
        &[
            ("summary", thought("summary_text")),
            ("content", thought("reasoning_text")),
            ("encrypted_content", text()),
        ],
    );
    any_of(&[message, call, result, reasoning, reference])
}

/// Fields of a conversation in Anthropic's shape.
fn conversation() -> Vec<(&'static str, Value)> {
    let lives = object(&["type"], &[("type", only("ephemeral")), ("ttl", one_of(&["5m", "1h"]))]);
    let cached = |kind: &str, required: &[&str], fields: &[(&str, Value)]| {
        typed(kind, required, &[&[("cache_control", lives.clone())], fields].concat())
    };
    let said = cached("text", &["text"], &[("text", text()), ("citations", json!({"const": []}))]);
    let texts = text_or(&said, 0);
    let result = cached(
        "tool_result",
        &["tool_use_id"],
        &[
            ("tool_use_id", text()),
            ("content", texts.clone()),
            ("is_error", boolean()),
            ("toolset_name", null()),
        ],
    );
    let call = cached(
        "tool_use",
        &["id", "name", "input"],
        &[
            ("id", text()),
            ("name", text()),
            ("input", json!({"type": "object"})),
            ("caller", typed("direct", &[], &[])),
            ("toolset_name", null()),
        ],
    );
    let thoughts =
        cached("thinking", &["thinking"], &[("thinking", text()), ("signature", json!({"const": ""}))]);
    let message =
        |role: Value, content: Value| object(&["role", "content"], &[("role", role), ("content", content)]);
    let messages = any_of(&[
        message(only("user"), text_or(&any_of(&[said.clone(), result]), 1)),
        message(only("assistant"), text_or(&any_of(&[said, call, thoughts]), 1)),
        message(only("system"), texts.clone()),
    ]);
    let tool = object(
        &["name", "input_schema"],
        &[
            ("type", only("custom")),
            ("name", tool_name()),
            ("description", text()),
            ("input_schema", arguments()),
            ("strict", boolean()),
            ("eager_input_streaming", boolean()),
            ("defer_loading", json!({"const": false})),
            ("allowed_callers", json!({"const": ["direct"]})),
            ("cache_control", lives.clone()),
        ],
    );
    let alone = || ("disable_parallel_tool_use", boolean());
    let choice = any_of(&[
        typed("auto", &[], &[alone()]),
        typed("any", &[], &[alone()]),
        typed("tool", &["name"], &[("name", text()), alone()]),
        typed("none", &[], &[]),
    ]);
    let display = || ("display", one_of(&["summarized", "omitted"]));
    let thinking = any_of(&[
        typed("enabled", &["budget_tokens"], &[("budget_tokens", count(1024, MOST_TOKENS)), display()]),
        typed("adaptive", &[], &[display()]),
        typed("disabled", &[], &[]),
    ]);
    let schema = typed("json_schema", &["schema"], &[("schema", json!({"type": ["object", "boolean"]}))]);
    let output = object(&[], &[("effort", one_of(EFFORTS)), ("format", schema.clone())]);
    let kept = typed("clear_thinking_20251015", &["keep"], &[("keep", only("all"))]);
    vec![
        ("model", text()),
        ("messages", json!({"type": "array", "items": messages, "minItems": 1})),
        ("system", texts),
        ("tools", list(&tool, 0, TOOLS)),
        ("tool_choice", choice),
        ("thinking", thinking),
        ("output_config", output),
        ("output_format", schema),
        ("cache_control", lives),
        ("speed", only("standard")),
        ("context_management", object(&[], &[("edits", list(&kept, 0, EDITS))])),
        ("thread", typed("create", &[], &[])),
        ("chat_template_kwargs", json!({"type": "object"})),
    ]
}

/// `/v1/messages/count_tokens`.
pub(super) fn counted() -> Value {
    object(&["model", "messages"], &conversation())
}

/// `/v1/messages`.
pub(super) fn message() -> Value {
    let stop = json!({"type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS});
    let others = [
        "temperature",
        "stop",
        "stream_options",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "metadata",
        "service_tier",
        "store",
    ];
    let mut fields = common_without(&others);
    fields.extend(conversation());
    fields.extend([
        ("max_tokens", count(1, MOST_TOKENS)),
        ("temperature", number(0.0, 1.0)),
        ("stop_sequences", any_of(&[stop.clone(), list(&stop, 0, STOPS)])),
        ("metadata", object(&[], &[("user_id", text())])),
        ("service_tier", one_of(&["auto", "standard_only"])),
        ("mcp_servers", json!({"type": "array", "maxItems": 0})),
    ]);
    object(&["model", "messages", "max_tokens"], &fields)
}
