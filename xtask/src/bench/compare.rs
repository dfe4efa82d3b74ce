//! Two programs against each other, in turns: what slowed by more than the noise.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{Options, Speeds, history::Entry, median, ours};
use crate::process::{cargo, command, output, root, run as run_command};

/// A change below this is never flagged, however quiet the machine was.
const LEAST: f64 = 0.01;
/// How many times the spread of ratios a change has to be.
const SPREADS: f64 = 3.0;

/// What became of one test.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) model: String,
    pub(super) test: String,
    /// Tokens per second of the second over those of the first.
    pub(super) ratio: f64,
    /// How far from 1 a ratio may be by chance.
    pub(super) noise: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Slower,
    Faster,
    Same,
}

impl Change {
    /// From rounds that were measured in turns: those of one round saw the same machine, so ratios are of pairs.
    fn of_pairs(model: &str, test: &str, a: &[f64], b: &[f64]) -> Change {
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| b / a).collect();
        let ratio = median(&ratios);
        Change { model: model.into(), test: test.into(), ratio, noise: noise(&ratios, ratio) }
    }

    /// From two runs at different times: each has a spread of its own.
    fn of_runs(model: &str, test: &str, a: &[f64], b: &[f64]) -> Change {
        let (of_a, of_b) = (median(a), median(b));
        let (a, b): (Vec<f64>, Vec<f64>) =
            (a.iter().map(|x| x / of_a).collect(), b.iter().map(|x| x / of_b).collect());
        Change {
            model: model.into(),
            test: test.into(),
            ratio: of_b / of_a,
            noise: noise(&a, 1.0).hypot(noise(&b, 1.0)),
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self.ratio {
            ratio if ratio < 1.0 - self.noise => Verdict::Slower,
            ratio if ratio > 1.0 + self.noise => Verdict::Faster,
            _ => Verdict::Same,
        }
    }
}

/// Some standard errors of a median, from the median distance to it: one odd round does not count.
fn noise(values: &[f64], middle: f64) -> f64 {
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let deviation = 1.4826 * median(&distances);
    let error = 1.2533 * deviation / (values.len().max(1) as f64).sqrt();
    (SPREADS * error).max(LEAST)
}

/// Builds two commits and measures them in turns; an error where the second is slower.
pub(super) fn commits(a: &str, b: &str, models: &[PathBuf], options: &Options) -> Result<()> {
    programs((a, &built(a)?), (b, &built(b)?), models, options)
}

/// A program of some commit, in a working tree of its own.
fn built(commit: &str) -> Result<PathBuf> {
    let id = output(command("git").args([
        "rev-parse",
        "--verify",
        "--quiet",
        "--short=12",
        &format!("{commit}^{{commit}}"),
    ]));
    let id = id.with_context(|| format!("there is no commit `{commit}`"))?.trim().to_owned();
    let place = root().join("target").join("bench-commits");
    let (tree, program) = (place.join(&id), place.join(format!("metallic-{id}")));
    if program.exists() {
        return Ok(program);
    }
    if !tree.exists() {
        run_command(command("git").args(["worktree", "add", "--detach", "--force"]).arg(&tree).arg(&id))?;
    }
    let target = place.join("target");
    let built = run_command(cargo().current_dir(&tree).env("CARGO_TARGET_DIR", &target).args([
        "build",
        "--release",
        "--package",
        "metallic-cli",
    ]));
    run_command(command("git").args(["worktree", "remove", "--force"]).arg(&tree))?;
    built?;
    let made = target.join("release").join(format!("metallic{}", std::env::consts::EXE_SUFFIX));
    std::fs::copy(&made, &program).with_context(|| format!("cannot copy {}", made.display()))?;
    Ok(program)
}

pub(super) fn programs(
    (name_a, a): (&str, &Path),
    (name_b, b): (&str, &Path),
    models: &[PathBuf],
    options: &Options,
) -> Result<()> {
    let mut changes = Vec::new();
    for model in models {
        let (mut of_a, mut of_b): (Vec<Speeds>, Vec<Speeds>) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            eprintln!("{}: round {} of {}", model.display(), round + 1, options.rounds);
            // The other one first in every second round: a busy spell of the machine hits both.
            if round % 2 == 0 {
                of_a.push(ours(a, model, options)?);
                of_b.push(ours(b, model, options)?);
            } else {
                of_b.push(ours(b, model, options)?);
                of_a.push(ours(a, model, options)?);
            }
        }
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (of_a, of_b): (BTreeMap<_, _>, BTreeMap<_, _>) = (super::by_test(&of_a), super::by_test(&of_b));
        for (test, a) in &of_a {
            let b = of_b.get(test).with_context(|| format!("{name_b} did not measure {test}"))?;
            changes.push(Change::of_pairs(&name, test, a, b));
        }
    }
    println!("{}", table(name_a, name_b, &changes));
    judge(name_b, &changes)
}

