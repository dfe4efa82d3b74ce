//! What came of `softmetal run`, for people and for programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use softmetal::Severity;

use super::{
    Failure, Printer, data,
    run::{Arguments, Executed, Memory, Place, Summary, named},
    style::{self, Style},
};

/// Writes what was asked for to files.
pub(super) fn save(arguments: &Arguments, results: &Memory) -> Result<(), Failure> {
    for text in &arguments.save {
        let split = text.split_once('=').and_then(|(index, path)| Some((index.parse::<u32>().ok()?, path)));
        let (index, path) =
            split.ok_or_else(|| Failure::Argument(format!("--save {text}: need INDEX=FILE")))?;
        let data = results
            .buffers
            .get(&index)
            .ok_or_else(|| Failure::Argument(format!("--save {text}: no buffer {index} is given")))?;
        std::fs::write(path, &data.bytes)
            .map_err(|error| Failure::Argument(format!("cannot write {path}: {error}")))?;
    }
    for text in &arguments.save_texture {
        let (index, path) = named("--save-texture", text, data::indexed(text))?;
        let found = results.textures.iter().find(|given| given.index == index);
        let found = found.ok_or_else(|| {
            Failure::Argument(format!("--save-texture {text}: no texture {index} is given"))
        })?;
        std::fs::write(path, &found.bytes)
            .map_err(|error| Failure::Argument(format!("cannot write {path}: {error}")))?;
    }
    Ok(())
}

pub(super) fn as_json(arguments: &Arguments, executed: &Executed) -> Value {
    let Executed { summary, shown, results } = executed;
    let outputs: BTreeMap<String, Value> = shown
        .iter()
        .map(|index| {
            let data = &results.buffers[index];
            // JSON has no NaN: such elements are null.
            (index.to_string(), json!(data.kind.decode(&data.bytes)))
        })
        .collect();
    let written = results.textures.iter().filter(|given| given.written);
    let textures: BTreeMap<String, Value> =
        written.map(|given| (given.index.to_string(), json!(given.values()))).collect();
    let differing = summary.differing.iter().map(|(seed, place)| match place {
        Place::Buffer(index) => json!({ "seed": seed, "buffer": index }),
        Place::Texture(index) => json!({ "seed": seed, "texture": index }),
    });
    json!({
        "kernel": arguments.kernel,
        "checked": arguments.check,
        "seeds": arguments.seeds,
        "milliseconds": summary.elapsed.as_secs_f64() * 1e3,
        "stats": summary.stats,
        "reports": summary.reports,
        "schedule_dependent": differing.collect::<Vec<_>>(),
        "unexpected": summary.unexpected,
        "agree_in_lockstep": summary.in_lockstep,
        "logs": summary.logs,
        "outputs": outputs,
        "textures": textures,
    })
}

pub(super) fn show(arguments: &Arguments, printer: Printer, executed: &Executed) {
    let Executed { summary, shown, results } = executed;
    let paint = printer.style;
    for log in &summary.logs {
        let ([x, y, z], [gx, gy, gz]) = (log.thread, log.threadgroup);
        let who = paint.dim(&format!("thread {x},{y},{z} of threadgroup {gx},{gy},{gz}:"));
        style::print(&format!("{who} {}", log.text));
    }
    if summary.stats.lost_messages > 0 {
        style::print(&paint.dim(&format!("… and {} more messages", summary.stats.lost_messages)));
    }
    for report in &summary.reports {
        style::print(&paint.report(report));
        style::print("");
    }
    for index in shown {
        let data = &results.buffers[index];
        numbers(paint, &format!("buffer {index}"), &data.kind.decode(&data.bytes), arguments.show);
    }
    for given in results.textures.iter().filter(|given| given.written) {
        numbers(paint, &format!("texture {}", given.index), &given.values(), arguments.show);
    }
    for text in summary.unexpected.iter().cloned().chain(schedules(summary, arguments.seeds)) {
        style::print(&format!("{}: {text}", paint.red("error")));
    }
    let errors = summary.reports.iter().filter(|report| report.severity == Severity::Error).count();
    let others = summary.reports.len() - errors;
    let verdict = match (errors, others, arguments.check) {
        (0, 0, true) => paint.green("no report"),
        (0, 0, false) => "not checked".to_owned(),
        _ => format!("{}, {}", style::count(errors, "error"), style::count(others, "warning")),
    };
    let runs = if arguments.seeds == 1 { String::new() } else { format!(", {} schedules", arguments.seeds) };
    let milliseconds = summary.elapsed.as_secs_f64() * 1e3;
    let groups = style::count(summary.stats.threadgroups as usize, "threadgroup");
    style::print(&format!("{}: {groups}{runs}, {milliseconds:.3} ms, {verdict}", arguments.kernel));
}

/// What there is to say of results that depend on the schedule.
pub(super) fn schedules(summary: &Summary, seeds: u64) -> Option<String> {
    let (_, place) = summary.differing.first()?;
    let named: Vec<String> = summary.differing.iter().take(5).map(|(seed, _)| seed.to_string()).collect();
    let more = if summary.differing.len() > 5 { ", …" } else { "" };
    let lockstep = match summary.in_lockstep {
        Some(true) => {
            "\n  = while the lanes of a simdgroup go in lockstep all agree: barriers are missing within simdgroups"
        }
        Some(false) => "\n  = in lockstep they differ too: it is not for lanes alone",
        None => "",
    };
    Some(format!(
        "{} of {seeds} schedules give other results than the one in order (seeds {}{more}): {place} depends on the schedule{lockstep}",
        summary.differing.len(),
        named.join(", ")
    ))
}

/// The first of some numbers, and what all are like.
fn numbers(paint: Style, name: &str, values: &[f64], most: usize) {
    let short = |value: &f64| format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned();
    let first: Vec<String> = values.iter().take(most).map(short).collect();
    let more = if values.len() > most { " …" } else { "" };
    let odd = values.iter().filter(|value| !value.is_finite()).count();
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    let mean = finite().sum::<f64>() / finite().count().max(1) as f64;
    style::print(&format!("{}  {}{more}", paint.bold(name), first.join(" ")));
    let odd = if odd > 0 { paint.red(&format!(", {odd} not finite")) } else { String::new() };
    style::print(&format!(
        "{}{odd}",
        paint.dim(&format!("  {} elements, {low} to {high}, mean {mean}", values.len()))
    ));
}
