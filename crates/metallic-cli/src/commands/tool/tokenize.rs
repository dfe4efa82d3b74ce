//! `tool tokenize` and `tool detokenize`.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::text::TextOptions;
use crate::{
    commands::options::Ids,
    fail::Failure,
    load,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = TOKENIZE_EXAMPLES)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    model: TextOptions,
    /// Leave out the tokens that begin and end a text
    #[arg(long)]
    no_special: bool,
    /// Spell out marks such as `<|im_end|>` instead of taking them as tokens
    #[arg(long)]
    no_parse_special: bool,
    /// Read the text from a file
    #[arg(long, value_name = "F", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Does nothing: the output is a JSON list in any case
    #[arg(long, hide = true)]
    json: bool,
    /// The text; `-` reads it from stdin
    #[arg(required_unless_present = "file", allow_hyphen_values = true)]
    text: Option<String>,
}

const TOKENIZE_EXAMPLES: &str = "\
Examples:
  metallic tool tokenize -m smollm2 \"Hello, world\"
  metallic tool tokenize -m ./tokenizer.json --no-special --file text.txt
  echo -n \"a text\" | metallic tool tokenize -m ./model.gguf -

The output is a JSON list of ids.";

pub(super) fn tokenize(args: &TokenizeArgs, ui: Ui) -> anyhow::Result<()> {
    let text = match (&args.file, args.text.as_deref()) {
        (Some(file), _) => {
            let bytes = fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))?;
            term::utf8(bytes, &format!("`{}`", file.display()))?
        }
        (None, Some("-") | None) => term::stdin()?,
        (None, Some(text)) => text.to_owned(),
    };
    let tokenizer = args.model.open(ui)?.tokenizer;
    term::print_json(&tokenizer.encode(&text, !args.no_special, !args.no_parse_special)?)
}

#[derive(Debug, Args)]
#[command(after_help = DETOKENIZE_EXAMPLES)]
pub(crate) struct DetokenizeArgs {
    #[command(flatten)]
    model: TextOptions,
    /// Leave out marks such as `<|im_end|>`
    #[arg(long)]
    no_special: bool,
    /// The ids, as `1,2,3`
    #[arg(long, value_name = "IDS", conflicts_with = "ids")]
    tokens: Option<Ids>,
    /// Print the text as a JSON object
    #[arg(long)]
    json: bool,
    /// The ids, as `1,2,3` or `[1, 2, 3]`; `-` reads them from stdin
    #[arg(required_unless_present = "tokens")]
    ids: Option<String>,
}

const DETOKENIZE_EXAMPLES: &str = "\
Examples:
  metallic tool detokenize -m smollm2 19556,28,905
  metallic tool tokenize \"a text\" | metallic tool detokenize -";

pub(super) fn detokenize(args: &DetokenizeArgs, ui: Ui) -> anyhow::Result<()> {
    let ids = match (&args.tokens, args.ids.as_deref()) {
        (Some(ids), _) => ids.clone(),
        (None, Some("-") | None) => parse(&term::stdin()?)?,
        (None, Some(text)) => parse(text)?,
    };
    let tokenizer = args.model.open(ui)?.tokenizer;
    load::check_ids(&ids.0, tokenizer.vocab_size())?;
    let text = tokenizer.decode(&ids.0, args.no_special);
    if args.json { term::print_json(&json!({ "text": text })) } else { Ok(term::print_output(&text)?) }
}

fn parse(text: &str) -> anyhow::Result<Ids> {
    text.parse()
        .map_err(|problem: String| Failure::new(problem, "ids come from `metallic tool tokenize`").into())
}
