//! `threadgroup` variables in function bodies.

use std::ops::Range;

use super::{Rewriter, Target, words::plain};

impl Rewriter<'_> {
    pub(super) fn locals(&mut self, body: Range<usize>) {
        let mut at = body.start;
        while at < body.end {
            at = if self.view.at(at) == "threadgroup" { self.local(at, body.end) } else { at + 1 };
        }
    }

    /// `threadgroup T a[N], b;` at a statement's start becomes a struct in the threadgroup's memory and a reference to
    /// each member. The slot is keyed by the struct's type: each instantiation of a template has its own.
    fn local(&mut self, keyword: usize, end: usize) -> usize {
        let mut start = keyword;
        loop {
            start = match self.view.before(start) {
                "static" | "volatile" | "const" | "constexpr" => start - 1,
                ")" => match self.view.tokens.open(start - 1) {
                    Some(open) if self.view.before(open) == "alignas" => open - 1,
                    _ => break,
                },
                _ => break,
            };
        }
        if !matches!(self.view.before(start), ";" | "{" | "}" | ":" | ")" | "]") {
            return keyword + 1;
        }
        let semicolon = self.view.semicolon(keyword, end);
        let declarators = self.view.split_commas(keyword + 1..semicolon);
        let (mut names, mut members, mut initialised) = (Vec::new(), Vec::new(), false);
        for declarator in declarators {
            let Some((name, stop)) = self.declarator(declarator.clone()) else { return keyword + 1 };
            initialised |= stop < declarator.end;
            names.push(self.view.at(name).to_owned());
            members.push(plain(&self.view, declarator.start..stop));
        }
        if names.is_empty() || self.view.at(semicolon) != ";" {
            return keyword + 1;
        }
        if initialised {
            let message =
                format!("threadgroup variable `{}` has an initialiser: taken as zeros", names.join("`, `"));
            self.warn(keyword, message);
        }
        let qualifiers: Vec<&str> = plain_qualifiers(&self.view, start..keyword);
        let number = self.threadgroup_variables;
        self.threadgroup_variables += 1;
        let slot = match self.target {
            Target::Ptx { .. } => format!(
                "static __attribute__((address_space(3),aligned(16))) char msl_tgr_{number}[sizeof(msl_tgs_{number})]; \
                 auto& msl_tgv_{number} = ::msl::generic<msl_tgs_{number}>(msl_tgr_{number});"
            ),
            Target::Cpu | Target::Reflection => {
                let zero = i32::from(initialised);
                format!("auto& msl_tgv_{number} = ::msl::tg_var<msl_tgs_{number}>({zero});")
            }
        };
        let references = names
            .iter()
            .map(|name| format!(" auto& {name} = msl_tgv_{number}.{name};"))
            .collect::<Vec<_>>()
            .concat();
        let text = format!(
            "struct msl_tgs_{number} {{ {} {}; }}; {slot}{references}",
            qualifiers.join(" "),
            members.join(", ")
        );
        let bytes = self.view.bytes(&(start..semicolon + 1));
        self.edits.replace(bytes, text);
        semicolon + 1
    }

    /// The name of a declarator and where its initialiser begins; `None` for pointers and references.
    fn declarator(&self, range: Range<usize>) -> Option<(usize, usize)> {
        let (mut name, mut at) = (None, range.start);
        let record = matches!(self.view.at(at), "struct" | "union");
        while at < range.end {
            match self.view.at(at) {
                "*" | "&" | "&&" => return None,
                "(" if matches!(self.view.at(at + 1), "*" | "&") => return None,
                "<" if self.view.tokens.is_word(at.saturating_sub(1)) => {
                    at = self.view.skip_angles(at)?;
                    continue;
                }
                "=" => break,
                "{" if !record => break,
                // `x[N]`: what follows the name cannot be one.
                "[" => {}
                _ if self.view.tokens.is_word(at) => name = Some(at),
                _ => {}
            }
            at = self.view.skip(at);
        }
        Some((name?, at.min(range.end)))
    }
}

fn plain_qualifiers(view: &super::View, range: Range<usize>) -> Vec<&str> {
    range
        .map(|index| view.at(index))
        .filter(|word| !matches!(*word, "static" | "const" | "constexpr"))
        .collect()
}
