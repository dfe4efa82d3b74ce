//! Bodies of structs and classes: methods that differ only by the address space of `this`.

use std::collections::HashSet;

use super::Rewriter;
use crate::error::Result;

impl Rewriter<'_> {
    /// Visits the members between the braces at `open`.
    pub(super) fn record(&mut self, open: usize, class: &str) -> Result<()> {
        let Some(close) = self.view.close(open) else { return Ok(()) };
        let mut methods = HashSet::new();
        let mut at = open + 1;
        while at < close {
            let access =
                matches!(self.view.at(at), "public" | "private" | "protected") && self.view.at(at + 1) == ":";
            at = match self.view.at(at) {
                ";" => at + 1,
                _ if access => at + 2,
                _ => self.member(at, close, class, &mut methods)?.max(at + 1),
            };
        }
        Ok(())
    }

    fn member(
        &mut self,
        start: usize,
        end: usize,
        class: &str,
        methods: &mut HashSet<String>,
    ) -> Result<usize> {
        let mut at = start;
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
                    return Ok(self.method(start, at, end, class, methods));
                }
                "(" if !matches!(
                    self.view.before(at),
                    "decltype" | "alignas" | "__attribute__" | "explicit"
                ) =>
                {
                    return Ok(self.method(start, at, end, class, methods));
                }
                "=" | "{" | ";" => return Ok(self.view.semicolon(at, end) + 1),
                _ => {}
            }
            at = self.view.skip(at);
        }
        Ok(end)
    }

    /// A member with a parameter list at `paren`.
    fn method(
        &mut self,
        start: usize,
        paren: usize,
        end: usize,
        class: &str,
        methods: &mut HashSet<String>,
    ) -> usize {
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
        if !methods.insert(key) && spaced {
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
