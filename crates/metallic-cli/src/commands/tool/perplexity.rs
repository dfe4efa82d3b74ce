//! `tool perplexity`: how well a model predicts a text.

use std::{fs, num::NonZeroUsize, path::PathBuf};

use anyhow::Context;
use clap::Args;
use metallic::generate;

use crate::{
    commands::options::{ModelOptions, parse_count},
    load,
    telemetry::TelemetryOptions,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// The text
    #[arg(long, value_name = "F")]
    file: PathBuf,
    /// Tokens of a window; the second half of each is predicted
    #[arg(long, value_name = "N", default_value = "512", value_parser = parse_count)]
    ctx: NonZeroUsize,
    /// Stop after this many windows
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_chunks: Option<NonZeroUsize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    telemetry: TelemetryOptions,
}

const EXAMPLES: &str = "\
Examples:
  metallic tool perplexity -m smollm2 --file wiki.test.raw
  metallic tool perplexity -m ./model.gguf --file wiki.test.raw --ctx 512 --max-chunks 20 --json";

pub(super) fn run(args: &PerplexityArgs, ui: Ui) -> anyhow::Result<()> {
    let _telling = args.telemetry.start("metallic tool perplexity", ui)?;
    let bytes = fs::read(&args.file).with_context(|| format!("cannot read `{}`", args.file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    if text.contains('\u{fffd}') {
        ui.note("note: the text is not all UTF-8; U+FFFD stands for what is not");
    }
    let mut loaded = load::program(&args.model, false, ui)?;
    let tokenizer = loaded.model.tokenizer()?;
    let tokenizer = tokenizer.ok_or_else(|| metallic::Error::NoTokenizer { path: loaded.path.clone() })?;
    let ctx = args.ctx.get();
    loaded.check(&[], ctx)?;
    let mut tokens = tokenizer.encode(&text, true, false)?;
    let windows = (tokens.len() / ctx).min(args.max_chunks.map_or(usize::MAX, NonZeroUsize::get));
    if windows > 0 {
        tokens.truncate(windows * ctx);
    }
    load::check_ids(&tokens, loaded.model.config().vocab)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let bar = ui.steps("windows", windows);
    let result = generate::perplexity(loaded.program.as_mut(), &tokens, ctx, bos, |so_far| {
        bar.set(so_far.chunks as u64);
        bar.tell(&format!("ppl {:.4}", so_far.ppl));
    })?;
    drop(bar);
    if args.json {
        return term::print_json(&result);
    }
    let (tokens, windows) = (result.tokens, result.chunks);
    Ok(term::print(&format!("perplexity {:.4} ({tokens} tokens in {windows} windows)\n", result.ppl))?)
}
