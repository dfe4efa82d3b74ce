//! Calls of tools: how each family of models writes them, told from the text around them as it streams, forced by a grammar, and
//! written back into conversations.

mod conversation;
mod cursor;
mod elements;
mod families;
mod grammar;
mod habits;
mod json;
mod literal;
mod named;
mod read;
mod rules;
mod schema;
mod table;
mod tagged;
mod write;

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "constrain"))]
mod tests_grammar;
#[cfg(test)]
mod tests_templates;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use serde_json::{Map, Value};

use super::{TextError, Tokenizer};
use cursor::Cursor;
use families::Family;
use schema::Tools;

pub(crate) use conversation::render;
pub use conversation::system_prompt;
pub(in crate::text) use habits::Habits;

/// Which tools a model may call in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Text or calls, as the model likes.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// A call of this tool.
    Named(String),
}

/// A piece of an answer.
///
/// What the pieces add up to does not depend on how the text was cut. The arguments of one call, put together, are the JSON that the
/// model wrote; a call without `End` broke off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolPiece {
    /// Text that belongs to no call.
    Text(String),
    /// A call begins.
    Begin {
        /// Which call of the answer, from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Which call.
        index: usize,
        /// A fragment of a JSON object.
        json: String,
    },
    /// A call is complete.
    End {
        /// Which call.
        index: usize,
    },
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments as the model wrote them: a JSON object, unless the model made a mistake.
    pub arguments: String,
    /// Whether the call was complete when the text ended.
    pub complete: bool,
}

/// A whole answer, put together of its pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolAnswer {
    /// Text that belongs to no call.
    pub text: String,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
}

impl Extend<ToolPiece> for ToolAnswer {
    fn extend<T: IntoIterator<Item = ToolPiece>>(&mut self, pieces: T) {
        for piece in pieces {
            match piece {
                ToolPiece::Text(text) => self.text.push_str(&text),
                ToolPiece::Begin { name, .. } => self.calls.push(ToolCall { name, ..ToolCall::default() }),
                ToolPiece::Arguments { index, json } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&json);
                    }
                }
                ToolPiece::End { index } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.complete = true;
                    }
                }
            }
        }
    }
}

impl FromIterator<ToolPiece> for ToolAnswer {
    fn from_iter<T: IntoIterator<Item = ToolPiece>>(pieces: T) -> Self {
        let mut answer = Self::default();
        answer.extend(pieces);
        answer
    }
}

/// How a model writes calls of tools.
///
/// ```
/// # use metallic::text::{HfFiles, ToolAnswer, ToolFormat, Tokenizer};
/// # let json = br#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}"#;
/// # let tokenizer = Tokenizer::from_hf_files(HfFiles { tokenizer: json, ..HfFiles::default() })?;
/// let format = ToolFormat::of(Some("{{ tools }} … <tool_call> …"), &tokenizer).unwrap();
/// let mut parser = format.parser(&[]);
/// let mut answer = ToolAnswer::default();
/// for text in ["Let me see.\n<tool", "_call>{\"name\": \"weather\", \"argum", "ents\": {\"city\": \"Oslo\"}}</tool_call>"] {
///     answer.extend(parser.push(text));
/// }
/// answer.extend(parser.finish());
/// assert_eq!(answer.text, "Let me see.");
/// assert_eq!((&*answer.calls[0].name, &*answer.calls[0].arguments), ("weather", r#"{"city": "Oslo"}"#));
/// # Ok::<(), metallic::text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ToolFormat {
    family: &'static Family,
    /// The marks that are tokens which are no text, with their ids: a decoder leaves them out.
    tokens: Arc<[(u32, String)]>,
}

impl PartialEq for ToolFormat {
    fn eq(&self, other: &Self) -> bool {
        self.family.name == other.family.name && self.tokens == other.tokens
    }
}

impl Eq for ToolFormat {}

