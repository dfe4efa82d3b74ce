//! `softmetal lint`.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;
use softmetal::{Severity, Source, lint::lint as check};

use super::{Failure, Printer, SourceOptions, style};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    source: SourceOptions,
}

pub(super) fn lint(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let compiler = arguments.source.compiler()?;
    let mut found = Vec::new();
    for file in &arguments.files {
        found.extend(check(&compiler, &Source::from_file(file)?)?);
    }
    let errors = found.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
    if printer.json {
        Printer::json(&json!({ "diagnostics": found }));
    } else {
        for diagnostic in &found {
            style::print(&printer.style.diagnostic(diagnostic));
        }
        if found.is_empty() {
            let files = style::count(arguments.files.len(), "file");
            style::print(&printer.style.green(&format!("{files}: nothing found")));
        }
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
