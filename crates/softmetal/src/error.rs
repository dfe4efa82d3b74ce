//! Everything that can go wrong, in one type.

use std::{io, path::PathBuf};

use crate::diagnostic::{Diagnostic, Location};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: which thing, what was found, what was needed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No compiler on this machine.
    #[error("no clang found (looked for {}); {INSTALL}", tried.join(", "))]
    NoClang {
        /// The names that were looked for.
        tried: Vec<String>,
    },
    /// The compiler cannot be used.
    #[error("{} is {found}, softmetal needs clang 17 or newer; {INSTALL}", path.display())]
    UnfitClang {
        /// The compiler that was tried.
        path: PathBuf,
        /// What it says it is.
        found: String,
    },
    /// A file or process of the operating system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The rewriter cannot make sense of the source.
    #[error("{at}: error: {message}")]
    Syntax {
        /// Where.
        at: Location,
        /// What is wrong there.
        message: String,
    },
    /// The compiler refused the source.
    #[error("{}", show(diagnostics))]
    Compile {
        /// Its messages, errors and warnings, at lines of the `.metal` file.
        diagnostics: Vec<Diagnostic>,
    },
    /// The compiled kernels could not be loaded.
    #[error("cannot load the compiled kernels {}: {reason}", path.display())]
    Load {
        /// The shared object.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A kernel of that name is not in the library.
    #[error("no kernel `{name}` in {library}; {}", known_kernels(known))]
    NoKernel {
        /// The name that was asked for.
        name: String,
        /// The source that was compiled.
        library: String,
        /// Names near it, or all if they are few.
        known: Vec<String>,
    },
    /// A dispatch asks for what cannot be.
    #[error("cannot dispatch kernel `{kernel}`: {problem}")]
    Dispatch {
        /// The kernel's host name.
        kernel: String,
        /// What is wrong.
        problem: crate::device::Problem,
    },
    /// Not so much memory.
    #[error("no memory for a buffer of {bytes} bytes: {source}")]
    NoMemory {
        /// What was asked for.
        bytes: usize,
        /// What the operating system says.
        source: io::Error,
    },
    /// A part of a buffer that is not there.
    #[error("{len} bytes at offset {offset} of a buffer of {size} bytes")]
    BufferRange {
        /// Where the part begins.
        offset: usize,
        /// Its length.
        len: usize,
        /// Bytes of the buffer.
        size: usize,
    },
    /// A buffer of the host's own memory cannot be written.
    #[error("a buffer of {size} bytes is the host's own memory and can only be read")]
    BufferReadOnly {
        /// Bytes of the buffer.
        size: usize,
    },
}

const INSTALL: &str = "install one (Debian, Ubuntu: `apt install clang-19`; Fedora: `dnf install clang`; \
macOS: `brew install llvm`) or name it in SOFTMETAL_CLANG";

fn known_kernels(names: &[String]) -> String {
    if names.is_empty() { "it has none".to_owned() } else { format!("the nearest are {}", names.join(", ")) }
}

fn show(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
