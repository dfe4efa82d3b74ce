//! Run and check Metal Shading Language compute kernels on any machine with clang.
//!
//! A kernel is tested like any other function, in `cargo test`, without a Mac:
//!
//! ```
//! use softmetal::{Compiler, Device, Flavour, Source, as_bytes, as_bytes_mut};
//!
//! # fn main() -> softmetal::Result<()> {
//! # let text = "kernel void double_it(device const float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = 2.0 * x[i]; }";
//! # if let Err(error) = softmetal::Toolchain::find() {
//! #     assert!(std::env::var_os("METALLIC_TEST_ALL").is_none(), "{error}");
//! #     eprintln!("NOT TESTED: {error}");
//! #     return Ok(());
//! # }
//! let source = Source::new("double.metal", text); // or Source::from_file("kernels/double.metal")?
//! let library = Compiler::new()?.flavour(Flavour::Checked).compile(&source)?;
//! let device = Device::new();
//! for seed in 0..20 {
//!     let (x, mut y) = ([1.0_f32, 2.0, 3.0], [0.0_f32; 3]);
//!     let outcome = device
//!         .dispatch(&library, "double_it")?
//!         .buffer(0, as_bytes(&x))
//!         .buffer_mut(1, as_bytes_mut(&mut y))
//!         .threads([3, 1, 1], [32, 1, 1])
//!         .seed(seed) // 0 runs in order, every other seed is one random schedule
//!         .run()?;
//!     assert!(outcome.is_clean(), "{}", outcome.reports[0]);
//!     assert_eq!(y, [2.0, 4.0, 6.0]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The way of a source: clang's preprocessor, a rewriter that works on tokens ([`rewrite`]), clang again with a stand-in for
//! `<metal_stdlib>`, a shared object in the [`cache`], a fiber for each GPU thread ([`runtime`]). The checked flavour watches every
//! access to memory ([`check`]); [`lint`] checks address spaces, which execution drops; [`ptx`] makes code for NVIDIA GPUs of the
//! same source; [`mod@test`] puts it all into `cargo test`. What all this proves, and what it cannot: `docs/softmetal.md`.
#![deny(unsafe_code)]

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
pub mod test;
pub mod texture;
pub mod toolchain;

pub use cache::Cache;
pub use check::{CheckOptions, Kind, Report};
pub use compiler::{Compiler, Flavour, Source};
pub use device::{Device, Dispatch, Log, Outcome, Pipeline};
pub use diagnostic::{Diagnostic, Location, Severity};
pub use error::{Error, Result};
pub use library::{
    Argument, ArgumentKind, BuiltIn, FunctionConstant, Interface, Kernel, Library, TextureArgument,
};
pub use runtime::{
    Buffer, Level, Stats,
    bytes::{as_bytes, as_bytes_mut},
};
pub use texture::{Format, Sampler, Shape, Texture, TextureKind};
pub use toolchain::Toolchain;
