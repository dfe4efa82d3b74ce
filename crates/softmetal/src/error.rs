//! Everything that can go wrong, in one type.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::diagnostic::{Diagnostic, Location};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: which thing, what was found, what was needed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// No compiler on this machine.
    #[error("no clang found (looked for {}); {INSTALL}", tried.join(", "))]
    NoClang { tried: Vec<String> },
    /// The compiler cannot be used.
    #[error("{} is {found}, softmetal needs clang 17 or newer; {INSTALL}", path.display())]
    UnfitClang { path: PathBuf, found: String },
    /// A file or process of the operating system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    /// The rewriter cannot make sense of the source.
    #[error("{at}: error: {message}")]
    Syntax { at: Location, message: String },
    /// The compiler refused the source.
    #[error("{}", show(diagnostics))]
    Compile { diagnostics: Vec<Diagnostic> },
    /// A folder from which code would be loaded that others may have put there.
    #[error(
        "{} is no place for compiled kernels: {reason}; name another folder in SOFTMETAL_CACHE",
        folder.display()
    )]
    UnsafeCache { folder: PathBuf, reason: String },
    /// The compiled kernels could not be loaded.
    #[error("cannot load the compiled kernels {}: {reason}", path.display())]
    Load { path: PathBuf, reason: String },
    /// A kernel of that name is not in the library.
    #[error("no kernel `{name}` in {library}; {}", known_kernels(known))]
    NoKernel { name: String, library: String, known: Vec<String> },
    /// A kernel that was compiled later than its library was made, from other files.
    #[error(
        "kernel `{kernel}` is not what it was when {library} was compiled: an included file has changed since; compile it again"
    )]
    Changed { kernel: String, library: String },
    /// A dispatch asks for what cannot be.
    #[error("cannot dispatch kernel `{kernel}`: {problem}")]
    Dispatch { kernel: String, problem: crate::device::Problem },
    /// Not so much memory.
    #[error("no memory for a buffer of {bytes} bytes: {source}")]
    NoMemory { bytes: usize, source: io::Error },
    /// A part of a buffer that is not there.
    #[error("{len} bytes at offset {offset} of a buffer of {size} bytes")]
    BufferRange { offset: usize, len: usize, size: usize },
    /// A texture that cannot be, or a part of one.
    #[error("a {kind} cannot have {reason}")]
    Texture { kind: &'static str, reason: String },
    /// A buffer of the host's own memory cannot be written.
    #[error("a buffer of {size} bytes is the host's own memory and can only be read")]
    BufferReadOnly { size: usize },
}

impl Error {
    /// For `map_err`: what was attempted, and on what.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// A source that the compiler would take, and this crate does not.
    pub(crate) fn refused(message: String) -> Self {
        Self::Compile { diagnostics: vec![Diagnostic::error(message)] }
    }
}

const INSTALL: &str = "install one (Debian, Ubuntu: `apt install clang-19`; Fedora: `dnf install clang`; \
macOS: `brew install llvm`) or name it in SOFTMETAL_CLANG";

fn known_kernels(names: &[String]) -> String {
    if names.is_empty() { "it has none".to_owned() } else { format!("the nearest are {}", names.join(", ")) }
}

fn show(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
