//! `tool generate`: a greedy continuation, ids in and ids out.

use std::num::NonZeroUsize;

use clap::Args;
use metallic::generate;
use serde_json::json;

use crate::{
    commands::options::{Ids, ModelOptions, parse_count},
    load,
    telemetry::TelemetryOptions,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// The ids to continue, as `1,2,3`
    #[arg(long, value_name = "IDS")]
    tokens: Ids,
    /// How many tokens to add; tokens that end a text count like others
    #[arg(short = 'n', long, value_name = "N", default_value = "24", value_parser = parse_count)]
    max_tokens: NonZeroUsize,
    /// Print the ids as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    telemetry: TelemetryOptions,
}

const EXAMPLES: &str = "\
Examples:
  metallic tool generate -m ./model.gguf --tokens 1,2,3 -n 24
  metallic tool generate -m ./folder --tokens 1,2,3 --device reference --kv-type f32 --json";

pub(super) fn run(args: &GenerateArgs, ui: Ui) -> anyhow::Result<()> {
    let _telling = args.telemetry.start("metallic tool generate", ui)?;
    let mut loaded = load::program(&args.model, false, ui)?;
    let n = args.max_tokens.get();
    // The last token need not fit: nothing comes after it.
    loaded.check(&args.tokens.0, n - 1)?;
    let tokens = generate::greedy(loaded.program.as_mut(), &args.tokens.0, n)?;
    if args.json {
        return term::print_json(&json!({ "tokens": tokens }));
    }
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    Ok(term::print(&format!("{}\n", ids.join(",")))?)
}
