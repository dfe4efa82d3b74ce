//! Chat templates: the Jinja programs that come with models, run the way the `transformers` library runs them.

mod budget;
mod clock;
mod expression;
mod filters;
mod message;
mod methods;
mod ops;
mod python;
mod rewrite;
mod sources;

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use minijinja::value::Rest;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::Map;

use super::tools::Habits;
use super::{TextError, Tokenizer};

pub use message::Message;
pub use sources::TemplateSources;

/// Instructions a template may use. The longest real ones need some thousands for each message.
const FUEL: u64 = 20_000_000;
/// Bytes of the longest template. The longest real one has about thirty thousand.
const MAX_SOURCE: usize = 1 << 18;
/// Stack of the thread that renders: dropping and comparing take a frame for each level of nesting.
const STACK: usize = 64 << 20;
/// Levels of nesting in what the caller gives.
const LEVELS: usize = 32;
/// Name under which the environment knows the template.
const NAME: &str = "chat_template";

/// Writes a conversation as the text that a model was trained to continue.
///
/// ```
/// use metallic::text::{ChatTemplate, Message};
///
/// let template = ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "", "")?;
/// let text = template.render(&[Message::user("Hello")], None, true)?;
/// assert_eq!(text, "<user>Hello");
/// # Ok::<(), metallic::text::TextError>(())
/// ```
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    /// What it does with tools, once somebody asked.
    pub(super) habits: OnceLock<Habits>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What `raise_exception` throws, so that it can be told from a failure.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the model's first and last token, empty where it has none.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let mut environment = environment();
        if source.len() > MAX_SOURCE {
            let reason = format!("it has {} bytes; at most {MAX_SOURCE} are allowed", source.len());
            return Err(TextError::TemplateSyntax { line: 0, reason });
        }
        let rewritten = rewrite::rewrite(&source.replace("\r\n", "\n").replace('\r', "\n"))
            .map_err(|(line, reason)| TextError::TemplateSyntax { line, reason })?;
        let compiled = on_a_stack_of_its_own(|| environment.add_template_owned(NAME, rewritten))?;
        compiled
            .map_err(|e| TextError::TemplateSyntax { line: e.line().unwrap_or(0), reason: describe(&e) })?;
        Ok(Self {
            environment,
            source: source.into(),
            bos: bos.into(),
            eos: eos.into(),
            habits: OnceLock::new(),
        })
    }

    /// Compiles a template for the model that `tokenizer` belongs to.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
        Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// Compiles the template in a file, for the model that `tokenizer` belongs to.
    pub fn from_file(path: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let path = path.as_ref();
        let io = |source| TextError::Io { path: path.to_owned(), source };
        let mut source = String::new();
        // One byte more than is allowed, so that a longer file is refused by its length.
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(MAX_SOURCE as u64 + 1).read_to_string(&mut source).map_err(io)?;
        Self::for_tokenizer(&source, tokenizer)
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether its source has this name as a word of its own.
    pub fn mentions(&self, name: &str) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        self.source.match_indices(name).any(|(at, _)| {
            let before = self.source[..at].chars().next_back();
            let after = self.source[at + name.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    }

    /// The text of a conversation. `tools` is the list of tool definitions; `add_generation_prompt` ends the text with
    /// the beginning of the assistant's answer.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        self.render_values(&messages, tools, add_generation_prompt, &Map::new())
    }

    /// [`render`](Self::render) for messages of any form that serializes to a list of objects, with further variables
    /// that the template may ask for (`enable_thinking`, `documents`, `date_string`, …).
    pub fn render_values<M: serde::Serialize + ?Sized>(
        &self,
        messages: &M,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        variables: &Map<String, serde_json::Value>,
    ) -> Result<String, TextError> {
        let mut context: Vec<(String, Value)> = vec![
            ("messages".into(), Value::from_serialize(messages)),
            ("tools".into(), Value::from_serialize(tools)),
            ("documents".into(), Value::from(())),
            ("add_generation_prompt".into(), add_generation_prompt.into()),
            ("bos_token".into(), self.bos.as_str().into()),
            ("eos_token".into(), self.eos.as_str().into()),
        ];
        context.extend(variables.iter().map(|(k, v)| (k.clone(), Value::from_serialize(v))));
        let context: Value = context.into_iter().collect();
        let input = budget::size(&context, LEVELS).saturating_add(self.source.len() as u64);
        let (result, is_late) = on_a_stack_of_its_own(|| {
            budget::begin(input);
            let text = self.environment.get_template(NAME).and_then(|t| t.render(context));
            (text, budget::is_late())
        })?;
        if is_late {
            return Err(TextError::TemplateTooMuch);
        }
        result.map_err(|e| render_error(&e))
    }
}

/// The date as templates that ask for `datetime` show it.
pub(super) fn today() -> String {
    clock::strftime("%b %d %Y %H:%M:%S GMT", SystemTime::now())
}

/// Runs `work`, which handles a stranger's program: there is stack enough for it, and a panic of the engine ends here.
fn on_a_stack_of_its_own<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    let failed = |reason: String| TextError::TemplateFailed { line: 0, reason };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK);
        match thread.spawn_scoped(scope, work).map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(failed("the template engine panicked".into())),
            Err(error) => Err(failed(format!("no thread for it: {error}"))),
        }
    })
}

