//! The user's tokens, with brackets paired. Reading past the end gives empty text, never a panic.

use std::ops::Range;

use super::text::Text;
use crate::{
    error::{Error, Result},
    lexer::{Kind, Token, lex},
};

/// Words that say where memory lives.
pub(crate) const ADDRESS_SPACES: [&str; 4] = ["device", "thread", "threadgroup", "constant"];

/// One item of a `[[…]]`: its name and what stands in its parentheses.
#[derive(Debug, Clone)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    /// Tokens of the argument, empty if there is none.
    pub(crate) argument: Range<usize>,
}

fn pair_brackets(text: &Text, list: &[Token]) -> Result<Vec<usize>> {
    let mut partner = vec![usize::MAX; list.len()];
    let mut open: Vec<(usize, &str)> = Vec::new();
    let wrong = |index: usize, message: String| {
        let at = list.get(index).map_or(0, |token: &Token| token.start);
        Err(Error::Syntax { at: text.location(at), message })
    };
    let mut index = 0;
    while index < list.len() {
        let sign = &text.source[list[index].start..list[index].end];
        match sign {
            "(" | "[" | "{" | "[[" if list[index].kind == Kind::Sign => open.push((index, sign)),
            ")" | "]" | "}" if list[index].kind == Kind::Sign => {
                let Some((start, opener)) = open.pop() else {
                    return wrong(index, format!("`{sign}` closes nothing"));
                };
                let mut close = index;
                match (opener, sign) {
                    ("(", ")") | ("[", "]") | ("{", "}") => {}
                    ("[[", "]")
                        if list.get(index + 1).is_some_and(|t| &text.source[t.start..t.end] == "]") =>
                    {
                        close = index + 1;
                        partner[index] = start;
                    }
                    _ => {
                        let opened = text.location(list[start].start);
                        return wrong(index, format!("`{sign}` does not close the `{opener}` of {opened}"));
                    }
                }
                partner[start] = close;
                partner[close] = start;
                index = close;
            }
            _ => {}
        }
        index += 1;
    }
    match open.first() {
        Some(&(index, sign)) => wrong(index, format!("`{sign}` is never closed")),
        None => Ok(partner),
    }
}

/// Text and tokens together: what every part of the rewriter reads.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) text: Text,
    list: Vec<Token>,
    /// Index of the partner of each bracket, or `usize::MAX`. An attribute's `[[` pairs with its last `]`.
    partner: Vec<usize>,
}

