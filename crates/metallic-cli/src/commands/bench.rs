//! `metallic bench`: tokens per second, of prompts and of answers, and which part of what the device reaches that is.

mod ops;
mod speculation;
mod structure;

use std::{fmt::Write, num::NonZeroUsize};

use clap::Args;
use metallic::{
    bench::{Kind, Measurement, Test, measure},
    core::Peaks,
};
use serde_json::{Value, json};

use crate::{
    answer::Show,
    commands::{
        MODEL_HELP,
        options::{Counts, ModelOptions, parse_count},
        speculation::SpeculationOptions,
        structure::FormatOptions,
    },
    load::{self, Loaded},
    telemetry::TelemetryOptions,
    term::{self, Ui},
    top::own::{DashboardOptions, Prepared},
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
    #[arg(long, alias = "profile")]
    ops: bool,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    format: FormatOptions,
    /// Do not measure what the device reaches at best, which shares are of
    #[arg(long)]
    no_limits: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    telemetry: TelemetryOptions,
    #[command(flatten)]
    dashboard: DashboardOptions,
}

const EXAMPLES: &str = "\
Examples:
  metallic bench
  metallic bench -m ./model.gguf -t 4 -p 128,512 -n 64,128
  metallic bench -n 64 -d 4096 -r 3                      answers deep in a context
  metallic bench -n 64 -s 8                              eight answers side by side
  metallic bench -p 512 --ops                            where the time goes
  metallic bench --speculate lookup                      answers with guesses and without, in turn
  metallic bench --json-schema person.json -s 8          answers in a format and free ones, in turn
  metallic bench --device null -n 64                     what the host costs
  metallic bench --json > bench.json";

pub(crate) fn run(args: &BenchArgs, ui: Ui) -> anyhow::Result<()> {
    let _telling = args.telemetry.start("metallic bench", ui)?;
    if let Some(format) = args.format.read()? {
        return structure::run(args, &format, ui);
    }
    if args.speculation.is_on() {
        return speculation::run(args, ui);
    }
    let dashboard = args.dashboard.prepare()?;
    let mut loaded = load::program(&args.model, args.ops, ui)?;
    let tests = tests(args);
    for test in &tests {
        loaded.check(&[], test.tokens.saturating_add(test.depth))?;
        loaded.check_room(test.tokens.saturating_add(test.depth).saturating_mul(test.sequences))?;
    }
    let peaks = if args.no_limits { None } else { peaks(&loaded, ui) };
    loaded.tell_peaks(peaks.as_ref());
    let vocab = loaded.model.config().vocab;
    let dashboard = dashboard.map(Prepared::start).transpose()?;
    let mut results = Vec::new();
    for test in tests {
        // The dashboard has the terminal.
        let _spinner = Ui { quiet: ui.quiet || dashboard.is_some() }.spinner(&test.name());
        let measured = measure(loaded.program.as_mut(), vocab, test, args.repetitions.get())?;
        if let Some(dashboard) = &dashboard {
            let line = format!("{:16} median {:.2} tokens/s\n", test.name(), measured.median());
            dashboard.pane().answer(&line)?;
            dashboard.check()?;
        }
        results.push((test, measured));
    }
    if let Some(dashboard) = dashboard {
        dashboard.wait()?;
    }
    if args.json {
        let rows: Vec<Value> =
            results.iter().map(|result| row(args, &loaded, peaks.as_ref(), result)).collect();
        return term::print_json(&rows);
    }
    Ok(term::print_lines(&table(args, &loaded, peaks.as_ref(), &results))?)
}

/// What the device reaches at best; where that is not known a note says why.
fn peaks(loaded: &Loaded, ui: Ui) -> Option<Peaks> {
    let kind = loaded.device.kind;
    let spinner = ui.spinner(&format!("what {kind} reaches at best"));
    let measured = loaded.backend.peaks();
    drop(spinner);
    match measured {
        Ok(Some(peaks)) => Some(peaks),
        Ok(None) => {
            ui.note(&format!(
                "note: a share of what `{kind}` reaches at best means nothing, and is left out"
            ));
            None
        }
        Err(error) => {
            ui.note(&format!("note: shares are left out: {error}"));
            None
        }
    }
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

fn row(
    args: &BenchArgs,
    loaded: &Loaded,
    peaks: Option<&Peaks>,
    (test, measured): &(Test, Measurement),
) -> Value {
    let rates = Rates::of(measured, peaks);
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
        "steps": measured.steps,
        "steps_planned": measured.stats.plan_misses,
        "host_us_per_step": per_step(measured, measured.stats.host_time),
        "overlap_us_per_step": per_step(measured, measured.stats.overlap),
        "device_us_per_step": per_step(measured, measured.stats.device_time),
    });
    row["gb_per_s"] = json!(rates.bytes.map(|rate| rate / GIGA));
    row["share_of_bandwidth"] = json!(rates.of_memory);
    row["tflop_per_s"] = json!(rates.multiply_adds.map(|rate| 2.0 * rate / TERA));
    row["share_of_matrix_rate"] = json!(rates.of_products);
    if let Some(peaks) = peaks {
        row["peaks"] = json!({
            "read_gb_per_s": peaks.read / GIGA,
            "copy_gb_per_s": peaks.copy / GIGA,
            "tflop_per_s": 2.0 * peaks.multiply_adds / TERA,
            "by": peaks.by,
        });
    }
    if args.ops {
        let times = measured.stats.time_by_op().into_iter();
        let times = times.map(|(op, time)| (op.to_owned(), json!(time.as_secs_f64()))).collect();
        row["seconds_by_op"] = Value::Object(times);
        row["ops"] = measured.stats.ops.iter().map(|cost| ops::row(cost, measured.steps)).collect();
    }
    row
}

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;

