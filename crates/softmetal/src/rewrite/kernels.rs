//! Kernels: their parameters, and the names hosts call them by.

use std::ops::Range;

use super::{Parameter, Rewriter, Semantic, Target, scope, words::plain};
use crate::{
    error::{Error, Result},
    lexer::Kind,
    library::BuiltIn,
};

/// The parts of a function's definition, as token indices.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) start: usize,
    /// Between the angle brackets of its first template header.
    pub(super) template: Option<Range<usize>>,
    /// From the opening to the closing parenthesis of its parameters.
    pub(super) parameters: Option<Range<usize>>,
    /// The opening brace.
    pub(super) body: usize,
}

/// A function marked `kernel`.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) path: Vec<String>,
    pub(super) parameters: Vec<Parameter>,
    /// How C++ spells `max_total_threads_per_threadgroup`; for a template, without its arguments.
    pub(super) max_threads: Option<String>,
    /// Names that an instantiation replaces.
    pub(super) template_names: Vec<String>,
    /// Between its braces.
    pub(super) body: Range<usize>,
    pub(super) selected: bool,
}

/// A kernel the host can name, and where its registration goes.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) host_name: String,
    /// As C++ spells it in the place of the entry.
    pub(super) function: String,
    /// The types of its parameters as C++ spells them, where they are plain. Names of functions may be shared.
    pub(super) types: Option<String>,
    /// Index into `functions`, or the name to look up at the end.
    pub(super) base: Base,
    /// The bytes that the registration replaces.
    pub(super) bytes: Range<usize>,
    /// A byte on the line that errors shall point at.
    pub(super) anchor: usize,
    /// Overrides the function's own.
    pub(super) max_threads: Option<String>,
}

#[derive(Debug)]
pub(super) enum Base {
    Function(usize),
    Named { name: String, path: Vec<String>, anchor_token: usize },
}

