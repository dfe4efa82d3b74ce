//! `tool template`: a conversation as the model reads it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use metallic::Message;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::text::TextOptions;
use crate::{
    fail::Failure,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TemplateArgs {
    #[command(flatten)]
    model: TextOptions,
    /// A JSON list of messages, each with `role` and `content`
    #[arg(long, value_name = "FILE.json")]
    messages: PathBuf,
    /// A JSON list of tool definitions
    #[arg(long, value_name = "FILE.json")]
    tools: Option<PathBuf>,
    /// End after the last message, without the beginning of an answer
    #[arg(long)]
    no_generation_prompt: bool,
    /// Print the text as a JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  echo '[{\"role\": \"user\", \"content\": \"Hello\"}]' > talk.json
  metallic tool template -m smollm2 --messages talk.json
  metallic tool template -m ./folder --messages talk.json --tools tools.json --no-generation-prompt";

pub(super) fn run(args: &TemplateArgs, ui: Ui) -> anyhow::Result<()> {
    let messages: Vec<Message> =
        read(&args.messages, "a list of messages: [{\"role\": \"user\", \"content\": \"…\"}]")?;
    let tools: Option<Vec<Value>> =
        args.tools.as_ref().map(|path| read(path, "a list of tool definitions")).transpose()?;
    let template = args.model.open(ui)?.template(tools.is_some())?;
    let text = template.render(&messages, tools.map(Value::from).as_ref(), !args.no_generation_prompt)?;
    if args.json { term::print_json(&json!({ "text": text })) } else { Ok(term::print(&text)?) }
}

fn read<T: DeserializeOwned>(path: &Path, needed: &str) -> anyhow::Result<T> {
    let text = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    serde_json::from_slice(&text).map_err(|error| {
        let reason = format!("`{}` does not fit: {error}", path.display());
        Failure::new(reason, format!("the file holds {needed}")).into()
    })
}
