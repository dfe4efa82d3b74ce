//! From Metal source to loaded kernels.

mod flags;
mod parts;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    thread,
    time::Duration,
};

pub(crate) use parts::Parts;

use crate::{
    cache::{Built, Cache, Key, hash_of_file},
    diagnostic::{Diagnostic, Severity, parse_clang},
    error::{Error, Result},
    library::{Interface, Library},
    rewrite::{Rewritten, Selection, Target, Text, rewrite_text},
    runtime::Image,
    shim::{self, Shim},
    toolchain::Toolchain,
};

/// A Metal source: a name for messages, and the text.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file name that diagnostics show. `#include "…"` is looked up beside it.
    pub name: PathBuf,
    /// The text.
    pub text: String,
}

impl Source {
    /// Text from anywhere, under a name of the caller's choice.
    pub fn new(name: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// Reads a `.metal` file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(Error::io("read", path))?;
        Ok(Self { name: path.to_owned(), text: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// What the kernels are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Flavour {
    /// Speed. Nothing watches such a kernel: one that is wrong can damage the host ([`Device`](crate::Device)).
    #[default]
    Plain,
    /// Every access to memory is checked before it is made.
    Checked,
}

/// How vectors are copied in the checked flavour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copies {
    /// At once, as a GPU does, which shows whether they are aligned.
    Whole,
    /// Byte by byte, as C++ wants it of what lies in a union that is copied.
    Bytes,
}

impl Copies {
    fn flags(self) -> &'static [String] {
        static TRIVIAL: LazyLock<[String; 1]> = LazyLock::new(|| ["-DMSL_TRIVIAL_COPY=1".to_owned()]);
        match self {
            Self::Whole => &[],
            Self::Bytes => &*TRIVIAL,
        }
    }
}

/// Sources with more kernels than this are compiled kernel by kernel, as they are asked for.
const AT_ONCE: usize = 8;

/// A compilation to be done.
struct Build<'a> {
    source: &'a Source,
    target: &'a Target,
    key: &'a Key,
    /// More kernels than this get an outline, no code.
    most: usize,
}

/// Compiles Metal sources; results are cached on disk.
#[derive(Debug, Clone)]
pub struct Compiler {
    toolchain: Toolchain,
    cache: Cache,
    shim: Shim,
    includes: Vec<PathBuf>,
    defines: Vec<String>,
    flavour: Flavour,
    selection: Selection,
}

impl Compiler {
    /// A compiler with the clang of this machine and the user's cache folder.
    pub fn new() -> Result<Self> {
        Self::with(Toolchain::find()?, Cache::of_user()?)
    }

    /// A compiler with a given clang and cache.
    pub fn with(toolchain: Toolchain, cache: Cache) -> Result<Self> {
        let shim = shim::install(cache.folder())?;
        Ok(Self {
            toolchain,
            cache,
            shim,
            includes: Vec::new(),
            defines: Vec::new(),
            flavour: Flavour::Plain,
            selection: Selection::All,
        })
    }

    /// Adds a folder to look for included files in.
    #[must_use]
    pub fn include(mut self, folder: impl Into<PathBuf>) -> Self {
        self.includes.push(folder.into());
        self
    }

    /// Defines a macro: `NAME` or `NAME=VALUE`.
    #[must_use]
    pub fn define(mut self, definition: impl Into<String>) -> Self {
        self.defines.push(definition.into());
        self
    }

    /// Chooses between speed and checks.
    #[must_use]
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// Takes only the kernels of these host names, as if the source had no others.
    #[must_use]
    pub fn only(mut self, kernels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.selection = Selection::Only(kernels.into_iter().map(Into::into).collect());
        self
    }

