//! The clang on this machine.

use std::path::PathBuf;

/// A clang that is new enough.
#[derive(Debug, Clone)]
pub struct Toolchain {
    /// The program.
    pub clang: PathBuf,
    /// Its major version.
    pub major: u32,
    /// The first line it prints about itself.
    pub version: String,
}
