//! `docs/benchmarks.md` and its pictures, made of the kept runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::history::{Entry, Figure};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Left of the plot, where figures stand, and below it, where commits do.
const MARGIN: (f64, f64) = (52.0, 34.0);
/// Colours that can be told apart, also in grey.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A file of the page, by its name below `docs`.
pub(super) type Files = BTreeMap<String, String>;

/// Writes the page, or says what is not as it should be.
pub(super) fn write(docs: &Path, entries: &[Entry], check: bool) -> Result<()> {
    ensure!(!entries.is_empty(), "no run is kept; `cargo xtask bench --save` keeps one");
    for (name, text) in files(entries) {
        let path = docs.join(&name);
        if check {
            let found = fs::read_to_string(&path).unwrap_or_default();
            ensure!(
                found == text,
                "docs/{name} is not what the history gives; `cargo xtask bench --page` writes it"
            );
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

pub(super) fn files(entries: &[Entry]) -> Files {
    let mut files = Files::new();
    let mut page = String::from(
        "# Benchmarks\n\nTokens per second on the CPU, made by `cargo xtask bench --page` of the runs that `cargo xtask bench --save` has kept in\n[history.jsonl](benchmarks/history.jsonl): medians of rounds. A busy machine is marked; runs of different machines are not compared.\n`cargo xtask bench --compare A B` builds two commits, measures them in turns and fails where the second is slower by more than the noise.\n",
    );
    let mut machines: Vec<(String, usize)> = Vec::new();
    for entry in entries {
        let machine = (entry.machine.name(), entry.threads);
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    for (index, (machine, threads)) in machines.iter().enumerate() {
        let runs: Vec<&Entry> =
            entries.iter().filter(|e| e.machine.name() == *machine && e.threads == *threads).collect();
        let _ = write!(page, "\n## {machine}, {threads} threads\n");
        for model in models(&runs) {
            let name = format!("benchmarks/{index}-{}.svg", file_name(&model));
            files.insert(name.clone(), picture(&model, &runs));
            let _ = write!(page, "\n![{model}, by commit]({name})\n");
        }
        page.push_str(&table(&runs));
    }
    files.insert("benchmarks.md".to_owned(), page);
    files
}

fn models(runs: &[&Entry]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for figure in runs.iter().flat_map(|run| &run.figures) {
        if !models.contains(&figure.model) {
            models.push(figure.model.clone());
        }
    }
    models
}

fn file_name(model: &str) -> String {
    model.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

/// The newest run in figures.
fn table(runs: &[&Entry]) -> String {
    let Some(last) = runs.last() else { return String::new() };
    let busy = last.busy.map(|load| format!(", **busy machine (load {load})**")).unwrap_or_default();
    let dirty = if last.dirty { " with changes" } else { "" };
    let mut text = format!(
        "\nThe newest run: commit {}{dirty}, {} rounds{busy}.\n\n| model | test | tokens/s | spread | llama.cpp | ratio |\n| --- | --- | --- | --- | --- | --- |\n",
        last.commit, last.rounds
    );
    for figure in &last.figures {
        let Figure { model, test, samples, llamacpp } = figure;
        let (low, high) =
            samples.iter().fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let number =
            |x: Option<f64>, digits: usize| x.map_or_else(|| "–".to_owned(), |x| format!("{x:.digits$}"));
        let (theirs, ratio) = (number(*llamacpp, 1), number(llamacpp.map(|peer| figure.median() / peer), 2));
        let _ = writeln!(
            text,
            "| {model} | {test} | {:.1} | {low:.1}–{high:.1} | {theirs} | {ratio} |",
            figure.median()
        );
    }
    text
}

/// A line for each test of a model, over the runs.
fn picture(model: &str, runs: &[&Entry]) -> String {
    let mut lines: BTreeMap<&str, Vec<(usize, f64)>> = BTreeMap::new();
    for (index, run) in runs.iter().enumerate() {
        for figure in run.figures.iter().filter(|figure| figure.model == model) {
            lines.entry(&figure.test).or_default().push((index, figure.median()));
        }
    }
    let top = lines.values().flatten().map(|(_, speed)| *speed).fold(1.0, f64::max) * 1.1;
    let (left, below) = MARGIN;
    let step = (WIDTH - left - 90.0) / runs.len().saturating_sub(1).max(1) as f64;
    let x = |index: usize| left + step * index as f64;
    let y = |speed: f64| HEIGHT - below - (HEIGHT - below - 24.0) * speed / top;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<title>{model}: tokens per second by commit</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{left}\" y=\"15\" fill=\"#222\">{model}, tokens/s</text>\n",
        model = escaped(model)
    );
    for part in 0..=4 {
        let speed = top * f64::from(part) / 4.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{speed:.0}</text>",
            WIDTH - 86.0,
            left - 6.0,
            y(speed) + 4.0,
            y = y(speed),
        );
    }
    // As many commits as have room.
    let every = runs.len().div_ceil(8).max(1);
    for (index, run) in runs.iter().enumerate().filter(|(index, _)| index % every == 0) {
        let mark = if run.busy.is_some() { "*" } else { "" };
        let short: String = run.commit.chars().take(7).collect();
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{short}{mark}</text>",
            x(index),
            HEIGHT - below + 16.0
        );
    }
    for (number, (test, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let path: Vec<String> =
            points.iter().map(|(index, speed)| format!("{:.1},{:.1}", x(*index), y(*speed))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (index, speed) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(*index),
                y(*speed)
            );
        }
        if let Some((index, speed)) = points.last() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{} {speed:.0}</text>",
                x(*index) + 8.0,
                y(*speed) + 4.0,
                escaped(test)
            );
        }
    }
    if runs.iter().any(|run| run.busy.is_some()) {
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{:.1}\" fill=\"#555\">* others computed beside it</text>",
            HEIGHT - 4.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::history::entry;

    #[test]
    fn the_page_has_a_picture_for_each_model_and_the_newest_figures() {
        let mut busy = entry("b1b1b1b1b1b1", &[120.0, 130.0, 110.0]);
        busy.busy = Some(3.5);
        let files = files(&[entry("a0a0a0a0a0a0", &[100.0]), busy]);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["benchmarks.md", "benchmarks/0-m.svg"]);
        let page = &files["benchmarks.md"];
        assert!(page.contains("| m | tg64 | 120.0 | 110.0–130.0 | 50.0 | 2.40 |"), "{page}");
        assert!(page.contains("busy machine (load 3.5)") && page.contains("(benchmarks/0-m.svg)"));
        let svg = &files["benchmarks/0-m.svg"];
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(">b1b1b1b*<") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn machines_are_kept_apart_and_a_page_that_is_old_is_noticed() {
        let mut other = entry("b", &[10.0]);
        other.machine.cores = 8;
        let files = files(&[entry("a", &[100.0]), other.clone()]);
        assert_eq!(files.len(), 3);
        let folder = std::env::temp_dir().join(format!("metallic-page-{}", std::process::id()));
        let entries = [entry("a", &[100.0])];
        assert!(write(&folder, &entries, true).unwrap_err().to_string().contains("--page"));
        write(&folder, &entries, false).unwrap();
        write(&folder, &entries, true).unwrap();
        assert!(write(&folder, &[entries[0].clone(), other], true).is_err());
        assert!(write(&folder, &[], false).unwrap_err().to_string().contains("--save"));
        fs::remove_dir_all(folder).unwrap();
    }
}
