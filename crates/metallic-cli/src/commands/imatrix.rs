//! `metallic imatrix`: the importance of the columns of a model's matrices.

use std::{fs, num::NonZeroUsize, path::PathBuf, time::Instant};

use anyhow::Context;
use clap::Args;
use metallic::{
    Model,
    model::FAMILIES,
    quantize::{Gathered, Gathering, QuantizeError, gather},
};
use serde_json::json;

use crate::{
    commands::{
        MODEL_HELP,
        options::{DeviceOptions, parse_count},
    },
    fail::Failure,
    interrupt::{self, Listener},
    load,
    term::{self, Bar, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct ImatrixArgs {
    /// The model, a GGUF file or a name: best the one that will be quantised
    #[arg(value_name = "MODEL")]
    model: String,
    /// A text like those the model will meet; some hundred kB do
    #[arg(value_name = "TEXT")]
    text: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value = "512", value_parser = parse_count)]
    ctx: NonZeroUsize,
    /// Stop after this many windows
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_chunks: Option<NonZeroUsize>,
    #[command(flatten)]
    device: DeviceOptions,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic imatrix model-f16.gguf text.txt -o model.imatrix
  metallic imatrix model-f16.gguf text.txt -o model.imatrix --max-chunks 50
  metallic quantize model-f16.gguf small.gguf --type IQ4_XS --imatrix model.imatrix";

pub(crate) fn run(args: &ImatrixArgs, ui: Ui) -> anyhow::Result<()> {
    if args.out.exists() && !args.force {
        let reason = format!("`{}` is there already", args.out.display());
        return Err(Failure::new(reason, "give another name, or `--force` to write over it").into());
    }
    let bytes = fs::read(&args.text).with_context(|| format!("cannot read `{}`", args.text.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let path = load::path(&args.model, ui)?;
    let model = Model::open_with(&path, FAMILIES, &args.device.read())?;
    let tokenizer = model.tokenizer()?;
    let tokenizer =
        tokenizer.ok_or_else(|| metallic::Error::NoTokenizer { path: path.display().to_string() })?;
    let backend = args.device.device.open_with(&args.device.open()?)?;
    let ctx = args.ctx.get();
    let mut tokens = tokenizer.encode(&text, true, false)?;
    let windows = (tokens.len() / ctx).min(args.max_chunks.map_or(usize::MAX, NonZeroUsize::get));
    if windows > 0 {
        tokens.truncate(windows * ctx);
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let begin = Instant::now();
    let sums = {
        let _listener = Listener::new();
        let mut bar: Option<Bar> = None;
        let mut progress = |n: usize| {
            match &bar {
                Some(bar) => bar.advance(n as u64),
                None => bar = Some(ui.steps("windows", n)),
            }
            interrupt::check().is_ok()
        };
        let gathered =
            gather(&model, backend.as_ref(), Gathering { tokens: &tokens, ctx, bos }, &mut progress);
        if let Err(QuantizeError::Stopped) = gathered {
            interrupt::check()?;
        }
        gathered?
    };
    let seconds = begin.elapsed().as_secs_f64();
    let matrices = sums.len();
    let dataset = args.text.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Gathered { sums, dataset, chunks: windows, chunk_size: ctx }.write(&args.out)?;
    if args.json {
        return term::print_json(&json!({
            "path": args.out, "matrices": matrices, "chunks": windows, "tokens": tokens.len(), "seconds": seconds,
        }));
    }
    let tokens = tokens.len();
    ui.note(&format!("{matrices} matrices, {tokens} tokens in {windows} windows, {seconds:.1} s"));
    Ok(term::print_output(&format!("{}\n", args.out.display()))?)
}
