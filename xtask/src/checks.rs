//! The checks that cargo itself can make.

use anyhow::Result;

use crate::process::{cargo, run};

/// Chores look at everything: what a feature hides is not left out.
pub(crate) const ALL_FEATURES: &str = "--all-features";

pub(crate) fn fmt() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}

/// Everything, and the library as a program gets it that adds it: without features.
pub(crate) fn lint() -> Result<()> {
    let scopes: [&[&str]; 2] = [&["--workspace", ALL_FEATURES], &["--package", "metallic"]];
    scopes.into_iter().try_for_each(|scope| {
        let mut clippy = cargo();
        run(clippy.args(["clippy", "--all-targets", "--locked"]).args(scope).args(["--", "-D", "warnings"]))
    })
}

pub(crate) fn docs() -> Result<()> {
    let mut doc = cargo();
    run(doc
        .args(["doc", "--workspace", ALL_FEATURES, "--no-deps", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}