impl Rewriter<'_> {
    pub(super) fn kernel(&mut self, head: &Head, path: &[String]) -> Result<()> {
        let Some(list) = head.parameters.clone() else { return Ok(()) };
        let name_at = list.start.saturating_sub(1);
        let name = self.view.at(name_at).to_owned();
        let parameters = self.parameters(list.start + 1..list.end, &name)?;
        let unsupported = parameters.iter().find_map(|parameter| {
            let what = self.unsupported(&parameter.semantic)?;
            Some(format!("kernel `{name}` is left out: `{}` is a {what}", parameter.name))
        });
        if let Some(message) = unsupported {
            self.warn(name_at, message);
            self.blank(&(head.start..self.view.skip(head.body)));
            self.left_out.extend(self.warnings.last().cloned().map(|warning| (name, warning)));
            return Ok(());
        }
        if self.view.at(head.start) == "extern" && self.view.kind(head.start + 1) == Some(Kind::Text) {
            // `extern "C" static` is an error in C++.
            self.blank(&(head.start..head.start + 2));
        }
        let (host_name, limit) = self.host_name_and_limit(head.start..head.body);
        let host_name = host_name.unwrap_or_else(|| name.clone());
        let number = self.functions.len();
        let max_threads = match (&head.template, limit) {
            (Some(template), Some(limit)) => {
                // The limit may depend on template parameters: a companion template computes it.
                let template = plain(&self.view, template.clone());
                let companion = format!("msl_limit_{number}");
                let text = format!(
                    "template<{template}> struct {companion} {{ static constexpr unsigned value = (unsigned)({limit}); }}; "
                );
                let start = self.view.start(head.start);
                self.edits.replace(start..start, text);
                Some(companion)
            }
            (_, limit) => limit,
        };
        if head.template.is_none() {
            let end = self.view.end(self.view.skip(head.body) - 1);
            // In full: `using namespace metal` may bring another function of that name.
            let function = format!("::{}{name}", scope(path));
            let types = self.parameter_types(list.start + 1..list.end);
            self.entries.push(Entry {
                host_name,
                function,
                types: Some(types),
                base: Base::Function(number),
                bytes: end..end,
                anchor: self.view.start(name_at),
                max_threads: max_threads.clone(),
            });
        }
        let body = head.body + 1..self.view.skip(head.body) - 1;
        let template_names =
            head.template.clone().map(|template| self.template_names(template)).unwrap_or_default();
        self.functions.push(Function {
            name,
            path: path.to_vec(),
            parameters,
            max_threads,
            template_names,
            body,
            selected: false,
        });
        Ok(())
    }

    /// `template [[host_name("n")]] kernel T f<…>;` and its kin. All explicit instantiations go: those of kernels become
    /// entries, others only cost time.
    pub(super) fn instantiation(&mut self, range: Range<usize>, path: &[String]) {
        let whole = range.start..range.end + 1;
        let (host_name, max_threads) = self.host_name_and_limit(range.clone());
        let Some((name_at, end)) = self.instantiated(range.clone()) else {
            self.blank(&whole);
            return;
        };
        let name = self.view.at(name_at).to_owned();
        let known = self.functions.iter().any(|function| function.name == name);
        if host_name.is_none() && !known && !self.view.contains(range.clone(), "kernel") {
            if !matches!(self.view.at(range.start + 1), "struct" | "class") {
                self.blank(&whole);
            }
            return;
        }
        let mut begin = name_at;
        while begin >= 2 && self.view.before(begin) == "::" && self.view.is_word(begin - 2) {
            begin -= 2;
        }
        let function = plain(&self.view, begin..end);
        self.entries.push(Entry {
            host_name: host_name.unwrap_or_else(|| self.view.spelling(begin..end)).trim().to_owned(),
            function,
            types: None,
            base: Base::Named { name, path: path.to_vec(), anchor_token: name_at },
            bytes: self.view.bytes(&whole),
            anchor: self.view.start(range.start),
            max_threads,
        });
    }

    fn host_name_and_limit(&self, range: Range<usize>) -> (Option<String>, Option<String>) {
        let name = self.view.attribute(range.clone(), "host_name");
        let limit = self.view.attribute(range, "max_total_threads_per_threadgroup");
        (name.and_then(|name| self.view.string(name)), limit.map(|limit| plain(&self.view, limit)))
    }

    /// The name in an explicit instantiation, and one past its template arguments.
    fn instantiated(&self, range: Range<usize>) -> Option<(usize, usize)> {
        let mut last = range.end.checked_sub(1)?;
        // Attributes and parameter lists may follow the name.
        while last > range.start && matches!(self.view.at(last), ")" | "]") {
            last = self.view.open(last)?.checked_sub(1)?;
        }
        if self.view.at(last) != ">" {
            return (last > range.start && self.view.is_word(last)).then_some((last, last + 1));
        }
        let (mut depth, mut at) = (0_usize, last);
        while at > range.start {
            match self.view.at(at) {
                ">" => depth += 1,
                "<" => {
                    depth -= 1;
                    if depth == 0 {
                        return self.view.is_word(at - 1).then_some((at - 1, last + 1));
                    }
                }
                ")" | "]" | "}" => at = self.view.open(at)?,
                _ => {}
            }
            at = at.checked_sub(1)?;
        }
        None
    }

    /// What keeps a parameter from being run.
    fn unsupported(&self, semantic: &Semantic) -> Option<String> {
        let ptx = matches!(self.target, Target::Ptx { .. });
        match semantic {
            Semantic::Unsupported(what) => Some(what.clone()),
            Semantic::Texture { .. } if ptx => Some("texture, which PTX is not made of".to_owned()),
            Semantic::Sampler { .. } if ptx => Some("sampler, which PTX is not made of".to_owned()),
            Semantic::Texture { .. }
            | Semantic::Sampler { .. }
            | Semantic::Buffer { .. }
            | Semantic::Threadgroup { .. }
            | Semantic::BuiltIn(_) => None,
        }
    }

    fn parameters(&mut self, range: Range<usize>, kernel: &str) -> Result<Vec<Parameter>> {
        let parts: Vec<_> = self.view.split_commas(range).into_iter().filter(|p| !self.is_void(p)).collect();
        let declared: Vec<_> = parts.iter().map(|part| self.declared_semantic(part.clone())).collect();
        let mut free = Free::of(declared.iter().flatten());
        let mut out = Vec::new();
        for (part, semantic) in parts.into_iter().zip(declared) {
            let name_at = self.parameter_name(part.clone());
            let name = name_at.map_or("", |index| self.view.at(index)).to_owned();
            let semantic = match semantic {
                Some(semantic) => semantic,
                None if self.is_texture(part.clone()) => {
                    Semantic::Texture { index: free.textures.next().to_string(), optional: false }
                }
                None if self.view.contains(part.clone(), "sampler") => {
                    Semantic::Sampler { index: free.samplers.next().to_string(), optional: false }
                }
                None if !self.points(part.clone()) => {
                    return Err(Error::Syntax {
                        at: self.view.text.location(self.view.start(part.start)),
                        message: format!(
                            "parameter `{}` of kernel `{kernel}` is a value and needs an attribute that says where it comes from",
                            self.view.spelling(part)
                        ),
                    });
                }
                None if self.view.contains(part.clone(), "threadgroup") => {
                    Semantic::Threadgroup { index: free.threadgroup.next().to_string() }
                }
                None => Semantic::Buffer { index: free.buffers.next().to_string(), optional: false },
            };
            let absent = (part.start..part.end).find(|&index| ABSENT.contains(&self.view.at(index)));
            let semantic = match absent {
                Some(index) => Semantic::Unsupported(self.view.at(index).to_owned()),
                None => semantic,
            };
            out.push(Parameter { name, type_text: self.type_text(part, name_at), semantic });
        }
        Ok(out)
    }

    /// The types of parameters, in C++, without their names.
    fn parameter_types(&self, range: Range<usize>) -> String {
        let parts = self.view.split_commas(range).into_iter().filter(|part| !self.is_void(part));
        let each = parts.map(|part| {
            let name = self.parameter_name(part.clone());
            let stop = self.view.find(part.clone(), &["="]);
            let front = plain(&self.view, part.start..name.unwrap_or(stop));
            let back = name.map(|name| plain(&self.view, name + 1..stop)).unwrap_or_default();
            format!("{front} {back}")
        });
        each.collect::<Vec<_>>().join(", ")
    }

    /// `T` and `N` of `typename T, int N = 4`.
    fn template_names(&self, template: Range<usize>) -> Vec<String> {
        let parts = self.view.split_commas(template).into_iter();
        let names = parts.filter_map(|part| {
            let end = self.view.find(part.clone(), &["="]);
            (part.start..end).next_back().filter(|&index| self.view.is_word(index))
        });
        names.map(|index| self.view.at(index).to_owned()).collect()
    }

    fn is_void(&self, part: &Range<usize>) -> bool {
        part.len() == 1 && self.view.at(part.start) == "void"
    }

    fn is_texture(&self, mut part: Range<usize>) -> bool {
        part.any(|index| self.view.at(index).starts_with("texture"))
    }

    /// Is it a pointer, a reference or an array?
    fn points(&self, part: Range<usize>) -> bool {
        let mut at = part.start;
        while at < part.end {
            match self.view.at(at) {
                "*" | "&" | "[" => return true,
                "(" if matches!(self.view.at(at + 1), "*" | "&") => return true,
                "<" => {
                    at = self.view.skip_angles(at).unwrap_or(at + 1);
                    continue;
                }
                _ => {}
            }
            at = self.view.skip(at);
        }
        false
    }

    fn type_text(&self, part: Range<usize>, name: Option<usize>) -> String {
        let stop = self.view.find(part.clone(), &["[["]);
        match name.filter(|&name| name < stop) {
            Some(name) => {
                let (front, back) =
                    (self.view.spelling(part.start..name), self.view.spelling(name + 1..stop));
                format!("{front}{back}")
            }
            None => self.view.spelling(part.start..stop),
        }
    }

    fn declared_semantic(&self, part: Range<usize>) -> Option<Semantic> {
        let attributes = self.view.attributes(part);
        let optional = attributes.iter().any(|a| a.name == "function_constant");
        attributes.iter().find_map(|attribute| {
            let index = || plain(&self.view, attribute.argument.clone());
            Some(match attribute.name.as_str() {
                "buffer" => Semantic::Buffer { index: index(), optional },
                "threadgroup" => Semantic::Threadgroup { index: index() },
                "texture" => Semantic::Texture { index: index(), optional },
                "sampler" => Semantic::Sampler { index: index(), optional },
                "stage_in"
                | "color"
                | "visible_function_table"
                | "intersection_function_table"
                | "acceleration_structure"
                | "imageblock_data" => Semantic::Unsupported(attribute.name.clone()),
                name => Semantic::BuiltIn(built_in(name)?),
            })
        })
    }
}

