//! How a failure reaches the user: one line of reason, one line of hint, an exit code.

use std::{
    io::{self, Write},
    panic,
    process::ExitCode,
};

use crate::{escape, hints, hub::HubError, interrupt::Interrupted, term, top::screen};

/// Exit code after Ctrl-C, as shells expect it: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// A reason with the next step the user can take.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Failure {
    reason: String,
    hint: String,
}

impl Failure {
    pub(crate) fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: reason.into(), hint: hint.into() }
    }
}

/// Ctrl-C ended an answer that was shown, and its end with it: only the exit code is left to give.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Stopped;

/// Two ways of computing differ, which was shown: only the exit code is left to give.
#[derive(Debug, thiserror::Error)]
#[error("the ways differ")]
pub(crate) struct Differs;

/// Prints `error: …` and, where one is known, `hint: …`; gives the exit code, `failure` unless something else says more.
pub(crate) fn report(error: &anyhow::Error, failure: u8) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader (`head`, a closed pager) has all it wanted.
        return ExitCode::SUCCESS;
    }
    if error.is::<Stopped>() {
        return ExitCode::from(INTERRUPTED);
    }
    if error.is::<Differs>() {
        return ExitCode::FAILURE;
    }
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "{} {}", term::paint("error:", "1;31"), reason(error));
    if let Some(hint) = hint(error) {
        let _ = writeln!(err, "{} {}", term::paint("hint:", "1;36"), one_line(&hint));
    }
    ExitCode::from(if is_interrupted(error) { INTERRUPTED } else { failure })
}

/// Prints clap's message (help and version go to stdout); gives 2 for wrong usage.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// A panic is a bug: says so in two lines. `RUST_BACKTRACE=1` adds the usual trace.
pub(crate) fn install_panic_hook() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // What is said must not go with the dashboard's screen.
        screen::restore();
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let message =
            text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line()));
        let text = format!(
            "error: this is a bug in metallic {}: {}{}\nhint: please report this line together with the command you ran\n",
            env!("CARGO_PKG_VERSION"),
            one_line(message),
            place.unwrap_or_default(),
        );
        let _ = io::stderr().write_all(text.as_bytes());
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            default(info);
        }
    }));
}

/// The error and its causes in one line; a cause that its error tells already is not told again.
pub(crate) fn reason(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| one_line(&cause.to_string())) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The next step the user can take, where one is known.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        let failure = cause.downcast_ref::<Failure>().map(|failure| failure.hint.clone());
        let hub = || cause.downcast_ref::<HubError>().map(HubError::hint);
        let again = || cause.is::<Interrupted>().then(|| "give the command again to start over".to_owned());
        failure.or_else(hub).or_else(again).or_else(|| hints::of(cause).map(str::to_owned))
    })
}

fn is_interrupted(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Interrupted>()
            || matches!(cause.downcast_ref::<HubError>(), Some(HubError::Interrupted { .. }))
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Of a reason or a hint that is shown: a stranger's text may have no end.
const MOST_CHARACTERS: usize = 2000;

/// In one line, and without what would steer the terminal: names in it may be those of strangers.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    let end = text.char_indices().nth(MOST_CHARACTERS).map_or(text.len(), |(at, _)| at);
    let rest = if end < text.len() { format!("… ({} bytes)", text.len()) } else { String::new() };
    escape::line(&text[..end]).into_owned() + &rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_hint_is_found_below_added_context() {
        let error =
            Err::<(), _>(Failure::new("no such file", "check the path")).context("cannot open").unwrap_err();
        assert_eq!(hint(&error).as_deref(), Some("check the path"));
        assert_eq!(format!("{error:#}"), "cannot open: no such file");
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let disk = || io::Error::other("disk full");
        let told = metallic::text::TextError::Io { path: "a".into(), source: disk() };
        assert_eq!(reason(&told.into()), "cannot read `a`: disk full");
        let error = Err::<(), _>(disk()).context("cannot write").unwrap_err();
        assert_eq!(reason(&error), "cannot write: disk full");
    }

    #[test]
    fn a_reason_of_several_lines_becomes_one() {
        assert_eq!(one_line("a\n\n  b\nc"), "a b c");
        assert_eq!(one_line("a\x1b]0;x\x07\u{202e}b"), "a\\u{1b}]0;x\\u{7}\\u{202e}b");
    }
}
