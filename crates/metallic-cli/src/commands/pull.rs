//! `metallic pull`: fetches a model, so that later commands need no network.

use clap::Args;
use serde_json::json;

use crate::{
    commands::MODEL_HELP,
    hub::{self, Cache, DEFAULT_MODEL, ModelName},
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct PullArgs {
    /// Alias, OWNER/REPO[:FILE|:QUANT] on the hub (`--help` has the forms)
    #[arg(default_value = DEFAULT_MODEL)]
    model: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic pull
  metallic pull qwen2.5-1.5b
  metallic pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0
  metallic pull Qwen/Qwen2.5-0.5B-Instruct              config, tokenizer and safetensors
  HF_TOKEN=hf_… metallic pull OWNER/GATED-REPO

An interrupted download goes on where it stopped when the command is given again.";

pub(crate) fn run(args: &PullArgs, ui: Ui) -> anyhow::Result<()> {
    let name = ModelName::parse(&args.model)?;
    let cache = Cache::from_env()?;
    let model = hub::obtain(&name, &cache, ui)?;
    if args.json {
        return term::print_json(&json!({
            "name": args.model,
            "path": model.path,
            "size_bytes": model.bytes,
            "fetched": model.fetched,
        }));
    }
    if !model.fetched {
        ui.note("already here");
    }
    Ok(term::print_output(&format!("{}\n", model.path.display()))?)
}
