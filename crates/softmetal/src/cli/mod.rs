//! Commands and their arguments.

mod data;
mod junit;
mod lint;
mod list;
mod ptx;
mod run;
mod show;
mod style;
mod test;
mod textures;
mod watch;

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
    /// Run what sources ask for in comments: `// softmetal: run KERNEL …`.
    Test(test::Arguments),
    /// Lint, and run what comments ask for, whenever a file changes; until it is interrupted.
    Watch(watch::Arguments),
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
        Command::Test(arguments) => test::test(&arguments, printer),
        Command::Watch(arguments) => watch::watch(&arguments, printer),
        Command::Ptx(arguments) => ptx::ptx(&arguments, printer),
    };
    done.unwrap_or_else(|failure| {
        printer.failure(&failure);
        ExitCode::from(if matches!(failure, Failure::Argument(_)) { 2 } else { 1 })
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Arguments, test::words};

    /// The lines of the action's scripts that call softmetal, with its inputs as somebody may give them.
    #[test]
    fn the_github_action_calls_what_there_is() {
        let action = include_str!("../../action.yml");
        let inputs = [("files", "a.metal b/*.metal"), ("arguments", "-I include -D X=1"), ("results", "out")];
        let mut commands = Vec::new();
        for line in action.lines().map(str::trim).filter(|line| line.starts_with("softmetal ")) {
            let mut line = line.split(" ||").next().unwrap_or(line).to_owned();
            for (name, value) in inputs {
                let variable = format!("${}", name.to_uppercase());
                line =
                    line.replace(&format!("\"{variable}"), &format!("\"{value}")).replace(&variable, value);
            }
            assert!(!line.contains('$'), "{line}: an input that is not declared");
            if let Err(error) = Arguments::try_parse_from(words(&line)) {
                assert_eq!(error.kind(), clap::error::ErrorKind::DisplayVersion, "{line}: {error}");
            }
            commands.extend(words(&line).get(1).cloned());
        }
        assert_eq!(commands, ["--version", "lint", "test"]);
        for (name, _) in inputs {
            assert!(action.contains(&format!("  {name}:\n")), "input `{name}` is not declared");
        }
    }
}
