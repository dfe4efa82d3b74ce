//! Rust source seen as lines of code and lines of comment, without a parser.

/// One line of a Rust file.
pub(crate) struct Line {
    /// The line with comments and the insides of literals blanked.
    pub(crate) code: String,
    /// The line with everything but comments blanked.
    pub(crate) comment: String,
    /// Whether the line belongs to code that only tests compile.
    pub(crate) test: bool,
}

/// A Rust file, line by line.
pub(crate) struct Source {
    pub(crate) lines: Vec<Line>,
    /// Modules declared as `#[cfg(test)] mod name;`: their files are test code.
    pub(crate) test_modules: Vec<String>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let chars: Vec<char> = text.chars().collect();
        let kinds = classify(&chars);
        let only = |wanted: Kind| -> String {
            let keep = |(&c, &kind): (&char, &Kind)| if c == '\n' || kind == wanted { c } else { ' ' };
            chars.iter().zip(&kinds).map(keep).collect()
        };
        let (code, comments) = (only(Kind::Code), only(Kind::Comment));
        let (test, test_modules) = test_regions(&code);
        let lines = code.lines().zip(comments.lines()).zip(test);
        let lines = lines
            .map(|((code, comment), test)| Line { code: code.into(), comment: comment.into(), test })
            .collect();
        Source { lines, test_modules }
    }
}

/// What each character belongs to. The quotes of a literal count as code.
fn classify(chars: &[char]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; chars.len()];
    let mut i = 0;
    while i < chars.len() {
        let end = match (chars[i], chars.get(i + 1)) {
            ('/', Some('/')) => mark(&mut kinds, Kind::Comment, i, line_end(chars, i)),
            ('/', Some('*')) => mark(&mut kinds, Kind::Comment, i, block_comment_end(chars, i)),
            ('"', _) => literal(&mut kinds, i + 1, string_end(chars, i + 1)),
            ('r', Some('"' | '#')) if !continues_word(chars, i) => match raw_string(chars, i) {
                Some((start, end)) => literal(&mut kinds, start, end),
                None => i + 1,
            },
            ('\'', Some('\\')) => literal(&mut kinds, i + 1, char_end(chars, i + 2)),
            ('\'', Some(_)) if chars.get(i + 2) == Some(&'\'') => literal(&mut kinds, i + 1, i + 2),
            _ => i + 1,
        };
        i = end;
    }
    kinds
}

fn mark(kinds: &mut [Kind], kind: Kind, start: usize, end: usize) -> usize {
    let end = end.min(kinds.len());
    kinds[start..end].fill(kind);
    end
}

/// Marks the inside of a literal; returns the place after its closing quote.
fn literal(kinds: &mut [Kind], start: usize, end: usize) -> usize {
    mark(kinds, Kind::Literal, start, end) + 1
}

fn line_end(chars: &[char], from: usize) -> usize {
    chars[from..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| from + n)
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let mut depth = 0;
    let mut i = from;
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => depth += 1,
            ('*', Some('/')) => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    i
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut i = from;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i
}

/// The end of a char literal that starts with a backslash; `from` is the escaped character.
fn char_end(chars: &[char], from: usize) -> usize {
    let rest = chars.get(from + 1..).unwrap_or_default();
    rest.iter().position(|&c| c == '\'').map_or(chars.len(), |n| from + 1 + n)
}

/// The inside of the raw string that starts with the `r` at `from`.
fn raw_string(chars: &[char], from: usize) -> Option<(usize, usize)> {
    let hashes = chars[from + 1..].iter().take_while(|&&c| c == '#').count();
    let start = from + 1 + hashes + 1;
    if chars.get(start - 1) != Some(&'"') {
        return None;
    }
    let closes = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    Some((start, (start..chars.len()).find(|&i| closes(i)).unwrap_or(chars.len())))
}

fn continues_word(chars: &[char], i: usize) -> bool {
    // `br"…"` and `cr"…"` are raw strings too.
    let before = if i > 0 && matches!(chars[i - 1], 'b' | 'c') { i - 1 } else { i };
    before > 0 && (chars[before - 1].is_alphanumeric() || chars[before - 1] == '_')
}

