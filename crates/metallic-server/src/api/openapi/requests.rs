//! Schemas of what requests may have.

use serde_json::{Map, Value, json};

use crate::api::chat::{MOST_CALLS, TOOLS};
use crate::api::common::{BIASES, BREAKPOINT_LIVES, EFFORTS, MOST_TOKENS, PRIORITY, STOP_CHARACTERS, STOPS};
use crate::api::completions::LOGPROBS;
use crate::api::embeddings::INPUTS;
use crate::options::Limits;

/// A schema, or null: as good as leaving the field out.
fn optional(schema: &Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

/// An object with these fields and no others; those that are not required may be null.
pub(super) fn object(required: &[&str], fields: &[(&str, Value)]) -> Value {
    let fields: Map<String, Value> = fields
        .iter()
        .map(|(name, schema)| {
            let schema = if required.contains(name) { schema.clone() } else { optional(schema) };
            ((*name).to_owned(), schema)
        })
        .collect();
    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false})
}

pub(super) fn number(low: f64, high: f64) -> Value {
    json!({"type": "number", "minimum": low, "maximum": high})
}

pub(super) fn count(low: usize, high: usize) -> Value {
    json!({"type": "integer", "minimum": low, "maximum": high})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn list(of: &Value, least: usize, most: usize) -> Value {
    json!({"type": "array", "items": of, "minItems": least, "maxItems": most})
}

pub(super) fn one_of(words: &[&str]) -> Value {
    json!({"enum": words})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

/// Fields that say how tokens are chosen, and those that change nothing.
pub(super) fn common() -> Vec<(&'static str, Value)> {
    let stop = json!({"type": "string", "minLength": 1, "maxLength": STOP_CHARACTERS});
    let stops = json!({"anyOf": [stop, list(&stop, 0, STOPS)]});
    let bias = json!({
        "type": "object", "additionalProperties": number(-100.0, 100.0), "maxProperties": BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "description": "Added to the logits of tokens, by their ids.",
    });
    let shares = json!({
        "type": "object", "additionalProperties": number(-100.0, 100.0),
        "description": "How much of each adapter of the model is taken; of those not named nothing.",
    });
    let streams = object(
        &[],
        &[
            ("include_usage", boolean()),
            ("continuous_usage_stats", boolean()),
            ("include_obfuscation", json!({"const": false})),
        ],
    );
    vec![
        ("temperature", number(0.0, 2.0)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", json!({"type": "integer", "minimum": -1, "maximum": MOST_TOKENS})),
        ("min_p", number(0.0, 1.0)),
        ("typical_p", number(0.0, 1.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("repetition_penalty", number(0.01, 100.0)),
        ("logit_bias", bias),
        ("seed", json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX})),
        ("stop", stops),
        ("ignore_eos", boolean()),
        ("adapters", shares),
        ("priority", json!({"type": "integer", "minimum": -PRIORITY, "maximum": PRIORITY})),
        ("stream", boolean()),
        ("stream_options", streams),
        ("user", text()),
        ("safety_identifier", text()),
        ("prompt_cache_key", text()),
        ("metadata", json!({"type": "object", "additionalProperties": {"type": "string"}})),
        ("service_tier", one_of(&["auto", "default"])),
        ("store", json!({"const": false})),
    ]
}

/// The schema of a function's arguments.
pub(super) fn arguments() -> Value {
    let kinds = json!({"anyOf": [{"const": "object"}, {"type": "array", "contains": {"const": "object"}}]});
    json!({"type": "object", "properties": {"type": kinds}})
}

/// `/v1/chat/completions`.
pub(super) fn chat(limits: &Limits) -> Value {
    let effort = one_of(EFFORTS);
    let mut fields = common();
    fields.extend([
        ("model", text()),
        ("messages", messages()),
        ("n", count(1, limits.choices)),
        ("max_tokens", count(1, MOST_TOKENS)),
        ("max_completion_tokens", count(1, MOST_TOKENS)),
        ("logprobs", boolean()),
        ("top_logprobs", count(0, 20)),
        ("tools", tools()),
        ("tool_choice", tool_choice()),
        ("parallel_tool_calls", boolean()),
        ("response_format", response_format()),
        ("regex", text()),
        ("grammar", text()),
        ("reasoning_effort", effort),
        ("chat_template_kwargs", json!({"type": "object"})),
        ("modalities", json!({"const": ["text"]})),
        ("verbosity", json!({"const": "medium"})),
        ("prompt_cache_retention", json!({"const": "in_memory"})),
        ("prompt_cache_options", implicit_cache()),
    ]);
    object(&["model", "messages"], &fields)
}

/// How prompts are cached here.
pub(super) fn implicit_cache() -> Value {
    json!({"enum": [{}, {"mode": "implicit"}]})
}

/// A mark up to which a prompt is to be cached.
pub(super) fn breakpoint() -> (&'static str, Value) {
    let fields = [("mode", json!({"const": "explicit"})), ("ttl", one_of(BREAKPOINT_LIVES))];
    ("prompt_cache_breakpoint", object(&["mode"], &fields))
}

fn messages() -> Value {
    let part =
        object(&["type", "text"], &[("type", json!({"const": "text"})), ("text", text()), breakpoint()]);
    let refusal = object(&["type", "refusal"], &[("type", json!({"const": "refusal"})), ("refusal", text())]);
    let parts = json!({"type": "array", "items": {"anyOf": [part, refusal]}, "minItems": 1});
    let content = json!({"anyOf": [{"type": "string"}, parts]});
    let kind = one_of(&["message", "text"]);
    let said = object(
        &["role", "content"],
        &[
            ("role", one_of(&["system", "developer", "user"])),
            ("type", kind.clone()),
            ("content", content.clone()),
            ("name", text()),
        ],
    );
    let function = object(
        &["name", "arguments"],
        &[("name", text()), ("arguments", text()), ("parsed_arguments", json!({}))],
    );
    let call = object(
        &["id", "type", "function"],
        &[
            ("id", text()),
            ("type", json!({"const": "function"})),
            ("function", function),
            ("index", count(0, MOST_CALLS)),
        ],
    );
    let assistant = |required: &[&str], least: usize| {
        object(
            required,
            &[
                ("role", json!({"const": "assistant"})),
                ("type", kind.clone()),
                ("content", content.clone()),
                ("name", text()),
                ("refusal", text()),
                ("reasoning_content", text()),
                ("tool_calls", json!({"type": "array", "items": call, "minItems": least})),
                ("annotations", json!({"const": []})),
                ("parsed", json!({})),
                ("provider_specific_fields", json!({})),
            ],
        )
    };
    let tool = object(
        &["role", "content", "tool_call_id"],
        &[
            ("role", json!({"const": "tool"})),
            ("type", kind.clone()),
            ("content", content.clone()),
            ("name", text()),
            ("tool_call_id", text()),
        ],
    );
    let kinds = [
        said,
        assistant(&["role", "content"], 0),
        assistant(&["role", "tool_calls"], 1),
        assistant(&["role", "refusal"], 0),
        tool,
    ];
    json!({"type": "array", "items": {"anyOf": kinds}, "minItems": 1})
}

fn tools() -> Value {
    let function = object(
        &["name"],
        &[
            ("name", json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"})),
            ("description", text()),
            ("parameters", arguments()),
            ("strict", boolean()),
        ],
    );
    let tool =
        object(&["type", "function"], &[("type", json!({"const": "function"})), ("function", function)]);
    list(&tool, 0, TOOLS)
}

fn tool_choice() -> Value {
    let function = object(&["name"], &[("name", text())]);
    let named =
        object(&["type", "function"], &[("type", json!({"const": "function"})), ("function", function)]);
    let several = json!({"type": "array", "items": named});
    let allowed = object(&["mode", "tools"], &[("mode", one_of(&["auto", "required"])), ("tools", several)]);
    let allowed = object(
        &["type", "allowed_tools"],
        &[("type", json!({"const": "allowed_tools"})), ("allowed_tools", allowed)],
    );
    json!({"anyOf": [one_of(&["auto", "none", "required"]), named, allowed]})
}

fn response_format() -> Value {
    let plain = object(&["type"], &[("type", json!({"const": "text"}))]);
    let any = object(
        &["type"],
        &[("type", json!({"const": "json_object"})), ("schema", json!({"type": "object"}))],
    );
    let inner = object(
        &["name", "schema"],
        &[
            ("name", text()),
            ("description", text()),
            ("strict", boolean()),
            ("schema", json!({"type": "object"})),
        ],
    );
    let schema = object(
        &["type", "json_schema"],
        &[("type", json!({"const": "json_schema"})), ("json_schema", inner)],
    );
    json!({"anyOf": [plain, any, schema]})
}

/// A text, its tokens, or a list of either.
fn inputs(most: usize) -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let tokens = json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}, "minItems": 1});
    let several =
        json!({"type": "array", "items": {"anyOf": [text, tokens]}, "minItems": 1, "maxItems": most});
    json!({"anyOf": [text, tokens, several]})
}

