//! Programs that cargo builds, and where it puts them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{cargo, output};

/// What is built: the arguments for cargo, the package it is of, what kind of target it is, and whether it is the program of its
/// tests. It is built with the whole workspace, as `cargo xtask test` does: packages one by one would have other features, and be built anew.
pub(crate) struct Built<'a> {
    pub(crate) args: &'a [&'a str],
    pub(crate) package: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) is_test: bool,
}

/// The command line, as tests have it.
pub(crate) const METALLIC: Built<'static> = Built {
    args: &["build", "--workspace", "--all-features", "--bin", "metallic"],
    package: "metallic-cli",
    kind: "bin",
    is_test: false,
};

/// Builds it; returns where it is.
pub(crate) fn build(what: &Built<'_>) -> Result<PathBuf> {
    let messages = output(cargo().args(what.args).arg("--message-format=json-render-diagnostics"))?;
    let found = messages.lines().filter_map(|line| executable(line, what)).next_back();
    found.with_context(|| format!("cargo did not say where it put the {} of {}", what.kind, what.package))
}

fn executable(line: &str, what: &Built<'_>) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    // The folder of a package has its name, however cargo spells its id.
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let kinds = message["target"]["kind"].as_array()?;
    let fits = manifest.parent()?.file_name()? == what.package
        && kinds.iter().any(|kind| kind == what.kind)
        && message["profile"]["test"] == what.is_test;
    fits.then(|| message["executable"].as_str().map(PathBuf::from))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_among_the_messages_of_cargo() {
        let of_profile = |package: &str, kind: &str, executable: &str, test: bool| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/w/crates/{package}/Cargo.toml\",\
                 \"target\":{{\"kind\":[\"{kind}\"]}},\"profile\":{{\"test\":{test}}},\"executable\":{executable}}}"
            )
        };
        let line = |package: &str, kind: &str, executable: &str| of_profile(package, kind, executable, false);
        let found = |line: &str| executable(line, &METALLIC);
        assert_eq!(found(&line("metallic-cli", "bin", "\"/t/metallic\"")), Some("/t/metallic".into()));
        assert_eq!(found(&line("metallic-cli", "test", "\"/t/it\"")), None);
        assert_eq!(found(&line("metallic", "bin", "\"/t/other\"")), None);
        assert_eq!(found(&line("metallic-cli", "bin", "null")), None);
        assert_eq!(found("not JSON"), None);
        let tests = of_profile("metallic-cli", "bin", "\"/t/metallic-1234\"", true);
        assert_eq!(found(&tests), None, "its tests are another program");
    }
}
