//! Writes the expressions in a tag anew, with calls in the place of operators that make texts and lists.
//!
//! The order of the words and all line breaks stay, so that errors name the right line. What is not an expression is left for
//! the engine to judge.

use super::ops::{ADD, CONCAT, KEEP, MODULO, MULTIPLY, POWER, SLICE, TUPLE, WALK};

/// Brackets in brackets: the engine refuses more than 150.
const MAX_DEPTH: usize = 200;

/// Words of one tag: the engine recurses over them. Real tags have less than three hundred.
pub(super) const MAX_WORDS: usize = 4096;

/// A word of a tag, with the space before it.
#[derive(Clone, Copy)]
struct Word<'a> {
    space: &'a str,
    text: &'a str,
}

/// Appends the inside of a tag; `is_statement` for `{% … %}`. False where it has too many words.
pub(super) fn rewrite(inside: &str, is_statement: bool, out: &mut String) -> bool {
    let (words, tail) = words(inside);
    if words.len() > MAX_WORDS {
        return false;
    }
    let first = words.first().map_or("", |w| w.text);
    let top = |wanted: &[&str], from: usize| {
        let mut depth = 0_i32;
        words.iter().enumerate().find_map(|(i, w)| {
            match w.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            (depth == 0 && i >= from && wanted.contains(&w.text)).then_some(i)
        })
    };
    let written = |range: &[Word<'_>], out: &mut String| match Writer::new(range).all() {
        Some(text) => out.push_str(&text),
        None => range.iter().for_each(|w| out.extend([w.space, w.text])),
    };
    let called = |function: &str, range: &[Word<'_>], out: &mut String| {
        out.extend([" ", function, "(("]);
        written(range, out);
        out.push_str("))");
    };
    let kept = top(&["="], 1).filter(|_| is_statement && first == "set");
    let walked = top(&["in"], 1).filter(|_| is_statement && first == "for");
    if let Some(equals) = kept {
        written(&words[..=equals], out);
        called(KEEP, &words[equals + 1..], out);
    } else if let Some(inward) = walked {
        let end = top(&["if", "recursive"], inward).unwrap_or(words.len());
        written(&words[..=inward], out);
        called(WALK, &words[inward + 1..end], out);
        written(&words[end..], out);
    } else {
        written(&words, out);
    }
    out.push_str(tail);
    true
}

/// Cuts a tag into words; the second value is the space at its end.
fn words(text: &str) -> (Vec<Word<'_>>, &str) {
    let mut out = Vec::new();
    let mut rest = text;
    loop {
        let word = rest.trim_start();
        let space = &rest[..rest.len() - word.len()];
        let Some(first) = word.chars().next() else { return (out, rest) };
        let len = match first {
            '"' | '\'' => text_len(word, first),
            c if c.is_ascii_digit() => number_len(word),
            c if c.is_alphabetic() || c == '_' => {
                word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len())
            }
            c => {
                let two = ["==", "!=", "<=", ">=", "//", "**"].iter().find(|op| word.starts_with(**op));
                two.map_or(c.len_utf8(), |op| op.len())
            }
        };
        out.push(Word { space, text: &word[..len] });
        rest = &word[len..];
    }
}

fn text_len(word: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in word.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    word.len()
}

fn number_len(word: &str) -> usize {
    let digits = |from: usize| {
        let end = word[from..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        from + end.unwrap_or(word.len() - from)
    };
    let mut len = digits(0);
    // `1.5`, but not the attribute of `1.name`.
    if word[len..].starts_with('.') && word[len + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        len = digits(len + 1);
    }
    // `1e-5`.
    if word[..len].ends_with(['e', 'E']) && !word.starts_with("0x") && word[len..].starts_with(['+', '-']) {
        len = digits(len + 1);
    }
    len
}

/// Words that stand between expressions, or begin with one but are none.
const BETWEEN: &[&str] = &["and", "or", "not", "in", "is", "if", "else", "elif", "for", "recursive"];

/// What brackets have between them, not counting brackets inside.
#[derive(Default)]
struct Inside {
    /// Places in what was written.
    colons: Vec<usize>,
    commas: bool,
}

struct Writer<'a, 'w> {
    words: &'w [Word<'a>],
    at: usize,
    depth: usize,
}

