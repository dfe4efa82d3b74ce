//! Results as JUnit XML, which CI services show.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use softmetal::{Diagnostic, Error, Severity};

use super::{
    Failure,
    run::{self, Executed},
};

/// A test and what came of it.
#[derive(Debug)]
pub(super) struct Case {
    /// The file.
    class: String,
    name: String,
    time: Duration,
    result: Outcome,
    /// What there is to say besides.
    notes: String,
}

#[derive(Debug)]
enum Outcome {
    Passed,
    /// The kernel is wrong.
    Failed(String),
    /// It could not be run.
    Error(String),
}

impl Case {
    pub(super) fn of_run(arguments: &run::Arguments, executed: &Result<Executed, Failure>) -> Self {
        let (time, result, notes) = match executed {
            Ok(executed) => {
                let failures = executed.failures(arguments.seeds);
                let warnings = executed.summary.reports.iter().filter(|r| r.severity != Severity::Error);
                let notes: Vec<String> = warnings.map(ToString::to_string).collect();
                let result = if failures.is_empty() {
                    Outcome::Passed
                } else {
                    Outcome::Failed(failures.join("\n\n"))
                };
                (executed.summary.elapsed, result, notes.join("\n\n"))
            }
            Err(failure) => (Duration::ZERO, Outcome::Error(failure.to_string()), String::new()),
        };
        Self {
            class: arguments.file.display().to_string(),
            name: arguments.kernel.clone(),
            time,
            result,
            notes,
        }
    }

    pub(super) fn of_lint(file: &Path, found: &Result<Vec<Diagnostic>, Error>) -> Self {
        let texts = |severity: fn(Severity) -> bool, found: &[Diagnostic]| {
            let some = found.iter().filter(|diagnostic| severity(diagnostic.severity));
            some.map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let (result, notes) = match found {
            Ok(found) => {
                let errors = texts(|severity| severity == Severity::Error, found);
                let result = if errors.is_empty() { Outcome::Passed } else { Outcome::Failed(errors) };
                (result, texts(|severity| severity != Severity::Error, found))
            }
            Err(error) => (Outcome::Error(error.to_string()), String::new()),
        };
        let (class, name) = (file.display().to_string(), "lint".to_owned());
        Self { class, name, time: Duration::ZERO, result, notes }
    }

    /// The name under which it is shown.
    #[must_use]
    pub(super) fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    fn xml(&self) -> String {
        let (class, name) = (escaped(&self.class), escaped(&self.name));
        let seconds = self.time.as_secs_f64();
        let mut text =
            format!("    <testcase classname=\"{class}\" name=\"{name}\" time=\"{seconds:.6}\">\n");
        let (tag, message) = match &self.result {
            Outcome::Passed => ("", ""),
            Outcome::Failed(message) => ("failure", message.as_str()),
            Outcome::Error(message) => ("error", message.as_str()),
        };
        if !tag.is_empty() {
            let first = escaped(message.lines().next().unwrap_or_default());
            // Written to a string, which cannot fail.
            let _ = writeln!(text, "      <{tag} message=\"{first}\">{}</{tag}>", escaped(message));
        }
        if !self.notes.is_empty() {
            let _ = writeln!(text, "      <system-out>{}</system-out>", escaped(&self.notes));
        }
        text + "    </testcase>\n"
    }
}

/// Writes one suite of tests.
pub(super) fn write(path: &Path, suite: &str, cases: &[Case]) -> Result<(), Failure> {
    let count = |wanted: fn(&Outcome) -> bool| cases.iter().filter(|case| wanted(&case.result)).count();
    let failures = count(|result| matches!(result, Outcome::Failed(_)));
    let errors = count(|result| matches!(result, Outcome::Error(_)));
    let time: Duration = cases.iter().map(|case| case.time).sum();
    let counts = format!("tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\"", cases.len());
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"{}\" {counts} time=\"{:.6}\">\n{}  </testsuite>\n</testsuites>\n",
        escaped(suite),
        time.as_secs_f64(),
        cases.iter().map(Case::xml).collect::<Vec<_>>().concat()
    );
    Ok(fs::write(path, text).map_err(Error::io("write", path))?)
}

/// Text for XML. Signs that XML has no way to spell become question marks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            sign if sign.is_control() || matches!(sign, '\u{FFFE}' | '\u{FFFF}') => out.push('?'),
            sign => out.push(sign),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn what_xml_means_otherwise_is_spelled_out() {
        assert_eq!(escaped("a<b> & \"c\"\n\u{1b}[0m"), "a&lt;b&gt; &amp; &quot;c&quot;&#10;?[0m");
    }
}
