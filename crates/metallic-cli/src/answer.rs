//! An answer while it is made: shown as it comes, ended by Ctrl-C, kept whole for what follows.

use std::io::{self, IsTerminal, Write};

use metallic::{Event, FinishReason, Generation, generate::EngineError, generate::RequestStats};

use crate::{
    escape, interrupt,
    term::{self, Ui},
};

/// An answer, or its beginning where it was interrupted.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// What the model thought before; empty where it does not think aloud, or was not asked to tell.
    pub(crate) reasoning: String,
    pub(crate) reason: FinishReason,
    pub(crate) stats: RequestStats,
}

impl Answer {
    /// Ctrl-C ended it.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.reason == FinishReason::Cancelled
    }
}

/// Where the pieces of an answer go.
pub(crate) trait Show {
    fn answer(&mut self, text: &str) -> io::Result<()>;

    fn thought(&mut self, text: &str) -> io::Result<()>;
}

/// Shows nothing: the answer is wanted at the end.
pub(crate) struct Unseen;

impl Show for Unseen {
    fn answer(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn thought(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

/// Follows an answer to its end. Ctrl-C, under a `Listener`, ends it before the next token.
pub(crate) fn follow(mut generation: Generation, show: &mut dyn Show) -> anyhow::Result<Answer> {
    let (mut tokens, mut text, mut reasoning) = (Vec::new(), String::new(), String::new());
    while !generation.has_ended() {
        if interrupt::check().is_err() {
            generation.cancel();
        }
        let Some(event) = generation.next_timeout(interrupt::POLL) else { continue };
        let (piece, thought, end) = match event? {
            Event::Token(token) => {
                tokens.push(token.id);
                (token.text, token.reasoning, None)
            }
            Event::Finished(end) => (end.text, end.reasoning, Some((end.reason, end.stats))),
            _ => continue,
        };
        if !thought.is_empty() {
            show.thought(&thought)?;
            reasoning.push_str(&thought);
        }
        if !piece.is_empty() {
            show.answer(&piece)?;
            text.push_str(&piece);
        }
        if let Some((reason, stats)) = end {
            return Ok(Answer { tokens, text, reasoning, reason, stats });
        }
    }
    Err(EngineError::Gone.into())
}

/// Answers on one stream, thoughts on another, dimmed where that can be seen. What a model writes does not steer a terminal.
pub(crate) struct Screen<'a> {
    out: &'a mut dyn Write,
    thoughts: Option<&'a mut dyn Write>,
    /// Whether `out` and `thoughts` are terminals.
    terminals: (bool, bool),
    /// Thoughts were the last thing, and no line ended them.
    thinking: bool,
    /// What was written last ended in a return: with the break that may follow it is one line break.
    returned: bool,
}

impl<'a> Screen<'a> {
    /// `out` is stdout and `thoughts` stderr, or what tests have in their place.
    pub(crate) fn new(out: &'a mut dyn Write, thoughts: &'a mut dyn Write) -> Self {
        let terminals = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Self { out, thoughts: Some(thoughts), terminals, thinking: false, returned: false }
    }

    /// Without thoughts, if they are to be hidden.
    pub(crate) fn hiding(mut self, hide: bool, ui: Ui) -> Self {
        self.thoughts = self.thoughts.filter(|_| !hide && !ui.quiet);
        self
    }

    /// Ends the line that the answer, or the thoughts before it, ended in.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        self.end_thoughts()?;
        if std::mem::take(&mut self.returned) {
            self.out.write_all(escape::output("\r").as_bytes())?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }

    /// A piece as a terminal may have it. Pieces end anywhere, between a return and its line break, too.
    fn spelled(&mut self, text: &str) -> String {
        let text = if std::mem::take(&mut self.returned) { format!("\r{text}") } else { text.to_owned() };
        let rest = text.strip_suffix('\r');
        self.returned = rest.is_some();
        escape::output(rest.unwrap_or(&text)).into_owned()
    }

    fn end_thoughts(&mut self) -> io::Result<()> {
        match (&mut self.thoughts, self.thinking) {
            (Some(thoughts), true) => {
                (self.thinking, self.returned) = (false, false);
                thoughts.write_all(b"\n\n")?;
                thoughts.flush()
            }
            _ => Ok(()),
        }
    }
}

impl Show for Screen<'_> {
    fn answer(&mut self, text: &str) -> io::Result<()> {
        self.end_thoughts()?;
        let text = if self.terminals.0 { self.spelled(text) } else { text.to_owned() };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn thought(&mut self, text: &str) -> io::Result<()> {
        if self.thoughts.is_none() {
            return Ok(());
        }
        self.thinking = true;
        let text = if self.terminals.1 { term::paint(&self.spelled(text), "2") } else { text.to_owned() };
        let Some(thoughts) = &mut self.thoughts else { return Ok(()) };
        thoughts.write_all(text.as_bytes())?;
        thoughts.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(hide: bool, terminals: (bool, bool)) -> (String, String) {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut screen = Screen::new(&mut out, &mut notes).hiding(hide, Ui { quiet: false });
        screen.terminals = terminals;
        screen.thought("hm").unwrap();
        screen.thought(", so").unwrap();
        screen.answer("a\x1b[2J\tb").unwrap();
        screen.answer("c").unwrap();
        screen.end_line().unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
    }

    #[test]
    fn thoughts_and_answers_go_their_own_ways() {
        assert_eq!(shown(false, (false, false)), ("a\x1b[2J\tbc\n".to_owned(), "hm, so\n\n".to_owned()));
        assert_eq!(shown(true, (false, false)).1, "");
    }

    #[test]
    fn a_line_break_of_windows_is_one_wherever_pieces_end() {
        let written = |pieces: &[&str]| {
            let (mut out, mut notes) = (Vec::new(), Vec::new());
            let mut screen = Screen::new(&mut out, &mut notes);
            screen.terminals = (true, true);
            for piece in pieces {
                screen.answer(piece).unwrap();
            }
            screen.end_line().unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(&["a\r", "\nb\r\n", "c"]), "a\nb\nc\n");
        assert_eq!(written(&["a\r", "b", "\r", "\r"]), "a\\rb\\r\\r\n");
    }

    #[test]
    fn a_terminal_gets_no_control_characters_of_the_model() {
        assert_eq!(shown(true, (true, true)).0, "a\\u{1b}[2J\tbc\n");
    }
}