impl<'a, 'w> Writer<'a, 'w> {
    fn new(words: &'w [Word<'a>]) -> Self {
        Self { words, at: 0, depth: 0 }
    }

    fn peek(&self) -> &'a str {
        self.words.get(self.at).map_or("", |w| w.text)
    }

    fn take(&mut self, out: &mut String) {
        if let Some(word) = self.words.get(self.at) {
            out.extend([word.space, word.text]);
            self.at += 1;
        }
    }

    fn begins_operand(&self) -> bool {
        let word = self.peek();
        let first = word.chars().next().unwrap_or(',');
        matches!(first, '"' | '\'' | '(' | '[' | '{' | '-' | '+')
            || ((first.is_alphanumeric() || first == '_') && !BETWEEN.contains(&word))
    }

    /// The whole tag; `None` where brackets are nested too deep.
    fn all(mut self) -> Option<String> {
        let mut out = String::new();
        while self.at < self.words.len() {
            self.until("", &mut out)?;
            // A bracket that was never opened.
            self.take(&mut out);
        }
        Some(out)
    }

    /// Expressions and what is between them, up to a bracket that closes.
    fn until(&mut self, close: &str, out: &mut String) -> Option<Inside> {
        let mut inside = Inside::default();
        while self.at < self.words.len() && !matches!(self.peek(), ")" | "]" | "}") && self.peek() != close {
            if self.begins_operand() {
                out.push_str(&self.sum()?);
                continue;
            }
            inside.commas |= self.peek() == ",";
            if self.peek() == ":" {
                inside.colons.push(out.len() + self.words[self.at].space.len());
            }
            self.take(out);
        }
        Some(inside)
    }

    fn sum(&mut self) -> Option<String> {
        self.chain(&[("+", ADD), ("-", "")], |w| w.chain(&[("~", CONCAT)], Self::product))
    }

    fn product(&mut self) -> Option<String> {
        self.chain(&[("*", MULTIPLY), ("%", MODULO), ("/", ""), ("//", "")], Self::factor)
    }

    /// Operands with operators of one rank between them, from the left; an operator without a function stays.
    fn chain(
        &mut self,
        operators: &[(&str, &str)],
        operand: impl Fn(&mut Self) -> Option<String>,
    ) -> Option<String> {
        let mut left = operand(self)?;
        while let Some((op, function)) = operators.iter().find(|(op, _)| *op == self.peek()) {
            if function.is_empty() {
                self.take(&mut left);
                left.push_str(&operand(self)?);
                continue;
            }
            let space = left.len() - left.trim_start().len();
            let mut call = format!("{}{function}({}", &left[..space], &left[space..]);
            // One call for all that follow: nested calls would meet the engine's limit. Remainders come in pairs.
            while self.peek() == *op {
                call.push_str(self.words[self.at].space);
                call.push(',');
                self.at += 1;
                call.push_str(&operand(self)?);
                if *op == "%" {
                    break;
                }
            }
            call.push(')');
            left = call;
        }
        Some(left)
    }

    fn factor(&mut self) -> Option<String> {
        self.chain(&[("**", POWER)], Self::signed)
    }

    /// An operand with its signs; a `+`, which the engine does not know, changes nothing.
    fn signed(&mut self) -> Option<String> {
        let mut out = String::new();
        while matches!(self.peek(), "-" | "+") {
            if self.peek() == "+" {
                out.push_str(self.words[self.at].space);
                self.at += 1;
            } else {
                self.take(&mut out);
            }
        }
        if self.begins_operand() {
            out.push_str(&self.operand()?);
        }
        Some(out)
    }

    /// A value with what is attached to it: attributes, items, slices, calls, filters.
    fn operand(&mut self) -> Option<String> {
        let mut out = String::new();
        match self.peek() {
            "(" => {
                let space = self.words[self.at].space;
                let mut group = String::new();
                let Inside { commas, .. } = self.brackets("(", &mut group)?;
                let group = &group[space.len()..];
                let is_tuple = commas || group.trim_matches(['(', ')']).trim().is_empty();
                out.extend([space, if is_tuple { TUPLE } else { "" }, group]);
            }
            open @ ("[" | "{") => {
                self.brackets(open, &mut out)?;
            }
            word => {
                self.take(&mut out);
                // Neighbouring texts are one.
                while word.starts_with(['"', '\'']) && self.peek().starts_with(['"', '\'']) {
                    self.take(&mut out);
                }
            }
        }
        loop {
            match self.peek() {
                "." | "|" => {
                    self.take(&mut out);
                    self.take(&mut out);
                }
                "(" => {
                    self.brackets("(", &mut out)?;
                }
                "[" => {
                    let mut item = String::new();
                    let Inside { colons, .. } = self.brackets("[", &mut item)?;
                    if colons.is_empty() {
                        out.push_str(&item);
                    } else {
                        out = slice(&out, &item, &colons);
                    }
                }
                _ => return Some(out),
            }
        }
    }

    fn brackets(&mut self, open: &str, out: &mut String) -> Option<Inside> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.take(out);
        let close = if open == "(" {
            ")"
        } else if open == "[" {
            "]"
        } else {
            "}"
        };
        let inside = self.until(close, out)?;
        self.take(out);
        self.depth -= 1;
        Some(inside)
    }
}

