//! Regular expressions of JSON schemas.
//!
//! A schema's patterns are ECMAScript, and validators read them in dialects of their own. What is allowed here is what all of them
//! allow: `\d` is an ASCII digit, while `\D` is not a digit of any script.

use std::iter::Peekable;
use std::str::Chars;

/// The expression in the matcher's syntax; `None` where it has what cannot be enforced: looking around, references to groups,
/// borders of words, flags.
pub(super) fn translate(pattern: &str) -> Option<String> {
    let mut reader =
        Reader { rest: pattern.chars().peekable(), out: String::with_capacity(pattern.len() + 16) };
    while let Some(c) = reader.rest.next() {
        match c {
            '.' => reader.out.push_str(r"[^\n\r\x{2028}\x{2029}]"),
            '\\' => reader.escape()?,
            '[' => reader.class()?,
            '(' => reader.group()?,
            '{' => reader.quantifier(),
            '}' | ']' => reader.literal(c),
            '^' | '$' | '|' | ')' | '*' | '+' | '?' => reader.out.push(c),
            c => reader.literal(c),
        }
    }
    Some(reader.out)
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
}

/// A set of characters that has a letter: what all dialects have in it, and what one of them has.
struct Set {
    all: &'static str,
    any: &'static str,
}

fn set(letter: char) -> Option<Set> {
    Some(match letter.to_ascii_lowercase() {
        'd' => Set { all: "0-9", any: r"\p{Nd}" },
        'w' => Set { all: "0-9A-Za-z_", any: r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}" },
        's' => Set { all: r"\x20\t\n\r\x0B\x0C", any: r"\s\x1C-\x1F\x{85}\x{180E}\x{FEFF}" },
        _ => return None,
    })
}

