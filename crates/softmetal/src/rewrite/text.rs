//! Preprocessed text: which file each line is from, and edits that keep lines and columns where they were.

use std::{collections::HashMap, ops::Range};

use crate::{diagnostic::Location, lexer::quoted_end};

/// A run of lines of one file.
#[derive(Debug)]
struct Segment {
    /// Bytes of the run, whole lines.
    bytes: Range<usize>,
    file: usize,
    /// Number of its first line in `file`.
    line: u32,
    /// Index of its first line in the preprocessed text.
    first: usize,
}

/// The output of `clang -E`, with its line markers understood.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) source: String,
    files: Vec<String>,
    segments: Vec<Segment>,
    line_starts: Vec<usize>,
    /// Files under this folder are the crate's own headers and are left alone.
    shim: String,
}

impl Text {
    pub(crate) fn new(source: String, shim: &str) -> Self {
        let mut files = vec![String::from("<unknown>")];
        let mut index: HashMap<String, usize> = HashMap::new();
        let mut segments: Vec<Segment> = vec![Segment { bytes: 0..0, file: 0, line: 1, first: 0 }];
        let (mut line_starts, mut at) = (Vec::new(), 0);
        for (number, line) in source.split_inclusive('\n').enumerate() {
            line_starts.push(at);
            if let Some((next_line, name)) = marker(line) {
                if let Some(last) = segments.last_mut() {
                    last.bytes.end = at;
                }
                let file = *index.entry(name).or_insert_with_key(|name| {
                    files.push(name.clone());
                    files.len() - 1
                });
                let begin = at + line.len();
                segments.push(Segment { bytes: begin..begin, file, line: next_line, first: number + 1 });
            }
            at += line.len();
        }
        if let Some(last) = segments.last_mut() {
            last.bytes.end = at;
        }
        Self { source, files, segments, line_starts, shim: shim.to_owned() }
    }

    /// Is this one of the crate's own headers, or text of the compiler?
    fn is_foreign(&self, file: &str) -> bool {
        file.starts_with('<') || (!self.shim.is_empty() && file.starts_with(&self.shim))
    }

    /// The runs of bytes that come from the user's files.
    pub(crate) fn user_ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.segments.iter().filter(|s| !self.is_foreign(&self.files[s.file])).map(|s| s.bytes.clone())
    }

    /// The user's files, in the order they were first met.
    pub(crate) fn user_files(&self) -> impl Iterator<Item = &str> {
        self.files[1..].iter().map(String::as_str).filter(|file| !self.is_foreign(file))
    }

    /// Whether a word, as a whole, is in the user's files.
    pub(crate) fn user_says(&self, word: &str) -> bool {
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        self.user_ranges().any(|range| self.source[range].split(|c| !in_word(c)).any(|w| w == word))
    }

    /// Where a byte comes from.
    pub(crate) fn location(&self, at: usize) -> Location {
        let line = self.line_starts.partition_point(|&start| start <= at).saturating_sub(1);
        let segment = self.segments.partition_point(|s| s.bytes.start <= at).saturating_sub(1);
        let (segment, start) = (&self.segments[segment], self.line_starts.get(line).copied().unwrap_or(0));
        Location {
            file: self.files[segment.file].clone(),
            line: segment.line + line.saturating_sub(segment.first) as u32,
            column: (at - start) as u32 + 1,
        }
    }

    /// `clang -E` squeezes white space and drops comments, which moves columns. Lines whose tokens are still those of
    /// the original get their original spacing back. `original` gives the text of a file.
    pub(crate) fn restore_columns(self, original: impl Fn(&str) -> Option<String>) -> Self {
        let mut blanked: HashMap<usize, Vec<String>> = HashMap::new();
        let mut out = String::with_capacity(self.source.len() + self.source.len() / 4);
        let mut done = 0;
        for segment in &self.segments {
            let file = &self.files[segment.file];
            if self.is_foreign(file) || segment.file == 0 {
                continue;
            }
            let lines = blanked.entry(segment.file).or_insert_with(|| {
                let text = original(file).map(|text| blank_comments(&text)).unwrap_or_default();
                text.lines().map(|line| line.trim_end().to_owned()).collect()
            });
            out.push_str(&self.source[done..segment.bytes.start]);
            done = segment.bytes.end;
            for (number, line) in self.source[segment.bytes.clone()].split_inclusive('\n').enumerate() {
                let first = lines.get((segment.line as usize + number).wrapping_sub(1));
                match first {
                    Some(original) if !line.starts_with('#') && same_but_spaces(original, line) => {
                        out.push_str(original);
                        if line.ends_with('\n') {
                            out.push('\n');
                        }
                    }
                    _ => out.push_str(line),
                }
            }
        }
        out.push_str(&self.source[done..]);
        Self::new(out, &self.shim)
    }
}

