//! An answer as it is told: whole, or as a stream of events.

use serde_json::{Value, json};

use super::output::Output;
use crate::http::fresh_id;
use crate::http::sse::{self, Events};
use crate::task::{Choices, Finish, Reason, Usage};

/// What all parts of one answer have in common.
pub(super) struct Head {
    id: String,
    model: String,
    max_tokens: Option<usize>,
}

impl Head {
    pub(super) fn new(model: &str, max_tokens: Option<usize>) -> Self {
        Self { id: fresh_id("msg_"), model: model.to_owned(), max_tokens }
    }

    /// The answer as it is now.
    pub(super) fn message(&self, output: &Output) -> Value {
        let (reason, stop) = self.stop(output.finish.as_ref());
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": output.blocks(),
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage(output.finish.as_ref().map_or(Usage::default(), |finish| finish.usage)),
        })
    }

    /// Why the answer ended, and with which of the texts that end one.
    fn stop(&self, finish: Option<&Finish>) -> (Option<&'static str>, Option<String>) {
        let Some(finish) = finish else { return (None, None) };
        let reason = match finish.reason {
            Reason::ToolCalls => "tool_use",
            Reason::Stop if finish.stop.is_some() => "stop_sequence",
            Reason::Stop => "end_turn",
            Reason::Length if self.max_tokens.is_some_and(|most| finish.usage.generated < most) => {
                "model_context_window_exceeded"
            }
            Reason::Length => "max_tokens",
        };
        (Some(reason), finish.stop.clone().filter(|_| reason == "stop_sequence"))
    }
}

/// What an answer has cost: tokens that were in the cache are counted apart.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    })
}

/// The events of a stream.
pub(super) struct MessageEvents {
    head: Head,
    choices: Choices,
    output: Output,
    /// The name of the request.
    id: String,
    begun: bool,
    done: bool,
}

impl MessageEvents {
    pub(super) fn new(head: Head, choices: Choices, output: Output, id: String) -> Self {
        Self { head, choices, output, id, begun: false, done: false }
    }

    fn begin(&mut self) -> String {
        self.begun = true;
        let mut message = self.head.message(&self.output);
        let prompt = self.choices.prompt_tokens();
        message["usage"] = usage(Usage { prompt, ..Usage::default() });
        let mut out = String::new();
        push(&mut out, &json!({"type": "message_start", "message": message}));
        push(&mut out, &json!({"type": "ping"}));
        out
    }

    fn end(&mut self) -> String {
        self.done = true;
        let finish = self.output.finish.as_ref();
        let (reason, stop) = self.head.stop(finish);
        let cost = usage(finish.map_or(Usage::default(), |finish| finish.usage));
        let mut out = String::new();
        let delta = json!({"stop_reason": reason, "stop_sequence": stop});
        push(&mut out, &json!({"type": "message_delta", "delta": delta, "usage": cost}));
        push(&mut out, &json!({"type": "message_stop"}));
        out
    }
}

/// Events are named by their type.
fn push(out: &mut String, event: &Value) {
    sse::push_named(out, event["type"].as_str().unwrap_or_default(), event);
}

impl Events for MessageEvents {
    async fn next(&mut self) -> Option<String> {
        if !self.begun {
            return Some(self.begin());
        }
        while !self.done {
            let mut out = String::new();
            match self.choices.next().await {
                None => return Some(self.end()),
                Some(Ok((_, deltas))) => {
                    for delta in deltas {
                        self.output.take(delta).iter().for_each(|event| push(&mut out, event));
                    }
                }
                Some(Err(error)) => {
                    self.done = true;
                    push(&mut out, &error.anthropic_body(&self.id));
                }
            }
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }
}
