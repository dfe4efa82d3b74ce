//! Bodies of structs and classes: methods that differ only by the address space of `this`.

use std::collections::HashSet;

use super::Rewriter;
use crate::error::Result;

/// The body of a struct or class.
struct Record<'c> {
    class: &'c str,
    /// The brace that closes it.
    end: usize,
    /// Signatures without address spaces.
    methods: HashSet<String>,
}

impl Rewriter<'_> {
    /// Visits the members between the braces at `open`.
    pub(super) fn record(&mut self, open: usize, class: &str) -> Result<()> {
        let Some(close) = self.view.close(open) else { return Ok(()) };
        let mut record = Record { class, end: close, methods: HashSet::new() };
        let mut at = open + 1;
        while at < close {
            let access =
                matches!(self.view.at(at), "public" | "private" | "protected") && self.view.at(at + 1) == ":";
            at = match self.view.at(at) {
                ";" => at + 1,
                _ if access => at + 2,
                _ => self.member(at, &mut record)?.max(at + 1),
            };
        }
        Ok(())
    }

    fn member(&mut self, start: usize, record: &mut Record) -> Result<usize> {
        let (mut at, end) = (start, record.end);
        while at < end {
            match self.view.at(at) {
                "template" if self.view.at(at + 1) == "<" => {
                    at = self.view.skip_angles(at + 1).unwrap_or(at + 2);
                    continue;
                }
                "struct" | "class" | "union" => {
                    let stop = self.view.find(at..end, &["{", ";", "(", "="]);
                    if self.view.at(stop) == "{" {
                        let name = self.record_name(at, stop);
                        self.record(stop, &name)?;
                        return Ok(self.view.semicolon(stop, end) + 1);
                    }
                    at = stop.max(at + 1);
                    continue;
                }
                "<" if self.view.is_word(at.saturating_sub(1)) => {
                    at = self.view.skip_angles(at).unwrap_or(at + 1);
                    continue;
                }
                "operator" => {
                    at = self.view.operator_parameters(at, end);
                    return Ok(self.method(start, at, record));
                }
                "(" if !matches!(
                    self.view.before(at),
                    "decltype" | "alignas" | "__attribute__" | "explicit"
                ) =>
                {
                    return Ok(self.method(start, at, record));
                }
                "=" | "{" | ";" => return Ok(self.view.semicolon(at, end) + 1),
                _ => {}
            }
            at = self.view.skip(at);
        }
        Ok(end)
    }

    /// A member with a parameter list at `paren`.
    fn method(&mut self, start: usize, paren: usize, record: &mut Record) -> usize {
        let (class, end) = (record.class, record.end);
        let Some(close) = self.view.close(paren) else { return end };
        let (mut at, mut space, mut constant) = (close + 1, None, false);
        while at < end {
            match self.view.at(at) {
                word @ ("device" | "threadgroup" | "thread" | "constant") => {
                    constant |= word == "constant";
                    space = Some(at);
                }
                "const" => constant = true,
                "volatile" | "noexcept" | "override" | "final" | "&" | "&&" => {}
                "[[" => at = self.view.skip(at) - 1,
                "->" => {
                    at = self.view.find(at..end, &["{", ";", "="]);
                    break;
                }
                _ => break,
            }
            at += 1;
        }
        let constructor = self.view.before(paren) == class && !class.is_empty();
        let key = format!(
            "{}{}",
            self.signature(start..close + 1, false),
            if constant && !constructor { " const" } else { "" }
        );
        let body = match self.view.at(at) {
            ":" => self.initialisers(at, end),
            "=" => self.view.semicolon(at, end),
            _ => at,
        };
        let after = match self.view.at(body) {
            "{" => self.view.skip(body),
            _ => self.view.semicolon(body, end) + 1,
        };
        let spaced = space.is_some() || self.view.has_address_space(start..close + 1);
        if !record.methods.insert(key) && spaced {
            self.blank(&(start..after.min(end)));
            return after;
        }
        if let Some(space) = space.filter(|_| constructor) {
            // A constructor cannot be `const`.
            let bytes = self.view.bytes(&(space..space + 1));
            self.edits.overwrite(bytes, "");
        }
        if self.view.at(body) == "{" {
            self.locals(body..after);
        }
        after
    }
}
