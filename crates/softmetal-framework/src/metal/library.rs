//! `MTLLibrary`, `MTLFunction`, and what a compilation is told.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use softmetal::{Library, Pipeline, Source};

use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::{labels, switches};
use crate::faults::{self, Fault};
use crate::foundation::{Domain, NS_OBJECT, array, dictionary_entries, error, string, text};
use crate::lock;
use crate::objc::{
    Id, InBytes, Method, NsRange, OutObject, Strong, This, class, give, lend, methods, none, raw_methods,
};
use crate::problem::{Rule, refuse};

class!(pub(crate) static LIBRARY = c"MTLSoftLibrary", &NS_OBJECT, library_methods, none);
class!(pub(crate) static FUNCTION = c"MTLSoftFunction", &NS_OBJECT, function_methods, none);
class!(pub(crate) static CONSTANTS = c"MTLFunctionConstantValues", &NS_OBJECT, constant_methods, none);

/// What options begin with, and what no options mean.
const DEFAULTS: [(&CStr, usize); 3] =
    [(c"fastMathEnabled", 1), (c"mathMode", 2), (c"languageVersion", 4 << 16)];

descriptor!(pub(crate) static OPTIONS = c"MTLCompileOptions",
    [c"fastMathEnabled" = DEFAULTS[0].1, c"mathMode" = DEFAULTS[1].1, c"languageVersion" = DEFAULTS[2].1],
    c"fastMathEnabled" c"setFastMathEnabled:" bool;
    c"mathMode" c"setMathMode:" isize;
    c"mathFloatingPointFunctions" c"setMathFloatingPointFunctions:" isize;
    c"languageVersion" c"setLanguageVersion:" usize;
    c"libraryType" c"setLibraryType:" isize;
    c"installName" c"setInstallName:" object;
    c"preprocessorMacros" c"setPreprocessorMacros:" object;
    c"preserveInvariance" c"setPreserveInvariance:" bool;
    c"optimizationLevel" c"setOptimizationLevel:" isize;
    c"maxTotalThreadsPerThreadgroup" c"setMaxTotalThreadsPerThreadgroup:" usize;
    c"allowReferencingUndefinedSymbols" c"setAllowReferencingUndefinedSymbols:" bool;
    c"enableLogging" c"setEnableLogging:" bool;
);

/// `MTLLibraryErrorCompileFailure` and its like.
const COMPILE_FAILURE: isize = 3;
const FUNCTION_NOT_FOUND: isize = 5;

/// What an `MTLLibrary` holds.
pub(crate) struct Compiled {
    device: This<Device>,
    library: Library,
    /// Tells sources and their options apart.
    hash: u64,
    /// Which function constant says whether a parameter is there.
    switches: BTreeMap<String, String>,
}

/// What an `MTLFunction` holds.
pub(crate) struct Function {
    pub(crate) device: This<Device>,
    pub(crate) pipeline: Pipeline,
    /// Source, options, name and constants.
    pub(crate) key: String,
    /// Parameters that a function constant could have left out, and has not.
    pub(crate) wanted: Vec<String>,
}

/// The newest language of a system: the macOS from which on each is known.
const LANGUAGES: [(usize, u32); 6] = [
    (4 << 16, 26),
    ((3 << 16) + 2, 15),
    ((3 << 16) + 1, 14),
    (3 << 16, 13),
    ((2 << 16) + 4, 12),
    ((2 << 16) + 3, 11),
];

fn check_language(version: usize) {
    let known = LANGUAGES.iter().find(|(number, _)| *number == version);
    let macos = crate::settings::macos_version() >> 16;
    let old = version >> 16 < 2 || version >> 16 == 2 && version & 0xFFFF < 3;
    if !old && known.is_none_or(|(_, since)| *since > macos) {
        refuse(
            Rule::Descriptor,
            format!(
                "language version {}.{} on macOS {macos}: Metal asserts that the system knows it",
                version >> 16,
                version & 0xFFFF
            ),
        );
    }
}

