//! Answers to conversations, in the words of the OpenAI API.

use serde_json::{Map, Value, json};

use super::Head;
use crate::api::common::{self, FINGERPRINT, TIER};
use crate::task::{Call, Collected, TokenDelta, TokenText, Usage};

/// The response of a client that waits for the whole answer.
pub(super) fn completion(head: &Head, answers: Vec<Collected>, usage: Usage, logprobs: bool) -> Value {
    let choices: Vec<Value> =
        answers.into_iter().enumerate().map(|(index, answer)| choice(index, answer, logprobs)).collect();
    json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": common::usage(usage),
        "service_tier": TIER,
        "system_fingerprint": FINGERPRINT,
    })
}

fn choice(index: usize, answer: Collected, logprobs: bool) -> Value {
    let reason = answer.finish.map(|finish| finish.reason.name());
    let is_silent = answer.text.is_empty() && !answer.calls.is_empty();
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    message.insert("content".into(), if is_silent { Value::Null } else { json!(answer.text) });
    message.insert("refusal".into(), Value::Null);
    message.insert("annotations".into(), json!([]));
    if !answer.reasoning.is_empty() {
        message.insert("reasoning_content".into(), json!(answer.reasoning));
    }
    if !answer.calls.is_empty() {
        message.insert("tool_calls".into(), answer.calls.iter().map(call).collect());
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs.then(|| content_logprobs(&answer.tokens)),
        "finish_reason": reason,
    })
}

fn call(call: &Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// Log-probabilities of tokens, as `logprobs` of a choice has them.
pub(super) fn content_logprobs(tokens: &[TokenDelta]) -> Value {
    let entry =
        |token: &TokenText| json!({"token": token.text, "logprob": token.logprob, "bytes": token.bytes});
    let tokens = tokens.iter().map(|TokenDelta { token, top }| {
        let mut value = entry(token);
        value["top_logprobs"] = top.iter().map(entry).collect();
        value
    });
    json!({"content": tokens.collect::<Vec<_>>(), "refusal": null})
}
