//! `tool logits`: what the model computes, before any choice.

use std::fmt::Write;

use clap::Args;
use metallic::generate;
use serde::Serialize;

use crate::{
    commands::options::{Ids, ModelOptions},
    load,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// The ids to feed, as `1,2,3`
    #[arg(long, value_name = "IDS")]
    tokens: Ids,
    /// After every token, not only after the last
    #[arg(long)]
    all: bool,
    /// Print every logit as JSON; else the ten best
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic tool logits -m ./model.gguf --tokens 1,2,3
  metallic tool logits -m ./model.gguf --tokens 1,2,3 --all --kv-type f32 --json > logits.json";

const STEP_TOKENS: usize = 512;
const SHOWN: usize = 10;

#[derive(Serialize)]
struct Output<T> {
    logits: T,
}

pub(super) fn run(args: &LogitsArgs, ui: Ui) -> anyhow::Result<()> {
    let mut loaded = load::program(&args.model, false, ui)?;
    loaded.check(&args.tokens.0, 0)?;
    let mut rows = generate::logits(loaded.program.as_mut(), &args.tokens.0, STEP_TOKENS, args.all)?;
    if !args.json {
        return Ok(term::print(&best(&rows, args.tokens.0.len() - rows.len()))?);
    }
    if args.all {
        return term::print_json(&Output { logits: rows });
    }
    term::print_json(&Output { logits: rows.pop().unwrap_or_default() })
}

/// The best ids of each row; `first` is the position of the first row.
fn best(rows: &[Vec<f32>], first: usize) -> String {
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        let _ = write!(text, "{:>6}:", first + i);
        let mut ids: Vec<usize> = (0..row.len()).collect();
        ids.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        for id in ids.into_iter().take(SHOWN) {
            let _ = write!(text, " {id}={:.4}", row[id]);
        }
        text.push('\n');
    }
    text
}