fn render_error(error: &Error) -> TextError {
    let mut line = error.line().unwrap_or(0);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(raised) = e.downcast_ref::<Raised>() {
            return TextError::TemplateRaised { line, message: raised.0.clone() };
        }
        if e.is::<budget::Exhausted>() {
            return TextError::TemplateTooMuch;
        }
        if let Some(e) = e.downcast_ref::<Error>() {
            line = e.line().unwrap_or(line);
            if e.kind() == ErrorKind::OutOfFuel {
                return TextError::TemplateEndless { fuel: FUEL };
            }
        }
        cause = e.source();
    }
    TextError::TemplateFailed { line, reason: describe(error) }
}

fn describe(error: &Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}

/// Jinja as `transformers` sets it up: whitespace around blocks trimmed, nothing escaped, Python's way of printing.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, _, value| {
        let text = match value.as_str() {
            Some(text) => {
                budget::charge(text.len())?;
                return out.write_str(text).map_err(Error::from);
            }
            None => python::str(value)?,
        };
        out.write_str(&text).map_err(Error::from)
    });
    filters::add_to(&mut env);
    ops::add_to(&mut env);
    filters::add_tests_to(&mut env);
    env.add_function("raise_exception", |message: Rest<Value>| -> Result<Value, Error> {
        let message = message.first().map_or(Ok(String::new()), python::str)?;
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    env.add_function("strftime_now", |format: &str| {
        // A directive of two letters makes nine at most.
        budget::charge_times(format.len(), 5)?;
        Ok::<_, Error>(clock::strftime(format, SystemTime::now()))
    });
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_the_variables_whose_names_are_words_in_it() {
        let source = "{% if enable_thinking is defined %}{{ date_string2 }}{% endif %}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        assert!(template.mentions("enable_thinking"));
        assert!(!template.mentions("date_string") && !template.mentions("thinking"));
    }

    /// Small programs, each for one feature of the language, with Jinja's own whitespace rules.
    #[test]
    fn the_features_of_jinja_give_what_jinja2_gives() {
        let cases = include_str!("../../../tests/data/text/templates/hf_jinja_small_cases.json");
        let cases: serde_json::Value = serde_json::from_str(cases).unwrap();
        let mut failures = Vec::new();
        let mut checked = 0;
        for case in cases["cases"].as_array().unwrap() {
            // Variables called `if` and `in`: no real template has them, and this engine's parser refuses them.
            if case["jinja2_matches"] != true || case["name"] == "CONTEXT_KEYWORDS" {
                continue;
            }
            checked += 1;
            let mut env = environment();
            env.set_trim_blocks(false);
            env.set_lstrip_blocks(false);
            let source = rewrite::rewrite(case["template"].as_str().unwrap()).unwrap();
            let context = Value::from_serialize(&case["context"]);
            let found = env.render_str(&source, context).map_err(|e| describe(&e));
            if found.as_deref() != Ok(case["expected"].as_str().unwrap()) {
                failures
                    .push(format!("{}: {found:?}, expected {}: {source}", case["name"], case["expected"]));
            }
        }
        assert!(checked > 50, "only {checked} cases");
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
