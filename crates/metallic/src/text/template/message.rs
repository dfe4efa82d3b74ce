use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation, as the OpenAI API and chat templates know it.
///
/// Fields that are not named here (`tool_calls`, `tool_call_id`, `name`, `reasoning_content`, …) are kept in `extra` and
/// reach the template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// A text, a list of parts, or null; `None` when the message has no content at all.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    /// Every other field.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Value::String(content.into())), extra: Map::new() }
    }

    /// A message of the system.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the assistant.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// Keeps `null` apart from a field that is not there: templates can tell them apart.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
