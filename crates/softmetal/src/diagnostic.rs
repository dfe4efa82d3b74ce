//! Messages that point at a place in a `.metal` file.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A place in a source file. Lines and columns count from one; zero means unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Location {
    /// The file as the compiler was given it.
    pub file: String,
    /// Line, from one.
    pub line: u32,
    /// Column, from one.
    pub column: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
            if self.column > 0 {
                write!(f, ":{}", self.column)?;
            }
        }
        Ok(())
    }
}

/// How much a message weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Belongs to the message before it.
    Note,
    /// Suspicious, not fatal.
    Warning,
    /// The source is wrong.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One message of a compiler or a lint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// How much it weighs.
    pub severity: Severity,
    /// Where, if the message has a place.
    pub at: Option<Location>,
    /// What is wrong, in one line.
    pub message: String,
    /// Messages that explain this one (expansions, candidates).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Diagnostic>,
}

impl Diagnostic {
    /// A message without a place.
    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, at: None, message: message.into(), notes: Vec::new() }
    }

    /// A warning about a source as a whole.
    pub(crate) fn warning(message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(message) }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            write!(f, "{at}: ")?;
        }
        write!(f, "{}: {}", self.severity, self.message)?;
        for note in &self.notes {
            write!(f, "\n  {note}")?;
        }
        Ok(())
    }
}

/// Reads what clang printed on standard error (without carets and colours). Notes are put below their message; a
/// message in a file of `shim` is shown at the user's line that led there, if one is known.
pub(crate) fn parse_clang(stderr: &str, shim: &str) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    for line in stderr.lines() {
        let Some(diagnostic) = parse_line(line) else { continue };
        match found.last_mut() {
            Some(last) if diagnostic.severity == Severity::Note => last.notes.push(diagnostic),
            _ => found.push(diagnostic),
        }
    }
    for diagnostic in &mut found {
        let foreign =
            |at: &Location| !shim.is_empty() && at.file.starts_with(shim) || at.file.starts_with('<');
        if diagnostic.at.as_ref().is_some_and(foreign) {
            let mine = diagnostic.notes.iter().filter_map(|note| note.at.clone()).find(|at| !foreign(at));
            diagnostic.at = mine.or(diagnostic.at.take());
        }
        diagnostic.notes.retain(|note| !note.at.as_ref().is_some_and(foreign));
    }
    found
}

/// `k.metal:3:5: error: text`, `error: text`.
fn parse_line(line: &str) -> Option<Diagnostic> {
    let words = [
        (": fatal error: ", Severity::Error),
        (": error: ", Severity::Error),
        (": warning: ", Severity::Warning),
        (": note: ", Severity::Note),
    ];
    let first =
        words.iter().filter_map(|(word, severity)| line.find(word).map(|at| (at, *word, *severity))).min();
    if let Some((at, word, severity)) = first {
        let message = line[at + word.len()..].trim().to_owned();
        return Some(Diagnostic { severity, at: location(&line[..at]), message, notes: Vec::new() });
    }
    let message = line.strip_prefix("error: ").or_else(|| line.strip_prefix("fatal error: "))?;
    Some(Diagnostic::error(message))
}

/// `k.metal:3:5`, `k.metal:3`; nothing for `clang` or `ld`.
fn location(text: &str) -> Option<Location> {
    let (front, last) = text.rsplit_once(':')?;
    let last = last.parse().ok()?;
    let (file, line, column) = match front.rsplit_once(':').map(|(file, line)| (file, line.parse())) {
        Some((file, Ok(line))) => (file, line, last),
        _ => (front, last, 0),
    };
    Some(Location { file: file.to_owned(), line, column })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clang_messages_become_typed() {
        let text = "In file included from k.metal:1:\nk.metal:3:5: error: use of undeclared identifier 'x'\n\
                    k.metal:1:2: note: declared here\nclang: error: no input files\n2 errors generated.\n";
        let found = parse_clang(text, "/shim");
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].to_string(),
            "k.metal:3:5: error: use of undeclared identifier 'x'\n  k.metal:1:2: note: declared here"
        );
        assert_eq!(found[1].at, None);
    }

    #[test]
    fn errors_in_our_headers_are_shown_where_the_user_caused_them() {
        let text = "/shim/msl_math.h:9:1: error: no matching\nk.metal:7:3: note: in instantiation\n";
        let found = parse_clang(text, "/shim");
        assert_eq!(found[0].at, Some(Location { file: "k.metal".into(), line: 7, column: 3 }));
    }
}
