//! A response as it is told: whole, or as a stream of events.

use serde_json::{Value, json};

use super::output::Output;
use super::store::Stored;
use crate::error::ApiError;
use crate::http::sse::{self, Events};
use crate::models::unix_time;
use crate::server::Server;
use crate::task::{Choices, Reason, Usage};

/// A response in the making.
pub(super) struct Envelope {
    server: Server,
    key: Option<usize>,
    /// What does not depend on the answer.
    echo: Value,
    /// Everything that was said before, where the response is to be kept.
    items: Option<Vec<Value>>,
}

impl Envelope {
    pub(super) fn new(server: Server, key: Option<usize>, echo: Value, items: Option<Vec<Value>>) -> Self {
        Self { server, key, echo, items }
    }

    /// The response at its end, which is kept where that was asked for.
    pub(super) fn end(&mut self, output: &Output) -> Value {
        let (mut response, items) = (self.echo.clone(), output.items());
        let finish = output.finish.as_ref();
        let cut = finish.is_none_or(|finish| finish.reason == Reason::Length);
        response["status"] = json!(if cut { "incomplete" } else { "completed" });
        if cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = json!(unix_time());
        }
        response["usage"] = finish.map_or(Value::Null, |finish| usage(finish.usage));
        response["output"] = json!(items);
        if let (Some(mut said), Some(id)) = (self.items.take(), response["id"].as_str()) {
            said.extend(items);
            let stored = Stored::new(self.key, &response, &said);
            self.server.responses().put(id.to_owned(), stored, &self.server.options().limits);
        }
        response
    }

    /// The response that broke off.
    fn failed(&self, output: &Output, error: &ApiError) -> Value {
        let code = match error {
            ApiError::Busy { .. } => "rate_limit_exceeded",
            ApiError::Field { .. } => "invalid_prompt",
            _ => "server_error",
        };
        let mut response = self.echo.clone();
        response["status"] = json!("failed");
        response["error"] = json!({"code": code, "message": error.to_string()});
        response["output"] = json!(output.items());
        response
    }
}

/// What a response has cost.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.generated,
    })
}

/// The events of a stream.
pub(super) struct ResponseEvents {
    envelope: Envelope,
    choices: Choices,
    output: Output,
    /// The number of the next event.
    sequence: u64,
    done: bool,
}

impl ResponseEvents {
    pub(super) fn new(envelope: Envelope, choices: Choices, output: Output) -> Self {
        Self { envelope, choices, output, sequence: 0, done: false }
    }

    fn push(&mut self, out: &mut String, mut event: Value) {
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        sse::push_named(out, event["type"].as_str().unwrap_or_default(), &event);
    }

    fn push_response(&mut self, out: &mut String, kind: &str, response: &Value) {
        self.push(out, json!({"type": kind, "response": response}));
    }

    fn begin(&mut self) -> String {
        let (mut out, response) = (String::new(), self.envelope.echo.clone());
        self.push_response(&mut out, "response.created", &response);
        self.push_response(&mut out, "response.in_progress", &response);
        out
    }

    fn end(&mut self) -> String {
        self.done = true;
        let (mut out, response) = (String::new(), self.envelope.end(&self.output));
        let kind = format!("response.{}", response["status"].as_str().unwrap_or_default());
        self.push_response(&mut out, &kind, &response);
        out
    }
}

impl Events for ResponseEvents {
    async fn next(&mut self) -> Option<String> {
        if self.sequence == 0 {
            return Some(self.begin());
        }
        while !self.done {
            let mut out = String::new();
            match self.choices.next().await {
                None => return Some(self.end()),
                Some(Ok((_, deltas))) => {
                    for event in
                        deltas.into_iter().flat_map(|delta| self.output.take(delta)).collect::<Vec<_>>()
                    {
                        self.push(&mut out, event);
                    }
                }
                Some(Err(error)) => {
                    self.done = true;
                    let response = self.envelope.failed(&self.output, &error);
                    self.push_response(&mut out, "response.failed", &response);
                }
            }
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }
}
