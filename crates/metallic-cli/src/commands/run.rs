//! `metallic run`: one answer, streamed.

use std::io::{self, Write};

use clap::Args;
use metallic::{
    Event, FinishReason, Generation, Llm, Message,
    generate::{Finished, RequestStats},
};
use serde_json::{Value, json};

use crate::{
    commands::{
        MODEL_HELP,
        options::{AnswerOptions, ModelOptions},
    },
    fail::Failure,
    load,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    answer: AnswerOptions,
    /// What the model is told before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continue the prompt as plain text, without the chat template
    #[arg(long)]
    raw: bool,
    /// Print the answer with its tokens and figures as JSON, at the end
    #[arg(long)]
    json: bool,
    /// The prompt; `-` reads it from stdin
    prompt: String,
}

const EXAMPLES: &str = "\
Examples:
  metallic run \"Why is the sky blue?\"
  metallic run -m qwen2.5-0.5b --temp 0 -n 100 \"Write a haiku about rust.\"
  metallic run -m ./model.gguf --raw \"Once upon a time\"
  git diff | metallic run --system \"Write a commit message.\" -
  metallic run --json --seed 7 \"Name a colour.\" | jq -r .text";

pub(crate) fn run(args: &RunArgs, ui: Ui) -> anyhow::Result<()> {
    let prompt =
        if args.prompt == "-" { term::chomp(&term::stdin()?).to_owned() } else { args.prompt.clone() };
    let llm = load::llm(&args.model, &args.answer, ui)?;
    let generation = begin(args, &llm, prompt, ui)?;
    if args.json {
        let answer = generation.complete()?;
        return term::print_json(&json!({
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": answer.reason,
            "stats": stats(&llm, &answer.stats)?,
        }));
    }
    let end = stream(generation)?;
    if end.reason == FinishReason::Length && args.answer.options().max_tokens.is_none() {
        ui.note("note: the context is full; the answer breaks off here");
    }
    ui.note(&speed(&end.stats, llm.device()));
    Ok(())
}

fn begin(args: &RunArgs, llm: &Llm, prompt: String, ui: Ui) -> anyhow::Result<Generation> {
    let options = args.answer.options();
    if args.raw {
        return Ok(llm.generate(&prompt, options)?);
    }
    if llm.template().is_none() {
        if args.system.is_some() {
            let reason = "the model has no chat template, so there is no place for a system prompt";
            return Err(Failure::new(reason, "leave out `--system`, or take an instruct model").into());
        }
        ui.note("note: the model has no chat template; it continues the prompt as plain text (--raw)");
        return Ok(llm.generate(&prompt, options)?);
    }
    if prompt.trim().is_empty() {
        return Err(Failure::new("the prompt is empty", "give a text, or `-` with a text on stdin").into());
    }
    let system = args.system.iter().map(Message::system);
    let messages: Vec<Message> = system.chain([Message::user(prompt)]).collect();
    Ok(llm.chat(messages, options)?)
}

/// Writes each piece as it comes.
fn stream(generation: Generation) -> anyhow::Result<Finished> {
    let mut out = io::stdout().lock();
    for event in generation {
        match event? {
            Event::Token(token) if token.text.is_empty() => {}
            Event::Token(token) => {
                out.write_all(token.text.as_bytes())?;
                out.flush()?;
            }
            Event::Finished(end) => {
                writeln!(out, "{}", end.text)?;
                out.flush()?;
                return Ok(end);
            }
            _ => {}
        }
    }
    Err(metallic::generate::EngineError::Gone.into())
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
    let rate = |tps: f64| if tps > 0.0 { format!(", {tps:.1} tok/s") } else { String::new() };
    format!(
        "[{} prompt tokens{cached}{} | {} generated{} | {device}]",
        stats.prompt_tokens,
        rate(stats.prefill_tps),
        stats.generated_tokens,
        rate(stats.decode_tps),
    )
}
