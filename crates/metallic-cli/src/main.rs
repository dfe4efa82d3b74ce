//! The `metallic` command line: fetches models and talks to them.
#![forbid(unsafe_code)]
// `println!` panics when the reader has gone away; output goes through `term`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod answer;
mod chat;
mod commands;
mod doctor;
mod escape;
mod fail;
mod hints;
mod hub;
mod interrupt;
mod load;
mod plan_dump;
mod stdin;
mod telemetry;
mod term;
mod top;

use std::process::ExitCode;

use clap::Parser;

use commands::{Cli, Command};
use term::Ui;

fn main() -> ExitCode {
    fail::install_panic_hook();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return fail::report_usage(&usage),
    };
    let ui = Ui { quiet: cli.quiet };
    // A comparison that finds a difference has not failed.
    let failure = if matches!(cli.command, Command::Diff(_)) { 2 } else { 1 };
    let outcome = interrupt::install().and_then(|()| match cli.command {
        Command::Run(args) => commands::run::run(&args, ui),
        Command::Chat(args) => commands::chat::run(&args, ui),
        Command::Serve(args) => commands::serve::run(&args, ui),
        Command::Bench(args) => commands::bench::run(&args, ui),
        Command::Top(args) => commands::top::run(&args, ui),
        Command::Tune(args) => commands::tune::run(&args, ui),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args, ui),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args, ui),
        Command::Imatrix(args) => commands::imatrix::run(&args, ui),
        Command::Diff(args) => commands::diff::run(&args, ui),
        Command::Tool(args) => commands::tool::run(&args, ui),
        Command::Pull(args) => commands::pull::run(&args, ui),
        Command::List(args) => commands::list::run(&args, ui),
        Command::Rm(args) => commands::rm::run(&args, ui),
        Command::Completions(args) => commands::completions::run(&args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail::report(&error, failure),
    }
}
