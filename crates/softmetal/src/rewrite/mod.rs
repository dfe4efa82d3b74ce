//! Metal source, already preprocessed, to C++ that clang accepts.
//!
//! The rewriter reads tokens and never parses a type: what a parameter's type is, the C++ compiler deduces. Every edit
//! keeps lines and columns, so that compiler messages, debug information and reports point into the `.metal` file.
//!
//! | Metal | C++ |
//! | --- | --- |
//! | `device`, `thread`, `threadgroup` | nothing |
//! | `constant` | `const` |
//! | `kernel`, `[[kernel]]` | `static` |
//! | other `[[…]]` | read, then dropped |
//! | `threadgroup T a[N];` in a body | a slot of the threadgroup's memory |
//! | `constant T x [[function_constant(n)]];` | a variable that the dispatch sets (CPU), a constant (PTX) |
//! | `template [[host_name("n")]] kernel … f<…>;` | a registered entry for `f<…>` |
//! | overloads that differ only by address space | the first of them |
//! | `1.0`, `1.0h`, `1.0bf` | `1.0f`, `1.0f16`, `((bfloat)1.0f)` |

mod constants;
mod emit;
mod kernels;
mod lint;
mod locals;
mod records;
mod scope;
mod text;
mod tokens;
mod words;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

pub(crate) use emit::{PTX_LIMIT, ptx_symbol};
pub(crate) use lint::rewrite_for_lint;
use serde::Serialize;
use text::Edits;
pub(crate) use text::Text;
use tokens::View;

use crate::{
    diagnostic::{Diagnostic, Severity},
    error::Result,
    library::BuiltIn,
};

/// What the C++ is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Code for this machine; function constants are set at each dispatch.
    Cpu,
    /// Argument tables only: kernels are named and described but no code is made for them.
    Reflection,
    /// NVIDIA's virtual machine; function constants are baked in, by name.
    Ptx {
        /// Value of each function constant as C++; those missing are zero and count as undefined.
        constants: BTreeMap<String, String>,
    },
}

/// Which of the source's kernels get an entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Selection {
    /// Every one.
    #[default]
    All,
    /// Those with these host names. Compiling one kernel of a large library is much faster than all.
    Only(Vec<String>),
}

impl Selection {
    fn takes(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|n| n == name),
        }
    }
}

/// C++ that clang accepts, and what the rewriter learned on the way.
#[derive(Debug, Clone)]
pub struct Rewritten {
    /// Preprocessed C++ with line markers into the `.metal` files.
    pub text: String,
    /// The kernels that have an entry, in source order.
    pub kernels: Vec<KernelEntry>,
    /// The function constants, in source order.
    pub constants: Vec<ConstantEntry>,
    /// Things that Metal would not do quite so.
    pub warnings: Vec<Diagnostic>,
}

/// A kernel that the host can name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelEntry {
    /// The name the host uses.
    pub host_name: String,
    /// The function as C++ names it (`rms_norm<float>`).
    pub function: String,
    /// In source order.
    pub parameters: Vec<Parameter>,
}

/// A parameter of a kernel as the source declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// Its name, empty if it has none.
    pub name: String,
    /// Its type as the source spells it.
    pub type_text: String,
    /// Where its value comes from.
    pub semantic: Semantic,
}

/// Where a parameter's value comes from. Indices are C++ constant expressions, nearly always plain numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "all indices are alike")]
pub enum Semantic {
    /// `[[buffer(index)]]`, or the next free one. A function constant may switch it off if it is optional.
    Buffer { index: String, optional: bool },
    /// `[[threadgroup(index)]]`, or the next free one.
    Threadgroup { index: String },
    /// `[[texture(index)]]`, or the next free one. A function constant may switch it off if it is optional.
    Texture { index: String, optional: bool },
    /// `[[sampler(index)]]`, or the next free one.
    Sampler { index: String, optional: bool },
    /// A position or a size.
    BuiltIn(BuiltIn),
    /// Something this crate does not run (cube maps, depth textures); the kernel gets no entry.
    Unsupported(String),
}

/// A function constant as the source declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConstantEntry {
    /// Its name, without namespaces.
    pub name: String,
    /// The index as C++.
    pub index: String,
    /// Its type as the source spells it.
    pub type_text: String,
}

/// Rewrites what `clang -E` made of a Metal source.
///
/// `shim` is the folder of this crate's own headers; what comes from there is left alone.
pub fn rewrite(preprocessed: &str, shim: &str, target: &Target, selection: &Selection) -> Result<Rewritten> {
    rewrite_text(Text::new(preprocessed.to_owned(), shim), target, selection)
}

pub(crate) fn rewrite_text(text: Text, target: &Target, selection: &Selection) -> Result<Rewritten> {
    let mut rewriter = Rewriter {
        view: View::new(text)?,
        edits: Edits::default(),
        target,
        selection,
        functions: Vec::new(),
        entries: Vec::new(),
        constants: Vec::new(),
        derived: Vec::new(),
        signatures: HashMap::new(),
        overloads: HashMap::new(),
        left_out: HashMap::new(),
        threadgroup_variables: 0,
        visible_functions: 0,
        warnings: Vec::new(),
    };
    let end = rewriter.view.len();
    rewriter.scope(0..end, &mut Vec::new())?;
    words::rewrite_words(&rewriter.view, &mut rewriter.edits);
    rewriter.finish()
}

/// The namespaces of a path, as they stand before a name.
fn scope(path: &[String]) -> String {
    path.iter().filter(|name| !name.is_empty()).flat_map(|name| [name.as_str(), "::"]).collect()
}

#[derive(Debug)]
struct Rewriter<'a> {
    view: View,
    edits: Edits,
    target: &'a Target,
    selection: &'a Selection,
    functions: Vec<kernels::Function>,
    entries: Vec<kernels::Entry>,
    constants: Vec<ConstantEntry>,
    derived: Vec<constants::Derived>,
    /// Signatures without address spaces, each with the first one's full spelling.
    signatures: HashMap<String, String>,
    /// Functions of each namespace and name.
    overloads: HashMap<(String, String), usize>,
    /// Kernels that take what this crate does not run, by function: why.
    left_out: HashMap<String, Diagnostic>,
    threadgroup_variables: usize,
    visible_functions: usize,
    warnings: Vec<Diagnostic>,
}

impl Rewriter<'_> {
    /// Replaces tokens; what follows stays in its place.
    fn replace(&mut self, range: &Range<usize>, text: String) {
        self.edits.replace(self.view.bytes(range), text);
    }

    /// Removes tokens; what follows stays in its place.
    fn blank(&mut self, range: &Range<usize>) {
        self.replace(range, String::new());
    }

    fn warn(&mut self, index: usize, message: String) {
        let at = Some(self.view.text.location(self.view.start(index)));
        self.warnings.push(Diagnostic { severity: Severity::Warning, at, message, notes: Vec::new() });
    }
}
