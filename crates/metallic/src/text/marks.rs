//! Marks of the chat format in what users wrote stay text: a message that contains `<|im_end|>` must not end itself.
//!
//! A chat template writes marks and messages into one text, in which they look alike. Before it runs, a sign that occurs nowhere
//! else is put into every mark that a message contains; the template carries it along, and the tokenizer takes it out again and
//! knows what to spell.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Message, TextError, Tokenizer};

/// What [`Tokenizer::guard_marks`] put into messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkGuard {
    sign: Option<char>,
}

impl Tokenizer {
    /// Guards the marks in messages of everyone but the assistant, and in the variable `documents`, so that
    /// [`encode_guarded`](Self::encode_guarded) spells them out.
    pub fn guard_marks(
        &self,
        messages: &mut [Message],
        variables: &mut Map<String, Value>,
    ) -> Result<MarkGuard, TextError> {
        let mut texts = Vec::new();
        for message in messages.iter_mut().filter(|m| m.role != "assistant" && m.role != "model") {
            texts.extend(message.content.as_mut());
            texts.extend(message.extra.values_mut());
        }
        texts.extend(variables.get_mut("documents"));
        let mut used = BTreeSet::new();
        let mut found = false;
        for text in &texts {
            each(text, &mut |text| {
                found |= !self.mark_places(text).is_empty();
                used.extend(text.chars().filter(|c| PRIVATE.contains(c)));
            });
        }
        let sign = if found {
            Some(PRIVATE.into_iter().find(|c| !used.contains(c)).ok_or(TextError::NoSign)?)
        } else {
            None
        };
        if let Some(sign) = sign {
            for text in texts {
                change(text, &|text| {
                    for place in self.mark_places(text).into_iter().rev() {
                        let first = text[place..].chars().next().map_or(0, char::len_utf8);
                        text.insert(place + first, sign);
                    }
                });
            }
        }
        Ok(MarkGuard { sign })
    }

    /// [`encode_chat`](Self::encode_chat) for the text of guarded messages.
    pub fn encode_guarded(&self, prompt: &str, guard: &MarkGuard) -> Result<Vec<u32>, TextError> {
        let Some(sign) = guard.sign.filter(|sign| prompt.contains(*sign)) else {
            return self.encode_chat(prompt);
        };
        let mut text = String::with_capacity(prompt.len());
        let mut spelled = Vec::new();
        for piece in prompt.split(sign) {
            text.push_str(piece);
            spelled.push(text.len());
        }
        spelled.pop();
        self.encode_chat_spelling(&text, &spelled)
    }
}

/// Supplementary private use: no text has a use for most of it.
const PRIVATE: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Calls `look` with every text in `value`.
fn each(value: &Value, look: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => look(text),
        Value::Array(list) => list.iter().for_each(|v| each(v, look)),
        Value::Object(map) => map.values().for_each(|v| each(v, look)),
        _ => {}
    }
}

/// Changes every text in `value`.
fn change(value: &mut Value, with: &impl Fn(&mut String)) {
    match value {
        Value::String(text) => with(text),
        Value::Array(list) => list.iter_mut().for_each(|v| change(v, with)),
        Value::Object(map) => map.values_mut().for_each(|v| change(v, with)),
        _ => {}
    }
}

/// Whether a mark from `start` to `end` has one of these places inside it or at its end.
pub(super) fn is_spelled(spelled: &[usize], start: usize, end: usize) -> bool {
    let first = spelled.partition_point(|&at| at <= start);
    spelled.get(first).is_some_and(|&at| at <= end)
}
