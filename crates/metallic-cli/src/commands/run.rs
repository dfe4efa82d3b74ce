//! `metallic run`: one answer, streamed.

use std::{
    io::{self, IsTerminal},
    num::NonZeroUsize,
};

use clap::Args;
use metallic::{
    FinishReason, Generation, Llm, Message,
    diff::Verification,
    generate::{EngineError, Request, RequestStats},
};
use serde_json::{Value, json};

use crate::{
    answer::{self, Answer, Screen, Unseen},
    commands::{
        MODEL_HELP,
        options::{AnswerOptions, ModelOptions, parse_count},
        structure::{FormatOptions, hold},
        templating::{TemplateOptions, Told},
    },
    fail::{Failure, Stopped},
    interrupt::Listener,
    load, stdin,
    telemetry::TelemetryOptions,
    term::{self, Ui},
    top::own::{DashboardOptions, Prepared},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    answer: AnswerOptions,
    /// What the model is told before the prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    format: FormatOptions,
    /// Do not show what a model thinks before it answers (on stderr, dimmed); `--json` has it as `reasoning`
    #[arg(long)]
    hide_thinking: bool,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long, conflicts_with_all = ["system", "template", "set", "tools", "hide_thinking"])]
    raw: bool,
    /// Compute one operation of every N steps again by the reference, and say what is wrong: slower, for doubts about a device
    #[arg(long, value_name = "N", value_parser = parse_count)]
    verify: Option<NonZeroUsize>,
    /// Print the answer with its tokens and figures as JSON, at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    telemetry: TelemetryOptions,
    #[command(flatten)]
    dashboard: DashboardOptions,
    /// The prompt; without one, or for `-`, it is what comes on stdin. What is piped in besides a prompt follows it
    prompt: Option<String>,
    /// `-` after the prompt waits for what is piped in, however long that takes
    #[arg(value_name = "-", value_parser = parse_dash)]
    piped: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  metallic run \"Why is the sky blue?\"
  metallic run -m qwen2.5-0.5b --temp 0 -n 100 \"Write a haiku about rust.\"
  metallic run -m ./model.gguf --raw \"Once upon a time\"
  echo \"Why is the sky blue?\" | metallic run
  cat notes.txt | metallic run \"Summarise:\"               the prompt, an empty line, then what was piped in
  git diff | metallic run --system \"Write a commit message.\"
  slow-program | metallic run \"Explain this:\" -           waits for the first byte as long as it takes
  metallic run --set enable_thinking=false \"Name a colour.\"
  metallic run --tools tools.json --template my.jinja \"What is the weather in Oslo?\"
  metallic run --json-schema person.json \"Who was Ada Lovelace?\"
  metallic run --regex \"(yes|no)\" \"Is the sky blue?\"
  metallic run --json --seed 7 \"Name a colour.\" | jq -r .text

With a prompt, stdin is read unless it is a terminal or ended (/dev/null). Where nothing comes on an open pipe within 3 seconds, a note
says so and the prompt stands alone. Ctrl-C ends the answer, keeps what there is of it and gives 130; a second one ends at once.";

pub(crate) fn run(args: &RunArgs, ui: Ui) -> anyhow::Result<()> {
    let _telling = args.telemetry.start("metallic run", ui)?;
    let dashboard = args.dashboard.prepare()?;
    let prompt = Prompt::of(args, ui)?;
    let told = args.template.read()?;
    let format = args.format.read()?;
    let llm =
        load::llm_verified(&args.model, &args.answer, args.template.template.as_deref(), args.verify, ui)?;
    let told = args.template.told_to(&llm, told)?;
    let _listener = Listener::new();
    let request = request(args, &llm, &prompt, &told, ui)?.options(args.answer.options());
    let request = hold(request, format.as_ref(), &llm)?;
    let generation = llm.submit(request).map_err(|error| prompt.explain(error.into()))?;
    if args.json {
        let answer = answer::follow(generation, &mut Unseen)?;
        term::print_json(&report(&llm, &answer)?)?;
        tell_verified(&llm, ui);
        return ended(&answer);
    }
    let answer = match dashboard {
        Some(dashboard) => watched(args, generation, dashboard)?,
        None => streamed(args, generation, ui)?,
    };
    if answer.is_interrupted() {
        ui.note("note: interrupted; the answer breaks off here");
    }
    if answer.reason == FinishReason::Length && args.answer.options().max_tokens.is_none() {
        ui.note("note: the context is full; the answer breaks off here");
    }
    ui.note(&speed(&answer.stats, llm.device()));
    tell_verified(&llm, ui);
    ended(&answer)
}

/// What looking over steps has found; what was wrong is told on stderr, whatever else is.
fn tell_verified(llm: &Llm, ui: Ui) {
    let Some(found) = llm.verification().map(Verification::found) else { return };
    for warning in &found.warnings {
        Ui { quiet: false }.note(&format!("warning: {warning}"));
    }
    ui.note(&format!("verified {} operations, {} were wrong", found.checked, found.failed));
}

/// The answer as it comes.
fn streamed(args: &RunArgs, generation: Generation, ui: Ui) -> anyhow::Result<Answer> {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let mut screen = Screen::new(&mut out, &mut err).hiding(args.hide_thinking, ui);
    let answer = answer::follow(generation, &mut screen)?;
    screen.end_line()?;
    Ok(answer)
}

