//! `cargo xtask serve-bench`: many streams at once on `metallic serve`, and on llama.cpp's server in turns.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::{build, warn_if_busy};
use crate::models::{self, SMOLLM2};
use crate::process::{command, root, run as run_command, works};

/// llama.cpp with its server, built by others for any machine of its kind.
const PEER: &str = "xllamacpp==2026.10.11549";

/// Builds the program and lets the script measure; options go to it.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let peers = args.iter().any(|arg| arg == "--peers");
    let mut rest: Vec<String> = args.iter().filter(|arg| *arg != "--peers").cloned().collect();
    let model = match rest.iter().position(|arg| arg == "--model") {
        Some(at) if at + 1 < rest.len() => {
            std::path::absolute(rest.drain(at..at + 2).nth(1).unwrap_or_default())?
        }
        Some(_) => bail!("--model needs a value"),
        None => {
            SMOLLM2.fetch(&models::python()?, 1800)?;
            SMOLLM2.path()
        }
    };
    ensure!(model.is_file(), "there is no model `{}`", model.display());
    let metallic = build()?;
    let python = if peers { peer()? } else { models::python()? };
    warn_if_busy();
    let script = root().join("xtask").join("serve_bench.py");
    let mut measure = command(python);
    measure.arg(script).arg("--metallic").arg(metallic).arg("--model").arg(model).args(rest);
    if peers {
        measure.arg("--peer");
    }
    run_command(&mut measure)
}

/// A Python with llama.cpp's server.
fn peer() -> Result<PathBuf> {
    let venv = root().join("target").join("peers").join("server");
    let ready = |python: &Path| works(python, &["-c", "import xllamacpp"]);
    if let Some(python) = models::venv_python(&venv).filter(|python| ready(python)) {
        return Ok(python);
    }
    models::make_venv(models::python()?, &venv)?;
    let python = models::venv_python(&venv).context("the new virtual environment has no working pip")?;
    let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", PEER];
    run_command(command(&python).args(install).stdin(Stdio::null()))?;
    ensure!(ready(&python), "{PEER} was installed and cannot be imported");
    Ok(python)
}