impl View {
    pub(crate) fn new(text: Text) -> Result<Self> {
        let mut list = Vec::new();
        for range in text.user_ranges() {
            lex(&text.source, range, &mut list);
        }
        let partner = pair_brackets(&text, &list)?;
        Ok(Self { text, list, partner })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn kind(&self, index: usize) -> Option<Kind> {
        self.list.get(index).map(|token| token.kind)
    }

    pub(crate) fn is_word(&self, index: usize) -> bool {
        self.kind(index) == Some(Kind::Word)
    }

    /// First byte of a token; past the end, the end of the last one.
    pub(crate) fn start(&self, index: usize) -> usize {
        self.list.get(index).map_or_else(|| self.end(index), |token| token.start)
    }

    /// One past the last byte of a token.
    pub(crate) fn end(&self, index: usize) -> usize {
        self.list.get(index).or(self.list.last()).map_or(0, |token| token.end)
    }

    /// The closing bracket of an opening one.
    pub(crate) fn close(&self, index: usize) -> Option<usize> {
        self.partner.get(index).copied().filter(|&partner| partner != usize::MAX && partner > index)
    }

    /// The opening bracket of a closing one.
    pub(crate) fn open(&self, index: usize) -> Option<usize> {
        self.partner.get(index).copied().filter(|&partner| partner < index)
    }

    pub(crate) fn at(&self, index: usize) -> &str {
        self.list.get(index).map_or("", |token| &self.text.source[token.start..token.end])
    }

    pub(crate) fn before(&self, index: usize) -> &str {
        index.checked_sub(1).map_or("", |index| self.at(index))
    }

    /// Bytes of the tokens `range`.
    pub(crate) fn bytes(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.start(range.start);
        start..self.end(range.end.saturating_sub(1)).max(start)
    }

    /// The tokens as the source spells them, with single spaces.
    pub(crate) fn spelling(&self, range: Range<usize>) -> String {
        let mut out = String::new();
        for index in range {
            let token = self.at(index);
            let glued = matches!(token, "*" | "&" | "," | "::" | "<" | ">" | "(" | ")" | "[" | "]")
                || matches!(self.before(index), "::" | "<" | "(" | "[");
            if !out.is_empty() && !glued {
                out.push(' ');
            }
            out.push_str(token);
            if token == "," {
                out.push(' ');
            }
        }
        out.replace(",  ", ", ")
    }

    pub(crate) fn contains(&self, mut range: Range<usize>, word: &str) -> bool {
        range.any(|index| self.at(index) == word)
    }

    /// The first of `words` in a range, or its end.
    pub(crate) fn find(&self, mut range: Range<usize>, words: &[&str]) -> usize {
        let end = range.end;
        range.find(|&index| words.contains(&self.at(index))).unwrap_or(end)
    }

    pub(crate) fn has_address_space(&self, mut range: Range<usize>) -> bool {
        range.any(|index| ADDRESS_SPACES.contains(&self.at(index)))
    }

    /// One past the bracket that closes `index`, or the next token if `index` opens nothing.
    pub(crate) fn skip(&self, index: usize) -> usize {
        self.close(index).unwrap_or(index) + 1
    }

    /// `index` is at `<`: one past the `>` that closes it, if it is a template's.
    pub(crate) fn skip_angles(&self, index: usize) -> Option<usize> {
        let (mut depth, mut at) = (0_usize, index);
        while at < self.len() {
            match self.at(at) {
                // `sizeof(T) < 8` is a comparison: only a name opens an argument list.
                "<" if depth == 0 || self.is_word(at - 1) => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(at + 1);
                    }
                }
                "(" | "[" | "{" | "[[" => at = self.close(at)?,
                ";" | ")" | "]" | "}" => return None,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// The next `;` outside brackets, or `end`.
    pub(crate) fn semicolon(&self, mut at: usize, end: usize) -> usize {
        while at < end && self.at(at) != ";" {
            at = self.skip(at);
        }
        at.min(end)
    }

    /// The parts of a list between top-level commas; brackets and template arguments hold together.
    pub(crate) fn split_commas(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut parts, mut start, mut at) = (Vec::new(), range.start, range.start);
        while at < range.end {
            match self.at(at) {
                "<" if at > range.start && self.is_word(at - 1) => {
                    at = self.skip_angles(at).unwrap_or(at + 1);
                    continue;
                }
                "," => {
                    parts.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at = self.skip(at);
        }
        if start < range.end {
            parts.push(start..range.end);
        }
        parts
    }

    /// All attribute items in a range of tokens.
    pub(crate) fn attributes(&self, range: Range<usize>) -> Vec<Attribute> {
        let (mut found, mut at) = (Vec::new(), range.start);
        while at < range.end {
            at = self.find(at..range.end, &["[["]);
            let Some(close) = self.close(at).filter(|_| at < range.end) else { break };
            for item in self.split_commas(at + 1..close - 1) {
                let paren = self.find(item.clone(), &["("]);
                let argument = match self.close(paren) {
                    Some(close) if paren < item.end => paren + 1..close,
                    _ => 0..0,
                };
                let name = (item.start..paren).map(|index| self.at(index)).collect();
                found.push(Attribute { name, argument });
            }
            at = close + 1;
        }
        found
    }

    /// The argument of the first attribute of a name.
    pub(crate) fn attribute(&self, range: Range<usize>, name: &str) -> Option<Range<usize>> {
        self.attributes(range).into_iter().find(|attribute| attribute.name == name).map(|a| a.argument)
    }

    /// `index` is at `operator`: the parenthesis that opens its parameters, in `operator()(…)` the second.
    pub(crate) fn operator_parameters(&self, index: usize, end: usize) -> usize {
        let open = self.find(index + 1..end, &["("]);
        if self.at(open + 1) == ")" && self.at(open + 2) == "(" { open + 2 } else { open }
    }

    /// The string in an attribute's argument: literals side by side are one.
    pub(crate) fn string(&self, range: Range<usize>) -> Option<String> {
        let literals = range.filter(|&index| self.kind(index) == Some(Kind::Text));
        let texts = literals
            .map(|index| self.at(index).trim_matches('"').replace("\\\"", "\"").replace("\\\\", "\\"));
        texts.reduce(|all, next| all + &next)
    }
}
