//! `tool ops`: every operation on a device, held to the reference. For a machine that has the program alone, and a new kind of GPU.

use std::cell::Cell;

use anyhow::Context;
use clap::Args;
use metallic_testkit::{Failure, Plan, Report, cases::Exactness, graphs, run_all};

use crate::{
    commands::options::DeviceOptions,
    fail,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct OpsArgs {
    #[command(flatten)]
    device: DeviceOptions,
    /// Only cases with this in their name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print only cases that fail, and the summary
    #[arg(long)]
    failed: bool,
}

const EXAMPLES: &str = "\
Every case is run as a program over several steps, plain and fused, and its operations one by one; each result is compared with that of
the naive interpreter. A line a case, then a summary; the exit code is 1 where one failed. On an NVIDIA GPU without a compiler beside it,
`metallic tool ptx --ops` has made the kernels.

Examples:
  metallic tool ops --device soft --only rms_norm
  METALLIC_PTX=metallic-ptx metallic tool ops --device cuda --failed";

pub(super) fn run(args: &OpsArgs, ui: Ui) -> anyhow::Result<()> {
    let backend = args.device.device.open_with(&args.device.open()?)?;
    let info = backend.info();
    ui.note(&format!("{}: {}", info.kind, info.name));
    let exactness = match info.kind {
        // The processor rounds activations unless it is told not to.
        "cpu" if !args.device.exact => Exactness::Rounded,
        "cuda" => Exactness::Units,
        _ => Exactness::Exact,
    };
    let closed = Cell::new(None);
    let each = |name: &str, result: &Result<(), Failure>| {
        let line = match result {
            Ok(()) if args.failed => return,
            Ok(()) => format!("ok      {name}\n"),
            Err(failure) => format!("FAILED  {name}: {failure}\n"),
        };
        if let Err(error) = term::print_lines(&line) {
            closed.set(Some(error));
        }
    };
    let plan = Plan { exactness, only: &args.only, each: &each, ..Plan::default() };
    let mut report = run_all(backend.as_ref(), &plan);
    if exactness != Exactness::Rounded {
        report = report.and(graphs::run_long(backend.as_ref(), &plan));
    }
    closed.take().map_or(Ok(()), Err).context("cannot write to stdout")?;
    summary(args, &report)
}

fn summary(args: &OpsArgs, report: &Report) -> anyhow::Result<()> {
    let Report { passed, failed } = report;
    let all = passed + failed.len();
    if all == 0 {
        let reason = format!("no case has `{}` in its name", args.only);
        return Err(fail::Failure::new(reason, "without --only all are run and named").into());
    }
    term::print(&format!("{all} cases: {passed} passed, {} failed\n", failed.len()))?;
    anyhow::ensure!(failed.is_empty(), "{} of {all} cases failed on {}", failed.len(), args.device.device);
    Ok(())
}
