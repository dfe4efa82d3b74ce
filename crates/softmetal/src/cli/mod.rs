//! Commands and their arguments.

mod data;
mod lint;
mod list;
mod ptx;
mod run;
mod style;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use serde_json::json;
use softmetal::{Compiler, Error, Result};
use style::Style;

/// Run and check Metal compute kernels on any machine.
#[derive(Debug, Parser)]
#[command(name = "softmetal", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print JSON for programs.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the kernels of a file and their arguments.
    List(list::Arguments),
    /// Check address spaces, which running a kernel here does not.
    Lint(lint::Arguments),
    /// Run a kernel, on given or random data.
    Run(Box<run::Arguments>),
    /// Translate to PTX for NVIDIA GPUs.
    Ptx(ptx::Arguments),
}

/// How to find what a source includes.
#[derive(Debug, Args)]
struct SourceOptions {
    /// Look for included files here too.
    #[arg(short = 'I', value_name = "FOLDER")]
    include: Vec<PathBuf>,
    /// Define a macro.
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    define: Vec<String>,
}

impl SourceOptions {
    fn compiler(&self) -> Result<Compiler> {
        let compiler = self.include.iter().fold(Compiler::new()?, Compiler::include);
        Ok(self.define.iter().fold(compiler, Compiler::define))
    }
}

/// What went wrong in a command.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Softmetal(#[from] Error),
    /// An argument that clap could not judge.
    #[error("{0}")]
    Argument(String),
}

/// Where results go.
#[derive(Debug, Clone, Copy)]
struct Printer {
    json: bool,
    style: Style,
}

impl Printer {
    fn json(value: &impl Serialize) {
        match serde_json::to_string_pretty(value) {
            Ok(text) => style::print(&text),
            Err(error) => eprintln!("error: {error}"),
        }
    }

    fn failure(self, failure: &Failure) {
        let style = Style::of_stderr();
        if self.json {
            let diagnostics = match failure {
                Failure::Softmetal(Error::Compile { diagnostics }) => json!(diagnostics),
                _ => json!([]),
            };
            Self::json(&json!({ "error": failure.to_string(), "diagnostics": diagnostics }));
        } else if let Failure::Softmetal(Error::Compile { diagnostics }) = failure {
            for diagnostic in diagnostics {
                eprintln!("{}", style.diagnostic(diagnostic));
            }
        } else {
            let text = failure.to_string();
            // Errors with a place say themselves that they are errors.
            let says_it = text.contains(": error: ");
            eprintln!("{}{text}", if says_it { String::new() } else { format!("{}: ", style.red("error")) });
        }
    }
}

/// Does what was asked; the exit code is 0, 1 if something is wrong with the source, 2 if with the arguments.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let printer = Printer { json: arguments.json, style: Style::of_stdout() };
    let done = match arguments.command {
        Command::List(arguments) => list::list(&arguments, printer),
        Command::Lint(arguments) => lint::lint(&arguments, printer),
        Command::Run(arguments) => run::run(&arguments, printer),
        Command::Ptx(arguments) => ptx::ptx(&arguments, printer),
    };
    done.unwrap_or_else(|failure| {
        printer.failure(&failure);
        ExitCode::from(if matches!(failure, Failure::Argument(_)) { 2 } else { 1 })
    })
}
