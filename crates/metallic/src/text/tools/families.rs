//! What tells the families apart: by which marks each is known, and what stands around and inside its calls.

use super::table::{FAMILIES, GENERIC, PROMPTED};

/// What stands around calls, exactly as templates write it. A reader does not mind the whitespace at the ends.
#[derive(Debug)]
pub(super) struct Frame {
    /// Before all calls.
    pub(super) begin: &'static str,
    /// Before each call.
    pub(super) open: &'static str,
    /// Before the name; empty where calls are objects or expressions.
    pub(super) head: &'static str,
    /// After the arguments.
    pub(super) tail: &'static str,
    /// After each call.
    pub(super) close: &'static str,
    /// Between calls.
    pub(super) between: &'static str,
    /// After all calls.
    pub(super) end: &'static str,
}

/// One call.
#[derive(Debug)]
pub(super) enum Body {
    /// JSON objects with these keys for name and arguments; without keys, the name is the key.
    Objects { keys: Option<(&'static str, &'static str)>, list: bool, ids: bool },
    /// A name, then a JSON object.
    Named(Named),
    /// A name, then tags for keys and values.
    Tagged(Tagged),
    /// `f(a=1, b='x')`.
    Python { list: bool },
    /// `name{key:value}`, texts between these marks.
    Braces { quote: &'static str },
    /// Elements inside elements, each mark after this prefix.
    Elements { prefix: &'static str },
    /// Messages with a recipient.
    Harmony,
}

#[derive(Debug)]
pub(super) struct Named {
    /// Between head and name; `#` is a running number.
    pub(super) before: &'static str,
    /// Between name and arguments; `#` is a running number.
    pub(super) after: &'static str,
    /// The last part of `after`, up to which the name is read.
    pub(super) mark: &'static str,
    /// The name that stands for no call but for text.
    pub(super) text: Option<&'static str>,
}

#[derive(Debug)]
pub(super) struct Tagged {
    pub(super) name_end: &'static str,
    pub(super) key: &'static str,
    pub(super) key_end: &'static str,
    /// Between the attributes of a key, if it has any, and the value.
    pub(super) attributes: Attributes,
    pub(super) value_end: &'static str,
    /// What stands after each value.
    pub(super) after: &'static str,
    /// Values have lines to themselves.
    pub(super) lines: bool,
}

/// What is said of a value beside its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attributes {
    Nothing,
    /// `string="true">`
    IsText,
    /// `type="string"<|sep|>`
    Kind,
}

/// A way to write calls.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    /// A template that has all of one of these lists is of this family; so is a vocabulary that has all of the first.
    pub(super) signs: &'static [&'static [&'static str]],
    pub(super) frame: Frame,
    pub(super) body: Body,
    /// Further marks after which calls may follow, and which end them.
    pub(super) also: &'static [&'static str],
    pub(super) also_end: &'static [&'static str],
    /// Marks that belong to neither calls nor text.
    pub(super) quiet: &'static [&'static str],
    /// An answer may be a call without any mark.
    pub(super) bare: bool,
    /// The prompt ends with the head of the first call.
    pub(super) primed: bool,
    /// More than one call can be written.
    pub(super) parallel: bool,
}

/// The family of a template, or else of a vocabulary.
pub(super) fn of(template: Option<&str>, has: impl Fn(&str) -> bool) -> Option<&'static Family> {
    let of_vocabulary =
        || FAMILIES.iter().find(|f| f.signs.first().is_some_and(|signs| signs.iter().all(|sign| has(sign))));
    let Some(template) = template else { return of_vocabulary() };
    let written = FAMILIES
        .iter()
        .find(|f| f.signs.iter().any(|signs| signs.iter().all(|sign| template.contains(sign))));
    if written.is_some() {
        return written;
    }
    if takes_tools(template) { of_vocabulary().or(Some(&GENERIC)) } else { Some(&PROMPTED) }
}

/// Whether a template asks for the variable `tools`.
fn takes_tools(template: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    template.match_indices("tools").any(|(at, word)| {
        !template[..at].ends_with(is_word) && !template[at + word.len()..].starts_with(is_word)
    })
}

/// Every mark of a family that may be a token of its own.
pub(super) fn marks(family: &'static Family) -> Vec<&'static str> {
    let Frame { begin, open, head, tail, close, between: _, end } = family.frame;
    let mut texts = vec![begin, open, head, tail, close, end];
    match &family.body {
        Body::Named(named) => texts.extend([named.before, named.after]),
        Body::Tagged(t) => texts.extend([t.name_end, t.key, t.key_end, t.value_end]),
        Body::Braces { quote } => texts.push(quote),
        Body::Elements { prefix } => texts.push(prefix),
        Body::Harmony => texts.extend(["<|start|>", "<|channel|>"]),
        Body::Objects { .. } | Body::Python { .. } => {}
    }
    texts.extend(family.also.iter().chain(family.also_end).chain(family.quiet));
    let mut marks = Vec::new();
    for text in texts {
        marks.push(text.trim());
        marks.extend(pieces(text));
    }
    // What may stand beside the marks that a template writes.
    marks.extend(["[CALL_ID]", "<|open|>", "<|close|>", "<|sep|>"]);
    marks.retain(|mark| !mark.is_empty());
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// Parts of a text that look like marks: `<…>`, `[…]`.
fn pieces(text: &'static str) -> Vec<&'static str> {
    let mut out = Vec::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        let mut rest = text;
        while let Some(start) = rest.find(open) {
            let Some(len) = rest[start..].find(close) else { break };
            out.push(&rest[start..=start + len]);
            rest = &rest[start + len + 1..];
        }
    }
    out
}

/// The family of models that know nothing of tools but what they are told.
pub(super) fn prompted() -> &'static Family {
    &PROMPTED
}
