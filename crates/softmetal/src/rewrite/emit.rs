//! The registrations that are put into the rewritten text.

use std::{collections::HashSet, fmt::Write as _};

use super::{
    KernelEntry, Parameter, Rewriter, Rewritten, Selection, Semantic, Target,
    kernels::{Base, Entry},
    text::at_line,
    tokens::ADDRESS_SPACES,
};
use crate::{
    diagnostic::{Diagnostic, Severity},
    error::{Error, Result},
    library::{BuiltIn, nearest},
};

impl Rewriter<'_> {
    pub(super) fn finish(mut self) -> Result<Rewritten> {
        self.check_selection()?;
        let mut kernels = Vec::new();
        let mut names = HashSet::new();
        for entry in std::mem::take(&mut self.entries) {
            let Some(function) = self.base(&entry.base) else {
                if let Base::Named { anchor_token, name, .. } = &entry.base
                    && !self.left_out.contains_key(name)
                {
                    self.warn(
                        *anchor_token,
                        format!("`{}` names no kernel: `{name}` is not defined", entry.host_name),
                    );
                }
                self.edits.replace(entry.bytes, String::new());
                continue;
            };
            let parameters = self.functions[function].parameters.clone();
            let taken = self.selection.takes(&entry.host_name);
            let first = !taken || names.insert(entry.host_name.clone());
            if !first {
                let text = format!(
                    "`{}` is the host name of an earlier kernel too: `{}` cannot be asked for by it",
                    entry.host_name, entry.function
                );
                let at = self.view.text.location(entry.anchor);
                self.warnings.push(Diagnostic { at: Some(at), ..Diagnostic::warning(text) });
            }
            if !taken || !first {
                if !entry.bytes.is_empty() {
                    self.edits.replace(entry.bytes, String::new());
                }
                continue;
            }
            self.functions[function].selected = *self.target != Target::Reflection;
            let limit = self.limit(&entry, function);
            let pointer = self.pointer(&entry, function);
            let kernel = KernelEntry { host_name: entry.host_name, function: entry.function, parameters };
            let text = match self.target {
                Target::Ptx { .. } => ptx_entry(kernels.len(), &kernel, &pointer, &limit),
                target => {
                    let names = &self.functions[function].template_names;
                    let reflection = *target == Target::Reflection;
                    cpu_entry(kernels.len(), &kernel, (names, &pointer, &limit), reflection)
                }
            };
            let marker = at_line(&self.view.text.location(entry.anchor));
            self.edits.replace(entry.bytes, format!("{marker}{text}"));
            kernels.push(kernel);
        }
        // Bodies nobody asked for cost time, and may hold what this crate does not know. Kernels do not call each other.
        let unused: Vec<_> = self.functions.iter().filter(|f| !f.selected).map(|f| f.body.clone()).collect();
        if *self.selection != Selection::All || *self.target == Target::Reflection {
            for body in unused.iter().filter(|body| !body.is_empty()) {
                self.blank(body);
            }
        }
        let mut text = self.edits.apply(&self.view.text);
        if !matches!(self.target, Target::Ptx { .. }) {
            text += "\n# 1 \"<softmetal>\"\nstatic void msl_init_derived() {";
            for derived in &self.derived {
                let _ = write!(text, " {}();", derived.initialiser);
            }
            text += " }\nstatic ::msl::reginit msl_reginit_(&msl_init_derived);\n";
        }
        Ok(Rewritten { text, kernels, constants: self.constants, warnings: self.warnings })
    }

    /// Kernels that were asked for must be there.
    fn check_selection(&self) -> Result<()> {
        let Selection::Only(names) = self.selection else { return Ok(()) };
        let known: Vec<&str> = self.entries.iter().map(|entry| entry.host_name.as_str()).collect();
        let absent = names.iter().find(|name| !known.contains(&name.as_str()));
        // A host name may be that of an instance of what was left out.
        let refused = names.iter().find_map(|name| {
            let instance = self.entries.iter().find(|entry| entry.host_name == *name);
            let base = match instance.map(|entry| &entry.base) {
                Some(Base::Named { name, .. }) => name,
                Some(Base::Function(_)) | None => name,
            };
            self.left_out.get(base)
        });
        if let Some(diagnostic) = refused {
            let diagnostic = Diagnostic { severity: Severity::Error, ..diagnostic.clone() };
            return Err(Error::Compile { diagnostics: vec![diagnostic] });
        }
        match absent {
            Some(name) => Err(Error::NoKernel {
                name: name.clone(),
                library: self.view.text.user_files().next().unwrap_or("the source").to_owned(),
                known: nearest(name, &known),
            }),
            None => Ok(()),
        }
    }

    /// The kernel an instantiation means: one of its name, in its namespace if there is a choice.
    fn base(&self, base: &Base) -> Option<usize> {
        match base {
            Base::Function(index) => Some(*index),
            Base::Named { name, path, .. } => {
                let of_name = |(_, function): &(usize, &super::kernels::Function)| function.name == *name;
                let all = || self.functions.iter().enumerate().filter(of_name);
                all()
                    .find(|(_, function)| function.path == *path)
                    .or_else(|| all().next())
                    .map(|(index, _)| index)
            }
        }
    }

    /// Its address, which its name alone gives unless others have it too.
    fn pointer(&self, entry: &Entry, function: usize) -> String {
        let super::kernels::Function { path, name, .. } = &self.functions[function];
        let shared = self.overloads.get(&(path.join("::"), name.clone())).is_some_and(|count| *count > 1);
        match &entry.types {
            Some(types) if shared => format!("static_cast<void (*)({types})>(&{})", entry.function),
            _ => format!("&{}", entry.function),
        }
    }

    fn limit(&self, entry: &Entry, function: usize) -> String {
        if let Some(limit) = &entry.max_threads {
            return limit.clone();
        }
        match (&self.functions[function].max_threads, entry.function.find('<')) {
            (Some(companion), Some(arguments)) if companion.starts_with("msl_limit_") => {
                let (name, arguments) = entry.function.split_at(arguments);
                let scope = name.rfind("::").map_or("", |colons| &name[..colons + 2]);
                format!("{scope}{companion}{arguments}::value")
            }
            (Some(limit), _) if !limit.starts_with("msl_limit_") => limit.clone(),
            _ => "0".to_owned(),
        }
    }
}