/// `# 12 "file.metal" 1` gives (12, file.metal).
fn marker(line: &str) -> Option<(u32, String)> {
    let rest = line.strip_prefix("# ").or_else(|| line.strip_prefix("#line "))?;
    let (number, rest) = rest.split_once(' ')?;
    let quoted = rest.trim_start().strip_prefix('"')?;
    let mut name = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => name.push(characters.next()?),
            other => name.push(other),
        }
    }
    Some((number.parse().ok()?, name))
}

fn same_but_spaces(a: &str, b: &str) -> bool {
    a.bytes().filter(|b| !b.is_ascii_whitespace()).eq(b.bytes().filter(|b| !b.is_ascii_whitespace()))
}

/// The text with each comment overwritten by spaces; lines and columns stay.
pub(crate) fn blank_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    out.push(b' ');
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at + 2..].find("*/").map_or(bytes.len(), |length| at + 2 + length + 2);
                out.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }));
                at = end;
            }
            b'"' | b'\'' => {
                let end = quoted_end(bytes, at, bytes.len());
                out.extend_from_slice(&bytes[at..end]);
                at = end;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Replacements of byte ranges, applied all at once.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    list: Vec<Edit>,
}

#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    text: String,
    /// Say again where we are after the text, because it is not as long as what it replaces.
    resync: bool,
}

impl Edits {
    /// Replaces a range; what follows keeps its line and column.
    pub(crate) fn replace(&mut self, range: Range<usize>, text: String) {
        self.list.push(Edit { range, text, resync: true });
    }

    /// Replaces a range by text as long as it; longer text moves the rest of the line.
    pub(crate) fn overwrite(&mut self, range: Range<usize>, text: &str) {
        let width = range.len();
        self.list.push(Edit { range, text: format!("{text:width$}"), resync: false });
    }

    /// The text with all edits done; an edit inside an earlier, larger one is dropped.
    pub(crate) fn apply(mut self, text: &Text) -> String {
        self.list.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
        let mut out = String::with_capacity(text.source.len() * 2);
        let mut done = 0;
        for edit in &self.list {
            if edit.range.start < done {
                continue;
            }
            out.push_str(&text.source[done..edit.range.start]);
            out.push_str(&edit.text);
            done = edit.range.end;
            if edit.resync {
                let at = text.location(edit.range.end);
                out.push_str(&at_line(&at));
                out.push_str(&" ".repeat(at.column as usize - 1));
            }
        }
        out.push_str(&text.source[done..]);
        out
    }
}

/// A line marker, so that what follows counts as being there.
pub(crate) fn at_line(at: &Location) -> String {
    format!("\n# {} \"{}\"\n", at.line, at.file.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREPROCESSED: &str = "# 1 \"<built-in>\"\n# 1 \"k.metal\"\n# 1 \"/shim/metal_stdlib\" 1\nint shim;\n# 2 \"k.metal\" 2\nint a; int b;\n\nint c;\n";

    #[test]
    fn lines_are_told_by_their_markers() {
        let text = Text::new(PREPROCESSED.into(), "/shim");
        let at = text.location(PREPROCESSED.find("int c").unwrap());
        assert_eq!(at.to_string(), "k.metal:4:1");
        let users: Vec<_> = text.user_ranges().map(|range| PREPROCESSED[range].to_owned()).collect();
        assert_eq!(users.concat(), "int a; int b;\n\nint c;\n");
    }

    #[test]
    fn columns_come_back_from_the_original() {
        let original = "#include <metal_stdlib>\nint /* one */ a;    int b; // two\n\nint c;\n";
        let text = Text::new(PREPROCESSED.into(), "/shim").restore_columns(|_| Some(original.into()));
        assert!(text.source.contains("int           a;    int b;\n\nint c;\n"), "{}", text.source);
    }

    #[test]
    fn edits_do_not_move_what_follows() {
        let text = Text::new(PREPROCESSED.into(), "/shim");
        let a = PREPROCESSED.find("int a;").unwrap();
        let mut edits = Edits::default();
        edits.replace(a..a + 6, "long_replacement;".into());
        edits.replace(a + 4..a + 5, "dropped".into());
        let out = edits.apply(&text);
        let expected = "long_replacement;\n# 2 \"k.metal\"\n       int b;\n";
        assert!(out.contains(expected), "{out}");
        assert!(!out.contains("dropped"));
    }

    #[test]
    fn comments_in_strings_are_text() {
        assert_eq!(blank_comments("a \"//\" /* x\n */ b // c"), "a \"//\"     \n    b     ");
    }
}