/// `value[start:stop:step]` as a call; `item` is `[start:stop:step]`, with its colons at these places.
fn slice(value: &str, item: &str, colons: &[usize]) -> String {
    let open = item.find('[').map_or(0, |at| at + 1);
    let close = item.rfind(']').unwrap_or(item.len());
    let space = value.len() - value.trim_start().len();
    let mut out = format!("{}{SLICE}({}", &value[..space], &value[space..]);
    let mut from = open;
    for place in 0..3 {
        let to = colons.get(place).copied().unwrap_or(close);
        let bound = item.get(from..to).unwrap_or("");
        out.push(',');
        out.push_str(if bound.trim().is_empty() { " none" } else { bound });
        // Line breaks count.
        if bound.trim().is_empty() {
            out.push_str(bound);
        }
        from = (to + 1).min(close);
    }
    out.push(')');
    out
}

#[cfg(test)]
mod tests {
    fn rewritten(inside: &str, is_statement: bool) -> String {
        let mut out = String::new();
        assert!(super::rewrite(inside, is_statement, &mut out));
        out
    }

    #[test]
    fn operators_become_calls_and_the_rest_stays() {
        for (inside, expected) in [
            (" a ~ b ~ 'c + d' ", " __concat(a , b , 'c + d') "),
            (" a + b - c + d ", " __add(__add(a , b) - c , d) "),
            (" x * 2 + y|length % 3 ", " __add(__multiply(x , 2) , __modulo(y|length , 3)) "),
            (" -x ** 2 + 1.5e-3 ", " __add(__power(-x , 2) , 1.5e-3) "),
            (" (a, b)[0] + (c) + () ", " __add(__tuple(a, b)[0] , (c) , __tuple()) "),
            (" +a ", " a "),
            (" f(a ~ b, k=c + 1)[d + 1].e ", " f(__concat(a , b), k=__add(c , 1))[__add(d , 1)].e "),
            (" m[1:] ~ m[::-1][0] ", " __concat(__slice(m,1, none, none) , __slice(m, none, none,-1)[0]) "),
            (" not a + b in c if d ~ e else f ", " not __add(a , b) in c if __concat(d , e) else f "),
            (" {'a': b + c, 'd': [e ~ f]} ", " {'a': __add(b , c), 'd': [__concat(e , f)]} "),
            (" a\n ~\n b ", " __concat(a\n ,\n b) "),
            (" 'open ~ b ", " 'open ~ b "),
            (" ) ~ ] ", " ) ~ ] "),
        ] {
            assert_eq!(rewritten(inside, false), expected);
        }
        for (inside, expected) in [
            (" set ns.x = a + 1 ", " set ns.x = __keep(( __add(a , 1))) "),
            (" set x ", " set x "),
            (" for k, v in d.items() if v == 1 ", " for k, v in __walk(( d.items())) if v == 1 "),
            (" for x in a + b recursive ", " for x in __walk(( __add(a , b))) recursive "),
            (" if a is defined and b ~ c ", " if a is defined and __concat(b , c) "),
            (" macro f(a, b=c ~ d) ", " macro f(a, b=__concat(c , d)) "),
        ] {
            assert_eq!(rewritten(inside, true), expected);
        }
        let deep = "[".repeat(1000);
        assert_eq!(rewritten(&deep, false), deep);
    }
}
