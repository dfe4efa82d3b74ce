//! Regular expressions of JSON schemas.
//!
//! A schema's patterns are ECMAScript, and validators read them in dialects of their own. What is allowed here is what all of them
//! allow: `\d` is an ASCII digit, while `\D` is not a digit of any script.

use std::iter::Peekable;
use std::str::Chars;

/// The expression in the matcher's syntax; `None` where it has what cannot be enforced: looking around, references to groups,
/// borders of words, flags, and what dialects read in different ways.
pub(super) fn translate(pattern: &str) -> Option<Translated> {
    let out = String::with_capacity(pattern.len() + 16);
    let mut reader = Reader { rest: pattern.chars().peekable(), out, agreement: Agreement::Full };
    // Whether what was read last can be repeated.
    let mut repeats = false;
    while let Some(c) = reader.rest.next() {
        let mut repeatable = !matches!(c, '^' | '$' | '|' | '(');
        match c {
            '.' => {
                reader.agreement = reader.agreement.min(Agreement::OfStandard);
                reader.out.push_str(r"[^\n\r\x{2028}\x{2029}]");
            }
            '\\' => reader.escape()?,
            '[' => reader.class()?,
            '(' => reader.group()?,
            '*' | '+' | '?' if !repeats => return None,
            '*' | '+' | '?' => {
                reader.out.push(c);
                reader.lazy();
                repeatable = false;
            }
            '{' => {
                let counts = reader.quantifier(repeats)?;
                repeatable = !counts;
            }
            '}' | ']' => reader.literal(c),
            '^' | '$' | '|' | ')' => reader.out.push(c),
            c => reader.literal(c),
        }
        repeats = repeatable;
    }
    Some(Translated { expression: reader.out, agreement: reader.agreement })
}

/// A pattern in the matcher's syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translated {
    pub(super) expression: String,
    pub(super) agreement: Agreement,
}

/// Who takes a pattern for exactly what it was translated to; others match more by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agreement {
    /// Nobody, not even ECMAScript.
    Partial,
    /// ECMAScript, but not every other dialect.
    OfStandard,
    /// All dialects.
    Full,
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    agreement: Agreement,
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

    /// What is said of a set of characters by its letter holds for fewer dialects than a list of them.
    fn uses_set(&mut self, letter: char) {
        let agreement = if matches!(letter, 'd' | 'w') { Agreement::OfStandard } else { Agreement::Partial };
        self.agreement = self.agreement.min(agreement);
    }

    /// As few as possible, which changes nothing of what matches.
    fn lazy(&mut self) {
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
    }

    /// `{`, which is itself where no count follows; whether one did. `None` where there is nothing to repeat, or where dialects differ.
    fn quantifier(&mut self, repeats: bool) -> Option<bool> {
        let text: String = self.rest.clone().take_while(|c| *c != '}').collect();
        let mut counts = text.splitn(2, ',');
        let is_count = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let from = counts.next().is_some_and(is_count);
        let to = counts.next().is_none_or(|to| to.is_empty() || is_count(to));
        let closed = self.rest.clone().nth(text.chars().count()) == Some('}');
        if from && to && closed {
            self.out.extend(["{", &text, "}"]);
            self.rest.nth(text.chars().count());
            self.lazy();
            return repeats.then_some(true);
        }
        // To some, `{,3}` is a count.
        let is_count_to_some = text.strip_prefix(',').is_some_and(|most| is_count(most) || most.is_empty());
        self.literal('{');
        (!(is_count_to_some && closed)).then_some(false)
    }

    /// What follows a backslash outside brackets.
    fn escape(&mut self) -> Option<()> {
        let c = self.rest.next()?;
        if let Some(Set { all, any }) = set(c) {
            self.uses_set(c);
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
                        // What is left out of a class is what the widest reading has.
                        self.uses_set(if negated { 's' } else { c });
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
    use super::{Agreement, translate};

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
            (r"a+?b{2,3}?c??", r"a+?b{2,3}?c??"),
            (r"a{b}{,x}", r"a\{b\}\{,x\}"),
            (r"A\uD83D\uDE00\x7e", r"A\x{1F600}\x{7E}"),
        ] {
            assert_eq!(
                translate(pattern).map(|found| found.expression).as_deref(),
                Some(expected),
                "{pattern}"
            );
        }
    }

    #[test]
    fn it_is_known_who_reads_a_pattern_as_it_was_translated() {
        for (pattern, agreement) in [
            (r"^[a-z]+\.x{2}$", Agreement::Full),
            (r"^a.c$", Agreement::OfStandard),
            (r"[\d.]\w", Agreement::OfStandard),
            (r"\s", Agreement::Partial),
            (r"[^\d]", Agreement::Partial),
            (r"\d\D", Agreement::Partial),
        ] {
            assert_eq!(translate(pattern).map(|found| found.agreement), Some(agreement), "{pattern}");
        }
    }

    #[test]
    fn what_a_finite_automaton_has_not_is_refused() {
        for pattern in [
            r"(?=a)b", r"(?<!a)b", r"(a)\1", r"\bword", r"(?i)a", r"[]", r"[^]", r"a\", r"[a", r"\uD83D",
            r"\q", r"a++", r"a**", r"a{2}{3}", r"a?+", r"^*a", r"a|*", r"(+a)", r"{2}", r"a{,3}", r"a{,}",
        ] {
            assert_eq!(translate(pattern), None, "{pattern}");
        }
    }
}