/// `/v1/completions`.
pub(super) fn completion(limits: &Limits) -> Value {
    let mut fields = common();
    fields.extend([
        ("model", text()),
        ("prompt", inputs(limits.choices)),
        ("n", count(1, limits.choices)),
        ("best_of", count(1, limits.choices)),
        ("max_tokens", count(0, MOST_TOKENS)),
        ("logprobs", count(0, LOGPROBS)),
        ("echo", boolean()),
        ("suffix", json!({"const": ""})),
    ]);
    object(&["model", "prompt"], &fields)
}

/// `/v1/embeddings`.
pub(super) fn embedding() -> Value {
    let fields = [
        ("model", text()),
        ("input", inputs(INPUTS)),
        ("encoding_format", one_of(&["float", "base64"])),
        (
            "dimensions",
            json!({"type": "integer", "minimum": 1, "description": "The width of the model, or nothing."}),
        ),
        ("user", text()),
    ];
    object(&["model", "input"], &fields)
}

/// `/tokenize`.
pub(super) fn tokenize() -> Value {
    let pieces = ("with_pieces", boolean());
    let plain = [
        ("model", text()),
        ("content", text()),
        pieces.clone(),
        ("add_special", boolean()),
        ("parse_special", boolean()),
    ];
    let chat = [("model", text()), ("messages", messages()), pieces, ("tools", tools())];
    json!({"anyOf": [object(&["model", "content"], &plain), object(&["model", "messages"], &chat)]})
}

/// `/detokenize`.
pub(super) fn detokenize() -> Value {
    let tokens = json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": u32::MAX}});
    object(&["model", "tokens"], &[("model", text()), ("tokens", tokens), ("skip_special", boolean())])
}
