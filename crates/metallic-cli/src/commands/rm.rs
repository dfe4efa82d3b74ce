//! `metallic rm`: gives back the disk space of a model.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use serde_json::json;

use crate::{
    escape,
    fail::Failure,
    hub::{Cache, Entry, ModelName},
    term::{self, Ui, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RmArgs {
    /// Alias, OWNER/REPO[:FILE|:QUANT], or a path inside the cache
    model: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic rm smollm2
  metallic rm -y Qwen/Qwen2.5-0.5B-Instruct-GGUF         every file of that repository
  metallic rm -y Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0    one of them";

pub(crate) fn run(args: &RmArgs, ui: Ui) -> anyhow::Result<()> {
    let name = ModelName::parse(&args.model)?;
    let cache = Cache::from_env()?;
    let entries = cache.matching(&name)?;
    if entries.is_empty() {
        let reason = format!("`{}` is not in the cache {}", args.model, cache.models().display());
        return Err(Failure::new(reason, "`metallic list` shows what is there").into());
    }
    if !args.yes && !confirmed(&entries)? {
        ui.note("nothing removed");
        return Ok(());
    }
    for entry in &entries {
        cache.remove(entry)?;
    }
    let freed = entries.iter().map(|entry| entry.bytes).sum();
    if args.json {
        let removed: Vec<_> = entries.iter().map(|entry| &entry.path).collect();
        return term::print_json(&json!({"removed": removed, "freed_bytes": freed}));
    }
    for entry in &entries {
        ui.note(&format!("removed {}", entry.path.display()));
    }
    ui.note(&format!("{} freed", size(freed)));
    Ok(())
}

fn confirmed(entries: &[Entry]) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let reason = "will not remove models without asking, and stdin is not a terminal";
        return Err(Failure::new(reason, "add -y to remove without a question").into());
    }
    // Not locked: Ctrl-C at the question is reported, too.
    let mut err = io::stderr();
    for entry in entries {
        let path = entry.path.display().to_string();
        writeln!(err, "{}  {}", escape::line(&path), size(entry.bytes))?;
    }
    write!(err, "remove? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
