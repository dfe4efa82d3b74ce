//! `metallic quantize`: a model as a GGUF file with its matrices in another type.

use std::{collections::BTreeMap, num::NonZeroUsize, path::PathBuf, thread, time::Instant};

use clap::Args;
use metallic::{
    core::DType,
    quantize::{Importance, Input, Mixture, Plan, Planned, QuantizeError, QuantizeOptions},
};
use serde_json::json;

use crate::{
    commands::{MODEL_HELP, options::parse_count},
    fail::Failure,
    interrupt::{self, Listener},
    load,
    term::{self, Ui, size},
};

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of the command line")]
#[command(after_help = EXAMPLES, after_long_help = format!("{TYPES}\n\n{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct QuantizeArgs {
    /// The model to read: a GGUF file, a folder of safetensors, or a name
    #[arg(value_name = "IN")]
    model: String,
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// What its matrices become; `--help` lists the types
    #[arg(long, value_name = "TYPE", value_parser = str::parse::<Mixture>)]
    r#type: Mixture,
    /// An importance matrix, as `metallic imatrix` makes it: errors count by what they do
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Give all matrices the same type
    #[arg(long)]
    pure: bool,
    /// The type of the output matrix, or of the embedding table where that serves as one
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    output_type: Option<DType>,
    /// The type of the embedding table
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    embedding_type: Option<DType>,
    /// Threads [default: one per core]
    #[arg(short, long, value_parser = parse_count)]
    threads: Option<NonZeroUsize>,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// Show what would be done, tensor by tensor, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

const TYPES: &str = "\
TYPE, and bits that a number of most matrices takes
  Q8_0                       8.5     hardly to be told from F16
  Q6_K                       6.6
  Q5_K_M, Q5_K_S             5.5     _M: more for what makes values and leaves layers
  Q4_K_M, Q4_K_S             4.5     Q4_K_M is what most take
  Q3_K_L, Q3_K_M, Q3_K_S     3.4
  Q2_K                       2.6     for large models alone
  IQ4_NL, IQ4_XS             4.5, 4.3  uneven levels; best with an importance matrix
  Q4_0, Q4_1, Q5_0, Q5_1     4.5, 5, 5.5, 6  older, plain, fast everywhere
  MXFP4                      4.3     for experts; all else becomes Q8_0
  F16, BF16, F32             16, 16, 32
Rows that do not fill the blocks of a type get another that fits, which is said.
Norms, biases, routers and small tables stay as they are.";

const EXAMPLES: &str = "\
Examples:
  metallic quantize model-f16.gguf model-q4.gguf --type Q4_K_M
  metallic quantize ./Llama-3.2-1B llama.gguf --type Q8_0
  metallic quantize model-f16.gguf small.gguf --type IQ4_XS --imatrix model.imatrix
  metallic quantize model-f16.gguf q6.gguf --type Q6_K --embedding-type Q4_K --dry-run";

/// A type by its name, of those that numbers can be encoded as.
fn parse_dtype(name: &str) -> Result<DType, String> {
    let known = || DType::all().filter(|dtype| dtype.is_float() || dtype.is_quantized());
    known().find(|dtype| dtype.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names: Vec<_> = known().map(DType::name).collect();
        format!("known are {}", names.join(", "))
    })
}

pub(crate) fn run(args: &QuantizeArgs, ui: Ui) -> anyhow::Result<()> {
    if args.out.exists() && !args.force && !args.dry_run {
        let reason = format!("`{}` is there already", args.out.display());
        return Err(Failure::new(reason, "give another name, or `--force` to write over it").into());
    }
    let path = load::path(&args.model, ui)?;
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = QuantizeOptions {
        pure: args.pure,
        output: args.output_type,
        embedding: args.embedding_type,
        importance: args.imatrix.as_deref().map(Importance::open).transpose()?,
        ..QuantizeOptions::new(args.r#type, args.threads.unwrap_or(cores))
    };
    let input = Input::open(&path)?;
    for note in input.notes() {
        ui.note(&format!("note: {note}"));
    }
    let plan = Plan::new(input, options)?;
    let requantized = plan.requantized();
    if requantized > 0 {
        ui.note(&format!(
            "note: requantising: {requantized} matrices of `{}` are quantised already and lose precision again; \
             the original weights give a better file",
            path.display()
        ));
    }
    let begin = Instant::now();
    if !args.dry_run {
        write(&plan, args, ui)?;
    }
    tell(&plan, args, begin.elapsed().as_secs_f64(), ui)
}

fn write(plan: &Plan, args: &QuantizeArgs, ui: Ui) -> anyhow::Result<()> {
    let _listener = Listener::new();
    let bar = ui.bar(&format!("quantising to {}", args.r#type.name), Some(plan.bytes().0));
    let progress = |bytes: u64| {
        bar.advance(bytes);
        interrupt::check().is_ok()
    };
    let written = plan.write(&args.out, &progress);
    drop(bar);
    if let Err(QuantizeError::Stopped) = written {
        interrupt::check()?;
    }
    Ok(written?)
}

/// The summary.
fn tell(plan: &Plan, args: &QuantizeArgs, seconds: f64, ui: Ui) -> anyhow::Result<()> {
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in plan.tensors() {
        *types.entry(tensor.to.name()).or_default() += 1;
    }
    let (before, after) = plan.bytes();
    let bits = plan.bits_per_weight();
    if args.json {
        let fallback =
            |t: &Planned| json!({"tensor": t.name, "wanted": t.wanted.name(), "type": t.to.name()});
        return term::print_json(&json!({
            "path": args.out,
            "type": args.r#type.name,
            "bytes_before": before,
            "bytes_after": after,
            "bits_per_weight": bits,
            "seconds": seconds,
            "tensors": types,
            "requantized": plan.requantized(),
            "fallbacks": plan.fallbacks().map(fallback).collect::<Vec<_>>(),
        }));
    }
    if args.dry_run {
        let line = |t: &Planned| format!("{:<40} {:?} {} → {}\n", t.name, t.shape, t.from, t.to);
        term::print_lines(&plan.tensors().iter().map(line).collect::<String>())?;
    }
    let mut fallbacks: BTreeMap<(&str, &str, usize), usize> = BTreeMap::new();
    for t in plan.fallbacks() {
        let columns = t.shape.last().copied().unwrap_or_default();
        *fallbacks.entry((t.wanted.name(), t.to.name(), columns)).or_default() += 1;
    }
    for ((wanted, found, columns), count) in fallbacks {
        ui.note(&format!(
            "note: rows of {columns} do not fill blocks of {wanted}: {} instead",
            if count == 1 { format!("1 matrix is {found}") } else { format!("{count} matrices are {found}") }
        ));
    }
    let kinds: Vec<String> = types.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let did = if args.dry_run { String::new() } else { format!(", {seconds:.1} s") };
    ui.note(&format!(
        "{} → {}, {bits:.2} bits per weight ({}){did}",
        size(before),
        size(after),
        kinds.join(", ")
    ));
    if args.dry_run { Ok(()) } else { Ok(term::print_output(&format!("{}\n", args.out.display()))?) }
}
