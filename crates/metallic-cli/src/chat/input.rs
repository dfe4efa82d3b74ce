//! Where a conversation's lines come from: an editor on a terminal, or a pipe.

use std::{
    fs,
    io::{self, BufRead, Read},
    path::PathBuf,
};

use anyhow::Context;
use rustyline::{Config, Editor, error::ReadlineError, history::FileHistory};

use crate::{fail::Failure, stdin::MOST_BYTES, term::chomp};

const PROMPT: &str = "> ";
const CONTINUED: &str = ". ";
const FENCE: &str = "\"\"\"";
const HISTORY_LINES: usize = 1000;

/// What the user did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Ctrl-D, or the end of a pipe.
    End,
}

/// A source of lines.
pub(crate) trait Input {
    /// One line, without its line break.
    fn line(&mut self, prompt: &str) -> anyhow::Result<Typed>;

    /// Keeps a whole message for the next time.
    fn remember(&mut self, message: &str);
}

/// Reads one message: a line, lines that end in `\`, or everything between two `"""`.
pub(crate) fn read_message(input: &mut dyn Input) -> anyhow::Result<Typed> {
    let first = match input.line(PROMPT)? {
        Typed::Text(line) => line,
        other => return Ok(other),
    };
    let mut lines = Lines { text: String::new(), fenced: false };
    let mut more = lines.push(&first, true);
    while more {
        match input.line(CONTINUED)? {
            Typed::Text(line) => more = lines.push(&line, false),
            Typed::Interrupted => return Ok(Typed::Interrupted),
            Typed::End => {
                lines.text.truncate(lines.text.trim_end_matches('\n').len());
                break;
            }
        }
    }
    if !lines.text.trim().is_empty() {
        input.remember(&lines.text);
    }
    Ok(Typed::Text(lines.text))
}

struct Lines {
    text: String,
    fenced: bool,
}

impl Lines {
    /// Adds a line; true if the message goes on.
    fn push(&mut self, line: &str, first: bool) -> bool {
        if first && let Some(rest) = line.trim_start().strip_prefix(FENCE) {
            self.fenced = true;
            return self.push_fenced(rest, true);
        }
        if self.fenced {
            return self.push_fenced(line, false);
        }
        if !first {
            self.text.push('\n');
        }
        let continued = line.strip_suffix('\\');
        self.text.push_str(continued.unwrap_or(line));
        continued.is_some()
    }

    /// The line breaks next to the fences are not part of the text.
    fn push_fenced(&mut self, line: &str, first: bool) -> bool {
        let closing = line.trim_end().strip_suffix(FENCE);
        let body = closing.unwrap_or(line);
        if !(first && body.is_empty()) {
            self.text.push_str(body);
            self.text.push('\n');
        }
        if closing.is_some() {
            let end = self.text.trim_end_matches('\n').len();
            self.text.truncate(end);
        }
        closing.is_none()
    }
}

/// Line editing with history, for a terminal.
pub(crate) struct Terminal {
    editor: Editor<(), FileHistory>,
    history: PathBuf,
}

impl Terminal {
    /// The history is kept in `history`; a conversation works without it, too.
    pub(crate) fn new(history: PathBuf) -> anyhow::Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .and_then(|config| config.history_ignore_dups(true))
            .context("cannot set up line editing")?
            .build();
        let mut editor = Editor::with_config(config).context("cannot set up line editing")?;
        // The first conversation has no history yet.
        let _ = editor.load_history(&history);
        Ok(Self { editor, history })
    }
}

impl Input for Terminal {
    fn line(&mut self, prompt: &str) -> anyhow::Result<Typed> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Typed::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }

    fn remember(&mut self, message: &str) {
        let _ = self.editor.add_history_entry(message);
        // A lost history is no reason to disturb a conversation.
        if let Some(folder) = self.history.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let _ = self.editor.append_history(&self.history);
    }
}

/// Lines of a pipe or file; no prompts, no history.
pub(crate) struct Plain<R>(pub(crate) R);

impl<R: BufRead> Input for Plain<R> {
    fn line(&mut self, _prompt: &str) -> anyhow::Result<Typed> {
        let mut line = Vec::new();
        loop {
            match self.0.by_ref().take(MOST_BYTES as u64 + 1).read_until(b'\n', &mut line) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read from stdin"),
            }
        }
        if line.len() > MOST_BYTES {
            let reason = format!("a line on stdin has more than {MOST_BYTES} bytes, which no context holds");
            return Err(
                Failure::new(reason, "a message is a line of text, or lines between two \"\"\"").into()
            );
        }
        if line.is_empty() {
            return Ok(Typed::End);
        }
        let line = String::from_utf8(line).context("stdin is not UTF-8 text")?;
        Ok(Typed::Text(chomp(&line).to_owned()))
    }

    fn remember(&mut self, _message: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(script: &str) -> Vec<String> {
        let mut input = Plain(script.as_bytes());
        let mut messages = Vec::new();
        while let Typed::Text(text) = read_message(&mut input).unwrap() {
            messages.push(text);
        }
        messages
    }

    #[test]
    fn a_message_is_a_line_whatever_ends_it() {
        assert_eq!(messages("a\nb\r\nc"), ["a", "b", "c"]);
    }

    #[test]
    fn a_backslash_at_the_end_joins_lines() {
        assert_eq!(messages("a\\\nb\\\n\\\nc\nd\n"), ["a\nb\n\nc", "d"]);
    }

    #[test]
    fn three_quotes_hold_many_lines_and_keep_empty_ones_and_backslashes() {
        assert_eq!(messages("\"\"\"\na\n\nb\\\n\"\"\"\nc\n"), ["a\n\nb\\", "c"]);
        assert_eq!(messages("\"\"\"\n\na\n\"\"\"\n"), ["\na"]);
        assert_eq!(messages("\"\"\"one line\"\"\"\n"), ["one line"]);
        assert_eq!(messages("\"\"\"a\nb\"\"\"\n"), ["a\nb"]);
    }

    #[test]
    fn input_that_ends_inside_a_message_gives_what_there_is() {
        assert_eq!(messages("\"\"\"\na\nb"), ["a\nb"]);
        assert_eq!(messages("a\\"), ["a"]);
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let mut input = Plain(&b"a\xff\n"[..]);
        let error = read_message(&mut input).unwrap_err();
        assert!(error.to_string().contains("UTF-8"));
    }

    #[test]
    fn a_terminal_keeps_its_history_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/history");
        let mut terminal = Terminal::new(file.clone()).unwrap();
        terminal.remember("first line\nsecond line");
        drop(terminal);
        let terminal = Terminal::new(file).unwrap();
        let entries: Vec<&String> = terminal.editor.history().iter().collect();
        assert_eq!(entries, ["first line\nsecond line"]);
    }
}
