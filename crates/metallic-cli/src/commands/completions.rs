//! `metallic completions`: a script that teaches a shell to complete our arguments.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{commands::Cli, term};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell to write for
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  metallic completions bash > ~/.local/share/bash-completion/completions/metallic
  metallic completions zsh > ~/.zfunc/_metallic
  metallic completions fish > ~/.config/fish/completions/metallic.fish";

pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "metallic", &mut script);
    Ok(term::print(&String::from_utf8_lossy(&script))?)
}
