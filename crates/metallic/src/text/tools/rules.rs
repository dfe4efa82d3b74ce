//! Rules of a grammar, and texts in them. What clients wrote in names and schemas is text whatever it says, and costs what it is long.

use std::cmp::Reverse;
use std::fmt::Write;

use serde_json::Value;

use super::schema::{kinds, listed, rooted};
use super::write::quoted;
use crate::text::TextError;

/// Bytes of names, values and schemas in a grammar, each as often as it stands there: longer ones are not taken by the compiler.
const MOST_TEXT: usize = 256 << 10;
/// Schemas, and values in them, that are looked at for one grammar.
const MOST_STEPS: usize = 200_000;
/// Any text, also across lines.
pub(super) const TEXT: &str = "/(.|\\n)*/";

/// A part of a text.
#[derive(Clone, Copy)]
pub(super) enum Part<'p> {
    /// What the family writes: marks in it that are tokens are written as such.
    Frame(&'p str),
    /// What a client wrote.
    Given(&'p str),
}

pub(super) struct Rules<'t> {
    pub(super) out: String,
    tokens: &'t [(u32, String)],
    count: usize,
    given: usize,
    steps: usize,
}

impl<'t> Rules<'t> {
    pub(super) fn new(tokens: &'t [(u32, String)]) -> Self {
        Self { out: String::new(), tokens, count: 0, given: 0, steps: MOST_STEPS }
    }

    pub(super) fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.out, "{name}: {body}");
    }

    /// A rule with a name of its own.
    pub(super) fn add(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("r{}", self.count);
        self.count += 1;
        self.rule(&format!("{name}{attributes}"), body);
        name
    }

    /// A text of the family, with marks that are tokens written as such.
    pub(super) fn frame(&self, text: &str) -> String {
        self.joined(&[Part::Frame(text)])
    }

    /// A text of several parts.
    pub(super) fn text(&mut self, parts: &[Part<'_>]) -> Result<String, TextError> {
        for part in parts {
            if let Part::Given(text) = part {
                self.take(text.len())?;
            }
        }
        Ok(self.joined(parts))
    }

    /// What a client wrote, as text.
    pub(super) fn given(&mut self, text: &str) -> Result<String, TextError> {
        self.take(text.len())?;
        Ok(quoted(text))
    }

    fn joined(&self, parts: &[Part<'_>]) -> String {
        let (mut out, mut plain) = (Vec::new(), String::new());
        for part in parts {
            let mut rest = match part {
                Part::Given(text) => {
                    plain.push_str(text);
                    continue;
                }
                Part::Frame(text) => *text,
            };
            while let Some((at, len, id)) = self.mark(rest) {
                plain.push_str(&rest[..at]);
                if !plain.is_empty() {
                    out.push(quoted(&std::mem::take(&mut plain)));
                }
                out.push(format!("<[{id}]>"));
                rest = &rest[at + len..];
            }
            plain.push_str(rest);
        }
        if !plain.is_empty() {
            out.push(quoted(&plain));
        }
        out.join(" ")
    }

    /// Where the first mark stands that is a token, the longest of those there, and its id.
    fn mark(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.tokens.iter().filter_map(|(id, mark)| {
            let at = text.find(mark.as_str())?;
            Some((at, Reverse(mark.len()), *id))
        });
        found.min().map(|(at, Reverse(len), id)| (at, len, id))
    }

    /// A text of the family with a running number in it.
    pub(super) fn numbered(&self, text: &str) -> String {
        let parts: Vec<String> = text.split('#').map(|part| self.frame(part)).collect();
        parts.join(" /[0-9]{1,4}/ ")
    }

    /// Any text, and what ends it.
    pub(super) fn text_until(&mut self, end: &str) -> String {
        let end = self.frame(end);
        if end.starts_with('<') {
            // No text contains a special token.
            return format!("({TEXT} {end})");
        }
        // The end up to the first special token belongs to the lexeme, which is as short as can be.
        let (first, rest) =
            end.split_once(" <[").map_or((&*end, String::new()), |(a, b)| (a, format!(" <[{b}")));
        let name = self.add("[lazy]", &format!("{TEXT} {first}"));
        format!("({name}{rest})")
    }

    /// JSON of a part of a tool's schema.
    pub(super) fn json(&mut self, root: &Value, schema: &Value) -> Result<String, TextError> {
        let schema =
            if std::ptr::eq(root, schema) { schema.to_string() } else { rooted(root, schema).to_string() };
        self.take(schema.len())?;
        Ok(format!("%json {schema}"))
    }

    /// The kinds of JSON that a schema allows, as far as its words tell.
    pub(super) fn kinds(&mut self, root: &Value, schema: &Value) -> Result<Vec<String>, TextError> {
        let found = kinds(root, schema, &mut self.steps);
        self.may_go_on().map(|()| found)
    }

    /// The kind of a schema that allows but one.
    pub(super) fn only_kind(&mut self, root: &Value, schema: &Value) -> Result<Option<String>, TextError> {
        Ok(<[String; 1]>::try_from(self.kinds(root, schema)?).ok().map(|[kind]| kind))
    }

    /// The values a schema allows, where it lists them and none of them has parts.
    pub(super) fn listed<'v>(
        &mut self,
        root: &'v Value,
        schema: &'v Value,
    ) -> Result<Option<Vec<&'v Value>>, TextError> {
        let found = listed(root, schema, &mut self.steps);
        self.may_go_on().map(|()| found)
    }

    fn may_go_on(&self) -> Result<(), TextError> {
        if self.steps > 0 {
            return Ok(());
        }
        let reason = format!("their schemas have more than {MOST_STEPS} alternatives and values in all");
        Err(TextError::Tools { reason })
    }

    fn take(&mut self, bytes: usize) -> Result<(), TextError> {
        self.given += bytes;
        if self.given <= MOST_TEXT {
            return Ok(());
        }
        let reason =
            format!("their grammar has more than {MOST_TEXT} bytes, each definition wherever it is used");
        Err(TextError::Tools { reason })
    }
}
