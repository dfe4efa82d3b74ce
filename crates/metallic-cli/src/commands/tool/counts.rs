//! `tool counts`: what a step asks of a GPU, kernel by kernel, as its plan counts it; what a chip would allow for it; and what
//! the device at hand takes, measured.

use std::{fmt::Write, num::NonZeroUsize, time::Duration};

use clap::Args;
use metallic::{
    Device,
    bench::{Kind, Measurement, Test, count, measure},
    core::KernelCount,
    device::apple_rehearsal,
    roof::{CHIPS, Chip, Reached},
};
use serde_json::{Value, json};

use crate::{
    commands::{
        MODEL_HELP,
        options::{ModelOptions, parse_count},
    },
    fail::Failure,
    load::{self, Loaded},
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct CountsArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Length of the prompt
    #[arg(short, long, value_name = "N", default_value = "512", value_parser = parse_count)]
    prompt: NonZeroUsize,
    /// Length of the answer that is measured; its first step is counted
    #[arg(short = 'n', long, value_name = "N", default_value = "64", value_parser = parse_count)]
    generate: NonZeroUsize,
    /// Tokens in the cache before
    #[arg(short, long, default_value_t = 0)]
    depth: usize,
    /// Sequences side by side
    #[arg(short = 's', long, value_name = "N", default_value = "1", value_parser = parse_count)]
    sequences: NonZeroUsize,
    /// Repetitions of what is measured, after one to warm up
    #[arg(short, long, default_value = "3", value_parser = parse_count)]
    repetitions: NonZeroUsize,
    /// The chip whose figures count, `M2 Max` or `M2 Max (30)` [default: the one the device's name tells]
    #[arg(long, value_name = "NAME", value_parser = parse_chip)]
    chip: Option<&'static Chip>,
    /// Measure nothing
    #[arg(long)]
    count_only: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic tool counts -m MODEL                                  on a Mac: counted and measured
  metallic tool counts -m MODEL -n 64 -d 4096                    deep in a context
  metallic tool counts --device null --chip \"M2 Max\"             counted, without a Mac";

/// What is said of the times.
const MEASURED: &str = "operations one by one, which costs speed; tokens/s without that";

fn parse_chip(name: &str) -> Result<&'static Chip, String> {
    let titles = || CHIPS.iter().map(Chip::title).collect::<Vec<_>>().join(", ");
    Chip::named(name).first().copied().ok_or_else(|| format!("there are {}", titles()))
}

/// A test, counted and measured.
struct Outcome {
    test: Test,
    /// Tokens of a prompt that a step takes.
    step: usize,
    kernels: Vec<KernelCount>,
    measured: Option<Measured>,
}

struct Measured {
    whole: Measurement,
    /// With the times of operations.
    by_op: Measurement,
}

impl Measured {
    /// Seconds of a step that an operation takes.
    fn op(&self, op: &str) -> Option<f64> {
        let stats = &self.by_op.stats;
        let (_, time) = stats.time_by_op().into_iter().find(|(name, _)| *name == op)?;
        Some(per_step(time, stats.plan_hits + stats.plan_misses))
    }
}

fn per_step(time: Duration, steps: u64) -> f64 {
    time.as_secs_f64() / steps.max(1) as f64
}

pub(super) fn run(args: &CountsArgs, ui: Ui) -> anyhow::Result<()> {
    let mut loaded = load(args, false, ui)?;
    let chip = chip_of(args, &loaded.device.name, ui);
    let tests = [(Kind::Prefill, args.prompt), (Kind::Decode, args.generate)].map(|(kind, tokens)| Test {
        kind,
        tokens: tokens.get(),
        depth: args.depth,
        sequences: args.sequences.get(),
    });
    for test in &tests {
        loaded.check(&[], test.tokens.saturating_add(test.depth))?;
        loaded.check_room(test.tokens.saturating_add(test.depth).saturating_mul(test.sequences))?;
    }
    let vocab = loaded.model.config().vocab;
    let mut outcomes = Vec::new();
    for test in tests {
        let kernels = count(loaded.program.as_mut(), vocab, test)?;
        if kernels.is_empty() {
            let reason = format!("`{}` plans no kernels that could be counted", loaded.device.kind);
            return Err(Failure::new(reason, "take a GPU, or `--device null`").into());
        }
        let step = loaded.program.step_tokens();
        outcomes.push(Outcome { test, step, kernels, measured: None });
    }
    if measures(args, &loaded) {
        let mut profiled = load(args, true, ui)?;
        for outcome in &mut outcomes {
            let _spinner = ui.spinner(&outcome.test.name());
            let (test, times) = (outcome.test, args.repetitions.get());
            let whole = measure(loaded.program.as_mut(), vocab, test, times)?;
            let by_op = measure(profiled.program.as_mut(), vocab, test, 1)?;
            outcome.measured = Some(Measured { whole, by_op });
        }
    }
    if args.json {
        let rows: Vec<Value> = outcomes.iter().map(|outcome| row(&loaded, chip, outcome)).collect();
        return term::print_json(&rows);
    }
    let mut text = headline(args, &loaded, chip);
    for outcome in &outcomes {
        text += &table(chip, outcome);
    }
    Ok(term::print_lines(&text)?)
}

