//! Changes to a template's source that make it mean here what it means in Python.

/// Rewrites what the engine lacks or gets wrong, inside tags and outside of texts:
///
/// - `{% generation %}` marks what the assistant said, for training; it prints its contents, like `{% if true %}`.
/// - `list[::-1]` panics for an empty list; `list|reverse` does not.
pub(super) fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = match tag.as_bytes().get(1) {
            Some(b'%') => tag_end(tag, "%}"),
            Some(b'{') => tag_end(tag, "}}"),
            Some(b'#') => tag.find("#}").map(|at| at + 2),
            _ => Some(1),
        };
        let (tag, after) = tag.split_at(end.unwrap_or(tag.len()));
        rest = after;
        if tag.len() < 4 || tag.starts_with("{#") {
            out.push_str(tag);
            continue;
        }
        let word = tag[2..tag.len() - 2].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => reverse_slices(tag, &mut out),
        }
    }
    out.push_str(rest);
    out
}

/// Where the tag that `text` begins with ends; its texts may contain anything.
fn tag_end(text: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(2) {
        match quote {
            _ if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            None if text[at..].starts_with(close) => return Some(at + close.len()),
            None if c == '"' || c == '\'' => quote = Some(c),
            _ => {}
        }
    }
    None
}

/// Copies a tag with `[::-1]` outside of its texts written as a filter.
fn reverse_slices(tag: &str, out: &mut String) {
    const SLICE: &str = "[::-1]";
    let mut quote = None;
    let mut skip = 0;
    for (at, c) in tag.char_indices() {
        if at < skip {
            continue;
        }
        match quote {
            Some(q) if c == q && !tag[..at].ends_with('\\') => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if tag[at..].starts_with(SLICE) && !tag[at + SLICE.len()..].starts_with(['[', '.', '(']) => {
                out.push_str("|reverse");
                skip = at + SLICE.len();
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn only_tags_are_rewritten_and_only_outside_of_texts() {
        for (source, expected) in [
            ("a {%- generation -%} b {% endgeneration %}", "a {%- if true -%} b {% endif %}"),
            ("{% for m in messages[::-1] %}{{ x[::-1] }}", "{% for m in messages|reverse %}{{ x|reverse }}"),
            (
                "[::-1] {{ '[::-1] %}' ~ a[::-1][0] }} {# [::-1] #}",
                "[::-1] {{ '[::-1] %}' ~ a[::-1][0] }} {# [::-1] #}",
            ),
            ("{ {{ a }} {% open", "{ {{ a }} {% open"),
            ("{", "{"),
            ("{%%}{%}", "{%%}{%}"),
        ] {
            assert_eq!(rewrite(source), expected);
        }
    }
}
