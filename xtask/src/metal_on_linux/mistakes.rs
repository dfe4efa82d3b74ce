//! `cargo xtask metal-on-linux mistakes`: would the tests of the driver for Metal see a mistake in it?
//!
//! A copy of the driver has all mistakes of a table in it, of which an environment variable chooses one when a test runs: one
//! build serves all. Each must make its test fail, and by what the table says: a rule of Metal, a leak, a wrong number.

mod submit;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Shadow, copy_folder, write_if_new};
use crate::process::{in_parallel, limited, output, root};
use crate::soundness::executable;

/// A piece of the driver, and what else could stand there.
struct Place {
    /// A file of `metallic-gpu/src/metal`.
    file: &'static str,
    /// What comes before the piece, where that alone tells it from others.
    after: &'static str,
    /// The piece: an expression or statements.
    right: &'static str,
    mistakes: &'static [Mistake],
}

struct Mistake {
    name: &'static str,
    /// What stands in the place of the piece.
    wrong: &'static str,
    /// The test that fails, below `metal::`.
    test: &'static str,
    /// What it says then.
    seen: &'static str,
}

/// The crate with all mistakes.
const COPY: &str = "metallic-gpu-planted";
/// Which mistake a process makes.
const VARIABLE: &str = "METALLIC_PLANTED";
/// A mistake may leave a test waiting.
const LIMIT: Duration = Duration::from_secs(60);

/// Of the tests of the copy alone: who waits for what never comes waits for seconds, and buffers are smaller.
const QUICKER: [(&str, &str); 2] =
    [("Duration::from_secs(30)", "Duration::from_secs(3)"), ("64 << 20", "4 << 20")];

/// What the copy has beside the driver's own.
const SWITCH: &str = "
pub(crate) mod planted {
    pub(crate) fn is(name: &str) -> bool {
        std::env::var_os(\"METALLIC_PLANTED\").is_some_and(|planted| planted == name)
    }

    pub(crate) fn pool<R>(name: &str, f: impl FnOnce() -> R) -> R {
        if is(name) { f() } else { objc2::rc::autoreleasepool(|_| f()) }
    }
}
";

/// Mistakes are made around what follows, so that they are no pieces: text, its replacement with the name in it.
const POOLS: &[(&str, &str, &str)] = &[(
    "mod.rs",
    "autoreleasepool(|_| {\n            let ready",
    "planted::pool(\"no pool for what is submitted\", || {\n            let ready",
)];
const POOL_MISTAKES: &[Mistake] = &[Mistake {
    name: "no pool for what is submitted",
    wrong: "",
    test: "on_linux::every_message_is_sent_with_a_pool_open",
    seen: "NoPool",
}];

/// Every place in the driver where a mistake can be made.
fn places() -> impl Iterator<Item = &'static Place> {
    submit::PLACES.iter().chain(table::PLACES)
}