    /// The longest that one run of clang may take.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.toolchain.limit = limit;
        self
    }

    /// The clang in use.
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    /// The folder of this crate's own headers.
    pub fn shim_folder(&self) -> &Path {
        &self.shim.folder
    }

    /// Compiles a source and loads its kernels.
    ///
    /// Of a source with more than eight kernels all is checked at once, and every error in it shows; code is made of each kernel
    /// when it is first asked for, which takes a second or so. [`Library::prepare`] does it before.
    pub fn compile(&self, source: &Source) -> Result<Library> {
        let (image, built) = open(|| self.build(source, &Target::Cpu, AT_ONCE))?;
        let parts = built.outline.then(|| Parts::new(self, source, image.kernels().len()));
        Ok(Library::new(&source.name, image, parts, built.warnings))
    }

    /// Compiles a source in one piece, however many kernels it has.
    fn at_once(&self, source: &Source) -> Result<(Arc<Image>, Vec<Diagnostic>)> {
        self.load(source, &Target::Cpu)
    }

    /// What a source says about its kernels, without making code for them.
    pub fn reflect(&self, source: &Source) -> Result<Interface> {
        let (image, warnings) = self.load(source, &Target::Reflection)?;
        let (kernels, constants) = (image.kernels().to_vec(), image.constants().to_vec());
        Ok(Interface { kernels, constants, warnings })
    }

    /// Preprocesses a source; `extra` goes to clang as it is.
    pub fn preprocess(&self, source: &Source, extra: &[String]) -> Result<String> {
        let mut arguments = flags::preprocess();
        arguments.extend(self.defines.iter().map(|define| format!("-D{define}")));
        if self.flavour == Flavour::Checked {
            arguments.push("-DMSL_CHECK=1".into());
        }
        arguments.extend_from_slice(extra);
        let beside = source.name.parent().filter(|folder| !folder.as_os_str().is_empty());
        arguments.push("-iquote".into());
        arguments.push(beside.unwrap_or(Path::new(".")).display().to_string());
        arguments.extend(self.includes.iter().map(|folder| format!("-I{}", folder.display())));
        arguments.extend(["-isystem".into(), self.shim()]);
        arguments.extend(["-include".into(), "metal_stdlib".into(), "-".into()]);
        let name = source.name.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        let text = format!("#line 1 \"{name}\"\n{}", source.text);
        self.clang(arguments, text.as_bytes())
    }

    /// The C++ of a source for a target.
    pub fn rewrite(&self, source: &Source, target: &Target) -> Result<Rewritten> {
        let extra = match target {
            Target::Ptx { .. } => vec!["-D__NVPTX__=1".to_owned()],
            Target::Cpu | Target::Reflection => Vec::new(),
        };
        rewrite_text(self.text(source, &self.preprocess(source, &extra)?), target, &self.selection)
    }

    /// Preprocessed text that knows which parts are the user's.
    pub(crate) fn text(&self, source: &Source, preprocessed: &str) -> Text {
        let name = source.name.display().to_string();
        Text::new(plain_pragmas(preprocessed), &self.shim()).restore_columns(|file| {
            if file == name { Some(source.text.clone()) } else { fs::read_to_string(file).ok() }
        })
    }

    fn load(&self, source: &Source, target: &Target) -> Result<(Arc<Image>, Vec<Diagnostic>)> {
        let (image, built) = open(|| self.build(source, target, usize::MAX))?;
        Ok((image, built.warnings))
    }

    /// Code, or an outline of a source that has more than `most` kernels.
    fn build(&self, source: &Source, target: &Target, most: usize) -> Result<Built> {
        let key = self.key(source, target);
        let outlined = most < usize::MAX;
        let known = self.cache.find(&key).or_else(|| self.cache.find(&key.outline()).filter(|_| outlined));
        if let Some(built) = known {
            return Ok(built);
        }
        let job = Build { source, target, key: &key, most };
        match self.build_with(&job, Copies::Whole) {
            // C++ copies a union only if vectors are copied byte by byte.
            Err((Error::Compile { .. }, true)) if self.flavour == Flavour::Checked => {
                self.build_with(&job, Copies::Bytes)
            }
            built => built,
        }
        .map_err(|(error, _)| error)
    }

    /// An error comes with whether the source has unions.
    fn build_with(&self, job: &Build<'_>, copies: Copies) -> Result<Built, (Error, bool)> {
        let text = self.preprocess(job.source, copies.flags()).map_err(|error| (error, false))?;
        let text = self.text(job.source, &text);
        let unions = text.user_says("union");
        self.build_text(job, text, copies).map_err(|error| (error, unions))
    }

    fn build_text(&self, job: &Build<'_>, text: Text, copies: Copies) -> Result<Built> {
        let name = job.source.name.display().to_string();
        // Now, not when all is compiled: by then they may have changed.
        let files = text.user_files().filter(|file| *file != name);
        let dependencies = files.map(|file| (file.to_owned(), hash_of_file(file))).collect();
        let mut rewritten = rewrite_text(text, job.target, &self.selection)?;
        if copies == Copies::Bytes {
            rewritten.warnings.push(Diagnostic::warning(
                "a union with vectors is copied: of misaligned vectors those are seen that are off by other than 8 bytes",
            ));
        }
        if rewritten.kernels.len() > job.most {
            let built = self.outline(job.source, rewritten)?;
            self.cache.remember(&job.key.outline(), &built, dependencies);
            return Ok(built);
        }
        let make = |folder: &Path| self.link(&rewritten.text, job.target, copies, folder);
        let object = self.cache.store(&rewritten.text, job.key, make)?;
        let built = Built { object, warnings: rewritten.warnings, outline: false };
        self.cache.remember(job.key, &built, dependencies);
        Ok(built)
    }

    /// The tables of a source's kernels, all of which clang has checked, templates put in: no code is made of them yet, which is
    /// what takes long.
    fn outline(&self, source: &Source, rewritten: Rewritten) -> Result<Built> {
        thread::scope(|scope| {
            let tables = scope.spawn(|| self.build(source, &Target::Reflection, usize::MAX));
            let mut arguments = flags::compile(self.flavour, &Target::Cpu);
            arguments.extend(["-x", "c++-cpp-output", "-fsyntax-only", "-"].map(str::to_owned));
            self.clang(arguments, rewritten.text.as_bytes())?;
            let tables = tables.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(Built { warnings: rewritten.warnings, outline: true, ..tables })
        })
    }

    /// Everything but the included files that decides what comes out.
    fn key(&self, source: &Source, target: &Target) -> Key {
        let flags = flags::compile(self.flavour, target).join(" ");
        let mut key = Key::new();
        key.add(env!("SOFTMETAL_REWRITER")).add(&self.shim()).add(&self.toolchain.identity());
        key.add(&flags).add(&format!("{:?}{target:?}{:?}", self.selection, self.flavour));
        for define in &self.defines {
            key.add(define);
        }
        for include in &self.includes {
            key.add(&include.display().to_string());
        }
        if !self.includes.is_empty() || names_files(&source.text) {
            key.add(&std::env::current_dir().unwrap_or_default().display().to_string());
        }
        key.add(&source.name.display().to_string()).add(&source.text);
        key
    }

    /// Compiles the C++ and the runtime's part of it into `folder/kernels.so`.
    fn link(&self, text: &str, target: &Target, copies: Copies, folder: &Path) -> Result<PathBuf> {
        let path = |name: &str| folder.join(name).display().to_string();
        let (object, shared) = (path("kernels.o"), path("kernels.so"));
        let mut arguments = flags::compile(self.flavour, target);
        arguments.extend(["-x", "c++-cpp-output", "-c", "-", "-o", &object].map(str::to_owned));
        self.clang(arguments, text.as_bytes())?;
        let mut arguments = flags::runtime(self.flavour);
        arguments.extend_from_slice(copies.flags());
        arguments.extend([object, "-o".into(), shared.clone(), format!("-I{}", self.shim())]);
        arguments.extend(["-x".into(), "c++".into()]);
        arguments.extend(flags::runtime_files(self.flavour).map(|file| format!("{}/{file}", self.shim())));
        self.clang(arguments, &[])?;
        Ok(PathBuf::from(shared))
    }

    /// What clang prints. Its errors are those of the source.
    pub(crate) fn clang(&self, arguments: Vec<String>, input: &[u8]) -> Result<String> {
        let output = self.toolchain.run(arguments, input)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let mut diagnostics = parse_clang(&output.stderr, &self.shim());
        diagnostics.retain(|diagnostic| diagnostic.severity == Severity::Error);
        if diagnostics.is_empty() {
            let last = output.stderr.lines().rev().find(|line| !line.trim().is_empty());
            diagnostics.push(Diagnostic::error(last.unwrap_or("clang failed")));
        }
        Err(Error::Compile { diagnostics })
    }

    /// The folder of this crate's own headers, as text.
    pub(crate) fn shim(&self) -> String {
        self.shim.folder.display().to_string()
    }
}

