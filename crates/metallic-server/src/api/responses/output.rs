//! What a model answers, as the items of a response and the events that tell of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::http::fresh_id;
use crate::task::{Delta, Finish, Reason, TokenDelta, TokenText};

/// What one item says.
#[derive(Debug)]
enum Content {
    Reasoning(String),
    Message { text: String, tokens: Vec<TokenDelta> },
    Call { id: String, name: String, arguments: String },
}

/// How far an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Open,
    Complete,
    /// The answer ended within it.
    Cut,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "in_progress",
            Self::Complete => "completed",
            Self::Cut => "incomplete",
        }
    }
}

#[derive(Debug)]
struct Item {
    id: String,
    content: Content,
    status: Status,
}

/// What may be chosen of how items are written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    /// Whether texts come with log-probabilities.
    pub(super) logprobs: bool,
    /// Whether thoughts come in a form that clients send back without reading it.
    pub(super) sealed: bool,
}

/// The items of an answer, of which the last may still grow.
#[derive(Debug)]
pub(super) struct Output {
    items: Vec<Item>,
    written: Written,
    /// Tokens whose text is still to come.
    tokens: Vec<TokenDelta>,
    pub(super) finish: Option<Finish>,
}

impl Output {
    pub(super) fn new(written: Written) -> Self {
        Self { items: Vec::new(), written, tokens: Vec::new(), finish: None }
    }

    /// The items as they are now.
    pub(super) fn items(&self) -> Vec<Value> {
        self.items.iter().map(|item| item.json(self.written)).collect()
    }

    /// Adds a piece of the answer; gives the events that tell of it, without their numbers.
    pub(super) fn take(&mut self, delta: Delta) -> Vec<Value> {
        let mut events = Vec::new();
        match delta {
            // Nobody asks for them here.
            Delta::Prompt(_) => {}
            Delta::Token(token) => self.tokens.push(token),
            Delta::Reasoning(text) => {
                if !matches!(self.open(), Some(Item { content: Content::Reasoning(_), .. })) {
                    self.begin("rs_", Content::Reasoning(String::new()), &mut events);
                }
                self.grow("response.reasoning_text.delta", &text, &mut events);
            }
            Delta::Text(text) => {
                if !matches!(self.open(), Some(Item { content: Content::Message { .. }, .. })) {
                    let content = Content::Message { text: String::new(), tokens: Vec::new() };
                    self.begin("msg_", content, &mut events);
                }
                self.grow("response.output_text.delta", &text, &mut events);
            }
            Delta::ToolBegin { id, name, .. } => {
                self.begin("fc_", Content::Call { id, name, arguments: String::new() }, &mut events);
            }
            Delta::ToolArguments { json, .. } => {
                self.grow("response.function_call_arguments.delta", &json, &mut events);
            }
            Delta::ToolEnd { .. } => self.end(Status::Complete, &mut events),
            Delta::Finished(finish) => {
                let cut = finish.reason == Reason::Length;
                if self.items.is_empty() {
                    let content = Content::Message { text: String::new(), tokens: Vec::new() };
                    self.begin("msg_", content, &mut events);
                }
                self.end(if cut { Status::Cut } else { Status::Complete }, &mut events);
                self.finish = Some(finish);
            }
        }
        events
    }

    fn open(&self) -> Option<&Item> {
        self.items.last().filter(|item| item.status == Status::Open)
    }

    fn begin(&mut self, prefix: &str, content: Content, events: &mut Vec<Value>) {
        self.end(Status::Complete, events);
        let item = Item { id: fresh_id(prefix), content, status: Status::Open };
        let index = self.items.len();
        let mut json = item.json(self.written);
        // Parts are told of one by one.
        if json.get("content").is_some() {
            json["content"] = json!([]);
        }
        events.push(json!({"type": "response.output_item.added", "output_index": index, "item": json}));
        if let Some(part) = item.part(self.written) {
            let mut event = item.event("response.content_part.added", index);
            event["part"] = part;
            events.push(event);
        }
        self.items.push(item);
    }

    fn grow(&mut self, event: &str, more: &str, events: &mut Vec<Value>) {
        let index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut().filter(|item| item.status == Status::Open) else { return };
        let mut event = item.event(event, index);
        event["delta"] = json!(more);
        match &mut item.content {
            Content::Reasoning(text) | Content::Call { arguments: text, .. } => text.push_str(more),
            Content::Message { text, tokens } => {
                text.push_str(more);
                event["logprobs"] = logprobs(&self.tokens);
                tokens.append(&mut self.tokens);
            }
        }
        events.push(event);
    }

