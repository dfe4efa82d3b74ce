//! `cargo xtask telemetry-cost`: what telemetry costs, off and on, measured in turns in the same run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::median;
use crate::bench::{build, build_with, busy, count};
use crate::models::SMOLLM2;
use crate::process::{command, output, root};

/// What may be lost: to a build without it while nobody listens, and to that while a file is written.
const OFF_MOST: f64 = 0.5;
const ON_MOST: f64 = 3.0;

#[derive(Debug, PartialEq)]
struct Options {
    /// A program built from another commit, to compare with instead of one that cannot tell anything.
    before: Option<PathBuf>,
    model: PathBuf,
    rounds: usize,
    tokens: usize,
    threads: usize,
    device: String,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (model, device) = (SMOLLM2.path(), "cpu".to_owned());
        let mut options = Options { before: None, model, rounds: 15, tokens: 64, threads, device };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--before" => options.before = Some(std::path::absolute(value()?)?),
                "--model" => options.model = std::path::absolute(value()?)?,
                "--device" => options.device.clone_from(value()?),
                "--rounds" => options.rounds = count("--rounds", args.next())?,
                "--tokens" => options.tokens = count("--tokens", args.next())?,
                "--threads" => options.threads = count("--threads", args.next())?,
                other => bail!("telemetry-cost does not know `{other}`; see `cargo xtask help`"),
            }
        }
        ensure!(
            options.model.is_file(),
            "there is no model `{}`; `cargo xtask setup` fetches it",
            options.model.display()
        );
        Ok(options)
    }
}

/// A way to run the same work.
struct Way {
    name: &'static str,
    program: PathBuf,
    told: &'static [&'static str],
    /// Tokens a second, one of each round.
    speeds: Vec<f64>,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let program = build()?;
    let before = options.before.clone().map_or_else(silent, Ok)?;
    let scratch = std::env::temp_dir().join(format!("metallic-telemetry-cost-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let way =
        |name, program: &Path, told| Way { name, program: program.to_owned(), told, speeds: Vec::new() };
    let mut ways = vec![
        way("off", &program, &[][..]),
        way("telemetry", &program, &["--telemetry", "cost.jsonl"]),
        way("telemetry and trace", &program, &["--telemetry", "cost.jsonl", "--trace", "cost.json"]),
        way(if options.before.is_some() { "before" } else { "without" }, &before, &[]),
    ];
    if let Some(load) = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| busy(&text)) {
        eprintln!("THE MACHINE IS BUSY (load {load}): differences of a few percent will mean nothing");
    }
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        // Each comes first in its turn: what warms up, or gets tired, hits all.
        let first = round % ways.len();
        ways.rotate_left(first);
        for way in &mut ways {
            way.speeds.push(measure(way, &options, &scratch)?);
        }
        ways.rotate_right(first);
    }
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    println!("{}", report(&ways));
    Ok(())
}

/// A program of the same sources in which no event is left.
fn silent() -> Result<PathBuf> {
    let folder = root().join("target").join("without-telemetry");
    let folder = folder.to_str().context("this folder's name is no text")?.to_owned();
    build_with(&[
        "--package",
        "metallic-telemetry",
        "--features",
        "tracing/release_max_level_off",
        "--target-dir",
        &folder,
    ])
}

fn measure(way: &Way, options: &Options, scratch: &Path) -> Result<f64> {
    let (tokens, threads) = (options.tokens.to_string(), options.threads.to_string());
    let mut bench = command(&way.program);
    bench.current_dir(scratch).args([
        "bench",
        "-q",
        "--json",
        "--no-limits",
        "--device",
        &options.device,
        "-r",
        "3",
    ]);
    bench.args(["-n", &tokens, "-t", &threads, "-m"]).arg(&options.model).args(way.told);
    let rows: Value =
        serde_json::from_str(&output(&mut bench)?).context("`metallic bench` printed no JSON")?;
    rows[0]["median"].as_f64().context("`metallic bench` gave no median")
}

/// How much slower one is than another, in percent: the median over rounds, in which both had the same machine. And how far that median
/// may be off by chance: where the middle 95 % of such medians lie, half of it.
fn slower(way: &Way, than: &Way) -> (f64, f64) {
    let slower: Vec<f64> =
        way.speeds.iter().zip(&than.speeds).map(|(speed, than)| 100.0 * (than / speed - 1.0)).collect();
    let middle = median(&slower);
    let apart: Vec<f64> = slower.iter().map(|one| (one - middle).abs()).collect();
    // Of normal errors: the deviation is 1.4826 times the median of what lies apart, and a median's own is 1.2533 of that over a root.
    let own = 1.4826 * median(&apart) * 1.2533 / (slower.len() as f64).sqrt();
    (middle, 1.96 * own)
}

fn report(ways: &[Way]) -> String {
    let mut lines: Vec<String> =
        ways.iter().map(|way| format!("{:20} {:8.2} tokens/s", way.name, median(&way.speeds))).collect();
    let find = |name: &str| ways.iter().find(|way| way.name == name);
    let compared = [
        ("off", "without", OFF_MOST),
        ("off", "before", OFF_MOST),
        ("telemetry", "off", ON_MOST),
        ("telemetry and trace", "off", ON_MOST),
    ];
    for (name, than, most) in compared {
        if let (Some(way), Some(than)) = (find(name), find(than)) {
            let (found, chance) = slower(way, than);
            let verdict = if found <= most { "within" } else { "MORE THAN" };
            lines.push(format!(
                "{name} costs {found:+.2} % ± {chance:.2} against {} ({verdict} {most} %)",
                than.name
            ));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_compared_round_by_round() {
        let way =
            |name, speeds: &[f64]| Way { name, program: PathBuf::new(), told: &[], speeds: speeds.to_vec() };
        // The machine was half as fast in the second round.
        let ways = [
            way("off", &[100.0, 50.0, 100.0]),
            way("telemetry", &[98.0, 49.0, 96.0]),
            way("without", &[100.0, 51.0, 102.0]),
        ];
        let text = report(&ways);
        assert!(text.contains("off costs +2.00 % ± 0.00 against without (MORE THAN 0.5 %)"), "{text}");
        assert!(text.contains("telemetry costs +2.04 % ± 0.00 against off (within 3 %)"), "{text}");
        assert!(!text.contains("against before"), "{text}");
        assert!(!text.contains("trace costs"), "{text}");
    }

    #[test]
    fn what_chance_may_do_to_a_median_is_told() {
        let way =
            |speeds: &[f64]| Way { name: "", program: PathBuf::new(), told: &[], speeds: speeds.to_vec() };
        let than = way(&[100.0; 4]);
        let (found, chance) = slower(&way(&[100.0 / 1.01, 100.0 / 1.03, 100.0 / 1.02, 100.0 / 1.02]), &than);
        assert!((found - 2.0).abs() < 1e-9, "{found}");
        // Apart: 1, 1, 0, 0; half of it is what lies apart.
        assert!((chance - 1.96 * 1.4826 * 0.5 * 1.2533 / 2.0).abs() < 1e-6, "{chance}");
    }
}
