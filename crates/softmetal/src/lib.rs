//! Run and check Metal Shading Language compute kernels on any machine with clang.

pub mod check;
pub mod compiler;
pub mod device;
pub mod diagnostic;
pub mod error;
mod lexer;
pub mod library;
pub mod lint;
pub mod ptx;
pub mod rewrite;
pub mod runtime;
mod shim;
pub mod toolchain;

pub use compiler::{Compiler, Flavour, Source};
pub use diagnostic::{Diagnostic, Location, Severity};
pub use error::{Error, Result};
pub use library::{Argument, ArgumentKind, BuiltIn, FunctionConstant, Kernel, Library};
pub use toolchain::Toolchain;
