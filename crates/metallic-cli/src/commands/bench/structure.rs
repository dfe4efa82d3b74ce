//! What a format costs: answers that are held to it and free ones of the same lengths, in turn.

use std::fmt::Write;

use metallic::{
    Generation, Llm, Message, Sampling,
    bench::Measurement,
    constrain::Format,
    generate::{Completion, RequestStats},
};
use serde_json::{Value, json};

use super::{BenchArgs, Counts};
use crate::{
    commands::structure::hold,
    fail::Failure,
    load,
    term::{self, Ui},
};

/// What is asked for where nothing but the format decides what an answer looks like.
const PROMPT: &str =
    "Make up a long and complete example, with every field filled in, and write it as it is asked for.";

/// Answers side by side, in tokens per second of all of them together.
#[derive(Default)]
struct Row {
    free: Measurement,
    held: Measurement,
    /// Tokens of the answers of one turn.
    tokens: usize,
}

impl Row {
    fn share(&self) -> f64 {
        self.held.median() / self.free.median().max(1e-9)
    }

    /// Microseconds by which a token takes longer.
    fn cost(&self) -> f64 {
        1e6 / self.held.median().max(1e-9) - 1e6 / self.free.median().max(1e-9)
    }
}

pub(super) fn run(args: &BenchArgs, format: &Format, ui: Ui) -> anyhow::Result<()> {
    let others = [
        ("--prompt", args.prompt.is_some()),
        ("--depth", args.depth > 0),
        ("--ops", args.ops),
        ("--no-limits", args.no_limits),
        ("--speculate", args.speculation.is_on()),
        ("--dashboard", args.dashboard.dashboard),
    ];
    if let Some((name, _)) = others.iter().find(|(_, given)| *given) {
        let reason = format!("`{name}` has no meaning where answers in a format and free ones are compared");
        return Err(Failure::new(reason, "leave it out, or leave out the format").into());
    }
    let sequences = args.sequences.get();
    let llm = load::llm_with(&args.model, None, |options| options.max_sequences(sequences), ui)?;
    let lengths = args.generate.as_ref().map_or_else(|| vec![128], |Counts(counts)| counts.clone());
    let mut rows = Vec::new();
    for length in lengths {
        let _spinner = ui.spinner(&format!("tg{length} in a format"));
        let bench = Bench { llm: &llm, format, sequences, length };
        rows.push((length, bench.measure(args.repetitions.get())?));
    }
    if args.json {
        return term::print_json(&rows.iter().map(|row| report(args, &llm, row)).collect::<Vec<_>>());
    }
    let mut text = format!(
        "{} on {}, {sequences} side by side\n\n{:10} {:>9} {:>10} {:>10} {:>7} {:>12}\n",
        args.model.model,
        llm.device(),
        "ANSWER",
        "TOKENS",
        "FREE t/s",
        "HELD t/s",
        "SHARE",
        "µs A TOKEN"
    );
    for (length, row) in &rows {
        let (label, share) = (format!("tg{length}"), 100.0 * row.share());
        let (free, held, cost) = (row.free.median(), row.held.median(), row.cost());
        let tokens = row.tokens;
        let _ = writeln!(text, "{label:10} {tokens:>9} {free:>10.2} {held:>10.2} {share:>6.1}% {cost:>12.0}");
    }
    Ok(term::print_lines(&text)?)
}

struct Bench<'a> {
    llm: &'a Llm,
    format: &'a Format,
    sequences: usize,
    length: usize,
}

impl Bench<'_> {
    /// Answers in turn, after once of each to warm up. Free answers are as long as those in the format, place by place.
    fn measure(&self, repetitions: usize) -> anyhow::Result<Row> {
        let mut row = Row::default();
        let mut lengths = vec![self.length; self.sequences];
        for repetition in 0..=repetitions {
            // Who comes first has a colder machine, so they take turns at that as well.
            let order = if repetition % 2 == 0 { [true, false] } else { [false, true] };
            for is_held in order {
                let answers = self.answers(is_held, &lengths)?;
                if repetition == 0 && is_held {
                    lengths = answers.iter().map(|answer| answer.tokens.len()).collect();
                    row.tokens = lengths.iter().sum();
                }
                if repetition > 0 {
                    let measured = if is_held { &mut row.held } else { &mut row.free };
                    measured.samples.push(rate(&answers));
                }
            }
        }
        if row.tokens < 2 * self.sequences {
            let reason = "answers in this format are too short to be timed";
            return Err(Failure::new(reason, "give a format of longer answers").into());
        }
        Ok(row)
    }

    fn answers(&self, is_held: bool, lengths: &[usize]) -> anyhow::Result<Vec<Completion>> {
        let mut requests = Vec::with_capacity(lengths.len());
        for (seed, length) in (1..).zip(lengths) {
            let request = match self.llm.template() {
                Some(_) => self.llm.chat_request([Message::user(PROMPT)])?,
                None => self.llm.request(PROMPT)?,
            };
            let request = request.sampling(Sampling::default().seed(seed));
            requests.push(if is_held {
                hold(request.max_tokens(self.length), Some(self.format), self.llm)?
            } else {
                request.max_tokens(*length).ignore_eos(true)
            });
        }
        let under_way = requests.into_iter().map(|request| self.llm.submit(request));
        let under_way: Vec<Generation> = under_way.collect::<Result<_, _>>()?;
        Ok(under_way.into_iter().map(Generation::complete).collect::<Result<_, _>>()?)
    }
}

/// Tokens after the first of each answer, by the time from the first token of all to the last.
fn rate(answers: &[Completion]) -> f64 {
    let tokens: usize = answers.iter().map(|answer| answer.stats.generated_tokens.saturating_sub(1)).sum();
    let first = |stats: &RequestStats| stats.ttft_s;
    let last = |stats: &RequestStats| stats.ttft_s + stats.decode_s;
    let begin = answers.iter().map(|answer| first(&answer.stats)).fold(f64::INFINITY, f64::min);
    let end = answers.iter().map(|answer| last(&answer.stats)).fold(0.0, f64::max);
    tokens as f64 / (end - begin).max(1e-9)
}

fn report(args: &BenchArgs, llm: &Llm, (length, row): &(usize, Row)) -> Value {
    json!({
        "test": format!("tg{length}"),
        "model": args.model.model,
        "device": llm.device(),
        "n": length,
        "sequences": args.sequences,
        "tokens": row.tokens,
        "free": { "median": row.free.median(), "samples": row.free.samples },
        "held": { "median": row.held.median(), "samples": row.held.samples },
        "share": row.share(),
        "us_per_token": row.cost(),
    })
}