/// Textures that this crate does not run.
const ABSENT: [&str; 10] = [
    "texturecube",
    "texturecube_array",
    "texture2d_ms",
    "texture2d_ms_array",
    "depth2d",
    "depth2d_array",
    "depthcube",
    "depthcube_array",
    "depth2d_ms",
    "depth2d_ms_array",
];

/// Indices that no parameter asks for, in order.
#[derive(Debug, Default)]
struct Indices {
    taken: Vec<u32>,
    next: u32,
}

impl Indices {
    fn next(&mut self) -> u32 {
        while self.taken.contains(&self.next) {
            self.next += 1;
        }
        self.next += 1;
        self.next - 1
    }
}

/// What parameters without an attribute get.
#[derive(Debug, Default)]
struct Free {
    buffers: Indices,
    threadgroup: Indices,
    textures: Indices,
    samplers: Indices,
}

impl Free {
    fn of<'s>(declared: impl Iterator<Item = &'s Semantic>) -> Self {
        let mut free = Self::default();
        for semantic in declared {
            let (indices, index) = match semantic {
                Semantic::Buffer { index, .. } => (&mut free.buffers, index),
                Semantic::Threadgroup { index } => (&mut free.threadgroup, index),
                Semantic::Texture { index, .. } => (&mut free.textures, index),
                Semantic::Sampler { index, .. } => (&mut free.samplers, index),
                Semantic::BuiltIn(_) | Semantic::Unsupported(_) => continue,
            };
            indices.taken.extend(number(index));
        }
        free
    }
}

/// A plain number, with or without a suffix.
fn number(text: &str) -> Option<u32> {
    text.trim().trim_end_matches(['u', 'U']).parse().ok()
}

fn built_in(attribute: &str) -> Option<BuiltIn> {
    let attribute = match attribute {
        "dispatch_simdgroups_per_threadgroup" => "simdgroups_per_threadgroup",
        "dispatch_quadgroups_per_threadgroup" => "quadgroups_per_threadgroup",
        "thread_execution_width" => "threads_per_simdgroup",
        other => other,
    };
    BuiltIn::ALL.iter().find(|(_, name, _)| *name == attribute).map(|(built_in, ..)| *built_in)
}
