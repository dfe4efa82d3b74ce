//! `tool quantize`: a GGUF file with its weight matrices in another type.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context;
use clap::Args;
use metallic::{
    core::{Bytes, DType, quant},
    formats::{Gguf, GgufWriter, Tensor},
};
use serde_json::json;

use crate::{
    commands::options::one_of,
    fail::Failure,
    interrupt::{self, Listener},
    load,
    term::{self, Ui, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuantizeArgs {
    /// The GGUF file to read
    #[arg(short, long)]
    model: String,
    /// The type of the new weights
    #[arg(short, long, value_parser = one_of(&TYPES), ignore_case = true)]
    r#type: (DType, u32),
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    /// The GGUF file to write
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  metallic tool quantize -m model-f16.gguf -t q8_0 model-q8_0.gguf
  metallic tool quantize -m model-q8_0.gguf -t f16 --force model-f16.gguf

Matrices whose rows fill the blocks of the type are encoded anew; all else stays as it is.";

/// What can be written: each type with the number by which `general.file_type` calls a file of it.
const TYPES: [(&str, (DType, u32)); 8] = [
    ("q8_0", (DType::Q8_0, 7)),
    ("q4_0", (DType::Q4_0, 2)),
    ("q4_1", (DType::Q4_1, 3)),
    ("q5_0", (DType::Q5_0, 8)),
    ("q5_1", (DType::Q5_1, 9)),
    ("f16", (DType::F16, 1)),
    ("bf16", (DType::BF16, 32)),
    ("f32", (DType::F32, 0)),
];

/// The layout of quantised blocks that every reader of today knows.
const QUANTIZATION_VERSION: u32 = 2;
/// Elements encoded between two looks at Ctrl-C.
const CHUNK: usize = 1 << 20;

pub(super) fn run(args: &QuantizeArgs, ui: Ui) -> anyhow::Result<()> {
    let replaces = args.out.exists();
    if replaces && !args.force {
        let reason = format!("`{}` is there already", args.out.display());
        return Err(Failure::new(reason, "give another name, or `--force` to write over it").into());
    }
    let path = load::path(&args.model, ui)?;
    if path.is_dir() {
        let reason = format!("`{}` is a folder", path.display());
        return Err(Failure::new(reason, "only GGUF files can be quantised").into());
    }
    let file = Gguf::open(&path)?;
    let _listener = Listener::new();
    let (dtype, file_type) = args.r#type;
    let mut writer = GgufWriter::with_metadata(file.metadata.clone());
    writer.insert("general.file_type", file_type);
    if dtype.is_quantized() {
        writer.insert("general.quantization_version", QUANTIZATION_VERSION);
    }
    let bar = ui.steps("tensors", file.tensors().count());
    let (mut before, mut after) = (0, 0);
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in file.tensors() {
        interrupt::check()?;
        let new = encoded(tensor, dtype)?;
        before += tensor.data.len() as u64;
        after += new.data.len() as u64;
        *types.entry(new.dtype.name()).or_default() += 1;
        writer.add(new)?;
        bar.advance(1);
    }
    drop(bar);
    let spinner = ui.spinner(&format!("writing {}", args.out.display()));
    writer.write(&args.out)?;
    drop(spinner);
    // Whoever pressed Ctrl-C does not want the file. Where one was there, it is gone already, and may have been the source:
    // a whole file is better than none.
    if interrupt::check().is_err() && !replaces {
        fs::remove_file(&args.out).with_context(|| format!("cannot remove `{}`", args.out.display()))?;
    }
    interrupt::check()?;
    if args.json {
        return term::print_json(&json!({
            "path": args.out, "bytes_before": before, "bytes_after": after, "tensors": types,
        }));
    }
    let kinds: Vec<String> = types.iter().map(|(name, count)| format!("{count} {name}")).collect();
    ui.note(&format!("{} → {} ({})", size(before), size(after), kinds.join(", ")));
    Ok(term::print(&format!("{}\n", args.out.display()))?)
}

/// The tensor in the new type, or as it is where it is no matrix of numbers or its rows do not fill blocks.
fn encoded(tensor: &Tensor, dtype: DType) -> anyhow::Result<Tensor> {
    let is_number = !matches!(tensor.dtype, DType::I32 | DType::U32);
    let &[_, columns] = tensor.shape.as_slice() else { return Ok(tensor.clone()) };
    if !is_number || tensor.dtype == dtype || !columns.is_multiple_of(dtype.block_len()) {
        return Ok(tensor.clone());
    }
    let failed = || format!("tensor `{}`", tensor.name);
    let row_in = tensor.dtype.bytes_for(columns).with_context(failed)?;
    let rows = (CHUNK / columns.max(1)).max(1);
    let mut values = vec![0.0; rows * columns];
    let mut data = Vec::new();
    for chunk in tensor.data.chunks(row_in * rows) {
        interrupt::check()?;
        let values = &mut values[..chunk.len() / row_in * columns];
        quant::dequantize(tensor.dtype, chunk, values).with_context(failed)?;
        let start = data.len();
        data.resize(start + dtype.bytes_for(values.len()).with_context(failed)?, 0);
        quant::quantize(dtype, values, &mut data[start..]).with_context(failed)?;
    }
    Ok(Tensor { name: tensor.name.clone(), dtype, shape: tensor.shape.clone(), data: Bytes::from(data) })
}
