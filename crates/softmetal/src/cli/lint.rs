//! `softmetal lint`.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;
use softmetal::{Diagnostic, Severity, Source, lint::lint as check};

use super::{
    Failure, Printer, SourceOptions,
    junit::{self, Case},
    style,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the result as JUnit XML, as CI services read it.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    source: SourceOptions,
}

pub(super) fn lint(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let compiler = arguments.source.compiler()?;
    let lint = |file: &PathBuf| check(&compiler, &Source::from_file(file)?);
    let each: Vec<(&PathBuf, softmetal::Result<Vec<Diagnostic>>)> =
        arguments.files.iter().map(|file| (file, lint(file))).collect();
    if let Some(path) = &arguments.junit {
        let cases: Vec<Case> = each.iter().map(|(file, found)| Case::of_lint(file, found)).collect();
        junit::write(path, "softmetal", &cases)?;
    }
    let mut found = Vec::new();
    for (_, result) in each {
        found.extend(result?);
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
