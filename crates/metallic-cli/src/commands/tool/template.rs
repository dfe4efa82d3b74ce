//! `tool template`: a conversation as the model reads it.

use std::path::PathBuf;

use clap::Args;
use metallic::Message;
use serde_json::{Value, json};

use super::text::TextOptions;
use crate::{
    commands::templating::{TemplateOptions, read_json},
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
    #[command(flatten)]
    template: TemplateOptions,
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
  metallic tool template -m ./folder --messages talk.json --tools tools.json --no-generation-prompt
  metallic tool template --messages talk.json --template my.jinja --set enable_thinking=false";

pub(super) fn run(args: &TemplateArgs, ui: Ui) -> anyhow::Result<()> {
    let messages: Vec<Message> =
        read_json(&args.messages, "a list of messages: [{\"role\": \"user\", \"content\": \"…\"}]")?;
    let told = args.template.read()?;
    let text = args.model.open(ui)?;
    let template = text.template(args.template.template.as_deref(), !told.tools.is_empty())?;
    told.check(Some(&template))?;
    let tools = (!told.tools.is_empty()).then(|| Value::from(told.tools));
    let answer_begins = !args.no_generation_prompt;
    let text = template.render_values(&messages, tools.as_ref(), answer_begins, &told.variables)?;
    if args.json { term::print_json(&json!({ "text": text })) } else { Ok(term::print_output(&text)?) }
}
