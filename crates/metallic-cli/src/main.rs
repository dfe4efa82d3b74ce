//! The `metallic` command line: fetches models and talks to them.
#![forbid(unsafe_code)]
// `println!` panics when the reader has gone away; output goes through `term`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg_attr(not(test), allow(dead_code))]
mod chat;
mod commands;
mod fail;
mod hub;
mod interrupt;
mod term;

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
    let ui = Ui::new(cli.quiet);
    let outcome = interrupt::install().and_then(|()| match cli.command {
        Command::Pull(args) => commands::pull::run(&args, ui),
        Command::List(args) => commands::list::run(&args, ui),
        Command::Rm(args) => commands::rm::run(&args, ui),
        Command::Completions(args) => commands::completions::run(&args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail::report(&error),
    }
}