    /// Ends the item that is open, where one is.
    fn end(&mut self, status: Status, events: &mut Vec<Value>) {
        let index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut().filter(|item| item.status == Status::Open) else { return };
        item.status = status;
        if let Content::Message { tokens, .. } = &mut item.content {
            // Those whose text was held back to the end.
            tokens.append(&mut self.tokens);
        }
        match &item.content {
            Content::Reasoning(text) => {
                let mut event = item.event("response.reasoning_text.done", index);
                event["text"] = json!(text);
                events.push(event);
            }
            Content::Message { text, tokens } => {
                let mut event = item.event("response.output_text.done", index);
                event["text"] = json!(text);
                event["logprobs"] = logprobs(tokens);
                events.push(event);
            }
            Content::Call { name, arguments, .. } => {
                let mut event = item.event("response.function_call_arguments.done", index);
                event["name"] = json!(name);
                event["arguments"] = json!(arguments);
                events.push(event);
            }
        }
        if let Some(part) = item.part(self.written) {
            let mut event = item.event("response.content_part.done", index);
            event["part"] = part;
            events.push(event);
        }
        let json = item.json(self.written);
        events.push(json!({"type": "response.output_item.done", "output_index": index, "item": json}));
    }
}

impl Item {
    /// An event of this item.
    fn event(&self, kind: &str, index: usize) -> Value {
        let mut event = json!({"type": kind, "item_id": self.id, "output_index": index});
        if !matches!(self.content, Content::Call { .. }) {
            event["content_index"] = json!(0);
        }
        event
    }

    /// The one part of its content, where it has parts.
    fn part(&self, written: Written) -> Option<Value> {
        match &self.content {
            Content::Reasoning(text) => Some(json!({"type": "reasoning_text", "text": text})),
            Content::Message { text, tokens } => {
                let logprobs = if written.logprobs { logprobs(tokens) } else { json!([]) };
                Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}))
            }
            Content::Call { .. } => None,
        }
    }

    fn json(&self, written: Written) -> Value {
        let (id, status) = (&self.id, self.status.name());
        match &self.content {
            Content::Reasoning(text) => {
                let mut item = json!({"id": id, "type": "reasoning", "summary": [], "status": status});
                item["content"] = self.part(written).into_iter().collect();
                if written.sealed {
                    item["encrypted_content"] = json!(STANDARD.encode(text));
                }
                item
            }
            Content::Message { .. } => {
                let content: Vec<Value> = self.part(written).into_iter().collect();
                json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
            }
            Content::Call { id: call_id, name, arguments } => json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
            }),
        }
    }
}

/// Log-probabilities of tokens, as texts of a response have them.
fn logprobs(tokens: &[TokenDelta]) -> Value {
    let entry =
        |token: &TokenText| json!({"token": token.text, "logprob": token.logprob, "bytes": token.bytes});
    let entries = tokens.iter().map(|TokenDelta { token, top }| {
        let mut value = entry(token);
        value["top_logprobs"] = top.iter().map(entry).collect();
        value
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Usage;

    fn finished(reason: Reason) -> Delta {
        Delta::Finished(Finish { reason, stop: None, usage: Usage::default() })
    }

    fn kinds(output: &mut Output, deltas: Vec<Delta>) -> Vec<String> {
        let events = deltas.into_iter().flat_map(|delta| output.take(delta));
        events
            .map(|event| event["type"].as_str().unwrap().trim_start_matches("response.").to_owned())
            .collect()
    }

    #[test]
    fn thoughts_text_and_calls_are_items_of_their_own() {
        let mut output = Output::new(Written { logprobs: false, sealed: true });
        let deltas = vec![
            Delta::Reasoning("Hm".into()),
            Delta::Text("I ".into()),
            Delta::Text("look.".into()),
            Delta::ToolBegin { index: 0, id: "call_1".into(), name: "weather".into() },
            Delta::ToolArguments { index: 0, json: "{\"city\":".into() },
            Delta::ToolArguments { index: 0, json: "\"Oslo\"}".into() },
            Delta::ToolEnd { index: 0 },
            finished(Reason::ToolCalls),
        ];
        let found = kinds(&mut output, deltas);
        let item = |inner: &[&str]| -> Vec<String> {
            let around = [&["output_item.added"], inner, &["output_item.done"]].concat();
            around.into_iter().map(str::to_owned).collect()
        };
        let expected = [
            item(&["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"]),
            item(&[
                "content_part.added",
                "output_text.delta",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
            ]),
            item(&[
                "function_call_arguments.delta",
                "function_call_arguments.delta",
                "function_call_arguments.done",
            ]),
        ];
        assert_eq!(found, expected.concat());
        let items = output.items();
        assert_eq!(items[0]["content"][0]["text"], "Hm");
        assert_eq!(items[0]["encrypted_content"], STANDARD.encode("Hm"));
        assert_eq!(items[1]["content"][0]["text"], "I look.");
        assert_eq!(
            (&items[2]["arguments"], &items[2]["call_id"]),
            (&json!("{\"city\":\"Oslo\"}"), &json!("call_1"))
        );
        assert!(items.iter().all(|item| item["status"] == "completed"));
    }

    #[test]
    fn what_is_cut_off_is_incomplete_and_silence_is_an_empty_message() {
        let mut output = Output::new(Written::default());
        kinds(&mut output, vec![Delta::Text("I".into()), finished(Reason::Length)]);
        assert_eq!(output.items()[0]["status"], "incomplete");
        let mut output = Output::new(Written::default());
        kinds(&mut output, vec![finished(Reason::Stop)]);
        assert_eq!(output.items()[0]["content"][0]["text"], "");
    }
}
