//! `tool ptx`: kernels for NVIDIA GPUs, for machines that have one and no compiler.

mod shapes;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Instant,
};

use anyhow::Context;
use clap::Args;
use metallic::{
    Model,
    core::{Backend, CompileOptions, DType},
    device::{
        self,
        ptx::{Asked, Translated, rehearsals, translate},
    },
    quantize::Mixture,
};
use metallic_testkit::{Plan, Report, Results, graphs, run_all};

use self::shapes::SHAPES;
use crate::{
    commands::options::{KV_TYPES, one_of},
    fail::Failure,
    hub::DEFAULT_MODEL,
    load,
    term::{Ui, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PtxArgs {
    /// Alias, OWNER/REPO[:FILE|:QUANT], GGUF file or folder; may be given several times [default: smollm2, where neither
    /// --known nor --ops is given]
    #[arg(short, long)]
    model: Vec<String>,
    /// What models of known shapes need, which need not be here: every model with an alias, and Qwen3 up to 14B
    #[arg(long)]
    known: bool,
    /// Mixtures of types in which known shapes are taken, as `quantize` names them [default: all]
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',', value_parser = parse_mixture, requires = "known")]
    types: Vec<Mixture>,
    /// What `metallic tool ops` needs, for all cases or for those with TEXT in their name
    #[arg(long, value_name = "TEXT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    ops: Option<String>,
    /// Where the kernels go; `metallic-ptx` beside the program, or the folder that METALLIC_PTX names, is where it finds them. What
    /// lies there already is not made again
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
    /// Compute capabilities of the GPUs times ten; kernels for 80 run on everything since, those for 90 begin earlier
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "80", value_parser = clap::value_parser!(u32).range(70..200))]
    capability: Vec<u32>,
    /// Multiprocessors of the GPUs, which some kernels are cut to; 132 are an H100's and an H200's
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "132")]
    units: Vec<NonZeroU32>,
    /// Types of the cached keys and values
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',', value_parser = one_of(&KV_TYPES), ignore_case = true, default_value = "f16")]
    kv_type: Vec<DType>,
    /// Kernels that are translated at the same time [default: one per core]
    #[arg(short, long)]
    threads: Option<NonZeroUsize>,
    /// Say how many kernels there are, and translate none
    #[arg(long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
A kernel is made for the types of weights it reads, the type of the cache, the length of heads and what is fused with it. So a bundle
serves the models it was made from and those that differ from them in none of this; a kernel that is not there is named in the error,
and `-m` adds what its model needs. Numbers that `metallic tune` found may ask for kernels that are in no bundle.

Examples:
  metallic tool ptx -m smollm2 -o metallic-ptx
  metallic tool ptx --known --types q4_k_m,q8_0 --capability 80,90 -o metallic-ptx
  METALLIC_PTX=metallic-ptx metallic run --device cuda \"Why is the sky blue?\"";

fn parse_mixture(name: &str) -> Result<Mixture, String> {
    name.parse()
}

pub(super) fn run(args: &PtxArgs, ui: Ui) -> anyhow::Result<()> {
    let asked = Asked::new();
    let begun = Instant::now();
    for backend in backends(args, &asked)? {
        ask(args, backend.as_ref(), ui)?;
    }
    let planned = begun.elapsed().as_secs_f64();
    ui.note(&format!("{} kernels, planned in {planned:.1} s", asked.len()));
    if args.dry_run {
        return Ok(());
    }
    let threads = args.threads.map_or_else(device::cores, NonZeroUsize::get);
    let begun = Instant::now();
    let Translated { made, found, bytes } = {
        let bar = ui.steps("kernels", asked.len() * args.capability.len());
        translate(&asked, &args.out, &args.capability, threads, &|done, _| bar.set(done as u64))?
    };
    let seconds = begun.elapsed().as_secs_f64();
    ui.note(&format!(
        "{} kernels, {}, in {}: {made} made in {seconds:.1} s, {found} were there",
        made + found,
        size(bytes),
        args.out.display()
    ));
    Ok(())
}

/// Devices that plan as those GPUs do. Plans differ where there are matrix units, not from one capability that has them to the next.
fn backends(args: &PtxArgs, asked: &Asked) -> anyhow::Result<Vec<Box<dyn Backend>>> {
    const UNITS_SINCE: u32 = 80;
    let mut classes: Vec<u32> = args.capability.iter().map(|sm| (*sm).min(UNITS_SINCE)).collect();
    classes.sort_unstable();
    classes.dedup();
    let mut all = Vec::new();
    for (capability, units) in classes.iter().flat_map(|sm| args.units.iter().map(move |units| (*sm, *units)))
    {
        all.extend(rehearsals(asked, capability, units.get())?);
    }
    Ok(all)
}

/// Compiles everything that is wanted: a program is made with every kernel its steps will need.
fn ask(args: &PtxArgs, backend: &dyn Backend, ui: Ui) -> anyhow::Result<()> {
    let compile = |model: &Model| -> anyhow::Result<()> {
        for kv in &args.kv_type {
            model.compile(backend, CompileOptions::kv(*kv)).map(drop)?;
        }
        Ok(())
    };
    let nothing = args.model.is_empty() && !args.known && args.ops.is_none();
    let default = nothing.then(|| DEFAULT_MODEL.to_owned());
    for name in args.model.iter().chain(&default) {
        let path = load::path(name, ui)?;
        let _spinner = ui.spinner(&format!("planning {}", path.display()));
        compile(&Model::open(&path)?).with_context(|| path.display().to_string())?;
    }
    if args.known {
        let mixtures: Vec<Mixture> =
            if args.types.is_empty() { Mixture::all().copied().collect() } else { args.types.clone() };
        let bar = ui.steps("shapes", SHAPES.len() * mixtures.len());
        for (shape, mixture) in SHAPES.iter().flat_map(|shape| mixtures.iter().map(move |m| (shape, m))) {
            let what = || format!("{} as {}", shape.name, mixture.name);
            bar.tell(&what());
            let file = shape.file(mixture).with_context(what)?;
            compile(&Model::open(file.path())?).with_context(what)?;
            bar.advance(1);
        }
    }
    args.ops.as_ref().map_or(Ok(()), |only| ask_for_ops(backend, only, ui))
}

/// Runs the cases on a device that computes nothing: every step of them is planned, and what comes out is not looked at.
fn ask_for_ops(backend: &dyn Backend, only: &str, ui: Ui) -> anyhow::Result<()> {
    let _spinner = ui.spinner("planning the cases of every operation");
    let plan = Plan { only, results: Results::Unread, ..Plan::default() };
    let Report { passed, failed } = run_all(backend, &plan).and(graphs::run_long(backend, &plan));
    let all = passed + failed.len();
    if all == 0 {
        let reason = format!("no case has `{only}` in its name");
        return Err(Failure::new(reason, "`--ops` alone takes all of them").into());
    }
    if let Some(first) = failed.first() {
        anyhow::bail!("{} of {all} cases cannot be planned, the first of them {first}", failed.len());
    }
    Ok(())
}
