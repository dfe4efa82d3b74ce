//! Metal to C++ for OpenCL, which has address spaces: for the lint, which wants them checked, not dropped.

use std::{collections::HashSet, fmt::Write as _};

use super::{
    constants::STORAGE,
    text::{Edits, Text},
    tokens::View,
    words,
};
use crate::{error::Result, lexer::Kind};

/// What a word of Metal becomes.
fn replacement(word: &str) -> Option<&'static str> {
    Some(match word {
        // No longer than the words they replace, so that columns stay; the headers see to it that no name is like them.
        "device" => "global",
        "threadgroup" => "local",
        "thread" => "__private",
        "kernel" => "",
        _ => return None,
    })
}

/// Rewrites what `clang -E` made of a source. Nothing that would run: only types matter.
pub(crate) fn rewrite_for_lint(text: Text) -> Result<String> {
    let mut lint =
        Lint { view: View::new(text)?, edits: Edits::default(), constants: HashSet::new(), variables: 0 };
    let mut index = 0;
    while index < lint.view.len() {
        index = lint.token(index);
    }
    Ok(lint.edits.apply(&lint.view.text))
}

struct Lint {
    view: View,
    edits: Edits,
    /// Function constants, and constants made of them.
    constants: HashSet<String>,
    variables: usize,
}

impl Lint {
    /// Queues the edits of a token or of a declaration that starts there; gives the next token.
    fn token(&mut self, index: usize) -> usize {
        if let Some(next) = self.function_constant(index).or_else(|| self.threadgroup_variable(index)) {
            return next;
        }
        let view = &self.view;
        let dropped =
            (view.at(index) == "[[").then(|| view.skip(index)).or_else(|| words::coherent(view, index));
        if let Some(next) = dropped {
            self.edits.replace(view.bytes(&(index..next)), String::new());
            return next;
        }
        if let Some(text) = self.word(index) {
            self.edits.overwrite(view.bytes(&(index..index + 1)), &text);
        }
        index + 1
    }

    fn word(&self, index: usize) -> Option<String> {
        let token = self.view.at(index);
        match self.view.kind(index) {
            Some(Kind::Word) => replacement(token).map(str::to_owned),
            // C++ for OpenCL has the suffix h.
            Some(Kind::Number) => words::literal(token).filter(|literal| !literal.ends_with("f16")),
            _ => None,
        }
    }

    fn starts_statement(&self, index: usize) -> bool {
        matches!(self.view.before(index), "" | ";" | "{" | "}" | ")" | ":")
    }

    /// `constant bool x [[function_constant(0)]];` or `constant bool y = !x;`: a value that nobody knows here.
    fn function_constant(&mut self, index: usize) -> Option<usize> {
        let view = &self.view;
        if !STORAGE.contains(&view.at(index)) || !self.starts_statement(index) {
            return None;
        }
        let end = view.semicolon(index, view.len());
        let declares = view.contains(index..end, "constant");
        if !declares
            || (index..end).any(|i| matches!(view.at(i), "{" | "(" | "*") && !self.in_initialiser(index, i))
        {
            return None;
        }
        let stop = (index..end).find(|&i| matches!(view.at(i), "[[" | "=" | "["))?;
        let is_constant = match view.at(stop) {
            "[[" => view.contains(stop..end, "function_constant"),
            "=" => (stop..end).any(|i| self.constants.contains(view.at(i))),
            _ => false,
        };
        if !is_constant || stop < index + 2 {
            return None;
        }
        let name = view.at(stop - 1).to_owned();
        let kind: Vec<&str> =
            (index..stop - 1).map(|i| view.at(i)).filter(|word| !STORAGE.contains(word)).collect();
        let text = format!("extern const {} {name};", kind.join(" "));
        let bytes = view.bytes(&(index..end + 1));
        self.constants.insert(name);
        self.edits.replace(bytes, text);
        Some(end + 1)
    }

    /// Whether a token comes after the `=` or the attribute of the declaration that starts at `start`.
    fn in_initialiser(&self, start: usize, index: usize) -> bool {
        (start..index).any(|i| matches!(self.view.at(i), "=" | "[["))
    }

    /// `threadgroup float a[8], b;` in a body: OpenCL has such variables in kernels only, so they become references.
    fn threadgroup_variable(&mut self, index: usize) -> Option<usize> {
        let view = &self.view;
        if view.at(index) != "threadgroup" || !self.starts_statement(index) {
            return None;
        }
        let end = view.semicolon(index, view.len());
        let declared = view.declarators(index + 1..end).filter(|declared| !declared.is_empty())?;
        let word = |i| Some((i + 1, self.word(i)?));
        let members: Vec<String> =
            declared.iter().map(|one| words::spelled(view, one.tokens.clone(), word)).collect();
        let (number, members) = (self.variables, members.join(", "));
        let mut text = format!(
            "struct msl_tgs_{number} {{ {members}; }}; __local msl_tgs_{number}& msl_tgv_{number} = *(__local msl_tgs_{number}*)0;"
        );
        for name in declared.iter().map(|one| view.at(one.name)) {
            let _ = write!(text, " auto& {name} = msl_tgv_{number}.{name};");
        }
        self.variables += 1;
        self.edits.replace(self.view.bytes(&(index..end + 1)), text);
        Some(end + 1)
    }
}
