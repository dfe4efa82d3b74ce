//! The checks that cargo itself can make.

use anyhow::Result;

use crate::process::{cargo, run};

pub(crate) fn fmt() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}

pub(crate) fn lint() -> Result<()> {
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
}

pub(crate) fn docs() -> Result<()> {
    run(cargo().args(["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings"))
}
