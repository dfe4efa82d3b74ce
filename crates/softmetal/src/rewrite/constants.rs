//! Function constants, and the constants computed from them.

use std::ops::Range;

use super::{ConstantEntry, Rewriter, Target, scope, words::plain};

/// A constant that must be computed again when function constants change.
#[derive(Debug)]
pub(super) struct Derived {
    pub(super) name: String,
    /// The function that computes it, with namespaces.
    pub(super) initialiser: String,
}

/// Words of a declaration that are not its type.
pub(super) const STORAGE: [&str; 5] = ["constant", "constexpr", "const", "static", "inline"];

impl Rewriter<'_> {
    /// A declaration at namespace scope that is no function and no record.
    pub(super) fn variable(&mut self, range: Range<usize>, template: bool, path: &[String]) {
        if let Some(index) = self.view.attribute(range.clone(), "function_constant") {
            let open = self.view.find(range.clone(), &["[["]);
            let Some(name) = open.checked_sub(1).filter(|&name| name > range.start) else { return };
            self.function_constant(range, name, plain(&self.view, index));
            return;
        }
        if template || !self.view.contains(range.clone(), "constant") {
            return;
        }
        // Members of a struct are no constants, whatever its methods compare.
        let equals = self.view.find(range.clone(), &["=", "{"]);
        if self.view.at(equals) == "{" {
            return;
        }
        let depends = (equals..range.end).any(|index| {
            let word = self.view.at(index);
            self.constants.iter().any(|c| c.name == word) || self.derived.iter().any(|d| d.name == word)
        });
        if depends && equals > range.start + 1 && self.view.is_word(equals - 1) {
            self.derived_constant(range, equals, path);
        }
    }

    fn function_constant(&mut self, range: Range<usize>, name_at: usize, index: String) {
        let type_text = self.type_without_storage(range.start..name_at);
        let name = self.view.at(name_at).to_owned();
        let text = match self.target {
            Target::Ptx { constants } => {
                let value = constants.get(&name);
                format!(
                    "static constexpr {type_text} {name} = ({type_text})({}); static constexpr bool msl_fcdef_{name} = {};",
                    value.map_or("0", String::as_str),
                    value.is_some()
                )
            }
            Target::Cpu | Target::Reflection => format!(
                "static thread_local {type_text} {name}; static thread_local bool msl_fcdef_{name}; \
                 static ::msl::regfc msl_regfc_{number}(\"{name}\", (int)({index}), sizeof({name}), \
                 []() -> void* {{ return (void*)&{name}; }}, []() -> bool* {{ return &msl_fcdef_{name}; }}, \"{type_text}\");",
                number = self.constants.len()
            ),
        };
        self.replace(&(range.start..range.end + 1), text);
        self.constants.push(ConstantEntry { name, index, type_text });
    }

    fn derived_constant(&mut self, range: Range<usize>, equals: usize, path: &[String]) {
        let type_text = self.type_without_storage(range.start..equals - 1);
        let name = self.view.at(equals - 1).to_owned();
        let value = plain(&self.view, equals + 1..range.end);
        let text = match self.target {
            Target::Ptx { .. } => format!("static constexpr {type_text} {name} = {value};"),
            Target::Cpu | Target::Reflection => format!(
                "static thread_local {type_text} {name}; static void msl_init_{name}() {{ {name} = {value}; }}"
            ),
        };
        self.replace(&(range.start..range.end + 1), text);
        self.derived.push(Derived { initialiser: format!("{}msl_init_{name}", scope(path)), name });
    }

    fn type_without_storage(&self, range: Range<usize>) -> String {
        let words: Vec<&str> =
            range.map(|index| self.view.at(index)).filter(|word| !STORAGE.contains(word)).collect();
        words.join(" ").replace(" :: ", "::")
    }
}
