//! `metallic bench`: tokens per second, of prompts and of answers.

use std::{fmt::Write, num::NonZeroUsize};

use clap::Args;
use metallic::bench::{Kind, Measurement, Test, measure};
use serde_json::{Value, json};

use crate::{
    commands::{
        MODEL_HELP,
        options::{Counts, ModelOptions, parse_count},
    },
    load::{self, Loaded},
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Lengths of prompts to measure [default: 512, unless -n is given]
    #[arg(short, long, value_name = "N,…")]
    prompt: Option<Counts>,
    /// Lengths of answers to measure [default: 128, unless -p is given]
    #[arg(short = 'n', long, value_name = "N,…")]
    generate: Option<Counts>,
    /// Tokens in the cache before each test
    #[arg(short, long, default_value_t = 0)]
    depth: usize,
    /// Sequences side by side
    #[arg(short = 's', long, value_name = "N", default_value = "1", value_parser = parse_count)]
    sequences: NonZeroUsize,
    /// Repetitions of each test, after one to warm up
    #[arg(short, long, default_value = "5", value_parser = parse_count)]
    repetitions: NonZeroUsize,
    /// Show the time of each kind of operation, which costs some speed
    #[arg(long)]
    profile: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic bench
  metallic bench -m ./model.gguf -t 4 -p 128,512 -n 64,128
  metallic bench -n 64 -d 4096 -r 3                      answers deep in a context
  metallic bench -n 64 -s 8                              eight answers side by side
  metallic bench --device null -n 64                     what the host costs
  metallic bench --json > bench.json";

pub(crate) fn run(args: &BenchArgs, ui: Ui) -> anyhow::Result<()> {
    let mut loaded = load::program(&args.model, args.profile, ui)?;
    let tests = tests(args);
    for test in &tests {
        loaded.check(&[], test.tokens.saturating_add(test.depth))?;
        loaded.check_room(test.tokens.saturating_add(test.depth).saturating_mul(test.sequences))?;
    }
    let vocab = loaded.model.config().vocab;
    let mut results = Vec::new();
    for test in tests {
        let _spinner = ui.spinner(&test.name());
        results.push((test, measure(loaded.program.as_mut(), vocab, test, args.repetitions.get())?));
    }
    if args.json {
        let rows: Vec<Value> = results.iter().map(|result| row(args, &loaded, result)).collect();
        return term::print_json(&rows);
    }
    Ok(term::print_lines(&table(args, &loaded, &results))?)
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let counts = |list: &Option<Counts>| list.as_ref().map(|counts| counts.0.clone()).unwrap_or_default();
    let (mut prompts, mut answers) = (counts(&args.prompt), counts(&args.generate));
    if prompts.is_empty() && answers.is_empty() {
        (prompts, answers) = (vec![512], vec![128]);
    }
    let test = |kind| move |tokens| Test { kind, tokens, depth: args.depth, sequences: args.sequences.get() };
    let prefill = prompts.into_iter().map(test(Kind::Prefill));
    prefill.chain(answers.into_iter().map(test(Kind::Decode))).collect()
}

fn row(args: &BenchArgs, loaded: &Loaded, (test, measured): &(Test, Measurement)) -> Value {
    let mut row = json!({
        "test": test.name(),
        "kind": test.kind,
        "n": test.tokens,
        "depth": test.depth,
        "sequences": test.sequences,
        "threads": loaded.device.units,
        "device": loaded.device.kind,
        "device_name": loaded.device.name,
        "kv_type": args.model.device.kv_type.name(),
        "model": args.model.model,
        "parameters": loaded.model.parameters(),
        "weight_bytes": loaded.model.weight_bytes(),
        "load_s": loaded.load_s,
        "peak_memory_bytes": metallic::device::peak_memory(),
        "mean": measured.mean(),
        "median": measured.median(),
        "sd": measured.sd(),
        "samples": measured.samples,
        "steps": measured.stats.plan_hits + measured.stats.plan_misses,
        "steps_planned": measured.stats.plan_misses,
        "host_us_per_step": per_step(measured, measured.stats.host_time),
        "overlap_us_per_step": per_step(measured, measured.stats.overlap),
        "device_us_per_step": per_step(measured, measured.stats.device_time),
    });
    if args.profile {
        let times = measured.stats.time_by_op.iter();
        let times = times.map(|(op, time)| ((*op).to_owned(), json!(time.as_secs_f64()))).collect();
        row["seconds_by_op"] = Value::Object(times);
    }
    row
}

/// Microseconds of a step, on devices whose steps are planned.
fn per_step(measured: &Measurement, time: std::time::Duration) -> Option<f64> {
    let steps = measured.stats.plan_hits + measured.stats.plan_misses;
    (steps > 0).then(|| time.as_secs_f64() * 1e6 / steps as f64)
}

fn table(args: &BenchArgs, loaded: &Loaded, results: &[(Test, Measurement)]) -> String {
    let bytes = term::size(loaded.model.weight_bytes());
    let mut text = format!(
        "{}, {bytes}, on {} ({}), loaded in {:.2} s\n\n{:16} {:>10} {:>10} {:>8}\n",
        args.model.model,
        loaded.device.kind,
        loaded.device.name,
        loaded.load_s,
        "TEST",
        "MEAN t/s",
        "MEDIAN",
        "SD"
    );
    for (test, measured) in results {
        let (mean, median, sd) = (measured.mean(), measured.median(), measured.sd());
        let _ = writeln!(text, "{:16} {mean:>10.2} {median:>10.2} {sd:>8.2}", test.name());
    }
    for (test, measured) in results {
        if let Some(host) = per_step(measured, measured.stats.host_time) {
            let overlap = per_step(measured, measured.stats.overlap).unwrap_or_default();
            let _ = writeln!(
                text,
                "\n{:16} host {host:.1} µs a step, {overlap:.1} µs beside the device",
                test.name()
            );
        }
    }
    for (test, measured) in results.iter().filter(|_| args.profile) {
        let mut times = measured.stats.time_by_op.clone();
        times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let all: f64 = times.iter().map(|(_, time)| time.as_secs_f64()).sum();
        let _ = writeln!(text, "\n{:24} {:>10} {:>7}", test.name(), "SECONDS", "SHARE");
        for (op, time) in times {
            let seconds = time.as_secs_f64();
            let _ = writeln!(text, "{op:24} {seconds:>10.4} {:>6.1}%", 100.0 * seconds / all.max(1e-12));
        }
    }
    text
}
