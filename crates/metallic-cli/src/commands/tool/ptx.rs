//! `tool ptx`: the kernels a model needs on an NVIDIA GPU, for a machine that has one and no compiler.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;
use metallic::{
    Model,
    core::{CompileOptions, DType},
    device,
};

use crate::{
    commands::options::{KV_TYPES, one_of},
    hub::DEFAULT_MODEL,
    load,
    term::Ui,
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PtxArgs {
    /// Alias, OWNER/REPO[:FILE|:QUANT], GGUF file or folder
    #[arg(short, long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Where the kernels go; `metallic-ptx` beside the program, or the folder that METALLIC_PTX names, is where it finds them
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
    /// Compute capability of the GPU times ten; kernels for 80 run on everything since
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u32).range(70..200))]
    capability: u32,
    /// Multiprocessors of the GPU, which some kernels are cut to; 132 are an H100's and an H200's
    #[arg(long, default_value = "132")]
    units: NonZeroU32,
    /// Type of the cached keys and values
    #[arg(long, value_parser = one_of(&KV_TYPES), ignore_case = true, default_value = "f16")]
    kv_type: DType,
}

const EXAMPLES: &str = "\
Examples:
  metallic tool ptx -m smollm2 -o metallic-ptx
  METALLIC_PTX=metallic-ptx metallic run --device cuda \"Why is the sky blue?\"";

pub(super) fn run(args: &PtxArgs, ui: Ui) -> anyhow::Result<()> {
    let path = load::path(&args.model, ui)?;
    let spinner = ui.spinner(&format!("translating the kernels of {}", path.display()));
    let model = Model::open(&path)?;
    let backend = device::ptx_rehearsal(&args.out, args.capability, args.units.get())?;
    // A program is made with every kernel its steps will need.
    model.compile(backend.as_ref(), CompileOptions::kv(args.kv_type))?;
    drop(spinner);
    let files = std::fs::read_dir(&args.out).map_or(0, Iterator::count);
    ui.note(&format!("{files} kernels in {}", args.out.display()));
    Ok(())
}
