//! The tokens of preprocessed Metal source.
//!
//! Only as much of C++ as the rewriter needs: `[[` is one token, `]]` and `>>` are two, and directives
//! (line markers, pragmas) are no tokens at all.

use std::ops::Range;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Number,
    Text,
    Character,
    Sign,
}

/// A token and the bytes it covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Signs of more than one character, longest first.
const LONG_SIGNS: [&str; 20] = [
    "<<=", "...", "[[", "::", "->", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=",
    "|=", "<<", "++",
];

/// Appends the tokens of `source[range]`; `range` starts at the beginning of a line.
pub(crate) fn lex(source: &str, range: Range<usize>, tokens: &mut Vec<Token>) {
    let bytes = source.as_bytes();
    let (mut at, end) = (range.start, range.end.min(bytes.len()));
    let mut line_begins = true;
    while at < end {
        let byte = bytes[at];
        if byte.is_ascii_whitespace() {
            line_begins |= byte == b'\n';
            at += 1;
            continue;
        }
        if byte == b'#' && line_begins {
            at += bytes[at..end].iter().take_while(|&&byte| byte != b'\n').count();
            continue;
        }
        line_begins = false;
        let start = at;
        let kind = match byte {
            b'R' if bytes[start..end].starts_with(b"R\"") => {
                at = raw_string_end(bytes, start, end);
                Kind::Text
            }
            b'"' | b'\'' => {
                at = quoted_end(bytes, start, end);
                if byte == b'"' { Kind::Text } else { Kind::Character }
            }
            _ if begins_word(byte) => {
                at += bytes[at..end].iter().take_while(|&&byte| continues_word(byte)).count();
                Kind::Word
            }
            _ if byte.is_ascii_digit()
                || (byte == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)) =>
            {
                at = number_end(bytes, start, end);
                Kind::Number
            }
            _ => {
                at += LONG_SIGNS
                    .iter()
                    .find(|sign| bytes[at..end].starts_with(sign.as_bytes()))
                    .map_or(1, |s| s.len());
                Kind::Sign
            }
        };
        tokens.push(Token { kind, start, end: at });
    }
}

fn begins_word(byte: u8) -> bool {
    // Bytes of other alphabets belong to words, so that a token never ends inside a character.
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$' || byte >= 0x80
}

fn continues_word(byte: u8) -> bool {
    begins_word(byte) || byte.is_ascii_digit()
}

/// One past the quotation mark that closes the one at `start`; the end of its line if none does.
pub(crate) fn quoted_end(bytes: &[u8], start: usize, end: usize) -> usize {
    let mut at = start + 1;
    while at < end && bytes[at] != b'\n' {
        match bytes[at] {
            b'\\' => at += 1,
            byte if byte == bytes[start] => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at.min(end)
}

fn raw_string_end(bytes: &[u8], start: usize, end: usize) -> usize {
    let open = start + 2;
    let Some(length) = bytes[open..end].iter().position(|&byte| byte == b'(') else { return end };
    let mut close = vec![b')'];
    close.extend_from_slice(&bytes[open..open + length]);
    close.push(b'"');
    bytes[open..end]
        .windows(close.len())
        .position(|window| window == close)
        .map_or(end, |at| open + at + close.len())
}

fn number_end(bytes: &[u8], start: usize, end: usize) -> usize {
    let mut at = start + 1;
    while at < end {
        let exponent = matches!(bytes[at - 1], b'e' | b'E' | b'p' | b'P') && matches!(bytes[at], b'+' | b'-');
        // In hexadecimal integers `e` is a digit: `0xe+1` is a sum.
        let hexadecimal = bytes[start..at].starts_with(b"0x") || bytes[start..at].starts_with(b"0X");
        let exponent = exponent && (!hexadecimal || matches!(bytes[at - 1], b'p' | b'P'));
        if exponent || continues_word(bytes[at]) || bytes[at] == b'.' || bytes[at] == b'\'' {
            at += 1;
        } else {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        let mut tokens = Vec::new();
        lex(source, 0..source.len(), &mut tokens);
        tokens.iter().map(|t| &source[t.start..t.end]).collect()
    }

    #[test]
    fn attributes_open_with_one_token_and_close_with_two() {
        assert_eq!(texts("x[[buffer(0)]]"), ["x", "[[", "buffer", "(", "0", ")", "]", "]"]);
        assert_eq!(texts("a[b[0]]"), ["a", "[", "b", "[", "0", "]", "]"]);
    }

    #[test]
    fn numbers_keep_their_exponents_and_suffixes() {
        assert_eq!(texts("1.5e-3f+2"), ["1.5e-3f", "+", "2"]);
        assert_eq!(texts("0xe+1"), ["0xe", "+", "1"]);
        assert_eq!(texts("0x1.8p-3h"), ["0x1.8p-3h"]);
        assert_eq!(texts(".5"), [".5"]);
    }

    #[test]
    fn directives_and_strings_hide_their_contents() {
        assert_eq!(
            texts("# 1 \"device\"\n#pragma unroll\n\"kernel \\\" \" 'k'"),
            ["\"kernel \\\" \"", "'k'"]
        );
        assert_eq!(texts("R\"x(a\")x\" b"), ["R\"x(a\")x\"", "b"]);
    }

    #[test]
    fn unfinished_text_ends_with_its_line() {
        assert_eq!(texts("\"abc\nd"), ["\"abc", "d"]);
        assert_eq!(texts("\"abc\\"), ["\"abc\\"]);
        assert_eq!(texts("R\"(abc"), ["R\"(abc"]);
    }
}
