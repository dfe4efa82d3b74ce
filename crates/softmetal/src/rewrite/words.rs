//! The edits that need no context: qualifiers, attributes, literals.

use std::ops::Range;

use super::{text::Edits, tokens::View};
use crate::lexer::Kind;

/// What a word of Metal becomes; `None` if C++ knows it too.
fn replacement(word: &str) -> Option<&'static str> {
    Some(match word {
        "device" | "thread" | "threadgroup" | "threadgroup_imageblock" | "ray_data" | "object_data" => "",
        // Metal lets a pointer to `constant` take the address of a constant table.
        "constant" => "const",
        "kernel" => "static",
        _ => return None,
    })
}

/// Metal has no `double`: an unsuffixed literal is a float, `h` makes a half and `bf` a bfloat.
/// Gives the literal in C++, if it is another one.
pub(crate) fn literal(number: &str) -> Option<String> {
    let lower = number.to_ascii_lowercase();
    let hexadecimal = lower.starts_with("0x");
    let float = if hexadecimal { lower.contains('p') } else { lower.contains(['.', 'e']) };
    if let Some(digits) = lower.strip_suffix("bf").filter(|_| !hexadecimal || float) {
        return Some(format!("((bfloat){})", literal(digits).unwrap_or_else(|| format!("{digits}.f"))));
    }
    if let Some(digits) = lower.strip_suffix('h').filter(|d| !hexadecimal || d.contains('p')) {
        return Some(format!("{digits}{}f16", if float { "" } else { "." }));
    }
    (float && lower.ends_with(|c: char| c.is_ascii_digit() || c == '.')).then(|| format!("{number}f"))
}

/// `coherent`, `coherent(device)`: the tokens of the qualifier, if one starts here.
pub(crate) fn coherent(view: &View, index: usize) -> Option<usize> {
    if view.at(index) != "coherent" || matches!(view.before(index), "." | "->" | "::") {
        return None;
    }
    match view.at(index + 1) {
        "(" if matches!(
            view.at(index + 2),
            "device" | "system" | "threadgroup" | "simdgroup" | "quadgroup"
        ) =>
        {
            view.close(index + 1).map(|close| close + 1)
        }
        "(" => None,
        _ => view.is_word(index + 1).then_some(index + 1),
    }
}

/// The token in C++, if it is another one.
fn in_cpp(view: &View, index: usize) -> Option<String> {
    match view.kind(index)? {
        Kind::Word => replacement(view.at(index)).map(str::to_owned),
        Kind::Number => literal(view.at(index)),
        _ => None,
    }
}

/// The tokens of a range in C++, on one line, for text that is built elsewhere.
pub(crate) fn plain(view: &View, range: Range<usize>) -> String {
    let other = |index| defined(view, index).or_else(|| Some((index + 1, in_cpp(view, index)?)));
    spelled(view, range, other)
}

/// The tokens of a range without Metal's qualifiers, on one line. `other` gives what stands for those that start at an index,
/// if not themselves, and the index after them.
pub(super) fn spelled(
    view: &View,
    range: Range<usize>,
    other: impl Fn(usize) -> Option<(usize, String)>,
) -> String {
    let (mut out, mut index) = (Vec::new(), range.start);
    while index < range.end {
        let dropped = (view.at(index) == "[[").then(|| view.skip(index)).or_else(|| coherent(view, index));
        if let Some(next) = dropped {
            index = next;
            continue;
        }
        let (next, text) = other(index).unwrap_or_else(|| (index + 1, view.at(index).to_owned()));
        out.push(text);
        index = next;
    }
    out.join(" ").trim().to_owned()
}

/// `is_function_constant_defined(a::x)`: one past it, and the flag that answers (`a::msl_fcdef_x`).
fn defined(view: &View, index: usize) -> Option<(usize, String)> {
    if view.at(index) != "is_function_constant_defined" || view.at(index + 1) != "(" {
        return None;
    }
    let close = view.close(index + 1)?;
    let name = close.checked_sub(1).filter(|&name| name > index + 1 && view.is_word(name))?;
    let scope: String = (index + 2..name).map(|i| view.at(i)).collect();
    Some((close + 1, format!("{scope}msl_fcdef_{}", view.at(name))))
}

/// Queues the edits of every token. Those inside a region that is replaced as a whole fall away.
pub(crate) fn rewrite_words(view: &View, edits: &mut Edits) {
    let mut index = 0;
    while index < view.len() {
        let token = view.at(index);
        let bytes = view.bytes(&(index..index + 1));
        if token == "[["
            && let Some(close) = view.close(index)
        {
            attribute(view, edits, index, close);
            index = close + 1;
            continue;
        }
        let coherent = coherent(view, index).map(|next| (next, String::new()));
        if let Some((next, text)) = coherent.or_else(|| defined(view, index)) {
            edits.replace(view.bytes(&(index..next)), text);
            index = next;
            continue;
        }
        if let Some(text) = in_cpp(view, index) {
            // A space after a literal makes room for its suffix, so that columns stay.
            let spaces = view.text.source[bytes.end..].bytes().take_while(|&byte| byte == b' ').count();
            let room = if view.is_word(index + 1) { 0 } else { spaces };
            let longer = text.len().saturating_sub(token.len());
            edits.overwrite(bytes.start..bytes.end + room.min(longer), &text);
        }
        index += 1;
    }
}

/// Clang keeps its own attributes; Metal's have done their work and go.
fn attribute(view: &View, edits: &mut Edits, open: usize, close: usize) {
    if matches!(view.at(open + 1), "clang" | "gnu") {
        return;
    }
    let kernel = view.attributes(open..close + 1).iter().any(|attribute| attribute.name == "kernel");
    let bytes = view.bytes(&(open..close + 1));
    let text = if kernel { "static" } else { "" };
    if view.text.source[bytes.clone()].contains('\n') {
        edits.replace(bytes, text.to_owned());
    } else {
        edits.overwrite(bytes, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_have_the_type_metal_gives_them() {
        let cases = [
            ("1.5", Some("1.5f")),
            ("1.", Some("1.f")),
            ("1e-3", Some("1e-3f")),
            ("0x1p4", Some("0x1p4f")),
            ("1.0h", Some("1.0f16")),
            ("2h", Some("2.f16")),
            ("1.0bf", Some("((bfloat)1.0f)")),
            ("1.5f", None),
            ("12", None),
            ("12u", None),
            ("0xe", None),
            ("0x1f", None),
            ("0xbf", None),
            ("1ul", None),
        ];
        for (number, expected) in cases {
            assert_eq!(literal(number).as_deref(), expected, "{number}");
        }
    }
}
