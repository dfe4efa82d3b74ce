//! Running other programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable for what it runs; the constant serves a binary that was started by hand.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().map(Path::to_path_buf).unwrap_or(here)
}

/// A command that runs at the root of the workspace.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that runs this chore.
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs `command` with its output on this terminal; a failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    eprintln!("+ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// What `command` prints to its standard output; its errors go to this terminal.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let out = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !out.status.success() {
        bail!("`{line}` failed ({})", out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("`{line}` printed something that is not UTF-8"))
}

/// Whether `program args…` exists and succeeds.
pub(crate) fn works(program: impl AsRef<OsStr>, args: &[&str]) -> bool {
    command(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs Debian packages, as root or through a `sudo` that asks nothing.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if !works("apt-get", &["--version"]) {
        bail!("{names} would be needed, and there is no apt-get to install it");
    }
    let sudo: &[&str] = if command("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n") {
        &[]
    } else if works("sudo", &["-n", "true"]) {
        &["sudo", "-n"]
    } else {
        bail!("{names} would be needed; install it as root: apt-get install {names}");
    };
    eprintln!("installing by apt: {names}");
    let apt = |args: &[&str]| {
        let line: Vec<&str> = sudo.iter().copied().chain(["apt-get"]).chain(args.iter().copied()).collect();
        run(command(line[0])
            .args(&line[1..])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null()))
    };
    apt(&["update", "-qq"])?;
    // Nothing that is installed may have to leave for it.
    apt(&[&["install", "-y", "-qq", "--no-install-recommends", "--no-remove"], packages].concat())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
