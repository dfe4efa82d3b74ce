//! Grammars in Lark's language, whose schemas are checked like others.

use serde_json::Value;

use super::ConstrainError;
use super::schema::{OneOf, check};

/// The grammar with every `%json` schema checked and written anew, and the alternatives in them of which one alone may hold.
pub(super) fn with_checked_schemas(source: &str) -> Result<(String, Vec<OneOf>), ConstrainError> {
    const MARK: &str = "%json";
    let mut one_of = Vec::new();
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let taken = if let Some(after) = rest.strip_prefix(MARK) {
            let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
            let schema = values.next().and_then(Result::ok).ok_or_else(|| ConstrainError::Grammar {
                kind: "grammar",
                reason: format!("`{MARK}` is not followed by a JSON schema"),
            })?;
            let end = MARK.len() + values.byte_offset();
            let checked = check(&schema)?;
            out.extend([MARK, " ", &checked.schema.to_string()]);
            one_of.extend(checked.one_of);
            rest = &rest[end..];
            continue;
        } else if rest.starts_with("//") || next == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else if next == '"' || next == '/' {
            quoted(rest, next)
        } else {
            next.len_utf8()
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    Ok((out, one_of))
}

/// Bytes of a string or an expression, up to the mark that began it.
fn quoted(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == mark => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_in_grammars_are_checked_and_nothing_else_is_touched() {
        let source = "start: \"%json {\" /%json \\/ {/ tail // %json {}\ntail: \"x\" # %json\n";
        assert_eq!(with_checked_schemas(source), Ok((source.to_owned(), Vec::new())));
        let (written, _) =
            with_checked_schemas("start: \"<\" args \">\"\nargs: %json {\"type\": \"integer\"}\n")
                .expect("a grammar");
        assert!(written.contains("\"maximum\":9007199254740991") && written.ends_with("}\n"), "{written}");
        let refused = with_checked_schemas("start: %json {\"not\": {}}");
        assert_eq!(
            refused,
            Err(ConstrainError::Unsupported { pointer: "/not".into(), keyword: "not".into() })
        );
        assert!(with_checked_schemas("start: %json {").is_err());
    }
}
