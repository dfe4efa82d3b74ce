//! Schemas of what comes back.

use serde_json::{Map, Value, json};

use super::reference;

/// An object that has these fields, and may have others.
fn object(fields: &[(&str, Value)]) -> Value {
    let required: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let fields: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({"type": "object", "properties": fields, "required": required})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn list(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

fn named(value: &str) -> Value {
    json!({"const": value})
}

fn or_null(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

/// Every schema that answers refer to.
pub(super) fn schemas() -> Value {
    let error = object(&[
        ("message", text()),
        ("type", text()),
        ("param", or_null("string")),
        ("code", or_null("string")),
    ]);
    let usage =
        object(&[("prompt_tokens", count()), ("completion_tokens", count()), ("total_tokens", count())]);
    let reasons = json!({"enum": ["stop", "length", "tool_calls"]});
    let message = object(&[("role", named("assistant")), ("content", or_null("string"))]);
    let chosen = object(&[
        ("index", count()),
        ("message", message),
        ("logprobs", or_null("object")),
        ("finish_reason", reasons.clone()),
    ]);
    let continued = object(&[
        ("index", count()),
        ("text", text()),
        ("logprobs", or_null("object")),
        ("finish_reason", reasons),
    ]);
    let answer = |object_name: &str, choice: &Value| {
        object(&[
            ("id", text()),
            ("object", named(object_name)),
            ("created", count()),
            ("model", text()),
            ("choices", list(choice)),
            ("usage", reference("Usage")),
        ])
    };
    let row = json!({"anyOf": [list(&json!({"type": "number"})), {"type": "string"}]});
    let embedding = object(&[("object", named("embedding")), ("index", count()), ("embedding", row)]);
    let model =
        object(&[("id", text()), ("object", named("model")), ("created", count()), ("owned_by", text())]);
    json!({
        "Error": object(&[("error", error)]),
        "Usage": usage,
        "ChatCompletion": answer("chat.completion", &chosen),
        "Completion": answer("text_completion", &continued),
        "Embeddings": object(&[("object", named("list")), ("data", list(&embedding)), ("model", text()), ("usage", json!({"type": "object"}))]),
        "Model": model,
        "Models": object(&[("object", named("list")), ("data", list(&reference("Model")))]),
        "Tokens": object(&[("tokens", list(&count())), ("count", count())]),
        "Text": object(&[("content", text())]),
        "Response": object(&[
            ("id", text()),
            ("object", named("response")),
            ("created_at", count()),
            ("model", text()),
            ("status", json!({"enum": ["completed", "incomplete"]})),
            ("output", list(&json!({"type": "object"}))),
            ("usage", json!({"type": "object"})),
        ]),
        "Items": object(&[
            ("object", named("list")),
            ("first_id", or_null("string")),
            ("last_id", or_null("string")),
            ("has_more", json!({"type": "boolean"})),
            ("data", list(&json!({"type": "object"}))),
        ]),
        "Deleted": object(&[("id", text()), ("object", named("response")), ("deleted", json!({"const": true}))]),
        "Message": object(&[
            ("id", text()),
            ("type", named("message")),
            ("role", named("assistant")),
            ("model", text()),
            ("content", list(&json!({"type": "object"}))),
            ("stop_reason", text()),
            ("stop_sequence", or_null("string")),
            ("usage", json!({"type": "object"})),
        ]),
        "Count": object(&[("input_tokens", count())]),
        "AnthropicError": object(&[("type", named("error")), ("error", object(&[("type", text()), ("message", text())]))]),
        "Status": object(&[("status", text())]),
    })
}
