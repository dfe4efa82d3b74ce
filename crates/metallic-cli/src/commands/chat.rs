//! `metallic chat`: a conversation in the terminal, or over a pipe.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use metallic::{Event, Generation, Llm, Message};

use crate::{
    chat::{
        self, Conversation, Responder,
        input::{Input, Plain, Terminal},
    },
    commands::{
        MODEL_HELP,
        options::{AnswerOptions, ModelOptions},
        run::speed,
    },
    hub::Cache,
    interrupt, load,
    term::Ui,
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    answer: AnswerOptions,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Show tokens and speed after each answer
    #[arg(long)]
    stats: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic chat
  metallic chat -m qwen2.5-1.5b --system \"Answer in French.\"
  printf 'Hello!\\n/save talk.json\\n' | metallic chat --temp 0

In the conversation, /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.";

pub(crate) fn run(args: &ChatArgs, ui: Ui) -> anyhow::Result<()> {
    let llm = load::llm(&args.model, &args.answer, ui)?;
    if llm.template().is_none() {
        ui.note("note: the model has no chat template; the conversation is one plain text that it continues");
    }
    let mut input: Box<dyn Input> = if io::stdin().is_terminal() {
        ui.note(&format!("{} on {}; /help lists the commands", args.model.model, llm.device()));
        Box::new(Terminal::new(Cache::from_env()?.history())?)
    } else {
        Box::new(Plain(io::stdin().lock()))
    };
    let mut conversation = Conversation::new(args.system.clone());
    let answers = Answers { llm: &llm, args };
    let (mut out, mut notes) = (io::stdout().lock(), io::stderr());
    chat::talk(&mut conversation, input.as_mut(), &answers, &mut out, &mut notes)
}

struct Answers<'a> {
    llm: &'a Llm,
    args: &'a ChatArgs,
}

impl Answers<'_> {
    fn begin(&self, messages: &[Message]) -> anyhow::Result<Generation> {
        let options = self.args.answer.options();
        if self.llm.template().is_none() {
            let texts: Vec<&str> =
                messages.iter().filter_map(|message| message.content.as_ref()?.as_str()).collect();
            return Ok(self.llm.generate(texts.join("\n"), options)?);
        }
        Ok(self.llm.chat(messages.to_vec(), options)?)
    }
}

impl Responder for Answers<'_> {
    fn answer(&self, messages: &[Message], out: &mut dyn Write) -> anyhow::Result<(String, Option<String>)> {
        let mut generation = self.begin(messages)?;
        let (mut answer, mut remark) = (String::new(), None);
        while !generation.has_ended() {
            if interrupt::check().is_err() {
                // Dropping the generation ends it.
                return Ok((answer, None));
            }
            let Some(event) = generation.next_timeout(interrupt::POLL) else { continue };
            let (text, stats) = match event? {
                Event::Token(token) => (token.text, None),
                Event::Finished(end) => (end.text, Some(end.stats)),
                _ => continue,
            };
            out.write_all(text.as_bytes())?;
            out.flush()?;
            answer.push_str(&text);
            remark = stats.filter(|_| self.args.stats).map(|stats| speed(&stats, self.llm.device()));
        }
        Ok((answer, remark))
    }
}