fn cpu_entry(
    number: usize,
    kernel: &KernelEntry,
    (names, pointer, limit): (&[String], &str, &str),
    reflection: bool,
) -> String {
    let KernelEntry { host_name, parameters, .. } = kernel;
    // A null pointer of the kernel's type describes it without asking for its code.
    let address = if reflection { format!("(decltype({pointer}))nullptr") } else { pointer.to_owned() };
    let description =
        format!("::msl::desc<{address}, decltype({pointer}), ::msl::sems<{}>>", semantics(parameters));
    let entry =
        if reflection { "[](const ::msl::ctx*) {}".to_owned() } else { format!("&{description}::entry") };
    let mut texts = String::new();
    for parameter in parameters {
        let _ = writeln!(texts, "{}\t{}", spelling(&parameter.type_text, names), parameter.name);
    }
    format!(
        "static ::msl::reg msl_reg_{number}({}, {entry}, {description}::params, {}, (unsigned)({limit}), {});",
        quoted(host_name),
        parameters.len(),
        quoted(&texts)
    )
}

/// A type that names template parameters is left to the compiler to spell; the address space, which it does not know, stays.
fn spelling<'t>(type_text: &'t str, names: &[String]) -> &'t str {
    let mut words = type_text.split(|c: char| !c.is_alphanumeric() && c != '_');
    if !words.clone().any(|word| names.iter().any(|name| name == word)) {
        return type_text;
    }
    words.find(|word| ADDRESS_SPACES.contains(word)).unwrap_or_default()
}

fn ptx_entry(number: usize, kernel: &KernelEntry, pointer: &str, limit: &str) -> String {
    let KernelEntry { host_name, parameters, .. } = kernel;
    let buffers = parameters.iter().filter_map(|parameter| match &parameter.semantic {
        Semantic::Buffer { index, .. } => index.parse::<usize>().ok().map(|index| index + 1),
        _ => None,
    });
    let count = buffers.max().unwrap_or(0);
    let (semantics, symbol) = (semantics(parameters), ptx_symbol(host_name));
    let argument = |index: usize| match index {
        0 => format!("::msl::first_argument<decltype({pointer}), ::msl::sems<{semantics}>>::type b0, "),
        _ => format!("void* b{index}, "),
    };
    let arguments = (0..count).map(argument).collect::<Vec<_>>().concat();
    let pointers: Vec<String> = (0..count).map(|index| format!("::msl::address_of(b{index})")).collect();
    let pointers = if pointers.is_empty() { "nullptr".to_owned() } else { pointers.join(", ") };
    let head = format!(
        "extern \"C\" __attribute__((nvptx_kernel,used)) void msl_entry_{number}({arguments}::msl::tgoff tgm)"
    );
    format!(
        "{head} __asm__(\"{symbol}\"); {head} {{ ::msl::begin_early(); void* bufs[] = {{ {pointers} }}; \
         ::msl::run<{pointer}, decltype({pointer}), ::msl::sems<{semantics}>>(bufs, tgm); }} \
         extern \"C\" __attribute__((used)) const unsigned {PTX_LIMIT}{symbol} = (unsigned)({limit});"
    )
}

/// Goes before the name of a kernel in that of a number: the threads it may have, where the compiler has computed them.
pub(crate) const PTX_LIMIT: &str = "msl_max_threads_";

/// The name in PTX of a kernel.
pub(crate) fn ptx_symbol(host_name: &str) -> String {
    host_name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn semantics(parameters: &[Parameter]) -> String {
    let each = parameters.iter().map(|parameter| match &parameter.semantic {
        Semantic::Buffer { index, optional: false } => format!("::msl::BUF+({index})"),
        Semantic::Buffer { index, optional: true } => format!("::msl::FCB+({index})"),
        Semantic::Threadgroup { index } => format!("::msl::TGM+({index})"),
        Semantic::Texture { index, optional } => {
            format!("::msl::{}+({index})", if *optional { "FCT" } else { "TEX" })
        }
        Semantic::Sampler { index, optional } => {
            format!("::msl::{}+({index})", if *optional { "FCS" } else { "SMP" })
        }
        Semantic::BuiltIn(built_in) => format!("::msl::{}", BuiltIn::ALL[*built_in as usize].2),
        Semantic::Unsupported(_) => String::from("0"),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// A C string literal.
fn quoted(text: &str) -> String {
    format!(
        "\"{}\"",
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\t', "\\t")
    )
}
