//! A conversation and what its template is told.

use serde_json::{Map, Value};

use crate::text::Message;

/// A conversation to answer, with the tools the model may call and what else its template asks for.
///
/// ```
/// use metallic::{Chat, Message};
/// use serde_json::json;
///
/// let weather = json!({"type": "function", "function": {
///     "name": "weather",
///     "description": "The weather of a city",
///     "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
/// }});
/// let chat = Chat::new([Message::user("Do I need an umbrella in Oslo?")])
///     .tools([weather])
///     .variable("enable_thinking", false);
/// assert_eq!(chat.tools.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Chat {
    /// What was said so far.
    pub messages: Vec<Message>,
    /// Definitions of tools, in the form the template was made for; usually that of the OpenAI API.
    pub tools: Vec<Value>,
    /// Further variables of the template: `enable_thinking`, `documents`, `date_string`, …
    pub variables: Map<String, Value>,
    /// Whether marks of the model (`<|im_end|>`) inside messages count as such. Else they are text, whoever wrote them.
    pub parse_marks: bool,
    /// Whether thoughts are told from the answer, for models that think aloud: the text of tokens and of the
    /// completion is then the answer alone, and thoughts are in the field `reasoning`.
    pub split_reasoning: bool,
}

metallic_core::setters!(Chat {
    messages: impl Into<Vec<Message>>,
    tools: impl Into<Vec<Value>>,
    variables: Map<String, Value>,
    parse_marks: bool,
    split_reasoning: bool,
});

impl Chat {
    /// A conversation without tools.
    pub fn new(messages: impl Into<Vec<Message>>) -> Chat {
        Chat::default().messages(messages)
    }

    /// Sets one variable of the template.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Chat {
        self.variables.insert(name.into(), value.into());
        self
    }
}

/// Messages in whatever holds them.
impl<M: AsRef<[Message]>> From<M> for Chat {
    fn from(messages: M) -> Chat {
        Chat::new(messages.as_ref())
    }
}