/// The answer below the figures of the engine; it is printed when whoever looks has left.
fn watched(args: &RunArgs, generation: Generation, dashboard: Prepared) -> anyhow::Result<Answer> {
    let dashboard = dashboard.start()?;
    let answer = answer::follow(generation, &mut dashboard.pane().hiding(args.hide_thinking))?;
    dashboard.wait()?;
    term::print_output(&format!("{}\n", answer.text))?;
    Ok(answer)
}

/// What was said is all there is to say of an interrupted answer; its exit code tells the rest.
fn ended(answer: &Answer) -> anyhow::Result<()> {
    if answer.is_interrupted() { Err(Stopped.into()) } else { Ok(()) }
}

fn parse_dash(text: &str) -> Result<String, String> {
    match text {
        "-" => Ok(text.to_owned()),
        _ => Err("the prompt is one argument, in quotes; only `-` may stand after it".to_owned()),
    }
}

/// What the model is asked, and how much of that was piped in.
struct Prompt {
    text: String,
    piped_bytes: Option<usize>,
}

impl Prompt {
    fn of(args: &RunArgs, ui: Ui) -> anyhow::Result<Self> {
        let given = args.prompt.as_deref().filter(|prompt| *prompt != "-");
        let asked_for = args.prompt.is_some() && given.is_none() || args.piped.is_some();
        if given.is_none() && !asked_for && io::stdin().is_terminal() {
            let hint = "give one (`metallic run \"Why is the sky blue?\"`), pipe one in, or talk with `metallic chat`";
            return Err(Failure::new("there is no prompt", hint).into());
        }
        let piped = match given {
            Some(_) if !asked_for => stdin::if_any(ui)?,
            _ => Some(stdin::all(ui)?),
        };
        if piped.as_ref().is_some_and(|piped| piped.trim().is_empty()) {
            let reason = match given {
                Some(_) => "stdin is empty: nothing follows the prompt",
                None => "stdin is empty, so there is no prompt",
            };
            return Err(Failure::new(reason, "give a text on stdin, or a prompt alone").into());
        }
        let piped_bytes = piped.as_ref().map(String::len);
        let parts: Vec<&str> = given.into_iter().chain(piped.as_deref()).collect();
        Ok(Self { text: parts.join("\n\n"), piped_bytes })
    }

    /// Says where a prompt that is too long came from.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let too_long = |cause: &(dyn std::error::Error + 'static)| {
            let engine = match cause.downcast_ref() {
                Some(metallic::Error::Engine(error)) => Some(error),
                _ => cause.downcast_ref(),
            };
            matches!(engine, Some(EngineError::PromptTooLong { .. } | EngineError::KvBudget { .. }))
        };
        match self.piped_bytes {
            Some(bytes) if error.chain().any(too_long) => {
                error.context(format!("too long, with {bytes} bytes from stdin"))
            }
            _ => error,
        }
    }
}

fn request(args: &RunArgs, llm: &Llm, prompt: &Prompt, told: &Told, ui: Ui) -> anyhow::Result<Request> {
    let prompt = prompt.text.as_str();
    if args.raw {
        return Ok(llm.request(prompt)?);
    }
    if llm.template().is_none() {
        if args.system.is_some() {
            let reason = "the model has no chat template, so there is no place for a system prompt";
            return Err(Failure::new(reason, "leave out `--system`, or take an instruct model").into());
        }
        ui.note("note: the model has no chat template; it continues the prompt as plain text (--raw)");
        return Ok(llm.request(prompt)?);
    }
    if prompt.trim().is_empty() {
        return Err(Failure::new("the prompt is empty", "give a text, or `-` with a text on stdin").into());
    }
    let system = args.system.iter().map(Message::system);
    let messages: Vec<Message> = system.chain([Message::user(prompt)]).collect();
    Ok(llm.chat_request(told.chat(messages))?)
}

fn report(llm: &Llm, answer: &Answer) -> anyhow::Result<Value> {
    let finish = if answer.is_interrupted() { json!("interrupted") } else { json!(answer.reason) };
    Ok(json!({
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tokens": answer.tokens,
        "finish_reason": finish,
        "stats": stats(llm, &answer.stats)?,
    }))
}

/// The figures of a request together with those of the model.
fn stats(llm: &Llm, stats: &RequestStats) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(stats)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("load_s".to_owned(), json!(llm.load_s()));
        fields.insert("device".to_owned(), json!(llm.device()));
    }
    Ok(value)
}

/// One line: what came in, what went out, how fast, and where.
pub(crate) fn speed(stats: &RequestStats, device: &str) -> String {
    let cached = match stats.cached_tokens {
        0 => String::new(),
        n => format!(" ({n} cached)"),
    };
    let guessed = match stats.drafted_tokens {
        0 => String::new(),
        n => format!(", {} of {n} guesses right", stats.accepted_tokens),
    };
    let rate = |tps: f64| if tps > 0.0 { format!(", {tps:.1} tok/s") } else { String::new() };
    format!(
        "[{} prompt tokens{cached}{} | {} generated{}{guessed} | {device}]",
        stats.prompt_tokens,
        rate(stats.prefill_tps),
        stats.generated_tokens,
        rate(stats.decode_tps),
    )
}
