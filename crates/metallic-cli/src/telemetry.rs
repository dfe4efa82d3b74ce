//! `--telemetry` and `--trace`: what the engine tells, on its way out of the process.

use std::{
    env,
    path::PathBuf,
    sync::{Mutex, PoisonError, mpsc::Receiver},
};

use clap::Args;
use metallic::telemetry::{Record, Telemetry, TelemetryError};

use crate::{fail::Failure, term::Ui};

/// What is written while a command works.
#[derive(Debug, Default, Args)]
pub(crate) struct TelemetryOptions {
    /// Write what the engine does to FILE, a line of JSON for each event: loading, requests, steps, operations, memory, faults
    /// [env: METALLIC_TELEMETRY]
    #[arg(long, value_name = "FILE")]
    telemetry: Option<PathBuf>,
    /// Write a timeline to FILE, for ui.perfetto.dev or chrome://tracing: steps, sampling, compilation, operations by layer
    /// [env: METALLIC_TRACE]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// That of the command that runs. Ctrl-C ends it as well.
static RUNNING: Mutex<Option<Telemetry>> = Mutex::new(None);

/// Ends what is told when a command ends.
#[must_use]
pub(crate) struct Telling(Ui);

impl TelemetryOptions {
    /// Begins to tell what a command does, which must not have begun to work. A file that cannot be written is an error.
    pub(crate) fn start(&self, command: &'static str, ui: Ui) -> anyhow::Result<Telling> {
        let lines = named(self.telemetry.as_ref(), "METALLIC_TELEMETRY");
        let trace = named(self.trace.as_ref(), "METALLIC_TRACE");
        if let Some(path) = lines.as_ref().filter(|lines| Some(*lines) == trace.as_ref()) {
            let reason = format!("`{}` cannot be telemetry and trace at once", path.display());
            return Err(Failure::new(reason, "give `--telemetry` and `--trace` a file each").into());
        }
        let telemetry = Telemetry::new(command, env!("CARGO_PKG_VERSION"));
        if let Some(path) = &lines {
            telemetry.write_lines(path).map_err(|error| refused(&error, "--telemetry"))?;
        }
        if let Some(path) = &trace {
            telemetry.write_trace(path).map_err(|error| refused(&error, "--trace"))?;
        }
        #[cfg(unix)]
        if let Err(error) = telemetry.listen() {
            ui.note(&format!("note: {error}; `METALLIC_RUNTIME_DIR` names another folder"));
        }
        telemetry.install()?;
        *running() = Some(telemetry);
        Ok(Telling(ui))
    }
}

/// What an option names, or else a variable.
fn named(option: Option<&PathBuf>, variable: &str) -> Option<PathBuf> {
    let set = || env::var_os(variable).filter(|name| !name.is_empty()).map(PathBuf::from);
    option.cloned().or_else(set)
}

fn refused(error: &TelemetryError, option: &str) -> Failure {
    Failure::new(error.to_string(), format!("give `{option}` a file in a folder that may be written to"))
}

fn running() -> std::sync::MutexGuard<'static, Option<Telemetry>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that wait for the dashboard; more are lost, which is told.
const WAITING: usize = 1 << 14;

/// What is told from now on, for a dashboard of this process; `None` where nothing is told.
pub(crate) fn records() -> Option<Receiver<Record>> {
    running().as_ref().map(|telemetry| telemetry.channel(WAITING))
}

/// Writes the end of everything that is told; gives what could not be written.
pub(crate) fn finish() -> Vec<TelemetryError> {
    // Not while the lock is held: Ctrl-C may come meanwhile.
    let telemetry = running().take();
    telemetry.map(|telemetry| telemetry.finish()).unwrap_or_default()
}

impl Drop for Telling {
    fn drop(&mut self) {
        for error in finish() {
            self.0.note(&format!("note: {error}"));
        }
    }
}
