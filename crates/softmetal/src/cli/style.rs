//! Colours, where a person looks.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use softmetal::{Diagnostic, Severity};

/// Colours or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    colours: bool,
}

macro_rules! colours {
    ($($name:ident $code:literal),+) => {
        impl Style {
            $(pub(super) fn $name(self, text: &str) -> String {
                self.paint($code, text)
            })+
        }
    };
}
colours!(bold "1", dim "2", red "1;31", green "32", cyan "36");

impl Style {
    pub(super) fn of_stdout() -> Self {
        Self { colours: wanted(io::stdout().is_terminal()) }
    }

    pub(super) fn of_stderr() -> Self {
        Self { colours: wanted(io::stderr().is_terminal()) }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn severity(self, severity: Severity) -> String {
        let code = match severity {
            Severity::Error => "1;31",
            Severity::Warning => "1;33",
            Severity::Note => "36",
        };
        self.paint(code, &severity.to_string())
    }

    pub(super) fn diagnostic(self, diagnostic: &Diagnostic) -> String {
        let place = diagnostic.at.as_ref().map(|at| self.bold(&format!("{at}: "))).unwrap_or_default();
        let mut text = format!("{place}{}: {}", self.severity(diagnostic.severity), diagnostic.message);
        for note in &diagnostic.notes {
            text += "\n  ";
            text += &self.diagnostic(note);
        }
        text
    }

    /// A report: its first word is its severity, and carets point.
    pub(super) fn report(self, report: &softmetal::Report) -> String {
        let text = report.to_string();
        let word = report.severity.to_string();
        let text = match text.strip_prefix(&word) {
            Some(rest) => self.severity(report.severity) + rest,
            None => text,
        };
        if self.colours { text.replace('^', &self.red("^")).replace("-->", &self.cyan("-->")) } else { text }
    }
}

fn wanted(terminal: bool) -> bool {
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    set("CLICOLOR_FORCE") || (terminal && !set("NO_COLOR"))
}

/// `1 kernel`, `2 kernels`.
pub(super) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Prints a line; a reader that has gone away is no error.
pub(super) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