/// `newLibraryWithSource:options:error:`.
pub(crate) fn compile(device: &This<Device>, source: Id, options: Id, out: OutObject) -> Option<Strong> {
    let fail = |text: String| {
        out.put(error(Domain::Library, COMPILE_FAILURE, text));
        None
    };
    if faults::strikes(Fault::Compile) {
        return fail("program_source:1:1: error: a failure on request".to_owned());
    }
    let source = text(source);
    let mut compiler = match device.compiler() {
        Ok(compiler) => compiler.clone(),
        Err(reason) => return fail(reason),
    };
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    if options.is_null() {
        Properties::of(&DEFAULTS).numbers().hash(&mut hasher);
    } else {
        let options = options.this::<Properties>();
        check_language(options.number(c"languageVersion"));
        options.numbers().hash(&mut hasher);
        let macros = options.object(c"preprocessorMacros");
        for (name, value) in macros.map(|held| dictionary_entries(held.id())).unwrap_or_default() {
            (&name, &value).hash(&mut hasher);
            compiler = compiler.define(format!("{name}={value}"));
        }
    }
    let switches = switches::of(&source);
    match compiler.compile(&Source::new("program_source", source)) {
        Ok(library) => {
            let compiled = Compiled { device: device.again(), library, hash: hasher.finish(), switches };
            Some(Strong::new(&LIBRARY, compiled))
        }
        Err(reason) => fail(reason.to_string()),
    }
}

fn library_methods() -> Vec<Method> {
    let mut all = methods! { Compiled;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"functionNames"(this) -> Id {
            array(this.library.kernels().iter().map(|kernel| string(&kernel.name)).collect()).lend()
        }
        c"type"(_) -> isize { 0 }
        c"installName"(_) -> Id { Id::NULL }
        c"newFunctionWithName:"(this, name: Id) -> Id {
            let made = this.function(&text(name), &[]);
            // Metal has nowhere to put the reason, which is worth knowing unless the function is just not there.
            if let Err((COMPILE_FAILURE, reason)) = &made {
                eprintln!("softmetal: newFunctionWithName: {reason}");
            }
            give(made.ok())
        }
        c"newFunctionWithName:constantValues:error:"(this, name: Id, values: Id, out: OutObject) -> Id {
            let set = values.this::<ConstantValues>();
            let set = lock(&set.0).clone();
            match this.function(&text(name), &set) {
                Ok(function) => function.give(),
                Err((code, reason)) => {
                    out.put(error(Domain::Library, code, reason));
                    Id::NULL
                }
            }
        }
    };
    all.extend(labels());
    all
}

impl Compiled {
    fn function(&self, name: &str, set: &[Constant]) -> Result<Strong, (isize, String)> {
        let mut pipeline = Pipeline::new(&self.library, name).map_err(|e| {
            let absent = matches!(e, softmetal::Error::NoKernel { .. });
            (if absent { FUNCTION_NOT_FOUND } else { COMPILE_FAILURE }, e.to_string())
        })?;
        let (mut key, mut on) = (format!("{:016x} {name}", self.hash), Vec::new());
        for constant in set {
            let known = self.library.constants().iter().find(|known| match &constant.which {
                Which::Index(index) => known.index == *index,
                Which::Name(name) => known.name == *name,
            });
            // As Metal does: what the source does not have is passed over.
            let Some(known) = known else { continue };
            if let (Some(declared), Some(given)) = (sort_of_text(&known.type_text), sort_of(constant.kind))
                && declared != given
            {
                let name = &known.name;
                return Err((
                    COMPILE_FAILURE,
                    format!(
                        "function constant `{name}` is {declared:?}, the value that is given for it is {given:?}"
                    ),
                ));
            }
            pipeline = pipeline
                .constant(known.index, constant.value.clone())
                .map_err(|e| (COMPILE_FAILURE, e.to_string()))?;
            key = format!("{key} {}={:02x?}", known.index, constant.value);
            on.retain(|name| *name != known.name);
            if constant.value.iter().any(|byte| *byte != 0) {
                on.push(known.name.clone());
            }
        }
        let wanted = self.switches.iter().filter(|(_, constant)| on.contains(constant));
        let wanted = wanted.map(|(parameter, _)| parameter.clone()).collect();
        let function = Function { device: self.device.again(), pipeline, key, wanted };
        Ok(Strong::new(&FUNCTION, function))
    }
}

fn function_methods() -> Vec<Method> {
    let mut all = methods! { Function;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"name"(this) -> Id { string(&this.pipeline.kernel().name).lend() }
        // A kernel.
        c"functionType"(_) -> usize { 3 }
        c"patchType"(_) -> usize { 0 }
        c"patchControlPointCount"(_) -> isize { -1 }
        c"options"(_) -> usize { 0 }
    };
    all.extend(labels());
    all
}

#[derive(Clone)]
enum Which {
    Index(u32),
    Name(String),
}

