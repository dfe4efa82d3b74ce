//! `metallic diff`: the first operation where two ways of computing part.

use std::{fmt::Write, path::PathBuf};

use clap::Args;
use metallic::{
    Model,
    diff::{self, OpReport, OpenWay, Report, Run, SaveOptions, SavedRun, Way, What},
    model::{FAMILIES, ModelOptions},
};

use crate::{
    commands::{MODEL_HELP, options::Ids},
    fail::{Differs, Failure},
    hub::DEFAULT_MODEL,
    load,
    term::{self, Ui, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{WAYS}\n\n{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct DiffArgs {
    /// One way of computing: a device, then options, as `cpu,exact` or `soft,kv=f32` (--help lists them)
    #[arg(value_name = "A")]
    a: Way,
    /// The other way; not with --save and --against
    #[arg(value_name = "B", required_unless_present_any = ["save", "against"], conflicts_with_all = ["save", "against"])]
    b: Option<Way>,
    /// Alias, OWNER/REPO[:FILE|:QUANT], GGUF file or folder
    #[arg(short, long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Another file of the same architecture for B
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["save", "against"])]
    model_b: Option<String>,
    /// Text to compute in one step [default: a sentence; with --against what was saved]
    #[arg(short, long, value_name = "TEXT", conflicts_with = "tokens")]
    prompt: Option<String>,
    /// Token ids in its place: `1,2,3`
    #[arg(long, value_name = "IDS")]
    tokens: Option<Ids>,
    /// Steps of one token after it, the same ones on both sides [default: 2]
    #[arg(short, long, value_name = "N", conflicts_with = "against")]
    steps: Option<usize>,
    #[command(flatten)]
    folder: FolderOptions,
    /// Every operation, not the worst of each layer alone
    #[arg(long)]
    all: bool,
    /// Print the report as JSON
    #[arg(long, conflicts_with = "save")]
    json: bool,
}

/// Runs that are kept in folders.
#[derive(Debug, Args)]
struct FolderOptions {
    /// Run A and save what every operation makes, to compare with elsewhere
    #[arg(long, value_name = "FOLDER", conflicts_with = "against")]
    save: Option<PathBuf>,
    /// Save 32-bit numbers instead of halves
    #[arg(long, requires = "save")]
    full: bool,
    /// Compare A with a run that was saved
    #[arg(long, value_name = "FOLDER")]
    against: Option<PathBuf>,
}

const WAYS: &str = "\
A way is a device (auto, cpu, metal, cuda, soft, reference, null), then any of
  exact                      32 bits throughout on the CPU
  unfused                    every operation by itself
  kv=TYPE                    keys and values as f32, f16 (the default), bf16 or q8_0
  activations=TYPE           f32 (the default), f16 or bf16
  threads=N                  of devices on the processor
  provider=OP=NAME           kernels of a GPU, as `--provider` of other commands
  tuning=off|FILE|FIELD=N    what plans of a GPU go by, as `metallic tune` keeps it";

const EXAMPLES: &str = "\
Examples:
  metallic diff -m ./model.gguf cpu,exact soft           the kernels for Metal against the processor
  metallic diff -m ./model.gguf metal metal,provider=sdpa=plain
  metallic diff -m ./a.gguf --model-b ./b.gguf cpu cpu   two files
  metallic diff -m ./model.gguf --save run cpu,exact     on one machine,
  metallic diff -m ./model.gguf --against run metal      and on another

Every result is computed again by the reference from the inputs that side had: what an operation introduces is told from what it inherits.
Exit code: 0 where rounding explains everything, 1 where the ways differ, 2 for an error.";

/// What is run where nothing is given.
const SENTENCE: &str = "The quick brown fox jumps over the lazy dog.";

pub(crate) fn run(args: &DiffArgs, ui: Ui) -> anyhow::Result<()> {
    let model = open(&args.model, ui)?;
    let a = args.a.open()?;
    if let Some(folder) = &args.folder.save {
        let run = planned(args, &model, ui)?;
        let options = if args.folder.full { SaveOptions::FULL } else { SaveOptions::HALF };
        let bytes = diff::saved_bytes(&model, &a.way, &run, options)?;
        ui.note(&format!("saving about {} to {}", size(bytes), folder.display()));
        let written = diff::save(&a, &model, &run, options, folder)?;
        ui.note(&format!("saved {} of values of `{}`", size(written), a.way));
        return Ok(());
    }
    let report = match (&args.folder.against, &args.b) {
        (Some(folder), _) => {
            let mut saved = SavedRun::open(folder)?;
            if let Some(tokens) = asked(args, &model)? {
                saved.check_tokens(&tokens)?;
            }
            let _spinner = ui.spinner("comparing");
            diff::diff_saved(&a.side(&model), &mut saved)?
        }
        (None, Some(b)) => compare(args, &model, &a, b, ui)?,
        (None, None) => {
            return Err(Failure::new("there is no second way", "give one, or `--against FOLDER`").into());
        }
    };
    load::tell(&a.way.open, ui);
    if args.json {
        term::print_json(&report)?;
    } else {
        term::print_lines(&table(&report, args.all)?)?;
    }
    if report.verdict.is_clean() { Ok(()) } else { Err(Differs.into()) }
}

fn compare(args: &DiffArgs, model: &Model, a: &OpenWay, b: &Way, ui: Ui) -> anyhow::Result<Report> {
    let b = b.open()?;
    let other = args.model_b.as_ref().map(|other| open(other, ui)).transpose()?;
    let run = planned(args, model, ui)?;
    let spinner = ui.spinner("comparing");
    let report = diff::diff(&a.side(model), &b.side(other.as_ref().unwrap_or(model)), &run)?;
    drop(spinner);
    load::tell(&b.way.open, ui);
    Ok(report)
}

fn open(name: &str, ui: Ui) -> anyhow::Result<Model> {
    let path = load::path(name, ui)?;
    let _spinner = ui.spinner(&format!("loading {}", path.display()));
    Model::open_with(&path, FAMILIES, &ModelOptions::default())
        .map_err(|error| load::repairable(name, error.into()))
}

/// The tokens that were given, as text or ids.
fn asked(args: &DiffArgs, model: &Model) -> anyhow::Result<Option<Vec<u32>>> {
    if let Some(Ids(tokens)) = &args.tokens {
        load::check_ids(tokens, model.config().vocab)?;
        return Ok(Some(tokens.clone()));
    }
    let Some(prompt) = &args.prompt else { return Ok(None) };
    let Some(tokenizer) = model.tokenizer()? else {
        let reason = "the model has no tokenizer, so there is no text to give it";
        return Err(Failure::new(reason, "give ids: `--tokens 1,2,3`").into());
    };
    Ok(Some(tokenizer.encode(prompt, true, true)?))
}

fn planned(args: &DiffArgs, model: &Model, ui: Ui) -> anyhow::Result<Run> {
    let steps = args.steps.unwrap_or(2);
    if let Some(tokens) = asked(args, model)? {
        return Ok(Run { tokens, steps });
    }
    let tokens = if let Some(tokenizer) = model.tokenizer()? {
        tokenizer.encode(SENTENCE, true, true)?
    } else {
        ui.note("note: the model has no tokenizer; tokens 1 to 8 are run");
        (1..9u32.min(model.config().vocab as u32)).collect()
    };
    Ok(Run { tokens, steps })
}

/// The verdict, then the worst operation of each layer, or all of them.
fn table(report: &Report, all: bool) -> anyhow::Result<String> {
    let [a, b] = &report.sides;
    let mut text = format!("{}\n\n", report.verdict);
    let tokens: usize = report.tokens.iter().map(Vec::len).sum();
    let same = report.same_choice.iter().filter(|same| **same).count();
    writeln!(
        text,
        "{a} against {b}: {} results of {tokens} tokens in {} steps; the same best token after {same} of {}\n",
        report.compared,
        report.tokens.len(),
        report.same_choice.len(),
    )?;
    writeln!(
        text,
        "{:>5}  {:<34} {:>4}  {:>9}  {:>9}  {:>10}  {:>9}  {:>9}",
        "layer", "operation", "step", "largest", "relative", "1 - cosine", "A / bound", "B / bound"
    )?;
    let shown: Vec<&OpReport> = if all { report.ops.iter().collect() } else { worst(&report.ops) };
    for op in shown {
        let layer = op.layer.map_or_else(|| "-".to_owned(), |layer| layer.to_string());
        let units =
            |side: usize| op.errors[side].as_ref().map_or("-".to_owned(), |e| format!("{:.3}", e.tight));
        let figures = op.figures.as_ref().map(|f| (f.absolute, f.relative, (1.0 - f.cosine).max(0.0)));
        let figure = |of: fn((f64, f64, f64)) -> f64| {
            figures.map_or("-".to_owned(), |figures| format!("{:.2e}", of(figures)))
        };
        writeln!(
            text,
            "{layer:>5}  {:<34} {:>4}  {:>9}  {:>9}  {:>10}  {:>9}  {:>9}",
            named(op),
            op.step,
            figure(|f| f.0),
            figure(|f| f.1),
            figure(|f| f.2),
            units(0),
            units(1),
        )?;
    }
    Ok(text)
}

fn named(op: &OpReport) -> String {
    let what = match op.what {
        What::Output => "",
        What::Keys => " keys",
        What::Values => " values",
    };
    if op.part.is_empty() { op.name() + what } else { format!("{}{what} {}", op.name(), op.part) }
}

/// Of each layer the result that is furthest off what rounding explains.
fn worst(ops: &[OpReport]) -> Vec<&OpReport> {
    let off = |op: &OpReport| op.errors.iter().flatten().map(|error| error.tight).fold(0.0, f64::max);
    let mut found: Vec<&OpReport> = Vec::new();
    for op in ops {
        match found.iter_mut().find(|known| known.layer == op.layer) {
            Some(known) if off(op) > off(known) => *known = op,
            Some(_) => {}
            None => found.push(op),
        }
    }
    found
}