/// Loads what was built.
fn open(build: impl Fn() -> Result<Built>) -> Result<(Arc<Image>, Built)> {
    let mut built = build()?;
    let mut image = Image::open(&built.object);
    if image.is_err() && !built.object.is_file() {
        // Another process made room just before it was loaded.
        built = build()?;
        image = Image::open(&built.object);
    }
    Ok((image?, built))
}

/// The factor of `#pragma unroll (N)` may be a macro, which the preprocessor leaves alone.
fn plain_pragmas(text: &str) -> String {
    let has_factor = |line: &str| line.starts_with("#pragma unroll") && line.contains('(');
    text.split_inclusive('\n').map(|line| if has_factor(line) { "#pragma unroll\n" } else { line }).collect()
}

/// Whether a text may bring in files that are looked for from where the program runs. Without any it compiles to the same
/// everywhere. A comment that only looks like it costs no more than a compilation.
fn names_files(text: &str) -> bool {
    let own = |line: &str| {
        let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
        directive
            .and_then(|rest| rest.strip_prefix("include"))
            .is_some_and(|rest| rest.trim_start().starts_with('<'))
    };
    text.lines().any(|line| (line.contains("include") || line.contains("import")) && !own(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_that_name_files_depend_on_where_they_are_compiled() {
        for (text, depends) in [
            ("kernel void f() {}\n", false),
            ("#include <metal_stdlib>\n  #  include <metal_math>\n", false),
            ("#include <metal_stdlib>\n#include \"mine.h\"\n", true),
            ("#define FILE \"mine.h\"\n#include FILE\n", true),
            ("#if __has_include(\"mine.h\")\n#endif\n", true),
            ("#import \"mine.h\"\n", true),
        ] {
            assert_eq!(names_files(text), depends, "{text}");
        }
    }
}