/// The newest kept runs of two commits on one machine.
pub(super) fn kept(a: &str, b: &str, entries: &[Entry]) -> Result<()> {
    let of = |commit: &str| {
        let found = entries.iter().rev().find(|entry| entry.commit.starts_with(commit) && !entry.dirty);
        found.with_context(|| {
            format!("no clean run of `{commit}` is kept; `cargo xtask bench --save` keeps one")
        })
    };
    let (of_a, of_b) = (of(a)?, of(b)?);
    ensure!(
        of_a.machine == of_b.machine && of_a.threads == of_b.threads,
        "`{a}` was measured on {} with {} threads, `{b}` on {} with {}: that cannot be compared",
        of_a.machine.name(),
        of_a.threads,
        of_b.machine.name(),
        of_b.threads,
    );
    let mut changes = Vec::new();
    for figure in &of_a.figures {
        let same = of_b.figures.iter().find(|other| other.model == figure.model && other.test == figure.test);
        changes.extend(
            same.map(|other| Change::of_runs(&figure.model, &figure.test, &figure.samples, &other.samples)),
        );
    }
    ensure!(!changes.is_empty(), "`{a}` and `{b}` have no test in common");
    println!("{}", table(a, b, &changes));
    judge(b, &changes)
}

fn table(a: &str, b: &str, changes: &[Change]) -> String {
    let width = changes.iter().map(|change| change.model.len()).max().unwrap_or(0).max("model".len());
    let mut text = format!("{b} over {a}\n{:width$}  {:6} {:>7} {:>7}", "model", "test", "ratio", "noise");
    for change in changes {
        let word = match change.verdict() {
            Verdict::Slower => "  SLOWER",
            Verdict::Faster => "  faster",
            Verdict::Same => "",
        };
        let Change { model, test, ratio, noise } = change;
        let _ = write!(text, "\n{model:width$}  {test:6} {ratio:>7.3} {noise:>7.3}{word}");
    }
    text
}

fn judge(b: &str, changes: &[Change]) -> Result<()> {
    let slower = changes.iter().filter(|change| change.verdict() == Verdict::Slower).count();
    match slower {
        0 => Ok(()),
        count => bail!("{b} is slower in {count} of {} tests, by more than the noise", changes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::history::entry;

    fn verdict(a: &[f64], b: &[f64]) -> Verdict {
        Change::of_pairs("m", "t", a, b).verdict()
    }

    #[test]
    fn what_slowed_by_more_than_the_noise_is_flagged_and_noise_is_not() {
        let a = [100.0, 90.0, 110.0, 60.0, 105.0];
        assert_eq!(verdict(&a, &a.map(|x| x * 0.93)), Verdict::Slower, "a busy spell hits both");
        assert_eq!(verdict(&a, &a.map(|x| x * 1.07)), Verdict::Faster);
        assert_eq!(verdict(&a, &a.map(|x| x * 0.995)), Verdict::Same, "less than is ever flagged");
        assert_eq!(verdict(&a, &[104.0, 82.0, 118.0, 55.0, 109.0]), Verdict::Same);
        let one_odd_round = [98.0, 50.0, 109.0, 59.5, 104.0];
        assert_eq!(verdict(&a, &one_odd_round), Verdict::Same);
    }

    #[test]
    fn kept_runs_are_compared_on_one_machine_alone() {
        let (a, slow) = (entry("aaa", &[100.0, 101.0, 99.0]), entry("bbb", &[80.0, 81.0, 79.0]));
        let error = kept("aa", "bb", &[a.clone(), slow.clone()]).unwrap_err().to_string();
        assert_eq!(error, "bb is slower in 1 of 1 tests, by more than the noise");
        kept("bb", "aa", &[a.clone(), slow.clone()]).unwrap();
        let mut elsewhere = slow.clone();
        elsewhere.machine.cores = 8;
        let error = kept("aa", "bb", &[a.clone(), elsewhere]).unwrap_err().to_string();
        assert!(error.contains("cannot be compared"), "{error}");
        let error = kept("aa", "cc", &[a, slow]).unwrap_err().to_string();
        assert!(error.contains("`cc`") && error.contains("--save"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_slow_program_is_found_by_running_both() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("metallic-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = |name: &str, speed: u32| {
            let path = folder.join(name);
            let script = format!("#!/bin/sh\necho '[{{\"test\":\"tg64\",\"median\":{speed}}}]'\n");
            std::fs::write(&path, script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let (fast, slow) = (program("fast", 100), program("slow", 70));
        let options = Options::parse(&["--rounds".to_owned(), "3".to_owned()]).unwrap();
        let models = ["m.gguf".into()];
        programs(("fast", &fast), ("slow", &slow), &models, &options).unwrap_err();
        programs(("slow", &slow), ("fast", &fast), &models, &options).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