/// A device that computes nothing has nothing to measure.
fn measures(args: &CountsArgs, loaded: &Loaded) -> bool {
    !args.count_only && loaded.device.kind != "null"
}

/// The model on its device; on one that computes nothing, planned as for the chip that was named.
fn load(args: &CountsArgs, profile: bool, ui: Ui) -> anyhow::Result<Loaded> {
    load::program_on(&args.model, profile, ui, |options| match (&args.model.device.device, args.chip) {
        (Device::Null, Some(chip)) => apple_rehearsal(&format!("Apple {}", chip.name), options),
        (device, _) => device.open_with(options),
    })
}

/// The chip that was named, or the one that the device is; of several that have its name, the one with the most cores.
fn chip_of(args: &CountsArgs, device: &str, ui: Ui) -> Option<&'static Chip> {
    if args.chip.is_some() {
        return args.chip;
    }
    let found = Chip::named(device);
    match found[..] {
        [] => ui.note(
            "note: no figures of this device are known; `--chip NAME` counts with those of one of Apple's",
        ),
        [_] => {}
        [most, ..] => {
            let titles: Vec<String> =
                found.iter().map(|chip| format!("`--chip \"{}\"`", chip.title())).collect();
            let others = titles.join(" or ");
            ui.note(&format!(
                "note: {} GPU cores are assumed, the system does not tell; {others} says it",
                most.cores
            ));
        }
    }
    found.first().copied()
}

fn headline(args: &CountsArgs, loaded: &Loaded, chip: Option<&Chip>) -> String {
    let bytes = term::size(loaded.model.weight_bytes());
    let mut text =
        format!("{}, {bytes}, on {} ({})\n", args.model.model, loaded.device.kind, loaded.device.name);
    if let Some(chip) = chip {
        let (gbs, rate, reached) = (chip.bandwidth.value, chip.flops() / 1e12, Reached::STATED);
        let _ = writeln!(
            text,
            "COUNTED: at {:.0} % of the {gbs} GB/s and {:.0} % of the {rate:.1} TFLOPS of an {}, {:.0} µs a launch; not measured",
            100.0 * reached.bandwidth,
            100.0 * reached.rate,
            chip.title(),
            1e6 * reached.launch
        );
    }
    let measured = if measures(args, loaded) { MEASURED } else { "nothing" };
    let _ = writeln!(text, "MEASURED: {measured}");
    text
}

fn dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn table(chip: Option<&Chip>, outcome: &Outcome) -> String {
    let Outcome { test, kernels, measured, .. } = outcome;
    let seconds = |kernel: &KernelCount| chip.map(|chip| chip.seconds(kernel, &Reached::STATED));
    let mut text = format!(
        "\n{}\n{:14} {:22} {:>8} {:>8} {:>7} {:>6} {:>9} {:>9} {:>10} {:>6} {:>10}\n",
        test.name(),
        "OP",
        "KERNEL",
        "LAUNCHES",
        "GROUPS",
        "THREADS",
        "KiB",
        "MB",
        "AGAIN",
        "MULTIPLY-M",
        "BUSY",
        "COUNTED µs"
    );
    for kernel in kernels {
        let mega = |n: u64| format!("{:.2}", n as f64 / 1e6);
        let busy = chip.map_or_else(|| "-".to_owned(), |chip| format!("{:.0} %", 100.0 * chip.busy(kernel)));
        let _ = writeln!(
            text,
            "{:14} {:22} {:>8} {:>8} {:>7} {:>6.1} {:>9} {:>9} {:>10} {busy:>6} {:>10}",
            kernel.op,
            kernel.kernel,
            kernel.launches,
            kernel.groups,
            kernel.threads,
            f64::from(kernel.threadgroup_bytes) / 1024.0,
            mega(kernel.moved),
            mega(kernel.moved - kernel.distinct),
            mega(kernel.multiply_adds),
            dash(seconds(kernel).map(|s| 1e6 * s), 1),
        );
    }
    if let Some(measured) = measured {
        let _ = writeln!(text, "\n{:14} {:>10} {:>11} {:>9}", "OP", "COUNTED µs", "MEASURED µs", "GB/s");
        for (op, bytes, counted) in by_op(kernels, &seconds) {
            let took = measured.op(op);
            let rate = took.filter(|took| *took > 0.0).map(|took| bytes as f64 / 1e9 / took);
            let (counted, took) = (dash(counted.map(|s| 1e6 * s), 1), dash(took.map(|s| 1e6 * s), 1));
            let _ = writeln!(text, "{op:14} {counted:>10} {took:>11} {:>9}", dash(rate, 2));
        }
    }
    text += &conclusion(chip, outcome);
    text
}

