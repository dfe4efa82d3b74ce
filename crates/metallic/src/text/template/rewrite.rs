//! Changes to a template's source that make it mean here what it means in Python.

use super::expression;

/// Rewrites what the engine lacks, gets wrong or does without limits, inside tags and outside of texts:
///
/// - `{% generation %}` marks what the assistant said, for training; it prints its contents, like `{% if true %}`.
/// - Operators, slices, loops and assignments become calls of functions that keep within bounds.
///
/// A template that would make the engine recurse deeper than any real one is refused, with the place and the reason.
pub(super) fn rewrite(source: &str) -> Result<String, (usize, String)> {
    let mut open_blocks = 0_usize;
    let mut out = String::with_capacity(source.len() + source.len() / 4);
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
        if tag.len() < 4 || tag.starts_with("{#") || end.is_none() {
            out.push_str(tag);
            continue;
        }
        let (open, inside, close) = parts(tag);
        let is_statement = tag.starts_with("{%");
        let refuse = |what: &str, most: usize| {
            let line = 1 + source[..source.len() - tag.len() - after.len()].matches('\n').count();
            Err((line, format!("{what}; at most {most} are allowed")))
        };
        if is_statement {
            let word = inside.trim_start();
            if word.starts_with("end") {
                open_blocks = open_blocks.saturating_sub(1);
            } else if BLOCKS.iter().any(|b| word.starts_with(b)) {
                open_blocks += usize::from(!is_assignment(inside));
            }
            if open_blocks > MAX_BLOCKS {
                return refuse("too many blocks in blocks", MAX_BLOCKS);
            }
        }
        out.push_str(open);
        match inside.trim() {
            "generation" if is_statement => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" if is_statement => out.push_str(&inside.replace("endgeneration", "endif")),
            "raw" if is_statement => {
                out.push_str(inside);
                out.push_str(close);
                let raw = raw_end(rest);
                out.push_str(&rest[..raw]);
                rest = &rest[raw..];
                continue;
            }
            _ => {
                if !expression::rewrite(inside, is_statement, &mut out) {
                    return refuse("too many words in a tag", expression::MAX_WORDS);
                }
            }
        }
        out.push_str(close);
    }
    out.push_str(rest);
    Ok(out)
}

/// Blocks in blocks. Real templates have about ten.
const MAX_BLOCKS: usize = 100;
/// Words that open a block, or may.
const BLOCKS: &[&str] =
    &["if", "for", "macro", "call", "filter", "with", "set", "generation", "block", "autoescape"];

/// Whether a tag is `set x = …`, which opens no block.
fn is_assignment(inside: &str) -> bool {
    inside.trim_start().starts_with("set") && inside.contains('=')
}

/// A tag's opening and closing marks, with the signs that trim, and what is between them.
fn parts(tag: &str) -> (&str, &str, &str) {
    let signs: &[char] = &['-', '+'];
    let open = 2 + usize::from(tag[2..tag.len() - 2].starts_with(signs));
    let close = tag.len() - 2 - usize::from(tag[open..tag.len() - 2].ends_with(signs));
    (&tag[..open], &tag[open..close], &tag[close..])
}

/// Where the text of a `raw` block ends.
fn raw_end(text: &str) -> usize {
    let ends = |(at, _): &(usize, &str)| {
        let inside = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        inside.starts_with("endraw")
    };
    text.match_indices("{%").find(ends).map_or(text.len(), |(at, _)| at)
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

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn only_tags_are_rewritten_and_only_outside_of_texts() {
        for (source, expected) in [
            ("a {%- generation -%} b {% endgeneration %}", "a {%- if true -%} b {% endif %}"),
            (
                "[::-1] {{ '[::-1] %}' ~ a }} {# a ~ b #}",
                "[::-1] {{ __concat('[::-1] %}' , a) }} {# a ~ b #}",
            ),
            (
                "{% raw %}{{ a ~ b }}{%- endraw %}{{ 1 + 2 }}",
                "{% raw %}{{ a ~ b }}{%- endraw %}{{ __add(1 , 2) }}",
            ),
            ("{{- a ~ b -}}", "{{- __concat(a , b) -}}"),
            ("{ {{ a }} {% open", "{ {{ a }} {% open"),
            ("{", "{"),
            ("{%%}{%}", "{%%}{%}"),
        ] {
            assert_eq!(rewrite(source).unwrap(), expected);
        }
    }
    #[test]
    fn templates_that_nest_too_deep_are_refused_with_the_line() {
        let (line, reason) = rewrite(&format!("a\nb{}", "{% if x %}".repeat(200))).unwrap_err();
        assert!(line == 2 && reason.contains("100"), "{line}: {reason}");
        let (line, reason) = rewrite(&format!("\n\n{{{{ {}x }}}}", "not ".repeat(9000))).unwrap_err();
        assert!(line == 3 && reason.contains("words"), "{line}: {reason}");
        assert!(rewrite(&"{% set x = 1 %}{% if x %}{% endif %}".repeat(500)).is_ok());
    }
}
