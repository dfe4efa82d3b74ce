//! `metallic chat`: a conversation in the terminal, or over a pipe.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use metallic::{FinishReason, Llm, Message, constrain::Format, core::BLOCK_TOKENS, generate::Request};

use crate::{
    answer::{self, Screen},
    chat::{
        self, Conversation, Reply, Responder, Room,
        input::{Input, Plain, Terminal},
    },
    commands::{
        MODEL_HELP,
        options::{AnswerOptions, ModelOptions},
        run::speed,
        structure::{FormatOptions, hold},
        templating::{TemplateOptions, Told},
    },
    fail::{Failure, Stopped},
    hub::Cache,
    load,
    telemetry::TelemetryOptions,
    term::{self, Ui},
    top::own::{Dashboard, Prepared},
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
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    format: FormatOptions,
    /// Do not show what a model thinks before it answers
    #[arg(long)]
    hide_thinking: bool,
    /// Show tokens and speed after each answer
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    telemetry: TelemetryOptions,
    /// Show the dashboard of `metallic top` around a conversation that is piped in, without thoughts; where messages are typed,
    /// start `metallic top` in another terminal
    #[arg(long)]
    dashboard: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic chat
  metallic chat -m qwen2.5-1.5b --system \"Answer in French.\"
  metallic chat -m ./qwen3.gguf --set enable_thinking=false
  printf 'Hello!\\n/save talk.json\\n' | metallic chat --temp 0

In the conversation, /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves. A conversation that fills the context goes on
without its oldest turns: a line says so. Thoughts of earlier answers go to the template as `reasoning_content`; most leave them out.";

pub(crate) fn run(args: &ChatArgs, ui: Ui) -> anyhow::Result<()> {
    let _telling = args.telemetry.start("metallic chat", ui)?;
    if args.dashboard && io::stdin().is_terminal() {
        let reason = "`--dashboard` needs the terminal that messages are typed in";
        return Err(
            Failure::new(reason, "start `metallic top` in another terminal, or pipe messages in").into()
        );
    }
    let dashboard = args.dashboard.then(Dashboard::prepare).transpose()?;
    let told = args.template.read()?;
    let format = args.format.read()?;
    let llm = load::llm(&args.model, &args.answer, args.template.template.as_deref(), ui)?;
    let told = args.template.told_to(&llm, told)?;
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
    let dashboard = dashboard.map(Prepared::start).transpose()?;
    let answers = Answers { llm: &llm, args, told, format, ui, dashboard: dashboard.as_ref() };
    let Some(pane) = dashboard.as_ref().map(Dashboard::pane) else {
        let (mut out, mut notes) = (io::stdout().lock(), io::stderr());
        return chat::talk(&mut conversation, input.as_mut(), &answers, &mut out, &mut notes);
    };
    let talked =
        chat::talk(&mut conversation, input.as_mut(), &answers, &mut pane.clone(), &mut pane.clone());
    let stopped = dashboard.as_ref().is_some_and(|dashboard| dashboard.check().is_err());
    let left = dashboard.map_or(Ok(()), Dashboard::wait);
    term::print_output(&pane.text())?;
    if stopped { Err(Stopped.into()) } else { talked.and(left) }
}

struct Answers<'a> {
    llm: &'a Llm,
    args: &'a ChatArgs,
    told: Told,
    format: Option<Format>,
    ui: Ui,
    dashboard: Option<&'a Dashboard>,
}

impl Answers<'_> {
    fn request(&self, messages: &[Message]) -> anyhow::Result<Request> {
        if self.llm.template().is_none() {
            let texts: Vec<&str> =
                messages.iter().filter_map(|message| message.content.as_ref()?.as_str()).collect();
            return Ok(self.llm.request(texts.join("\n"))?);
        }
        Ok(self.llm.chat_request(self.told.chat(messages.to_vec()))?)
    }
}

impl Responder for Answers<'_> {
    fn room(&self, messages: &[Message]) -> anyhow::Result<Room> {
        let config = self.llm.engine().config();
        // What memory has room for may be less than what the model was made for.
        let blocks = config.kv_budget_bytes.checked_div(config.states.block_bytes());
        let cached = blocks.map_or(usize::MAX, |blocks| blocks.saturating_mul(BLOCK_TOKENS));
        let context = config.context_length.min(cached);
        let most = self.args.answer.options().max_tokens.unwrap_or(usize::MAX);
        Ok(Room { needed: self.request(messages)?.prompt.len(), context, answer: most.min(context / 4) })
    }

    fn answer(&self, messages: &[Message], out: &mut dyn Write) -> anyhow::Result<Reply> {
        if self.dashboard.is_some_and(|dashboard| dashboard.check().is_err()) {
            // Ends the conversation: nobody looks any more.
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        }
        let options = self.args.answer.options();
        let is_limited = options.max_tokens.is_some();
        let request = hold(self.request(messages)?.options(options), self.format.as_ref(), self.llm)?;
        let generation = self.llm.submit(request)?;
        let mut err = io::stderr();
        let mut screen =
            Screen::new(out, &mut err).hiding(self.args.hide_thinking || self.dashboard.is_some(), self.ui);
        let answer = answer::follow(generation, &mut screen)?;
        screen.end_line()?;
        let mut remarks = Vec::new();
        if answer.reason == FinishReason::Length && !is_limited {
            remarks.push("(the context is full: the answer breaks off here)".to_owned());
        }
        if self.args.stats {
            remarks.push(speed(&answer.stats, self.llm.device()));
        }
        Ok(Reply { text: answer.text, reasoning: answer.reasoning, remarks })
    }
}
