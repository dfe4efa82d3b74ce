//! Run and check Metal Shading Language compute kernels on any machine with clang.

pub mod cache;
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

pub use cache::Cache;
pub use check::{CheckOptions, Kind, Report};
pub use compiler::{Compiler, Flavour, Source};
pub use device::{Device, Dispatch, Outcome};
pub use diagnostic::{Diagnostic, Location, Severity};
pub use error::{Error, Result};
pub use library::{Argument, ArgumentKind, BuiltIn, FunctionConstant, Interface, Kernel, Library};
pub use runtime::{
    Stats,
    bytes::{as_bytes, as_bytes_mut},
};
pub use toolchain::Toolchain;