#[derive(Clone)]
struct Constant {
    which: Which,
    /// Its `MTLDataType`.
    kind: usize,
    value: Vec<u8>,
}

/// What `MTLFunctionConstantValues` holds.
struct ConstantValues(Arc<Mutex<Vec<Constant>>>);

impl ConstantValues {
    fn set(&self, which: Which, bytes: InBytes, kind: usize) {
        match size_of_type(kind) {
            Some(size) => lock(&self.0).push(Constant { which, kind, value: bytes.copy(size) }),
            None => refuse(
                Rule::Descriptor,
                format!("a function constant of MTLDataType {kind}: Metal takes numbers and vectors of them"),
            ),
        }
    }
}

/// What a number is, whatever its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Float,
    Integer,
    Bool,
}

/// The first of each four `MTLDataType`s, of one to four lanes, the bytes of a lane, and its name in Metal.
const TYPES: [(usize, usize, &str); 12] = [
    (3, 4, "float"),
    (16, 2, "half"),
    (29, 4, "int"),
    (33, 4, "uint"),
    (37, 2, "short"),
    (41, 2, "ushort"),
    (45, 1, "char"),
    (49, 1, "uchar"),
    (53, 1, "bool"),
    (81, 8, "long"),
    (85, 8, "ulong"),
    (121, 2, "bfloat"),
];

fn type_of(kind: usize) -> Option<(usize, usize, &'static str)> {
    TYPES.into_iter().find(|(first, ..)| (*first..first + 4).contains(&kind))
}

/// Bytes of a number or a vector by its `MTLDataType`.
fn size_of_type(kind: usize) -> Option<usize> {
    let (first, lane, _) = type_of(kind)?;
    Some(lane * [1, 2, 4, 4][kind - first])
}

/// The `MTLDataType` of a number or vector of which a source spells a pointer, reference or value.
pub(crate) fn data_type(text: &str) -> Option<usize> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.into_iter().find_map(|word| {
        let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let lanes = word[name.len()..].parse().unwrap_or(1);
        let (first, ..) = TYPES.into_iter().find(|(.., known)| *known == name)?;
        (1..=4).contains(&lanes).then_some(first + lanes - 1)
    })
}

fn sort_of(kind: usize) -> Option<Sort> {
    sort_of_text(type_of(kind)?.2)
}

/// Of a type as a source spells it; nothing where it has a name of its own.
fn sort_of_text(text: &str) -> Option<Sort> {
    let name = text.split_whitespace().rev().find(|word| !matches!(*word, "constant" | "const"))?;
    match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "float" | "half" | "bfloat" => Some(Sort::Float),
        "bool" => Some(Sort::Bool),
        name => TYPES.iter().any(|(.., known)| *known == name).then_some(Sort::Integer),
    }
}

fn constant_methods() -> Vec<Method> {
    let mut all = methods! { ConstantValues;
        c"setConstantValue:type:atIndex:"(this, value: InBytes, kind: usize, index: usize) {
            this.set(Which::Index(index as u32), value, kind);
        }
        c"setConstantValue:type:withName:"(this, value: InBytes, kind: usize, name: Id) {
            this.set(Which::Name(text(name)), value, kind);
        }
        c"setConstantValues:type:withRange:"(this, values: InBytes, kind: usize, range: NsRange) {
            let size = size_of_type(kind).unwrap_or(0);
            for (place, index) in (range.location..range.location + range.length).enumerate() {
                this.set(Which::Index(index as u32), values.after(place * size), kind);
            }
        }
        c"reset"(this) { lock(&this.0).clear(); }
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(ConstantValues(Arc::default())) }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_constants_are_told_apart() {
        let texts =
            [("constant uint", Sort::Integer), ("const constant half4", Sort::Float), ("bool", Sort::Bool)];
        for (text, sort) in texts {
            assert_eq!(sort_of_text(text), Some(sort), "{text}");
        }
        assert_eq!(sort_of_text("constant Mode"), None);
        assert_eq!((size_of_type(33), sort_of(33)), (Some(4), Some(Sort::Integer)));
        assert_eq!((size_of_type(5), sort_of(5)), (Some(16), Some(Sort::Float)));
        assert_eq!((size_of_type(53), sort_of(53)), (Some(1), Some(Sort::Bool)));
        assert_eq!(size_of_type(1), None);
        assert_eq!((data_type("device const half4*"), data_type("constant uint&")), (Some(19), Some(33)));
        assert_eq!(data_type("constant P&"), None);
    }
}