/// Tokens a second, counted and measured.
fn conclusion(chip: Option<&Chip>, outcome: &Outcome) -> String {
    let launches: u64 = outcome.kernels.iter().map(|kernel| kernel.launches).sum();
    let bytes: u64 = outcome.kernels.iter().map(|kernel| kernel.moved).sum();
    let mut text = format!("a step: {launches} launches, {:.2} MB", bytes as f64 / 1e6);
    let allowed = chip.map(|chip| allowed(chip, outcome));
    if let Some(allowed) = allowed {
        let _ = write!(text, "; {allowed:.1} tokens/s counted");
    }
    if let Some(measured) = &outcome.measured {
        let median = measured.whole.median();
        let _ = write!(text, "; {median:.1} tokens/s measured");
        if let Some(allowed) = allowed {
            let _ = write!(text, ", {:.0} % of what was counted", 100.0 * median / allowed);
        }
    }
    text + "\n"
}

/// Tokens a second that a chip allows.
fn allowed(chip: &Chip, Outcome { test, step, kernels, .. }: &Outcome) -> f64 {
    let tokens = match test.kind {
        Kind::Prefill => test.tokens.min(*step),
        Kind::Decode => 1,
    };
    (tokens * test.sequences) as f64 / chip.step_seconds(kernels, &Reached::STATED)
}

/// Operations with the bytes of their kernels and the seconds counted for them, in order.
fn by_op<'k>(
    kernels: &'k [KernelCount],
    seconds: &dyn Fn(&KernelCount) -> Option<f64>,
) -> Vec<(&'k str, u64, Option<f64>)> {
    let mut ops: Vec<(&str, u64, Option<f64>)> = Vec::new();
    for kernel in kernels {
        let counted = seconds(kernel);
        match ops.iter_mut().find(|(op, ..)| *op == kernel.op) {
            Some((_, bytes, sum)) => {
                *bytes += kernel.moved;
                *sum = sum.zip(counted).map(|(sum, counted)| sum + counted);
            }
            None => ops.push((kernel.op, kernel.moved, counted)),
        }
    }
    ops
}

fn row(loaded: &Loaded, chip: Option<&Chip>, outcome: &Outcome) -> Value {
    let kernel = |kernel: &KernelCount| {
        json!({
            "op": kernel.op,
            "kernel": kernel.kernel,
            "launches": kernel.launches,
            "groups": kernel.groups,
            "threads": kernel.threads,
            "threadgroup_bytes": kernel.threadgroup_bytes,
            "bytes_moved": kernel.moved,
            "bytes_distinct": kernel.distinct,
            "bytes_of_vectors_again": kernel.vectors_again,
            "multiply_adds": kernel.multiply_adds,
            "simdgroups_per_core": chip.map(|chip| chip.resident(kernel)),
            "counted_s": chip.map(|chip| chip.seconds(kernel, &Reached::STATED)),
        })
    };
    let measured = outcome.measured.as_ref();
    let by_op = measured.map(|measured| {
        let times = measured.by_op.stats.time_by_op().into_iter();
        let times = times.map(|(op, _)| (op.to_owned(), json!(measured.op(op))));
        Value::Object(times.collect())
    });
    json!({
        "test": outcome.test.name(),
        "device": loaded.device.kind,
        "device_name": loaded.device.name,
        "chip": chip.map(Chip::title),
        "kernels": outcome.kernels.iter().map(kernel).collect::<Vec<_>>(),
        "counted_tokens_per_s": chip.map(|chip| allowed(chip, outcome)),
        "measured_tokens_per_s": measured.map(|measured| measured.whole.median()),
        "measured_seconds_by_op": by_op,
    })
}