/// How fast bytes were moved and numbers multiplied, and which part that is of what the device reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    /// Bytes a second, where they are counted.
    bytes: Option<f64>,
    of_memory: Option<f64>,
    /// Multiplications with additions a second, where they are counted.
    multiply_adds: Option<f64>,
    of_products: Option<f64>,
}

impl Rates {
    fn of(measured: &Measurement, peaks: Option<&Peaks>) -> Rates {
        let counted = |rate: f64| Some(rate).filter(|rate| *rate > 0.0);
        let bytes = counted(measured.bytes_per_second());
        let multiply_adds = counted(measured.multiply_adds_per_second());
        let share = |rate: Option<f64>, peak: Option<f64>| Some(rate? / peak.filter(|peak| *peak > 0.0)?);
        Rates {
            bytes,
            of_memory: share(bytes, peaks.map(|peaks| peaks.read)),
            multiply_adds,
            of_products: share(multiply_adds, peaks.map(|peaks| peaks.multiply_adds)),
        }
    }

    /// What a kind of test is bound by: memory for answers, products for prompts.
    fn columns(&self, kind: Kind) -> String {
        let [bytes, multiply_adds] =
            [self.bytes.map(|rate| rate / GIGA), self.multiply_adds.map(|rate| 2.0 * rate / TERA)];
        let none = (None, None);
        let ((bytes, of_memory), (flops, of_products)) = match kind {
            Kind::Decode => ((bytes, self.of_memory), none),
            Kind::Prefill => (none, (multiply_adds, self.of_products)),
        };
        let [of_memory, of_products] =
            [of_memory, of_products].map(|share| cell(share.map(|share| 100.0 * share), 1, "%"));
        let (bytes, flops) = (cell(bytes, 1, ""), cell(flops, 2, ""));
        format!("{bytes:>9} {of_memory:>10} {flops:>9} {of_products:>10}")
    }
}

/// A number with so many decimals, or a dash.
fn cell(number: Option<f64>, decimals: usize, unit: &str) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.decimals$}{unit}"))
}

/// Microseconds of a step, on devices whose steps are planned.
fn per_step(measured: &Measurement, time: std::time::Duration) -> Option<f64> {
    let steps = measured.stats.plan_hits + measured.stats.plan_misses;
    (steps > 0).then(|| time.as_secs_f64() * 1e6 / steps as f64)
}

fn table(
    args: &BenchArgs,
    loaded: &Loaded,
    peaks: Option<&Peaks>,
    results: &[(Test, Measurement)],
) -> String {
    let bytes = term::size(loaded.model.weight_bytes());
    let (kind, name) = (loaded.device.kind, &loaded.device.name);
    let mut text =
        format!("{}, {bytes}, on {kind} ({name}), loaded in {:.2} s\n", args.model.model, loaded.load_s);
    if let Some(Peaks { read, copy, multiply_adds, by }) = peaks {
        let (read, copy, flops) = (read / GIGA, copy / GIGA, 2.0 * multiply_adds / TERA);
        let _ =
            writeln!(text, "at best {read:.1} GB/s read, {copy:.1} GB/s copied, {flops:.2} TFLOP/s ({by})");
    }
    // What computes nothing moves nothing.
    let rates = kind != "null";
    let _ = write!(text, "\n{:16} {:>10} {:>10} {:>8}", "TEST", "MEAN t/s", "MEDIAN", "SD");
    if rates {
        let _ = write!(text, " {:>9} {:>10} {:>9} {:>10}", "GB/s", "OF MEMORY", "TFLOP/s", "OF MATRIX");
    }
    for (test, measured) in results {
        let (mean, median, sd) = (measured.mean(), measured.median(), measured.sd());
        let _ = write!(text, "\n{:16} {mean:>10.2} {median:>10.2} {sd:>8.2}", test.name());
        if rates {
            let _ = write!(text, " {}", Rates::of(measured, peaks).columns(test.kind));
        }
    }
    text.push('\n');
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
    for (test, measured) in results.iter().filter(|_| args.ops) {
        text.push_str(&ops::table(&test.name(), measured));
    }
    text
}

#[cfg(test)]
mod tests {
    use metallic::core::RunStats;

    use super::*;

    #[test]
    fn shares_are_of_what_the_device_reaches_and_missing_where_it_is_not_known() {
        let stats = RunStats {
            bytes_read: 90_000_000_000,
            bytes_written: 10_000_000_000,
            multiply_adds: 1_000_000_000_000,
            ..RunStats::default()
        };
        let measured = Measurement { stats, seconds: 2.0, ..Measurement::default() };
        let peaks = Peaks { read: 2e11, copy: 1e11, multiply_adds: 4e12, by: "units" };
        let rates = Rates::of(&measured, Some(&peaks));
        assert_eq!((rates.of_memory, rates.of_products), (Some(0.25), Some(0.125)));
        let words = |kind, rates: Rates| {
            rates.columns(kind).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(Kind::Decode, rates), ["50.0", "25.0%", "-", "-"]);
        assert_eq!(words(Kind::Prefill, rates), ["-", "-", "1.00", "12.5%"]);
        assert_eq!(words(Kind::Decode, Rates::of(&measured, None)), ["50.0", "-", "-", "-"]);
        assert_eq!(words(Kind::Prefill, Rates::of(&Measurement::default(), Some(&peaks))), ["-"; 4]);
    }
}
