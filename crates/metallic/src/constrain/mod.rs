//! Answers that have a format: a JSON schema, a regular expression, a grammar, one of several texts.
//!
//! A [`Constrainer`] is made once for a model's vocabulary. It compiles a [`Format`] into a [`Constraint`], which goes into a
//! [`Request`](crate::Request): before each token, those that the format does not allow are banned, and where the format is
//! complete the answer ends.
//!
//! ```no_run
//! use metallic::constrain::Format;
//! use metallic::{Llm, Message};
//!
//! let llm = Llm::load("SmolLM2-135M-Instruct.Q4_1.gguf")?;
//! let format = Format::json_schema(
//!     r#"{"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}}, "required": ["city", "people"]}"#,
//! )?;
//! let request = llm.chat_request([Message::user("Tell me of Paris, as JSON.")])?;
//! let request = request.constraint(llm.constrainer()?.constraint(&format)?).max_tokens(64);
//! println!("{}", llm.submit(request)?.complete()?.text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Schemas are taken strictly: a keyword that cannot be enforced is refused by name, never ignored. An answer in JSON is finished
//! within its `max_tokens`: when they run short, what is open is closed by the shortest way.

mod close;
mod constraint;
mod error;
mod finite;
mod format;
mod growth;
mod keywords;
mod lark;
mod mask;
mod number;
mod pattern;
mod schema;
mod vocabulary;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::{ParserFactory, TokenParser};
use serde_json::{Value, json};

pub use constraint::Constraint;
pub use error::ConstrainError;
use error::reason;
use schema::OneOf;
use vocabulary::Vocabulary;

use crate::text::Tokenizer;

/// Bytes of an expression, of a grammar, of all choices together.
const MOST_TEXT: usize = 256 << 10;
/// Bytes of stack to compile a format on; only what is used of it becomes memory.
const STACK: usize = 256 << 20;
/// How the compiler says that alternatives cannot be told apart.
const OVERLAP: &str = "oneOf constraints are not supported";
/// Compiled formats that are kept for the next request.
const KEPT: usize = 16;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by this schema.
    JsonSchema(Value),
    /// Text that matches this expression from its beginning to its end, in Rust's syntax without looking around.
    Regex(String),
    /// Text of this grammar, in llguidance's variant of Lark: rules are lower case, `start` is the first, marks of the vocabulary
    /// are `<name>`, JSON schemas are `%json {…}`.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Format {
    /// A [`Format::JsonSchema`] of its text.
    pub fn json_schema(text: &str) -> Result<Format, ConstrainError> {
        let schema = serde_json::from_str(text);
        let schema = schema
            .map_err(|error| ConstrainError::Grammar { kind: "JSON schema", reason: error.to_string() })?;
        Ok(Format::JsonSchema(schema))
    }

    /// Whether it could be a format at all, as far as that shows without a vocabulary: every keyword of its schemas can be enforced, and
    /// its size is within the limits.
    pub fn check(&self) -> Result<(), ConstrainError> {
        self.grammar().map(|_| ())
    }

    fn kind(&self) -> &'static str {
        match self {
            Format::JsonObject | Format::JsonSchema(_) => "JSON schema",
            Format::Regex(_) => "regular expression",
            Format::Lark(_) => "grammar",
            Format::Choice(_) => "choice",
        }
    }

    fn grammar(&self) -> Result<Parts, ConstrainError> {
        let plain = |grammar| Ok(Parts { grammar, growth: None, one_of: Vec::new() });
        let of_schema = |schema: &Value| {
            let schema::Checked { schema, growth, one_of } = schema::check(schema)?;
            Ok(Parts { grammar: TopLevelGrammar::from_json_schema(schema), growth: Some(growth), one_of })
        };
        match self {
            Format::JsonObject => of_schema(&json!({ "type": "object" })),
            Format::JsonSchema(schema) => of_schema(schema),
            Format::Regex(expression) => {
                limited("length of the expression", expression.len())?;
                plain(TopLevelGrammar::from_regex(expression))
            }
            Format::Lark(source) => {
                limited("length of the grammar", source.len())?;
                let (source, one_of) = lark::with_checked_schemas(source)?;
                Ok(Parts { grammar: TopLevelGrammar::from_lark(source), growth: None, one_of })
            }
            Format::Choice(texts) => {
                limited("length of the choices", texts.iter().map(String::len).sum())?;
                if texts.is_empty() || texts.iter().any(String::is_empty) {
                    let reason = "it needs one text or more, and none of them empty".to_owned();
                    return Err(ConstrainError::Grammar { kind: self.kind(), reason });
                }
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                plain(TopLevelGrammar::from_regex(&format!("(?:{})", texts.join("|"))))
            }
        }
    }
}

