use std::fmt::Write;

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
    #[error("`{}` cannot be read as a tokenizer file: {}", shown(file), shown(reason))]
    Json {
        /// Name of the file.
        file: String,
        /// Where and what.
        reason: String,
    },
    /// A part of the tokenizer that this library does not implement; guessing would give wrong tokens.
    #[error("{part} `{}` is not supported; supported: {known}", shown(found))]
    Unsupported {
        /// Which part, for example `tokenizer.ggml.pre`.
        part: &'static str,
        /// Its value in the file.
        found: String,
        /// The values that work.
        known: &'static str,
    },
    /// The vocabulary contradicts itself.
    #[error("the vocabulary is malformed: {} is {}, needed: {needed}", shown(what), shown(found))]
    Vocabulary {
        /// Key or table.
        what: String,
        /// What the file says.
        found: String,
        /// What would be valid.
        needed: String,
    },
    /// A split pattern does not compile, or gave up on this text.
    #[error("the pre-tokenizer pattern `{}` failed: {}", shown(pattern), shown(reason))]
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
    /// The normalizers of the tokenizer multiply the text.
    #[error("the normalizers of the tokenizer make more than {limit} bytes of a text that is much shorter")]
    Grows {
        /// Bytes possible.
        limit: usize,
    },
    /// Messages with marks of the model in them leave no character to tell those marks by.
    #[error(
        "the messages contain marks of the model and every character from U+F0000 to U+FFFFD, so that the marks cannot be kept apart"
    )]
    NoSign,
    /// Definitions of tools, or calls in a conversation, cannot be used.
    #[error("the tools cannot be used: {}", shown(reason))]
    Tools {
        /// Which, what was found, what was needed.
        reason: String,
    },
    /// The chat template is not valid Jinja.
    #[error("the chat template does not compile: line {line}: {}", shown(reason))]
    TemplateSyntax {
        /// Line in the template, from 1 (0 when unknown).
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation (line {line}): {}", shown(message))]
    TemplateRaised {
        /// Line in the template, from 1 (0 when unknown).
        line: usize,
        /// The message the template gave.
        message: String,
    },
    /// The chat template failed while rendering.
    #[error("the chat template failed at line {line}: {}", shown(reason))]
    TemplateFailed {
        /// Line in the template, from 1 (0 when unknown).
        line: usize,
        /// What happened.
        reason: String,
    },
    /// The chat template made more than any real one does.
    #[error("the chat template was stopped: it uses more text, lists or time than any real one needs")]
    TemplateTooMuch,
    /// The chat template ran longer than any real one does.
    #[error("the chat template was stopped after {fuel} steps; it does not seem to end")]
    TemplateEndless {
        /// The number of instructions it was given.
        fuel: u64,
    },
}

/// Characters of a stranger's text that an error shows.
const SHOWN: usize = 400;

/// Text of a file as it may be shown on a terminal: control characters, and those that turn the direction of writing, are
/// spelled out, and there is an end to it.
fn shown(text: &str) -> String {
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == SHOWN {
            let _ = write!(out, "… ({} bytes)", text.len());
            break;
        }
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control()
                || matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}') =>
            {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_wrote_is_shown_without_its_control_characters() {
        let message = "\u{1b}[2J\u{7}evil\r\n\u{9b}31m \u{202e}txt é日".to_owned();
        let raised = TextError::TemplateRaised { line: 1, message };
        let text = raised.to_string();
        assert!(text.ends_with(r"\u{1b}[2J\u{7}evil\u{d}\n\u{9b}31m \u{202e}txt é日"), "{text}");
        let long = TextError::Json { file: "a".into(), reason: "x".repeat(1 << 20) }.to_string();
        assert!(long.len() < 1000 && long.contains("1048576 bytes"), "{long}");
    }
}