impl ToolFormat {
    /// The format that a chat template writes, or else that the vocabulary has tokens for.
    ///
    /// A template that takes tools in an unknown way gives a format that understands JSON objects with a name and arguments. A template
    /// that knows nothing of tools gives the format that [`system_prompt`] asks for. `None` for models without a template, unless their
    /// vocabulary says more.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> Option<Self> {
        let family = families::of(template, |mark| tokenizer.token_to_id(mark).is_some())?;
        let tokens = families::marks(family).into_iter().filter_map(|mark| {
            let id = tokenizer.token_to_id(mark).filter(|&id| tokenizer.is_special(id))?;
            Some((id, mark.to_owned()))
        });
        let mut tokens: Vec<_> = tokens.collect();
        tokens.sort();
        tokens.dedup();
        Some(Self { family, tokens: tokens.into() })
    }

    /// The name of the format, for logs and tests: `hermes`, `llama`, `mistral`, …; `generic` where a template takes tools in an unknown
    /// way and `prompted` where it does not take them.
    pub fn name(&self) -> &'static str {
        self.family.name
    }

    /// A parser for one answer. The tools tell it which names count where calls have no marks, and of which type arguments are where
    /// the format does not say.
    pub fn parser(&self, tools: &[Value]) -> ToolParser {
        let cursor = Cursor::new();
        let reader = read::answer(cursor.clone(), self.family, Arc::new(Tools::new(tools)));
        let mut parser =
            ToolParser { cursor, reader: Some(Box::pin(reader)), tokens: Arc::clone(&self.tokens) };
        if self.family.primed {
            // The prompt ended with the mark that opens the first message.
            parser.push(self.family.frame.head);
        }
        parser
    }

    /// A whole text taken apart.
    pub fn parse(&self, text: &str, tools: &[Value]) -> ToolAnswer {
        let mut parser = self.parser(tools);
        let mut answer = ToolAnswer::default();
        answer.extend(parser.push(text));
        answer.extend(parser.finish());
        answer
    }

    /// Calls as the model writes them: name and arguments of each.
    pub fn write(&self, calls: &[(String, Map<String, Value>)]) -> String {
        write::calls(self.family, calls)
    }

    /// A grammar in the dialect of Lark that llguidance reads, which lets the model write nothing but calls of these tools; with
    /// `parallel` more than one, where the family can. Special tokens are written by their ids, arguments by their JSON schemas.
    ///
    /// `None` for [`ToolChoice::Auto`] and [`ToolChoice::None`], which force nothing.
    pub fn grammar(
        &self,
        tools: &[Value],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Option<String>, TextError> {
        grammar::grammar(self.family, &self.tokens, tools, (choice, parallel))
    }
}

/// Tells calls from text in a streamed answer, wherever it is cut.
///
/// Text comes as soon as it is certain to be no call, names as soon as they are known, arguments as they are written. Marks, and
/// whitespace around them, belong to neither. A malformed call is text; once its name has been told, what follows up to its closing
/// mark is told as arguments, so that nothing is lost.
pub struct ToolParser {
    cursor: Cursor,
    /// Reads until the text ends.
    reader: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    tokens: Arc<[(u32, String)]>,
}

impl fmt::Debug for ToolParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolParser").field("cursor", &self.cursor).finish_non_exhaustive()
    }
}

impl ToolParser {
    /// Takes a token and the text that became certain with it.
    pub fn push_token(&mut self, id: u32, text: &str) -> Vec<ToolPiece> {
        let mut pieces = self.push(text);
        let mark = self.tokens.iter().find(|t| t.0 == id).map(|t| t.1.clone());
        if let Some(mark) = mark.filter(|mark| !text.ends_with(mark.as_str())) {
            pieces.extend(self.push(&mark));
        }
        pieces
    }

    /// Takes more text and gives what is certain of it.
    pub fn push(&mut self, text: &str) -> Vec<ToolPiece> {
        if !text.is_empty() {
            self.cursor.feed(text);
            self.poll();
        }
        self.cursor.pieces()
    }

    /// Ends the text: what was held back is no call after all.
    pub fn finish(&mut self) -> Vec<ToolPiece> {
        self.cursor.end();
        self.poll();
        self.cursor.pieces()
    }

    fn poll(&mut self) {
        let Some(reader) = &mut self.reader else { return };
        let mut context = Context::from_waker(Waker::noop());
        if reader.as_mut().poll(&mut context).is_ready() {
            self.reader = None;
        }
    }
}
