//! `threadgroup` variables in function bodies.

use std::ops::Range;

use super::{Rewriter, Target, tokens::View, words::plain};

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
                ")" => match self.view.open(start - 1) {
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
        let declared = self.view.declarators(keyword + 1..semicolon).unwrap_or_default();
        if declared.is_empty() || self.view.at(semicolon) != ";" {
            return keyword + 1;
        }
        let names: Vec<String> = declared.iter().map(|one| self.view.at(one.name).to_owned()).collect();
        let members: Vec<String> = declared.iter().map(|one| plain(&self.view, one.tokens.clone())).collect();
        let initialised = declared.iter().any(|one| one.initialised);
        if initialised {
            let message =
                format!("threadgroup variable `{}` has an initialiser: taken as zeros", names.join("`, `"));
            self.warn(keyword, message);
        }
        let words = (start..keyword).map(|index| self.view.at(index));
        let qualifiers: Vec<&str> =
            words.filter(|word| !matches!(*word, "static" | "const" | "constexpr")).collect();
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
        let references = names.iter().map(|name| format!(" auto& {name} = msl_tgv_{number}.{name};"));
        let references = references.collect::<Vec<_>>().concat();
        let text = format!(
            "struct msl_tgs_{number} {{ {} {}; }}; {slot}{references}",
            qualifiers.join(" "),
            members.join(", ")
        );
        self.replace(&(start..semicolon + 1), text);
        semicolon + 1
    }
}

/// One of the variables that a declaration declares.
pub(super) struct Declarator {
    /// The token that names it.
    pub(super) name: usize,
    /// All but its initialiser; the first one's begin with the type.
    pub(super) tokens: Range<usize>,
    initialised: bool,
}

impl View {
    /// What `T a[N], b = 1` declares; `None` if a pointer or a reference is among them.
    pub(super) fn declarators(&self, range: Range<usize>) -> Option<Vec<Declarator>> {
        self.split_commas(range).into_iter().map(|part| self.declarator(part)).collect()
    }

    fn declarator(&self, range: Range<usize>) -> Option<Declarator> {
        let (mut name, mut at) = (None, range.start);
        let record = matches!(self.at(at), "struct" | "union");
        while at < range.end {
            match self.at(at) {
                "*" | "&" | "&&" => return None,
                "(" if matches!(self.at(at + 1), "*" | "&") => return None,
                "<" if self.is_word(at.saturating_sub(1)) => {
                    at = self.skip_angles(at)?;
                    continue;
                }
                "=" => break,
                "{" if !record => break,
                // `x[N]`: what follows the name cannot be one.
                "[" => {}
                _ if self.is_word(at) => name = Some(at),
                _ => {}
            }
            at = self.skip(at);
        }
        let tokens = range.start..at.min(range.end);
        Some(Declarator { name: name?, initialised: tokens.end < range.end, tokens })
    }
}
