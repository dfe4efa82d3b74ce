//! Declarations at namespace scope: which tokens are a function, a record, a variable, an instantiation.

use std::ops::Range;

use super::{Rewriter, Target, kernels::Head, text::at_line, tokens::ADDRESS_SPACES};
use crate::error::Result;

/// `name(…)` with one of these names is no parameter list.
const NOT_FUNCTIONS: [&str; 7] =
    ["decltype", "alignas", "__attribute__", "noexcept", "__declspec", "explicit", "static_assert"];

/// Graphics stages: their functions are not compiled.
const STAGES: [&str; 5] = ["vertex", "fragment", "mesh", "object", "intersection"];

impl Rewriter<'_> {
    pub(super) fn scope(&mut self, range: Range<usize>, path: &mut Vec<String>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (word, next) = (self.view.at(at), self.view.at(at + 1));
            if matches!(word, ";" | "}") {
                at += 1;
                continue;
            }
            if word == "namespace" || (word == "inline" && next == "namespace") {
                let stop = self.view.find(at..range.end, &["{", ";", "="]);
                if let Some(close) = self.view.close(stop) {
                    let name = (at..stop)
                        .rev()
                        .map(|i| self.view.at(i))
                        .find(|w| !matches!(*w, "namespace" | "inline"));
                    path.push(name.unwrap_or_default().to_owned());
                    self.scope(stop + 1..close, path)?;
                    path.pop();
                    at = close + 1;
                } else {
                    at = self.view.semicolon(stop, range.end) + 1;
                }
                continue;
            }
            if word == "extern"
                && self.view.at(at + 2) == "{"
                && let Some(close) = self.view.close(at + 2)
            {
                self.scope(at + 3..close, path)?;
                at = close + 1;
                continue;
            }
            at = self.declaration(at, range.end, path)?.max(at + 1);
        }
        Ok(())
    }

    /// Deals with the declaration that starts at `start`; gives the token after it.
    fn declaration(&mut self, start: usize, end: usize, path: &[String]) -> Result<usize> {
        let explicit = if self.view.at(start) == "extern" { start + 1 } else { start };
        if self.view.at(explicit) == "template" && self.view.at(explicit + 1) != "<" {
            let semicolon = self.view.semicolon(start, end);
            self.instantiation(start..semicolon, path);
            return Ok(semicolon + 1);
        }
        let mut head = Head { start, template: None, parameters: None, body: end };
        let (mut record, mut assigned, mut at) = (None, false, start);
        while at < end {
            match self.view.at(at) {
                "template" if self.view.at(at + 1) == "<" => {
                    let after = self.view.skip_angles(at + 1).unwrap_or(at + 2);
                    head.template.get_or_insert(at + 2..after - 1);
                    at = after;
                    continue;
                }
                "struct" | "class" | "union" | "enum" if head.parameters.is_none() && !assigned => {
                    record.get_or_insert(at);
                }
                "operator" => {
                    at = self.view.operator_parameters(at, end);
                    if !assigned && head.parameters.is_none() {
                        head.parameters = self.view.close(at).map(|close| at..close);
                    }
                }
                "(" if head.parameters.is_none()
                    && !NOT_FUNCTIONS.contains(&self.view.before(at))
                    && !assigned =>
                {
                    head.parameters = self.view.close(at).map(|close| at..close);
                }
                "=" => assigned = true,
                "<" if !assigned && head.parameters.is_none() && self.view.is_word(at.saturating_sub(1)) => {
                    if let Some(after) = self.view.skip_angles(at) {
                        at = after;
                        continue;
                    }
                }
                ":" if head.parameters.as_ref().is_some_and(|p| at > p.end) && !assigned => {
                    at = self.initialisers(at, end);
                    continue;
                }
                "{" if head.parameters.is_some() && !assigned => {
                    head.body = at;
                    let close = self.view.skip(at);
                    self.function(&head, path)?;
                    return Ok(close);
                }
                "{" => {
                    if let (Some(record), false) = (record, assigned) {
                        let name = self.record_name(record, at);
                        self.record(at, &name)?;
                    }
                }
                ";" => {
                    match (&head.parameters, record) {
                        (None, Some(_)) => self.drop_twin_record(start..at, path),
                        (Some(_), _) if !assigned => {
                            self.drop_twin(start..at, at + 1, path, "declared ");
                        }
                        _ => {}
                    }
                    self.variable(start..at, head.template.is_some(), path);
                    return Ok(at + 1);
                }
                _ => {}
            }
            at = self.view.skip(at);
        }
        Ok(end)
    }

    /// `: a(1), b{2} {`: from the colon to the brace of the body.
    pub(super) fn initialisers(&self, colon: usize, end: usize) -> usize {
        let mut at = colon + 1;
        while at < end {
            while at < end && !matches!(self.view.at(at), "(" | "{" | ";") {
                at = match self.view.at(at) {
                    "<" => self.view.skip_angles(at).unwrap_or(at + 1),
                    _ => at + 1,
                };
            }
            if self.view.at(at) == ";" || at >= end {
                return at;
            }
            at = self.view.skip(at);
            if self.view.at(at) == "..." {
                at += 1;
            }
            if self.view.at(at) != "," {
                return at;
            }
            at += 1;
        }
        end
    }

    /// The name in `struct [[…]] alignas(16) Name<…> : Base {`.
    pub(super) fn record_name(&self, keyword: usize, brace: usize) -> String {
        let mut at = keyword + 1;
        while at < brace {
            match self.view.at(at) {
                "class" | "struct" | "final" => at += 1,
                "alignas" | "__attribute__" => at = self.view.skip(at + 1),
                "[[" => at = self.view.skip(at),
                word if self.view.is_word(at) => return word.to_owned(),
                _ => break,
            }
        }
        String::new()
    }

    fn function(&mut self, head: &Head, path: &[String]) -> Result<()> {
        let Some(parameters) = head.parameters.clone() else { return Ok(()) };
        let whole = head.start..self.view.skip(head.body);
        let front = head.start..parameters.start;
        if front.clone().any(|index| STAGES.contains(&self.view.at(index))) {
            let name = self.view.before(parameters.start).to_owned();
            self.warn(head.start, format!("`{name}` is a graphics function: left out"));
            self.blank(&whole);
            return Ok(());
        }
        if self.view.contains(front, "kernel") {
            self.kernel(head, path)?;
        } else if self.drop_twin(head.start..head.body, whole.end, path, "") {
            return Ok(());
        }
        let name = self.view.before(parameters.start).to_owned();
        let visible = self.view.attributes(head.start..parameters.start).iter().any(|a| a.name == "visible");
        let hosted = matches!(self.target, Target::Cpu | Target::Reflection);
        if visible && head.template.is_none() && hosted {
            self.visible(&name, path, whole.end);
        }
        *self.overloads.entry((path.join("::"), name)).or_default() += 1;
        self.locals(head.body..whole.end);
        Ok(())
    }

    /// Registers a function that the host can put into a table.
    fn visible(&mut self, name: &str, path: &[String], after: usize) {
        let end = self.view.end(after - 1);
        let marker = at_line(&self.view.text.location(end));
        let number = self.visible_functions;
        self.visible_functions += 1;
        let address = match self.target {
            Target::Reflection => "nullptr".to_owned(),
            Target::Cpu | Target::Ptx { .. } => format!("(void*)&::{}{name}", super::scope(path)),
        };
        let text = format!("{marker}static ::msl::regfn msl_regfn_{number}(\"{name}\", {address});");
        self.edits.replace(end..end, text);
    }

    /// Functions that differ only by address space are one function in C++: later ones go. Where the spelling is the
    /// same to the last word it is the user's mistake, and clang shall say so.
    fn drop_twin(&mut self, signature: Range<usize>, end: usize, path: &[String], what: &str) -> bool {
        let full = self.signature(signature.clone(), true);
        let key = format!("{what}{}::{}", path.join("::"), self.signature(signature.clone(), false));
        let first = self.signatures.entry(key).or_insert_with(|| full.clone());
        if *first == full {
            return false;
        }
        self.blank(&(signature.start..end));
        true
    }

    fn drop_twin_record(&mut self, declaration: Range<usize>, path: &[String]) {
        let brace = self.view.find(declaration.clone(), &["{"]);
        if brace < declaration.end && self.view.has_address_space(declaration.start..brace) {
            self.drop_twin(declaration.start..brace, declaration.end + 1, path, "record ");
        }
    }

    /// A declaration's tokens without attributes and parameter names; address spaces only if asked for.
    pub(super) fn signature(&self, range: Range<usize>, address_spaces: bool) -> String {
        let (mut out, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let word = self.view.at(at);
            match word {
                "[[" => {
                    at = self.view.skip(at);
                    continue;
                }
                "(" if !NOT_FUNCTIONS.contains(&self.view.before(at)) => {
                    if let Some(close) = self.view.close(at).filter(|&close| close < range.end) {
                        out.push("(");
                        for part in self.view.split_commas(at + 1..close) {
                            let name = self.parameter_name(part.clone());
                            let stop = self.view.find(part.clone(), &["="]);
                            self.words(part.start..stop, name, address_spaces, &mut out);
                            out.push(",");
                        }
                        out.push(")");
                        at = close + 1;
                        continue;
                    }
                    out.push(word);
                }
                _ => self.words(at..at + 1, None, address_spaces, &mut out),
            }
            at += 1;
        }
        out.join(" ")
    }

    fn words<'s>(
        &'s self,
        range: Range<usize>,
        without: Option<usize>,
        spaces: bool,
        out: &mut Vec<&'s str>,
    ) {
        let mut at = range.start;
        while at < range.end {
            let word = self.view.at(at);
            if word == "[[" {
                at = self.view.skip(at);
                continue;
            }
            at += 1;
            if Some(at - 1) == without {
                continue;
            }
            let word = match word {
                "device" | "thread" | "threadgroup" if !spaces => continue,
                "constant" if !spaces => "const",
                other => other,
            };
            if !(word == "const" && out.last() == Some(&"const")) {
                out.push(word);
            }
        }
    }

    /// The token that names a parameter, if it has a name.
    pub(super) fn parameter_name(&self, part: Range<usize>) -> Option<usize> {
        const TYPE_WORDS: [&str; 19] = [
            "int", "uint", "char", "uchar", "short", "ushort", "long", "ulong", "float", "half", "bfloat",
            "bool", "void", "unsigned", "signed", "size_t", "auto", "const", "volatile",
        ];
        let mut last = None;
        let mut at = part.start;
        while at < part.end {
            match self.view.at(at) {
                "=" | "[[" | "[" if last.is_some() => break,
                "<" if self.view.is_word(at.saturating_sub(1)) => {
                    at = self.view.skip_angles(at).unwrap_or(at + 1);
                    last = None;
                    continue;
                }
                // `T (*name)(…)`, `T (&name)[N]`
                "(" if matches!(self.view.at(at + 1), "*" | "&") && self.view.is_word(at + 2) => {
                    return Some(at + 2);
                }
                _ => last = self.view.is_word(at).then_some(at),
            }
            at = self.view.skip(at);
        }
        let is_type = |word| TYPE_WORDS.contains(&word) || ADDRESS_SPACES.contains(&word);
        let name = last.filter(|&name| name > part.start && !is_type(self.view.at(name)))?;
        let before = self.view.before(name);
        let follows_type = matches!(before, "*" | "&" | "&&" | ">" | "..." | "]" | ")")
            || (self.view.is_word(name - 1)
                && !matches!(before, "const" | "volatile" | "typename" | "struct" | "unsigned" | "signed")
                && !ADDRESS_SPACES.contains(&before));
        follows_type.then_some(name)
    }
}
