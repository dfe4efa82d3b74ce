//! `metallic doctor`: whether this machine is fit, what is wrong with it, and what to do about it.

use std::path::{Path, PathBuf};

use clap::{Args, builder::PossibleValuesParser};

use crate::{
    doctor::{self, Finding, Summary, Sums},
    fail::Failure,
    hub::Cache,
    load,
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Look at this model too: a file, or a name as `run` takes it
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    /// Leave out what takes long: checksums, kernels that have to be compiled, speed
    #[arg(long)]
    quick: bool,
    /// Look at these alone
    #[arg(long, value_name = "AREA,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(AREAS))]
    only: Vec<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Write the findings to a file as well, to attach to a report of a bug; the home folder is not named in it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Looks at the system, the environment, devices and their compilers, the cache folder and its disk, every model with its checksums, runs small
models with known answers on every device and by every provider of kernels, and measures for some seconds whether the device is as fast as its
memory lets it be. Each finding says what to do about it. On a Mac it also tries the claims that no other machine can show.
The exit code is 1 where something does not work.

Examples:
  metallic doctor
  metallic doctor --quick --json | jq '.findings[] | select(.status != \"ok\")'
  metallic doctor -m ./model.gguf --only models
  metallic doctor --report doctor.txt";

pub(crate) fn run(args: &DoctorArgs, ui: Ui) -> anyhow::Result<()> {
    if let Some(path) = &args.report {
        // Before anything takes its time.
        write(path, "")?;
    }
    let findings = findings(args, ui)?;
    if args.json {
        term::print_json(&doctor::json(&findings))?;
    } else {
        term::print_lines(&doctor::text(&findings))?;
    }
    if let Some(path) = &args.report {
        let home = std::env::var("HOME").ok();
        write(path, &doctor::without_home(&doctor::text(&findings), home.as_deref()))?;
        ui.note(&format!("note: written to {}", path.display()));
    }
    match Summary::of(&findings).failures {
        0 => Ok(()),
        failures => {
            let reason = format!("{failures} of {} findings are failures", findings.len());
            Err(Failure::new(reason, "each says above what to do about it").into())
        }
    }
}

/// What is looked at, in this order.
const AREAS: [&str; 8] =
    ["system", "environment", "devices", "storage", "models", "self-tests", "speed", "claims"];

/// Areas that take long.
const SLOW: [&str; 2] = ["speed", "claims"];

fn findings(args: &DoctorArgs, ui: Ui) -> anyhow::Result<Vec<Finding>> {
    let cache = Cache::from_env()?;
    let devices = metallic::device::list();
    let named = args.model.as_deref().map(load::local_path).transpose()?;
    let named = named.as_deref().and_then(Path::to_str);
    let sums = if args.quick { Sums::LeftOut } else { Sums::Checked };
    let is_wanted = |area: &&&str| {
        let asked = args.only.iter().any(|only| only == **area);
        asked || args.only.is_empty() && !(args.quick && SLOW.contains(*area))
    };
    let mut findings = Vec::new();
    for area in AREAS.iter().filter(is_wanted) {
        match *area {
            "system" => findings.extend(doctor::system()),
            "environment" => findings.extend(doctor::environment()),
            "devices" => findings.extend(doctor::devices(&devices)),
            "storage" => findings.extend(doctor::storage(&cache)),
            "models" => findings.extend(doctor::models(&cache, named, sums, ui)),
            "self-tests" => findings.extend(doctor::self_tests(&devices, args.quick, ui)),
            "speed" => findings.push(doctor::speed(ui)),
            _ => findings.extend(doctor::claims(&devices, ui)),
        }
    }
    Ok(findings)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).map_err(|error| {
        let reason = format!("cannot write {}: {error}", path.display());
        Failure::new(reason, "name a file in a folder that is there").into()
    })
}
