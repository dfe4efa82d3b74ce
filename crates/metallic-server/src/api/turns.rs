//! A conversation put together from items: what one side says in several of them is one message for a chat template.

use std::collections::BTreeMap;

use metallic::Message;
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// A conversation so far.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    messages: Vec<Message>,
    /// Whether what a user says in several messages is one.
    merges_users: bool,
    /// What the model said since somebody else spoke.
    answer: Option<Answer>,
    /// Names of the tools that were called, by the call's id.
    calls: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Answer {
    texts: Vec<String>,
    thoughts: Vec<String>,
    calls: Vec<Value>,
}

impl Turns {
    /// The same, where several messages of a user on end count as one.
    pub(crate) fn merging_users(self) -> Self {
        Self { merges_users: true, ..self }
    }

    /// Somebody other than the model speaks.
    pub(crate) fn say(&mut self, role: &str, text: String) {
        self.end_answer();
        let gap = match role {
            // Many templates know one system message alone.
            "system" => Some("\n\n"),
            "user" if self.merges_users => Some("\n"),
            _ => None,
        };
        if let Some(Message { role: last, content: Some(Value::String(before)), .. }) =
            self.messages.last_mut()
            && let Some(gap) = gap
            && role == last
        {
            before.push_str(gap);
            before.push_str(&text);
            return;
        }
        self.messages.push(message(role, text, Map::new()));
    }

    /// The model spoke.
    pub(crate) fn answer(&mut self, text: String) {
        self.answer.get_or_insert_default().texts.push(text);
    }

    /// The model thought.
    pub(crate) fn think(&mut self, text: String) {
        self.answer.get_or_insert_default().thoughts.push(text);
    }

    /// The model called a tool, with arguments as the object that they are: templates print it in ways of their own.
    pub(crate) fn call(&mut self, id: String, name: String, arguments: &Value) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.answer.get_or_insert_default().calls.push(call);
        self.calls.insert(id, name);
    }

    /// A tool gave its result. It must have been called; `pointer` is the field that says by which call.
    pub(crate) fn result(&mut self, id: &str, text: String, pointer: &str) -> Result<(), ApiError> {
        let Some(name) = self.calls.get(id).cloned() else {
            let message = format!("`{pointer}` is `{id:.100}`, and no tool was called with that id before");
            return Err(ApiError::invalid(pointer, message));
        };
        self.end_answer();
        let extra = Map::from_iter([("tool_call_id".into(), json!(id)), ("name".into(), json!(name))]);
        self.messages.push(message("tool", text, extra));
        Ok(())
    }

    fn end_answer(&mut self) {
        let Some(Answer { texts, thoughts, calls }) = self.answer.take() else { return };
        let mut extra = Map::new();
        if !thoughts.is_empty() {
            extra.insert("reasoning_content".into(), json!(thoughts.join("\n")));
        }
        if !calls.is_empty() {
            extra.insert("tool_calls".into(), Value::Array(calls));
        }
        self.messages.push(message("assistant", texts.join("\n"), extra));
    }

    /// Whether the model was the last to speak.
    pub(crate) fn ends_with_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// The messages, as chat templates take them.
    pub(crate) fn finish(mut self) -> Vec<Message> {
        self.end_answer();
        self.messages
    }
}

fn message(role: &str, text: String, extra: Map<String, Value>) -> Message {
    Message { role: role.to_owned(), content: Some(Value::String(text)), extra }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_says_in_several_items_is_one_message() {
        let mut turns = Turns::default();
        turns.say("system", "Be brief.".into());
        turns.say("system", "Be kind.".into());
        turns.say("user", "Weather?".into());
        turns.think("Hm.".into());
        turns.answer("I look.".into());
        turns.call("c1".into(), "weather".into(), &json!({"city": "Oslo"}));
        turns.call("c2".into(), "time".into(), &json!({}));
        turns.result("c1", "rain".into(), "/x").unwrap();
        turns.result("c2", "noon".into(), "/y").unwrap();
        assert!(!turns.ends_with_answer());
        let messages = turns.finish();
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
        assert_eq!(messages[0].content, Some(json!("Be brief.\n\nBe kind.")));
        assert_eq!(messages[2].extra["reasoning_content"], json!("Hm."));
        assert_eq!(messages[2].extra["tool_calls"].as_array().map(Vec::len), Some(2));
        assert_eq!(messages[4].extra["name"], json!("time"));
    }

    #[test]
    fn results_of_tools_that_were_not_called_are_refused() {
        let error = Turns::default().result("c9", "rain".into(), "/input/0/call_id").unwrap_err();
        assert_eq!(error.param(), Some("/input/0/call_id"));
    }
}
