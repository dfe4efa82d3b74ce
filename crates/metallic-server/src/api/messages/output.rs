//! What a model answers, as blocks and the events that tell of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::task::{Delta, Finish};

/// One block.
#[derive(Debug)]
enum Block {
    Thinking(String),
    Text(String),
    Call { id: String, name: String, arguments: String },
}

/// What may be chosen of how blocks are written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    /// Thoughts are not told, only sealed for the client to send back.
    pub(super) omit_thoughts: bool,
}

/// The blocks of an answer, of which the last may still grow.
#[derive(Debug)]
pub(super) struct Output {
    blocks: Vec<Block>,
    is_open: bool,
    written: Written,
    pub(super) finish: Option<Finish>,
}

impl Output {
    pub(super) fn new(written: Written) -> Self {
        Self { blocks: Vec::new(), is_open: false, written, finish: None }
    }

    /// The blocks as they are now.
    pub(super) fn blocks(&self) -> Vec<Value> {
        self.blocks.iter().map(|block| block.json(self.written)).collect()
    }

    /// Adds a piece of the answer; gives the events that tell of it.
    pub(super) fn take(&mut self, delta: Delta) -> Vec<Value> {
        let mut events = Vec::new();
        match delta {
            Delta::Prompt(_) | Delta::Token(_) => {}
            Delta::Reasoning(text) => {
                if !matches!(self.open(), Some(Block::Thinking(_))) {
                    self.begin(Block::Thinking(String::new()), &mut events);
                }
                self.grow(&text, &mut events);
            }
            Delta::Text(text) => {
                // A block of nothing but spaces, before thoughts or calls, would be refused when it comes back.
                let is_open = matches!(self.open(), Some(Block::Text(_)));
                if !is_open && text.trim().is_empty() && !self.blocks.is_empty() {
                    return events;
                }
                if !is_open {
                    self.begin(Block::Text(String::new()), &mut events);
                }
                self.grow(&text, &mut events);
            }
            Delta::ToolBegin { id, name, .. } => {
                // As ids of this API begin.
                let id = id.replacen("call_", "toolu_", 1);
                self.begin(Block::Call { id, name, arguments: String::new() }, &mut events);
            }
            Delta::ToolArguments { json, .. } => self.grow(&json, &mut events),
            Delta::ToolEnd { .. } => self.end(&mut events),
            Delta::Finished(finish) => {
                self.end(&mut events);
                self.finish = Some(finish);
            }
        }
        events
    }

    fn open(&self) -> Option<&Block> {
        self.blocks.last().filter(|_| self.is_open)
    }

    fn begin(&mut self, block: Block, events: &mut Vec<Value>) {
        self.end(events);
        let (index, json) = (self.blocks.len(), block.json(Written::default()));
        events.push(json!({"type": "content_block_start", "index": index, "content_block": json}));
        self.blocks.push(block);
        self.is_open = true;
    }

    fn grow(&mut self, more: &str, events: &mut Vec<Value>) {
        let index = self.blocks.len().saturating_sub(1);
        let Some(block) = self.blocks.last_mut().filter(|_| self.is_open) else { return };
        let delta = match block {
            Block::Thinking(text) => {
                text.push_str(more);
                if self.written.omit_thoughts {
                    return;
                }
                json!({"type": "thinking_delta", "thinking": more})
            }
            Block::Text(text) => {
                text.push_str(more);
                json!({"type": "text_delta", "text": more})
            }
            Block::Call { arguments, .. } => {
                arguments.push_str(more);
                json!({"type": "input_json_delta", "partial_json": more})
            }
        };
        events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    /// Ends the block that is open, where one is.
    fn end(&mut self, events: &mut Vec<Value>) {
        let Some(block) = self.open() else { return };
        let index = self.blocks.len().saturating_sub(1);
        if let Block::Thinking(_) = block {
            let signature = block.json(self.written)["signature"].take();
            let delta = json!({"type": "signature_delta", "signature": signature});
            events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        self.is_open = false;
    }
}

impl Block {
    fn json(&self, written: Written) -> Value {
        match self {
            Self::Thinking(text) if written.omit_thoughts => {
                json!({"type": "thinking", "thinking": "", "signature": STANDARD.encode(text)})
            }
            Self::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": ""}),
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Call { id, name, arguments } => {
                // What was cut off is no object.
                let input = serde_json::from_str::<Map<String, Value>>(arguments).unwrap_or_default();
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Reason, Usage};

    fn deltas() -> Vec<Delta> {
        vec![
            Delta::Reasoning("Hm".into()),
            Delta::Text("\n".into()),
            Delta::ToolBegin { index: 0, id: "call_1".into(), name: "weather".into() },
            Delta::ToolArguments { index: 0, json: "{\"city\":".into() },
            Delta::ToolArguments { index: 0, json: "\"Oslo\"}".into() },
            Delta::ToolEnd { index: 0 },
            Delta::Finished(Finish { reason: Reason::ToolCalls, stop: None, usage: Usage::default() }),
        ]
    }

    #[test]
    fn every_block_begins_grows_and_ends() {
        let mut output = Output::new(Written::default());
        let events: Vec<Value> = deltas().into_iter().flat_map(|delta| output.take(delta)).collect();
        let told: Vec<(&str, &str, u64)> = events
            .iter()
            .map(|event| {
                let kind = event["type"].as_str().unwrap();
                let inner = event.pointer("/delta/type").or(event.pointer("/content_block/type"));
                (kind, inner.and_then(Value::as_str).unwrap_or(""), event["index"].as_u64().unwrap())
            })
            .collect();
        let expected = [
            ("content_block_start", "thinking", 0),
            ("content_block_delta", "thinking_delta", 0),
            ("content_block_delta", "signature_delta", 0),
            ("content_block_stop", "", 0),
            ("content_block_start", "tool_use", 1),
            ("content_block_delta", "input_json_delta", 1),
            ("content_block_delta", "input_json_delta", 1),
            ("content_block_stop", "", 1),
        ];
        assert_eq!(told, expected);
        assert_eq!(events[4]["content_block"]["input"], json!({}));
        assert_eq!(output.blocks()[1]["input"], json!({"city": "Oslo"}));
    }

    #[test]
    fn thoughts_that_are_omitted_are_sealed() {
        let mut output = Output::new(Written { omit_thoughts: true });
        let events: Vec<Value> = deltas().into_iter().flat_map(|delta| output.take(delta)).collect();
        assert!(!events.iter().any(|event| event.to_string().contains("Hm")));
        assert_eq!(output.blocks()[0]["thinking"], "");
        assert_eq!(output.blocks()[0]["signature"], STANDARD.encode("Hm"));
    }
}
