//! Text of strangers (models, files, hubs) as it may reach a terminal: what would steer it is spelled out.

use std::{borrow::Cow, fmt::Write};

/// What a model wrote: lines and tabs are its own, all else that steers is spelled out. Marks that join and direct
/// letters stay: languages and emoji need them.
pub(crate) fn output(text: &str) -> Cow<'_, str> {
    let steers = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || overrides_direction(c);
    if text.contains("\r\n") {
        // A line break of Windows is one; a return alone would write over the line.
        return spelled(&text.replace("\r\n", "\n"), steers).into_owned().into();
    }
    spelled(text, steers)
}

/// A name or a message that stands in a line of ours: nothing in it may end the line, hide or turn it.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    spelled(text, |c| c.is_control() || overrides_direction(c) || is_invisible(c))
}

/// Lines of ours with names of others in them.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    spelled(text, |c| (c.is_control() && c != '\n') || overrides_direction(c) || is_invisible(c))
}

/// JSON without a character that a terminal would obey. JSON has escapes of its own, so nothing is lost.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    replaced(
        text,
        |c| c.is_control() || overrides_direction(c) || is_invisible(c),
        |out, c| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

/// Turns the direction of what follows, so that text reads other than it is.
fn overrides_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Takes no place, or ends a line where none seems to end.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2064}'
        | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

fn spelled(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    replaced(text, is_bad, |out, c| match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
    })
}

fn replaced(text: &str, is_bad: impl Fn(char) -> bool, spell: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_bad(c) { spell(&mut out, c) } else { out.push(c) }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\x1b[2J\u{9b}31m\u{7}\u{7f}\r\n\t\u{202e}txt.\u{2066}\u{200b}é日👩\u{200d}🚀";

    #[test]
    fn nothing_that_steers_is_left_and_nothing_else_is_changed() {
        assert_eq!(
            output(EVIL),
            "a\\u{1b}[2J\\u{9b}31m\\u{7}\\u{7f}\n\t\\u{202e}txt.\\u{2066}\u{200b}é日👩\u{200d}🚀"
        );
        assert_eq!(
            line(EVIL),
            "a\\u{1b}[2J\\u{9b}31m\\u{7}\\u{7f}\\r\\n\\t\\u{202e}txt.\\u{2066}\\u{200b}é日👩\\u{200d}🚀"
        );
        assert_eq!(output("a\r\nb\rc\r"), "a\nb\\rc\\r");
        assert_eq!(lines("a\nb\r\tc"), "a\nb\\r\\tc");
        for plain in ["", "plain", "شكرا", "日本語 – “quotes”"] {
            assert!(matches!(line(plain), Cow::Borrowed(same) if same == plain));
        }
    }

    #[test]
    fn json_means_the_same_as_before() {
        let text = serde_json::to_string(&serde_json::json!({ "name": EVIL, "tag": "\u{e0041}" })).unwrap();
        let safe = json(&text);
        let steers = |c: char| c.is_control() || overrides_direction(c) || is_invisible(c);
        assert!(!safe.contains(steers), "{safe}");
        let back: serde_json::Value = serde_json::from_str(&safe).unwrap();
        assert_eq!(back, serde_json::json!({ "name": EVIL, "tag": "\u{e0041}" }));
    }
}