/// Which lines only tests compile, and the names of test modules that live in files of their own.
fn test_regions(code: &str) -> (Vec<bool>, Vec<String>) {
    let mut test = vec![false; code.lines().count()];
    let mut modules = Vec::new();
    let mut from = 0;
    while let Some(start) = code[from..].find('#').map(|n| from + n) {
        from = start + 1;
        let Some(attribute) = attribute(&code[start..]) else { continue };
        let inner = attribute.starts_with("#!");
        if !for_tests(attribute) {
            continue;
        }
        let after = start + attribute.len();
        let end = if inner { code.len() } else { after + item_len(&code[after..]) };
        let item = &code[after..end];
        if let Some(name) = item
            .trim_end()
            .strip_suffix(';')
            .and_then(|item| item.split_whitespace().skip_while(|&word| word != "mod").nth(1))
        {
            modules.push(name.to_string());
        }
        let first = code[..start].matches('\n').count();
        let last = code[..end].matches('\n').count();
        test.iter_mut().take(last + 1).skip(first).for_each(|line| *line = true);
        from = end.max(from);
    }
    (test, modules)
}

/// The attribute that `code` starts with, brackets included.
fn attribute(code: &str) -> Option<&str> {
    if !code.starts_with("#[") && !code.starts_with("#![") {
        return None;
    }
    let mut depth = 0;
    for (i, c) in code.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(&code[..=i]);
        }
    }
    None
}

/// Whether an attribute keeps its item out of ordinary builds: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn for_tests(attribute: &str) -> bool {
    let body = attribute.trim_start_matches(['#', '!', '[']).trim_end_matches(']').trim();
    if body == "test" {
        return true;
    }
    let Some(condition) = body.strip_prefix("cfg") else { return false };
    let words = || condition.split(|c: char| !c.is_alphanumeric() && c != '_');
    words().any(|word| word == "test") && !words().any(|word| word == "not" || word == "any")
}

/// The length of the item that follows an attribute: to its `;` or its closing brace.
fn item_len(code: &str) -> usize {
    let (mut braces, mut others) = (0, 0);
    for (i, c) in code.char_indices() {
        match c {
            '{' => braces += 1,
            '}' => braces -= 1,
            '(' | '[' => others += 1,
            ')' | ']' => others -= 1,
            ';' => {}
            _ => continue,
        }
        if braces == 0 && others == 0 && matches!(c, '}' | ';') {
            return i + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new(text).lines.iter().map(|line| line.code.trim_end()).collect::<Vec<_>>().join("|")
    }

    fn test_lines(text: &str) -> String {
        Source::new(text).lines.iter().map(|line| if line.test { 't' } else { '.' }).collect()
    }

    #[test]
    fn comments_and_the_insides_of_literals_are_not_code() {
        assert_eq!(code("a; // b"), "a;");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(code("f(\"x // y\")"), "f(\"      \")");
        assert_eq!(code("f(\"a\\\"b\") // c"), "f(\"    \")");
        assert_eq!(code("f(r#\"a\"b\"#)"), "f(r#\"   \"#)");
        assert_eq!(code("f(br\"\\\") + g"), "f(br\" \") + g");
        assert_eq!(code("'\"' + '\\'' + '\\u{1F}'"), "' ' + '  ' + '      '");
        assert_eq!(code("fn f<'a>(x: &'a str) {} // y"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("for\"x\""), "for\" \"");
    }

    #[test]
    fn an_unfinished_literal_or_comment_reaches_the_end_without_a_fault() {
        for text in ["\"abc", "r##\"abc\"#", "/* x", "'\\", "'\\u", "r#", "//", "\"\\"] {
            Source::new(text);
        }
    }

    #[test]
    fn test_modules_and_test_functions_are_test_code() {
        assert_eq!(test_lines("a\n#[cfg(test)]\nmod tests {\n  x\n}\nb"), ".tttt.");
        assert_eq!(test_lines("a\n#[test]\n#[should_panic]\nfn f() {\n}\nb"), ".tttt.");
        assert_eq!(test_lines("#[cfg(not(test))]\nfn f() {}\n#[cfg(feature = \"test\")]\nfn g() {}"), "....");
        assert_eq!(test_lines("#[cfg(test)]\nuse a::{b, c};\nfn f() {}"), "tt.");
        assert_eq!(test_lines("#![cfg(test)]\nfn f() {}"), "tt");
    }

    #[test]
    fn a_test_module_in_its_own_file_is_named() {
        assert_eq!(Source::new("#[cfg(test)]\nmod cases;\npub mod other;").test_modules, ["cases"]);
        assert_eq!(Source::new("#[cfg(test)]\npub(crate) mod cases;").test_modules, ["cases"]);
    }
}