/// What is compiled for a format.
struct Parts {
    grammar: TopLevelGrammar,
    /// By how much a token may put off the end, where the answer is JSON.
    growth: Option<usize>,
    /// Alternatives of which one alone may hold.
    one_of: Vec<OneOf>,
}

fn limited(what: &'static str, found: usize) -> Result<(), ConstrainError> {
    if found > MOST_TEXT { Err(ConstrainError::TooLarge { what, found, limit: MOST_TEXT }) } else { Ok(()) }
}

/// An expression for a text as it is.
fn literal(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:X}}}", c as u32) })
        .collect()
}

/// Compiles formats for one vocabulary. Copies share all of it.
#[derive(Clone)]
pub struct Constrainer {
    shared: Arc<Shared>,
}

struct Shared {
    vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
    /// The formats compiled last, the latest first.
    kept: Mutex<VecDeque<Compiled>>,
}

#[derive(Clone)]
struct Compiled {
    format: Format,
    parser: TokenParser,
    growth: Option<usize>,
}

impl Constrainer {
    /// Makes the tree of a vocabulary's tokens. `end_tokens` are those that end an answer; without any, an answer ends where its
    /// format allows nothing more.
    pub fn new(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Result<Constrainer, ConstrainError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, end_tokens)?);
        let factory = vocabulary.factory()?;
        Ok(Constrainer { shared: Arc::new(Shared { vocabulary, factory, kept: Mutex::default() }) })
    }

    /// Compiles a format, in bounded time and memory, for one request. A format that was compiled before is only copied.
    pub fn constraint(&self, format: &Format) -> Result<Constraint, ConstrainError> {
        let known = self.kept().iter().find(|compiled| compiled.format == *format).cloned();
        let compiled = match known {
            Some(compiled) => compiled,
            None => self.compile(format)?,
        };
        // A copy of its own for each: the matcher's tables are behind a lock.
        let parser = compiled.parser.deep_clone();
        Ok(Constraint::new(parser, Arc::clone(&self.shared.vocabulary), compiled.growth))
    }

    fn compile(&self, format: &Format) -> Result<Compiled, ConstrainError> {
        let refused = |reason| ConstrainError::Grammar { kind: format.kind(), reason };
        let Parts { grammar, growth, one_of } = format.grammar()?;
        let parser = self.parser(grammar);
        let overlap = match &parser {
            Err(reason) if !reason.contains(OVERLAP) => return Err(refused(reason.clone())),
            Err(_) => {
                let first = one_of.first().map(|one_of| one_of.pointer.clone());
                self.overlap(&one_of, |_| true).or(first).or_else(|| Some(String::new()))
            }
            Ok(_) => self.overlap(&one_of, |one_of| one_of.closed),
        };
        if let Some(pointer) = overlap {
            return Err(ConstrainError::Unsupported { pointer, keyword: "oneOf".to_owned() });
        }
        let mut parser = parser.map_err(refused)?;
        parser.start_without_prompt();
        let compiled = Compiled { format: format.clone(), parser, growth };
        let mut kept = self.kept();
        kept.truncate(KEPT - 1);
        kept.push_front(compiled.clone());
        Ok(compiled)
    }

    /// Where the first of these alternatives stand that cannot be told apart.
    fn overlap(&self, one_of: &[OneOf], doubted: impl Fn(&OneOf) -> bool) -> Option<String> {
        let overlaps = |one_of: &&OneOf| {
            let alone = self.parser(TopLevelGrammar::from_json_schema(one_of.schema.clone()));
            alone.is_err_and(|reason| reason.contains(OVERLAP))
        };
        let mut doubtful = one_of.iter().filter(|one_of| doubted(one_of));
        doubtful.find(overlaps).map(|one_of| one_of.pointer.clone())
    }

    /// Compiles a grammar, or says why not. References and rules are followed one into the other: a chain of them needs a stack.
    fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("metallic-grammar".to_owned()).stack_size(STACK);
            let worker = builder.spawn_scoped(scope, || self.shared.factory.create_parser(grammar));
            let worker = worker.map_err(|error| format!("no thread to compile it: {error}"))?;
            let made = worker.join().map_err(|_| "the compiler panicked".to_owned())?;
            made.map_err(|error| reason(&error))
        })
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, VecDeque<Compiled>> {
        // A copy is put in whole or not at all.
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Constrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrainer")
            .field("tokens", &self.shared.vocabulary.trie.info().vocab_size)
            .finish_non_exhaustive()
    }
}
