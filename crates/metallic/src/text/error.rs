/// Why a tokenizer or a chat template could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file beside the model could not be read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The metadata of a GGUF file lacks a tokenizer key or has another type there.
    #[error(transparent)]
    Metadata(#[from] metallic_formats::FormatError),
    /// A JSON file is not JSON, or not of the form that was expected.
    #[error("`{file}` cannot be read as a tokenizer file: {reason}")]
    Json {
        /// Name of the file.
        file: String,
        /// Where and what.
        reason: String,
    },
    /// A part of the tokenizer that this library does not implement; guessing would give wrong tokens.
    #[error("{part} `{found}` is not supported; supported: {known}")]
    Unsupported {
        /// Which part, for example `tokenizer.ggml.pre`.
        part: &'static str,
        /// Its value in the file.
        found: String,
        /// The values that work.
        known: &'static str,
    },
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is malformed: {what} is {found}, needed: {needed}")]
    Vocabulary {
        /// Key or table.
        what: String,
        /// What the file says.
        found: String,
        /// What would be valid.
        needed: String,
    },
    /// A split pattern does not compile, or gave up on this text.
    #[error("the pre-tokenizer pattern `{pattern}` failed: {reason}")]
    Pattern {
        /// The regular expression.
        pattern: String,
        /// What the regex engine said.
        reason: String,
    },
    /// The text is longer than one call can take.
    #[error("a text of {found} bytes is too long to tokenize at once; the limit is {limit}")]
    TooLong {
        /// Bytes given.
        found: usize,
        /// Bytes possible.
        limit: usize,
    },
    /// The chat template is not valid Jinja.
    #[error("the chat template does not compile: line {line}: {reason}")]
    TemplateSyntax {
        /// Line in the template, from 1 (0 when unknown).
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation (line {line}): {message}")]
    TemplateRaised {
        /// Line in the template, from 1 (0 when unknown).
        line: usize,
        /// The message the template gave.
        message: String,
    },
    /// The chat template failed while rendering.
    #[error("the chat template failed at line {line}: {reason}")]
    TemplateFailed {
        /// Line in the template, from 1 (0 when unknown).
        line: usize,
        /// What happened.
        reason: String,
    },
    /// The chat template ran longer than any real one does.
    #[error("the chat template was stopped after {fuel} steps; it does not seem to end")]
    TemplateEndless {
        /// The number of instructions it was given.
        fuel: u64,
    },
}
