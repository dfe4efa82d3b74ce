//! An answer to a conversation as a stream of chunks.

use serde_json::{Value, json};

use super::Head;
use super::write::content_logprobs;
use crate::api::common::{self, FINGERPRINT, Streaming, TIER};
use crate::http::sse::{self, DONE, Events};
use crate::task::{Choices, Delta};

/// The chunks of a stream.
pub(super) struct ChatEvents {
    head: Head,
    choices: Choices,
    /// Which choices have begun.
    begun: Vec<bool>,
    streaming: Streaming,
    logprobs: bool,
    done: bool,
}

impl ChatEvents {
    pub(super) fn new(head: Head, choices: Choices, n: usize, streaming: Streaming, logprobs: bool) -> Self {
        Self { head, choices, begun: vec![false; n], streaming, logprobs, done: false }
    }

    fn chunk(&self, choices: &Value) -> Value {
        let Head { id, created, model } = &self.head;
        let mut chunk = json!({
            "id": id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "choices": choices,
            "service_tier": TIER,
            "system_fingerprint": FINGERPRINT,
        });
        if self.streaming.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, index: usize, delta: &Value, tokens: Option<Value>, reason: Option<&str>) -> Value {
        let logprobs = tokens.filter(|_| self.logprobs);
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
        let mut chunk = self.chunk(&json!([choice]));
        if self.streaming.running_usage {
            chunk["usage"] = common::usage(self.choices.usage_of(index));
        }
        chunk
    }

    fn write(&mut self, index: usize, deltas: Vec<Delta>) -> String {
        let mut out = String::new();
        if deltas.is_empty() {
            return out;
        }
        if let Some(begun) = self.begun.get_mut(index).filter(|begun| !**begun) {
            *begun = true;
            // An answer that begins with a call has no text, not an empty one.
            let calls = deltas.iter().find(|delta| !matches!(delta, Delta::Token(_)));
            let calls = matches!(calls, Some(Delta::ToolBegin { .. }));
            let content = if calls { Value::Null } else { json!("") };
            let delta = json!({"role": "assistant", "content": content, "refusal": null});
            sse::push(&mut out, &self.choice(index, &delta, None, None));
        }
        // Tokens go with the text that follows them.
        let mut tokens = Vec::new();
        for delta in deltas {
            let delta = match delta {
                Delta::Token(token) => {
                    tokens.push(token);
                    continue;
                }
                Delta::Reasoning(text) => json!({"reasoning_content": text}),
                Delta::Text(text) => json!({"content": text}),
                Delta::ToolBegin { index, id, name } => json!({"tool_calls": [{
                    "index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""},
                }]}),
                Delta::ToolArguments { index, json } => {
                    json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]})
                }
                Delta::ToolEnd { .. } | Delta::Prompt(_) => continue,
                Delta::Finished(finish) => {
                    // Those whose text was held back to the end.
                    if !tokens.is_empty() {
                        let logprobs = Some(content_logprobs(&std::mem::take(&mut tokens)));
                        sse::push(&mut out, &self.choice(index, &json!({"content": ""}), logprobs, None));
                    }
                    let reason = Some(finish.reason.name());
                    sse::push(&mut out, &self.choice(index, &json!({}), None, reason));
                    continue;
                }
            };
            let logprobs = (!tokens.is_empty()).then(|| content_logprobs(&tokens));
            tokens.clear();
            sse::push(&mut out, &self.choice(index, &delta, logprobs, None));
        }
        out
    }

    /// The last of the stream.
    fn end(&mut self) -> String {
        self.done = true;
        let mut out = String::new();
        if self.streaming.usage {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = common::usage(self.choices.usage());
            sse::push(&mut out, &chunk);
        }
        out.push_str(DONE);
        out
    }
}

impl Events for ChatEvents {
    async fn next(&mut self) -> Option<String> {
        while !self.done {
            let text = match self.choices.next().await {
                None => self.end(),
                Some(Ok((index, deltas))) => self.write(index, deltas),
                Some(Err(error)) => {
                    self.done = true;
                    let mut out = String::new();
                    sse::push(&mut out, &error.body());
                    out
                }
            };
            if !text.is_empty() {
                return Some(text);
            }
        }
        None
    }
}
