//! `metallic tune`: which numbers of a GPU's plans are fastest with a model.

use std::{fmt::Write, num::NonZeroUsize, path::PathBuf};

use anyhow::anyhow;
use clap::Args;
use metallic::{
    Device,
    bench::{Kind, Test},
    device::{
        Tuned,
        tuning::{self, Kept, TunedDevice, Tuning, TuningSource},
    },
    tune::{OnDevice, Outcome, Tried, TunePlan, Tunings, tune},
};
use serde_json::{Map, Value, json};

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
pub(crate) struct TuneArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Length of the prompt to measure [default: 512, or what the model's context holds]
    #[arg(short, long, value_name = "N", value_parser = parse_count)]
    prompt: Option<NonZeroUsize>,
    /// Length of the answers to measure, alone and eight side by side
    #[arg(short = 'n', long, value_name = "N", default_value = "32", value_parser = parse_count)]
    generate: NonZeroUsize,
    /// Measure an answer with so many tokens in the cache as well
    #[arg(short, long, value_name = "N", value_parser = parse_count)]
    depth: Option<NonZeroUsize>,
    /// Times each value is measured, in turns with the one in use [default: 5, with --quick 3]
    #[arg(short, long, value_name = "N", value_parser = parse_count)]
    repetitions: Option<NonZeroUsize>,
    /// Only the values next to those in use
    #[arg(long)]
    quick: bool,
    /// Measure and print, but keep nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    instead: Instead,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// What is done instead of measuring.
#[derive(Debug, Args)]
struct Instead {
    /// Forget what was measured on this device
    #[arg(long, conflicts_with_all = ["quick", "dry_run", "list"])]
    reset: bool,
    /// Show the numbers in use on this device, what each is and may be
    #[arg(long, conflicts_with_all = ["quick", "dry_run"])]
    list: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic tune -m ./model.gguf                          measure, and keep what is fastest
  metallic tune -m ./model.gguf --quick --dry-run        a look at what could be gained
  metallic tune --list --device cuda                     the numbers in use
  metallic tune --reset                                  go by what is built in again
  METALLIC_TUNING=off metallic bench                     the same, for one run";

pub(crate) fn run(args: &TuneArgs, ui: Ui) -> anyhow::Result<()> {
    check_device(&args.model.device.device.resolve())?;
    if args.instead.reset {
        return reset(args, ui);
    }
    if args.instead.list {
        let tuned = args.model.device.open()?.tuned;
        let device = opened(args, &tuned)?;
        return list(args, &device, &tuned);
    }
    let mut loaded = load::program(&args.model, false, ui)?;
    let tuned = loaded.open.tuned.clone();
    let device = described(&tuned)?;
    let plan = plan(args, &loaded);
    for test in &plan.tests {
        loaded.check(&[], test.tokens.saturating_add(test.depth))?;
        loaded.check_room(test.tokens.saturating_add(test.depth).saturating_mul(test.sequences))?;
    }
    let source = tuned.source();
    let found = search(&mut loaded, &device, &plan, ui)?;
    let kept = if args.dry_run || found.after == found.before {
        None
    } else {
        let file = file(&device)?;
        let mut kept = Kept::new(&device, &found.after, &args.model.model);
        kept.measured = found.tests.iter().map(|(test, figures)| (test.name(), *figures)).collect();
        kept.write(&file)?;
        if std::env::var_os(tuning::VARIABLE).is_some_and(|value| !value.is_empty()) {
            ui.note(&format!("note: as long as {} is set, what was kept is not used", tuning::VARIABLE));
        }
        Some(file)
    };
    if args.json {
        return term::print_json(&report(args, &device, &found, kept.as_ref()));
    }
    let mut text = format!(
        "{} on {} ({}), which went by {}\n\n",
        args.model.model,
        device.kind,
        device.name,
        origin(&device, &source)
    );
    text.push_str(&table(&found));
    match (&kept, found.after == found.before) {
        (Some(file), _) => writeln!(text, "\nkept in {}", file.display())?,
        (None, true) => writeln!(text, "\nnothing is faster by more than the noise: nothing changes")?,
        (None, false) => writeln!(text, "\nnothing was kept")?,
    }
    Ok(term::print_lines(&text)?)
}

fn search(loaded: &mut Loaded, device: &TunedDevice, plan: &TunePlan, ui: Ui) -> anyhow::Result<Tunings> {
    let (vocab, context) = (loaded.model.config().vocab, loaded.model.config().context);
    let (tuned, providers) = (loaded.open.tuned.clone(), loaded.open.providers.clone());
    let before = tuned.in_use().unwrap_or(device.built_in);
    let bar = ui.steps("tuning", Tuning::FIELDS.len());
    let program = loaded.program.as_mut();
    let mut on = OnDevice { program, vocab, context, tuned, providers };
    Ok(tune(&mut on, before, plan, &mut |what| {
        bar.tell(what);
        bar.advance(1);
    })?)
}

fn plan(args: &TuneArgs, loaded: &Loaded) -> TunePlan {
    let context = loaded.model.config().context;
    let prompt = args.prompt.map_or(context.min(512), NonZeroUsize::get);
    let answer =
        |depth, sequences| Test { kind: Kind::Decode, tokens: args.generate.get(), depth, sequences };
    let mut tests = vec![answer(0, 1), answer(0, 8)];
    tests.extend(args.depth.map(|depth| answer(depth.get(), 1)));
    tests.push(Test { kind: Kind::Prefill, tokens: prompt, depth: 0, sequences: 1 });
    let rounds = args.repetitions.map_or(if args.quick { 3 } else { 5 }, NonZeroUsize::get);
    TunePlan { tests, rounds, quick: args.quick }
}

/// Refuses devices that plan nothing, before anything is loaded.
fn check_device(device: &Device) -> anyhow::Result<()> {
    match device {
        Device::Metal(_) | Device::Cuda(_) | Device::Soft => Ok(()),
        Device::Auto | Device::Cpu | Device::Reference | Device::Null => {
            let reason =
                format!("there is nothing to tune on `{device}`: only plans of GPUs have such numbers");
            Err(Failure::new(reason, "give a GPU (`--device`); `metallic devices` lists them").into())
        }
    }
}

/// The device that was opened.
fn described(tuned: &Tuned) -> anyhow::Result<TunedDevice> {
    tuned.device().ok_or_else(|| anyhow!("the device does not say what it is"))
}

/// Opens the device without a model.
fn opened(args: &TuneArgs, tuned: &Tuned) -> anyhow::Result<TunedDevice> {
    let options = args.model.device.open()?.tuned(tuned.clone());
    args.model.device.device.open_with(&options)?;
    described(tuned)
}

/// The device's file in the cache folder.
fn file(device: &TunedDevice) -> anyhow::Result<PathBuf> {
    let cache = tuning::cache_folder().ok_or_else(|| {
        let reason = "there is no home folder to keep what was measured in";
        Failure::new(reason, "set METALLIC_HOME to a folder")
    })?;
    Ok(tuning::file_of(&cache, device))
}

fn reset(args: &TuneArgs, ui: Ui) -> anyhow::Result<()> {
    // A caller's numbers go before those of the file, which may be what is wrong.
    let tuned = Tuned::new();
    tuned.set(Tuning::DEFAULT)?;
    let file = file(&opened(args, &tuned)?)?;
    let removed = tuning::remove(&file)?;
    if args.json {
        return term::print_json(&json!({ "removed": removed, "file": file.display().to_string() }));
    }
    let what = if removed { "removed" } else { "there is no" };
    ui.note(&format!("{what} {}", file.display()));
    Ok(())
}

/// Where the numbers of a device come from, in words.
pub(crate) fn origin(device: &TunedDevice, source: &TuningSource) -> String {
    match source {
        TuningSource::File(path) => format!("what was measured here ({})", path.display()),
        _ => device.origin.to_string(),
    }
}

fn list(args: &TuneArgs, device: &TunedDevice, tuned: &Tuned) -> anyhow::Result<()> {
    let in_use = tuned.in_use().unwrap_or(device.built_in);
    let origin = origin(device, &tuned.source());
    if args.json {
        let field = |field: &tuning::Field| {
            json!({
                "field": field.name, "about": field.about, "value": field.of(&in_use),
                "built_in": field.of(&device.built_in), "values": field.values,
            })
        };
        let fields: Vec<Value> = Tuning::FIELDS.iter().map(field).collect();
        return term::print_json(&json!({
            "device": device.kind, "device_name": device.name, "system": device.system,
            "origin": origin, "notes": tuned.notes(), "fields": fields,
        }));
    }
    let mut text = format!("{} ({}), {}: {origin}\n", device.kind, device.name, device.system);
    for note in tuned.notes() {
        writeln!(text, "note: {note}")?;
    }
    writeln!(text, "\n{:22} {:>6} {:>9}  {:20} WHAT", "FIELD", "IN USE", "BUILT IN", "VALUES")?;
    for field in Tuning::FIELDS {
        let values: Vec<String> = field.values.iter().map(u32::to_string).collect();
        let (own, built_in) = (field.of(&in_use), field.of(&device.built_in));
        writeln!(text, "{:22} {own:>6} {built_in:>9}  {:20} {}", field.name, values.join(" "), field.about)?;
    }
    Ok(term::print_lines(&text)?)
}

fn percent(ratio: f64) -> String {
    format!("{:+.1}%", (ratio - 1.0) * 100.0)
}

fn table(found: &Tunings) -> String {
    let mut text = format!("{:22} {:>5} {:>5}  GAIN\n", "FIELD", "FROM", "TO");
    for tried in &found.fields {
        let _ =
            writeln!(text, "{:22} {:>5} {:>5}  {}", tried.field.name, tried.from, tried.to, became(tried));
    }
    if found.tests.is_empty() {
        return text;
    }
    let _ = writeln!(text, "\n{:16} {:>12} {:>12} {:>8}", "TEST", "BEFORE t/s", "AFTER t/s", "GAIN");
    for (test, [before, after]) in &found.tests {
        let gain = percent(after / before.max(f64::MIN_POSITIVE));
        let _ = writeln!(text, "{:16} {before:>12.2} {after:>12.2} {gain:>8}", test.name());
    }
    text
}

/// What became of a field's values, in words.
fn became(tried: &Tried) -> String {
    if let Some(ratios) = tried.gain() {
        return ratios.iter().map(|ratio| percent(*ratio)).collect::<Vec<_>>().join(" ");
    }
    let failed = tried.trials.iter().find_map(|trial| match &trial.outcome {
        Outcome::Failed(reason) => Some(format!("{} cannot be: {reason}", trial.value)),
        Outcome::Same | Outcome::Ratios(_) => None,
    });
    let measured = tried.trials.iter().any(|trial| matches!(trial.outcome, Outcome::Ratios(_)));
    let others = if measured { "no other value is faster" } else { "nothing here depends on it" };
    failed.map_or_else(|| others.to_owned(), |failed| format!("{others}; {failed}"))
}

fn report(args: &TuneArgs, device: &TunedDevice, found: &Tunings, kept: Option<&PathBuf>) -> Value {
    let numbers = |tuning: &Tuning| -> Map<String, Value> {
        Tuning::FIELDS.iter().map(|field| (field.name.to_owned(), json!(field.of(tuning)))).collect()
    };
    let trial = |trial: &metallic::tune::Trial| match &trial.outcome {
        Outcome::Same => json!({ "value": trial.value, "changes": false }),
        Outcome::Ratios(ratios) => json!({ "value": trial.value, "changes": true, "ratios": ratios }),
        Outcome::Failed(reason) => json!({ "value": trial.value, "failed": reason }),
    };
    let field = |tried: &Tried| {
        json!({
            "field": tried.field.name, "from": tried.from, "to": tried.to,
            "trials": tried.trials.iter().map(trial).collect::<Vec<_>>(),
        })
    };
    let test = |(test, [before, after]): &(Test, [f64; 2])| json!({ "test": test.name(), "before": before, "after": after });
    json!({
        "model": args.model.model, "device": device.kind, "device_name": device.name, "system": device.system,
        "before": numbers(&found.before), "after": numbers(&found.after),
        "fields": found.fields.iter().map(field).collect::<Vec<_>>(),
        "tests": found.tests.iter().map(test).collect::<Vec<_>>(),
        "kept_in": kept.map(|file| file.display().to_string()),
    })
}

#[cfg(test)]
mod tests {
    use metallic::tune::Trial;

    use super::*;

    #[test]
    fn a_table_says_of_each_field_what_became_of_it_and_what_all_have_gained() {
        let test = Test { kind: Kind::Decode, tokens: 32, depth: 0, sequences: 8 };
        let tried = |index: usize, to: u32, outcome: Outcome| {
            let (field, from) = (&Tuning::FIELDS[index], 4);
            Tried { field, from, to, trials: vec![Trial { value: 8, outcome }] }
        };
        let found = Tunings {
            before: Tuning::DEFAULT,
            after: Tuning { cell_groups: 4, ..Tuning::DEFAULT },
            fields: vec![
                tried(0, 8, Outcome::Ratios(vec![1.0312, 0.999])),
                tried(1, 4, Outcome::Ratios(vec![0.5, 1.0])),
                tried(2, 4, Outcome::Same),
                tried(3, 4, Outcome::Failed("too wide".to_owned())),
            ],
            tests: vec![(test, [200.0, 210.0])],
        };
        let lines: Vec<String> =
            table(&found).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let name = |index: usize| Tuning::FIELDS[index].name;
        assert_eq!(
            lines,
            [
                "FIELD FROM TO GAIN".to_owned(),
                format!("{} 4 8 +3.1% -0.1%", name(0)),
                format!("{} 4 4 no other value is faster", name(1)),
                format!("{} 4 4 nothing here depends on it", name(2)),
                format!("{} 4 4 nothing here depends on it; 8 cannot be: too wide", name(3)),
                String::new(),
                "TEST BEFORE t/s AFTER t/s GAIN".to_owned(),
                "tg32x8 200.00 210.00 +5.0%".to_owned(),
            ]
        );
    }
}