pub(super) fn run(only: &[String]) -> Result<()> {
    let all = || places().flat_map(|place| place.mistakes).chain(POOL_MISTAKES);
    let chosen: Vec<&Mistake> = all()
        .filter(|mistake| only.is_empty() || only.iter().any(|word| mistake.name.contains(word.as_str())))
        .collect();
    ensure!(!chosen.is_empty(), "no mistake is called `{}`", only.join(" "));
    let shadow = Shadow::prepare_with(&["planted/*"])?;
    plant(&shadow.folder.join("planted/metallic-gpu"))?;
    let begun = Instant::now();
    let program = build(&shadow)?;
    eprintln!("built in {:.1} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    without_mistake(&program, &shadow, &chosen)?;
    let outcomes = in_parallel(&chosen, |mistake| try_one(&program, &shadow, mistake))?;
    let mut missed = 0;
    for (mistake, outcome) in chosen.iter().zip(&outcomes) {
        let (told, seen) = match outcome {
            Ok(seen) => ("seen", seen),
            Err(reason) => ("MISSED", reason),
        };
        missed += usize::from(outcome.is_err());
        println!("{told:6}  {}: {seen}", mistake.name);
    }
    println!(
        "{} of {} planted mistakes were seen, in {:.1} s",
        chosen.len() - missed,
        chosen.len(),
        begun.elapsed().as_secs_f64()
    );
    ensure!(missed == 0, "{missed} mistakes in the driver would pass its tests");
    Ok(())
}

/// Writes the copy of the driver's crate, under another name, with all mistakes in it.
fn plant(folder: &Path) -> Result<()> {
    let from = root().join("crates/metallic-gpu");
    fs::create_dir_all(folder)?;
    let mut change = |path: &Path, text: String| match path.strip_prefix("metal") {
        Ok(file) => with_mistakes(file, &text),
        // Tests of other parts, and what they need, would only be built.
        Err(_) => Ok(text.replace("#[cfg(test)]", "#[cfg(any())]").replace("any(test, ", "any(")),
    };
    copy_folder(&from.join("src"), &folder.join("src"), Path::new(""), &mut change)?;
    let manifest = fs::read_to_string(from.join("Cargo.toml"))?.replace("metal_on_linux", "all()");
    let (manifest, _) =
        manifest.split_once("[dev-dependencies]").context("the driver's crate tests with nothing")?;
    let name = "name = \"metallic-gpu\"";
    ensure!(manifest.contains(name), "the driver's crate has another name than this chore knows");
    let manifest = manifest.replacen(name, &format!("name = \"{COPY}\"\nautobenches = false"), 1);
    write_if_new(&folder.join("Cargo.toml"), &format!("{manifest}\n[lints]\nworkspace = true\n"))?;
    let script = fs::read_to_string(folder.join("../../crates/metallic-gpu/build.rs"))?;
    write_if_new(&folder.join("build.rs"), &script)
}

/// A file of the driver with its mistakes; a piece that is not there once is an error.
fn with_mistakes(file: &Path, text: &str) -> Result<String> {
    let choices = places().map(|place| (place.file, place.after, place.right, place.choice()));
    let pools = POOLS.iter().map(|(name, old, new)| (*name, "", *old, (*new).to_owned()));
    let mut pieces = Vec::new();
    for (name, after, right, new) in choices.chain(pools).filter(|(name, ..)| Path::new(name) == file) {
        let found: Vec<usize> = text.match_indices(&format!("{after}{right}")).map(|(at, _)| at).collect();
        let [at] = found[..] else {
            bail!(
                "metal/{name} has {} times what mistakes are planted in, once is needed: `{after}{right}`",
                found.len()
            )
        };
        pieces.push((at + after.len(), right.len(), new));
    }
    pieces.sort_unstable();
    let (mut planted, mut done) = (String::new(), 0);
    for (at, len, new) in pieces {
        let between =
            text.get(done..at).with_context(|| format!("two places of {} overlap", file.display()))?;
        planted = planted + between + &new;
        done = at + len;
    }
    planted.push_str(&text[done..]);
    if file == Path::new("mod.rs") {
        planted = planted.replacen("#![allow(unsafe_code)]", "#![allow(unsafe_code, unused)]", 1) + SWITCH;
    }
    if file.ends_with("tests.rs") || file.ends_with("on_linux.rs") {
        planted = QUICKER.iter().fold(planted, |text, (old, new)| text.replace(old, new));
    }
    Ok(planted)
}

impl Place {
    /// Rust that chooses between the piece and its mistakes when it runs.
    fn choice(&self) -> String {
        let wrong = self.mistakes.iter().map(|mistake| {
            format!("if crate::metal::planted::is({:?}) {{ {} }} else ", mistake.name, mistake.wrong)
        });
        format!("{}{{ {} }}", wrong.collect::<String>(), self.right)
    }
}

fn build(shadow: &Shadow) -> Result<PathBuf> {
    let mut command = shadow.command();
    // With the framework's own tests, as the driver's are built: the bindings then have the features that they were built with.
    command.args(["test", "-p", COPY, "-p", "softmetal-framework", "--lib", "--no-run"]);
    let said = output(command.args(["--message-format", "json-render-diagnostics"]))?;
    let ours: Vec<&str> = said.lines().filter(|line| line.contains(COPY)).collect();
    executable(&ours.join("\n")).context("cargo made no program of the driver's tests")
}

/// The tests pass without a mistake: else they would show nothing.
fn without_mistake(program: &Path, shadow: &Shadow, chosen: &[&Mistake]) -> Result<()> {
    let mut tests: Vec<&str> = chosen.iter().map(|mistake| mistake.test).collect();
    tests.sort_unstable();
    tests.dedup();
    let outcomes = in_parallel(&tests, |test| execute(program, shadow, None, test))?;
    for (test, outcome) in tests.iter().zip(outcomes) {
        let (status, said) = outcome;
        ensure!(said.contains("1 passed") || status != Some(0), "there is no test `metal::{test}`:\n{said}");
        ensure!(status == Some(0), "`metal::{test}` fails without any mistake:\n{said}");
    }
    Ok(())
}

/// What was seen of a mistake, or why it was not.
fn try_one(program: &Path, shadow: &Shadow, mistake: &Mistake) -> Result<String, String> {
    let begun = Instant::now();
    let (status, said) = execute(program, shadow, Some(mistake.name), mistake.test);
    if status == Some(0) {
        return Err(format!("`{}` passes", mistake.test));
    }
    // Names of tests have the same words in them.
    let line = said.lines().find(|line| line.contains(mistake.seen) && !line.starts_with("test "));
    let Some(line) = line else {
        let telling =
            said.lines().filter(|line| line.contains("Metal validation") || line.contains("panicked"));
        let shown: Vec<&str> = telling.chain(said.lines().rev().take(12)).take(12).collect();
        return Err(format!(
            "`{}` fails, and not by `{}`:\n{}",
            mistake.test,
            mistake.seen,
            shown.join("\n")
        ));
    };
    let shown: String = line.trim().chars().take(120).collect();
    Ok(format!("{shown} ({:.1} s)", begun.elapsed().as_secs_f64()))
}

/// Runs one test in a process of its own; its status, where it ended by itself, and what it said.
fn execute(program: &Path, shadow: &Shadow, mistake: Option<&str>, test: &str) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command
        .args(["--exact", "--nocapture", "--test-threads", "1"])
        .arg(format!("metal::{test}"))
        .current_dir(root().join("crates/metallic-gpu"))
        .env("METALLIC_KERNEL_CACHE", shadow.folder.join("kernels"))
        .env("METALLIC_TEST_ALL", "1")
        .env("SOFTMETAL_STRICT", "1")
        .env("RUST_BACKTRACE", "0")
        .env_remove(VARIABLE);
    if let Some(mistake) = mistake {
        command.env(VARIABLE, mistake);
    }
    limited(&mut command, LIMIT).unwrap_or_else(|error| (None, format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_has_a_place_in_the_driver_and_a_test() {
        let folder = root().join("crates/metallic-gpu/src/metal");
        let read = |file: &str| fs::read_to_string(folder.join(file)).expect("a file of the driver");
        let (tests, on_linux) = (read("tests.rs"), read("on_linux.rs"));
        let mut names = Vec::new();
        for place in places() {
            with_mistakes(Path::new(place.file), &read(place.file)).expect("it can be planted");
            names.extend(place.mistakes.iter().map(|mistake| mistake.name));
            for mistake in place.mistakes {
                let (module, test) = mistake.test.split_once("::").expect("a module and a test");
                let file = if module == "tests" { &tests } else { &on_linux };
                assert!(file.contains(&format!("fn {test}()")), "{}: no test `{test}`", mistake.name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == count && count >= 20, "{count} mistakes");
    }

    #[test]
    fn a_mistake_that_no_longer_applies_is_an_error() {
        let error = with_mistakes(Path::new("submit.rs"), "fn f() {}").expect_err("nothing there");
        assert!(error.to_string().contains("submit.rs has 0 times"), "{error}");
    }
}