impl Reader<'_> {
    fn literal(&mut self, c: char) {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            self.out.push('\\');
        }
        self.out.push(c);
    }

    fn code(&mut self, code: u32) {
        self.out.extend(["\\x{", &format!("{code:X}"), "}"]);
    }

    /// `(` of a group that is numbered, named or neither.
    fn group(&mut self) -> Option<()> {
        self.out.push('(');
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push_str("?:");
            match self.rest.next()? {
                ':' => {}
                '<' if !matches!(self.rest.peek(), Some('=' | '!')) => {
                    self.rest.by_ref().find(|c| *c == '>')?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// `{`, which is itself where no count follows.
    fn quantifier(&mut self) {
        let text: String = self.rest.clone().take_while(|c| *c != '}').collect();
        let mut counts = text.splitn(2, ',');
        let is_count = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let from = counts.next().is_some_and(is_count);
        let to = counts.next().is_none_or(|to| to.is_empty() || is_count(to));
        let closed = self.rest.clone().nth(text.chars().count()) == Some('}');
        if from && to && closed {
            self.out.extend(["{", &text, "}"]);
            self.rest.nth(text.chars().count());
        } else {
            self.literal('{');
        }
    }

    /// What follows a backslash outside brackets.
    fn escape(&mut self) -> Option<()> {
        let c = self.rest.next()?;
        if let Some(Set { all, any }) = set(c) {
            let class = if c.is_ascii_lowercase() { format!("[{all}]") } else { format!("[^{any}]") };
            self.out.push_str(&class);
            return Some(());
        }
        match c {
            'p' | 'P' => self.property(c),
            'b' | 'B' => None,
            c => self.character(c),
        }
    }

    /// `\p{…}`.
    fn property(&mut self, letter: char) -> Option<()> {
        self.rest.next_if_eq(&'{')?;
        let name: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
        self.out.extend(['\\', letter, '{']);
        self.out.extend([&name, "}"]);
        Some(())
    }

    /// A character that is written with a backslash.
    fn character(&mut self, c: char) -> Option<()> {
        match c {
            'n' | 'r' | 't' | 'f' | 'v' => {
                self.out.push('\\');
                self.out.push(c);
            }
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => self.code(0),
            'x' => {
                let code = self.hex(2)?;
                self.code(code);
            }
            'c' => {
                let letter = self.rest.next().filter(char::is_ascii_alphabetic)?;
                self.code(letter as u32 % 32);
            }
            'u' => {
                let code = self.unicode()?;
                self.code(code);
            }
            c if c.is_ascii_alphanumeric() => return None,
            c => self.literal(c),
        }
        Some(())
    }

    fn unicode(&mut self) -> Option<u32> {
        if self.rest.next_if_eq(&'{').is_some() {
            let digits: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
            return u32::from_str_radix(&digits, 16).ok().filter(|code| char::from_u32(*code).is_some());
        }
        let high = self.hex(4)?;
        if !(0xd800..0xe000).contains(&high) {
            return Some(high);
        }
        // Two halves make one character.
        self.rest.next_if_eq(&'\\')?;
        self.rest.next_if_eq(&'u')?;
        let low = self.hex(4)?;
        let pair = (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
        pair.then(|| 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        (0..digits).try_fold(0, |code, _| Some(code * 16 + self.rest.next()?.to_digit(16)?))
    }

    /// Characters in brackets.
    fn class(&mut self) -> Option<()> {
        self.out.push('[');
        let negated = self.rest.next_if_eq(&'^').is_some();
        if negated {
            self.out.push('^');
        }
        // Whether a range may begin with what was read last, and whether one has begun.
        let (mut begins, mut open, mut empty) = (false, false, true);
        loop {
            let c = self.rest.next()?;
            match c {
                // Nothing in brackets, or all but nothing.
                ']' if empty => return None,
                ']' => break,
                '-' if begins && !matches!(self.rest.peek(), Some(']')) && !self.is_set_next() => {
                    self.out.push('-');
                    (begins, open) = (false, true);
                    continue;
                }
                '\\' => {
                    let c = self.rest.next()?;
                    if let Some(Set { all, any }) = set(c) {
                        let (inside, outside) = if negated { (any, all) } else { (all, any) };
                        let class =
                            if c.is_ascii_lowercase() { inside.to_owned() } else { format!("[^{outside}]") };
                        self.out.push_str(&class);
                        (begins, open, empty) = (false, false, false);
                        continue;
                    }
                    match c {
                        'p' | 'P' => {
                            self.property(c)?;
                            (begins, open, empty) = (false, false, false);
                            continue;
                        }
                        'b' => self.code(8),
                        c => self.character(c)?,
                    }
                }
                c => self.literal(c),
            }
            (begins, open, empty) = (!open, false, false);
        }
        self.out.push(']');
        Some(())
    }

    fn is_set_next(&self) -> bool {
        let mut rest = self.rest.clone();
        rest.next() == Some('\\') && rest.next().is_some_and(|c| set(c).is_some() || matches!(c, 'p' | 'P'))
    }
}

#[cfg(test)]
mod tests {
    use super::translate;

    #[test]
    fn patterns_mean_what_every_validator_takes_them_for() {
        for (pattern, expected) in [
            (r"^a.b$", r"^a[^\n\r\x{2028}\x{2029}]b$"),
            (r"\d{2,}\.\d+", r"[0-9]{2,}\.[0-9]+"),
            (r"[\w.-]+@x{", r"[0-9A-Za-z_\.\-]+@x\{"),
            (r"[^\d]\D", r"[^\p{Nd}][^\p{Nd}]"),
            (r"[[&&a-c]", r"[\[\&\&a-c]"),
            (r"[+--]", r"[\+-\-]"),
            (r"(?<year>[0-9]{4})(?:-|/)", r"(?:[0-9]{4})(?:\-|/)"),
            (r"A\uD83D\uDE00\x7e", r"A\x{1F600}\x{7E}"),
        ] {
            assert_eq!(translate(pattern).as_deref(), Some(expected), "{pattern}");
        }
    }

    #[test]
    fn what_a_finite_automaton_has_not_is_refused() {
        for pattern in [
            r"(?=a)b", r"(?<!a)b", r"(a)\1", r"\bword", r"(?i)a", r"[]", r"[^]", r"a\", r"[a", r"\uD83D",
            r"\q",
        ] {
            assert_eq!(translate(pattern), None, "{pattern}");
        }
    }
}
