//! The clang with which kernels are compiled on this machine.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::process::{apt_install, command, run};

/// The newest one that the package manager has.
const PACKAGE: &str = "clang-19";
/// What softmetal looks for, and the oldest version it takes.
const NAMES: [&str; 9] = [
    PACKAGE,
    "clang-20",
    "clang-21",
    "clang-22",
    "clang-18",
    "clang-17",
    "clang",
    "/opt/homebrew/opt/llvm/bin/clang",
    "/usr/local/opt/llvm/bin/clang",
];
const OLDEST: u32 = 17;

/// Whether softmetal would find a clang that is new enough.
pub(crate) fn is_there() -> bool {
    named().map_or_else(|| NAMES.iter().any(|name| is_fit(&version(name))), |name| is_fit(&version(&name)))
}

/// Installs one where there is none.
pub(crate) fn install() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    if let Some(name) = named() {
        let found = version(&name);
        let found = if found.is_empty() { "no clang" } else { &found };
        bail!(
            "SOFTMETAL_CLANG={name} is {found}, it needs clang {OLDEST} or newer; unset it, or name another"
        );
    }
    if cfg!(target_os = "macos") {
        eprintln!("installing by brew: llvm");
        run(Command::new("brew").args(["install", "llvm"]))?;
    } else {
        apt_install(&[PACKAGE])?;
    }
    if !is_there() {
        bail!("clang {OLDEST} or newer was installed and is not found as {}", NAMES.join(", "));
    }
    Ok(())
}

/// The only one that softmetal tries, where it is named.
fn named() -> Option<String> {
    let name = std::env::var_os("SOFTMETAL_CLANG").filter(|name| !name.is_empty())?;
    Some(name.to_string_lossy().into_owned())
}

/// What a program says of itself; nothing where it is not there.
fn version(program: &str) -> String {
    let asked = command(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = asked.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Apple counts its own way, and its clang lacks flags that are needed.
fn is_fit(version: &str) -> bool {
    let number = version.split_once("clang version ").map_or("", |(_, number)| number);
    let major = number.split(|c: char| !c.is_ascii_digit()).next().and_then(|major| major.parse().ok());
    major.is_some_and(|major: u32| major >= OLDEST) && !version.starts_with("Apple")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmetal_looks_for_the_same() {
        assert_eq!((NAMES, OLDEST), (softmetal::Toolchain::NAMES, softmetal::Toolchain::OLDEST));
    }

    #[test]
    fn only_versions_that_softmetal_takes_are_fit() {
        for fit in ["Debian clang version 19.1.7 (3)", "clang version 17.0.6", "Ubuntu clang version 22.0.0"]
        {
            assert!(is_fit(fit), "{fit}");
        }
        for unfit in
            ["Debian clang version 14.0.6", "Apple clang version 17.0.0", "gcc (Debian) 14", "clang", ""]
        {
            assert!(!is_fit(unfit), "{unfit}");
        }
    }

    #[test]
    fn what_is_not_there_has_no_version() {
        assert_eq!(version("/no/such/program"), "");
    }
}
