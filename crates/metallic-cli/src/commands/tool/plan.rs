//! `tool plan`: what a device would do for a step of a model.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;
use metallic::{
    Model,
    core::Backend,
    device::KnownDevice,
    model::FAMILIES,
    plan::{Plan, Shown, StepSpec},
};

use crate::{
    commands::{
        MODEL_HELP,
        options::{ModelOptions, parse_count},
    },
    fail::Failure,
    load, plan_dump,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Tokens of the step: 1 for an answer, more for a piece of a prompt
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_count)]
    tokens: NonZeroUsize,
    /// Tokens in the cache before them
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Plan as for this device, which need not be here: `m4`, `M2 Max`, `h200`
    #[arg(long = "as", value_name = "NAME", value_parser = KnownDevice::named, conflicts_with = "device")]
    planned_as: Option<KnownDevice>,
    /// This layer alone
    #[arg(long, value_name = "L")]
    layer: Option<u32>,
    /// Every layer, also those that are like another, and every weight
    #[arg(long, conflicts_with = "layer")]
    all: bool,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Draw a layer into this file, and print nothing unless `--json` is given: that of `--layer`, else the one that stands for most
    /// others
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Nothing is computed and no weight is read. docs/plans.md says how to read the output.

Examples:
  metallic tool plan -m smollm2 --as m4                      what a Mac would do for a token
  metallic tool plan -m MODEL --as h200 --tokens 512         an H200, for a piece of a prompt
  metallic tool plan -m MODEL --device cpu                   graph, places, and what weights are packed into
  metallic tool plan -m MODEL --as m4 --svg layer.svg        a picture of one layer
  METALLIC_DUMP_GRAPH_PLAN=1 metallic run \"Why?\"             the plan of any command that loads a model";

pub(super) fn run(args: &PlanArgs, ui: Ui) -> anyhow::Result<()> {
    let path = load::path(&args.model.model, ui)?;
    let options = load::merged(&args.model);
    let model = Model::open_with(&path, FAMILIES, &options)
        .map_err(|error| load::repairable(&args.model.model, error.into()))?;
    let open = args.model.device.open()?;
    let backend = match &args.planned_as {
        Some(known) => known.open(&open)?,
        None => args.model.device.device.open_with(&open)?,
    };
    check(args, &model)?;
    let plan = plan(args, &model, backend.as_ref())?;
    if let Some(layer) = args.layer {
        plan.check_layer(layer).map_err(|error| Failure::new(error.to_string(), LAYERS))?;
    }
    if args.planned_as.as_ref().is_some_and(KnownDevice::has_library) {
        ui.note("note: planned as where NVIDIA's library of products is installed; `--provider matmul=tiles` does without");
    }
    if let Some(file) = &args.svg {
        plan_dump::write(file, &plan.svg(args.layer)?)?;
        ui.note(&format!("drawn into {}", file.display()));
    }
    let shown = Shown { layer: args.layer, all: args.all };
    match (args.json, &args.svg) {
        (true, _) => term::print_json(&plan.json(shown)),
        (false, Some(_)) => Ok(()),
        (false, None) => Ok(term::print_lines(&plan.text(shown))?),
    }
}

const LAYERS: &str = "leave `--layer` out to see which layers there are";

/// Steps that the model would refuse are refused here.
fn check(args: &PlanArgs, model: &Model) -> anyhow::Result<()> {
    let (needed, context) = (args.tokens.get().saturating_add(args.depth), model.config().context);
    if needed <= context {
        return Ok(());
    }
    let reason = format!("{needed} tokens are needed, the model's context holds {context}");
    Err(Failure::new(reason, "give fewer `--tokens`, or a smaller `--depth`").into())
}

fn plan(args: &PlanArgs, model: &Model, backend: &dyn Backend) -> anyhow::Result<Plan> {
    let step = StepSpec::on(backend, args.tokens.get(), args.depth);
    let plan = Plan::of(model, backend, args.model.device.kv_type, step)?;
    Ok(match &args.planned_as {
        Some(known) => plan.planned_as(&*known.name),
        None => plan,
    })
}
