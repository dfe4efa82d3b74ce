//! `metallic devices`: what can compute on this machine, and what is missing.

use std::fmt::Write;

use clap::Args;
use metallic::device::{
    self, Listed,
    tuning::{Found, TuningSource},
};
use serde_json::{Value, json};

use crate::term::{self, size};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevicesArgs {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic devices
  metallic devices --json | jq -r '.[] | select(.available) | .device'
  metallic run --device soft -n 8 \"Hello\"                the Metal kernels, on the processor";

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let all = device::list();
    if args.json {
        return term::print_json(&all.iter().map(row).collect::<Vec<_>>());
    }
    let width = all.iter().map(|listed| listed.name.len()).max().unwrap_or(0);
    let mut text = format!("{:10} {:width$} {:>6} {:>9}\n", "DEVICE", "NAME", "UNITS", "MEMORY");
    for listed in &all {
        let units = listed.units.map_or_else(|| "-".to_owned(), |units| units.to_string());
        let memory = listed.memory_bytes.map_or_else(|| "-".to_owned(), size);
        let auto = if listed.auto { "  auto" } else { "" };
        let device = listed.device.to_string();
        writeln!(text, "{device:10} {:width$} {units:>6} {memory:>9}{auto}", listed.name)?;
        for line in details(listed) {
            writeln!(text, "{:10} {line}", "")?;
        }
    }
    Ok(term::print_lines(&text)?)
}

fn details(listed: &Listed) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(reason) = &listed.unavailable {
        lines.push(format!("not available: {reason}"));
    }
    if let Some(limits) = &listed.limits {
        let budget = limits.budget.map(|bytes| format!(", {} in all", size(bytes))).unwrap_or_default();
        // The software device takes whatever memory there is.
        let buffers = match limits.max_buffer {
            bytes if bytes >= isize::MAX as usize => String::new(),
            bytes => format!(", buffers up to {}", size(bytes as u64)),
        };
        lines.push(format!(
            "{} threads a group in steps of {}, {} of group memory{buffers}{budget}",
            limits.max_threads,
            limits.simd_width,
            size(u64::from(limits.threadgroup_memory)),
        ));
    }
    lines.extend(tuning(listed));
    lines.extend(listed.compiler.as_ref().map(|compiler| format!("kernels by {compiler}")));
    lines.extend(listed.library.as_ref().map(|library| match library {
        Ok(library) => format!("long prompts by {library}"),
        Err(reason) => {
            format!("long prompts by kernels of ours: cuBLASLt, which is faster, is not there ({reason})")
        }
    }));
    lines
}

/// What the plans of a GPU go by.
fn tuning(listed: &Listed) -> Option<String> {
    let origin = listed.origin.map(|origin| origin.to_string()).unwrap_or_default();
    Some(match listed.tuning.as_ref()? {
        Err(error) => format!("tuning cannot be read: {error}"),
        Ok(Found { source: TuningSource::File(path), tuning, .. }) => {
            format!("tuned: {tuning} ({})", path.display())
        }
        Ok(Found { note: Some(note), .. }) => format!("tuning: {origin}; {note}"),
        Ok(_) => format!("tuning: {origin}"),
    })
}

fn row(listed: &Listed) -> Value {
    let limits = listed.limits.map(|limits| {
        json!({
            "max_threads": limits.max_threads,
            "simd_width": limits.simd_width,
            "threadgroup_memory_bytes": limits.threadgroup_memory,
            "max_buffer_bytes": limits.max_buffer,
            "budget_bytes": limits.budget,
        })
    });
    json!({
        "device": listed.device.to_string(),
        "kind": listed.kind,
        "name": listed.name,
        "units": listed.units,
        "memory_bytes": listed.memory_bytes,
        "limits": limits,
        "compiler": listed.compiler,
        "library": listed.library.as_ref().and_then(|library| library.as_ref().ok()),
        "tuning": tuning(listed),
        "available": listed.unavailable.is_none(),
        "reason": listed.unavailable,
        "auto": listed.auto,
    })
}
