//! The terminal: notes and progress on stderr, results on stdout, colours only where they can be seen.

use std::{
    env,
    io::{self, IsTerminal, Read, Write},
    time::Duration,
};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::{escape, fail::Failure};

/// What a command says besides its result.
#[derive(Clone, Copy)]
pub(crate) struct Ui {
    pub(crate) quiet: bool,
}

impl Ui {
    /// One line on stderr, unless `--quiet`.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", escape::lines(text));
        }
    }

    /// A line that shows work without a known end; only on a terminal.
    pub(crate) fn spinner(self, what: &str) -> Bar {
        self.show(ProgressBar::new_spinner(), "{spinner} {msg}", what)
    }

    /// A progress bar over `total` steps; only on a terminal.
    pub(crate) fn steps(self, what: &str, total: usize) -> Bar {
        let template = "{prefix} [{bar:24}] {pos}/{len} {msg} {eta}";
        self.show(ProgressBar::new(total as u64).with_prefix(what.to_owned()), template, "")
    }

    /// A progress bar over `total` bytes; off a terminal a single line says what is going on.
    pub(crate) fn bar(self, what: &str, total: Option<u64>) -> Bar {
        if !io::stderr().is_terminal() {
            let size = total.map(|bytes| format!(" ({})", size(bytes))).unwrap_or_default();
            self.note(&format!("{what}{size}"));
        }
        let (bar, template) = match total {
            Some(bytes) => (
                ProgressBar::new(bytes),
                "{msg} [{bar:24}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
            ),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {decimal_bytes} {decimal_bytes_per_sec}"),
        };
        self.show(bar, template, what)
    }

    fn show(self, bar: ProgressBar, template: &str, message: &str) -> Bar {
        if self.quiet || !io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(escape::line(message).into_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Bar(bar)
    }
}

/// A progress bar; it leaves the terminal when dropped.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn set(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// The text beside the bar.
    pub(crate) fn tell(&self, text: &str) {
        self.0.set_message(escape::line(text).into_owned());
    }

    /// Prints a line without tearing the bar.
    pub(crate) fn say(&self, ui: Ui, text: &str) {
        self.0.suspend(|| ui.note(text));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Writes a table of ours to stdout; names in it may be those of strangers.
pub(crate) fn print_lines(text: &str) -> io::Result<()> {
    print(&escape::lines(text))
}

/// Writes what a model or its tokenizer made to stdout: as it is, but to a terminal nothing that would steer it.
pub(crate) fn print_output(text: &str) -> io::Result<()> {
    if io::stdout().is_terminal() { print(&escape::output(text)) } else { print(text) }
}

/// Writes a result to stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Of a text that is not for a context.
const MOST_OF_STDIN: u64 = 256 << 20;

/// All of stdin, as text.
pub(crate) fn stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let stdin = io::stdin().lock();
    stdin.take(MOST_OF_STDIN + 1).read_to_end(&mut bytes).context("cannot read from stdin")?;
    if bytes.len() as u64 > MOST_OF_STDIN {
        let reason = format!("stdin has more than {MOST_OF_STDIN} bytes");
        return Err(Failure::new(reason, "give the text in pieces").into());
    }
    utf8(bytes, "stdin")
}

/// A line or text without the line break that ends it.
pub(crate) fn chomp(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// Bytes as text; `what` they are, for errors.
pub(crate) fn utf8(bytes: Vec<u8>, what: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("{what} is not UTF-8 text: byte {at} is wrong"), "convert it to UTF-8").into()
    })
}

/// Writes `value` to stdout as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(value)?;
    Ok(print(&format!("{}\n", escape::json(&text)))?)
}

/// `text` in a colour of the terminal, where it has colours.
pub(crate) fn paint(text: &str, code: &str) -> String {
    let plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env::var_os("TERM").is_some_and(|term| term == "dumb")
        || !io::stderr().is_terminal();
    if plain { text.to_owned() } else { format!("\x1b[{code}m{text}\x1b[0m") }
}

/// `98.4 MB`: decimal units, as download sizes are given.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_decimal_and_never_show_a_thousand_of_a_unit() {
        let cases = [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (999_990, "1.0 MB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
