//! `cargo xtask test`: everything a test needs, then every test.

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Result, bail, ensure};

use crate::browser;
use crate::checks::ALL_FEATURES;
use crate::clang;
use crate::clients;
use crate::models::{self, PTXAS, QWEN, SMOLLM2};
use crate::process::{apt_install, cargo, root, works};

/// How long the optional model may take to arrive before the tests go on without it.
const OPTIONAL_LIMIT_S: u32 = 150;
const LIMIT_S: u32 = 1800;
/// Whether this machine can run NVIDIA's assembler as it is fetched.
const HAS_PTXAS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fetch {
    /// Every model must be there at the end.
    All,
    /// The optional model is fetched if that is quick.
    Usual,
    /// Only what the tests cannot do without.
    Needed,
    Nothing,
}

/// Runs every test, or those that `args` choose.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (fetch, rest) = parse(args);
    let nextest = works("cargo-nextest", &["nextest", "--version"]);
    let notes = thread::scope(|scope| {
        // What is fetched meanwhile is needed by the tests, not by their build; what fails is said when they are run.
        let build = rest.is_empty() && fetch != Fetch::Nothing;
        let built = build.then(|| scope.spawn(|| run_tests(cargo().args(building(nextest)))));
        let notes = prepare(fetch);
        drop(built.map(thread::ScopedJoinHandle::join));
        notes
    })?;

    // These first, so that the closing lines of the main run are the last ones.
    let docs = if rest.is_empty() {
        run_tests(cargo().args(["test", "--workspace", ALL_FEATURES, "--doc", "--quiet"]))
    } else {
        Ok(())
    };
    let clients = if rest.is_empty() && clients::can_run() { clients::suites(&[]) } else { Ok(()) };
    let tests = if nextest {
        run_tests(
            cargo().args(["nextest", "run", ALL_FEATURES, "--no-fail-fast"]).args(scope(&rest)).args(&rest),
        )
    } else {
        run_tests(
            cargo()
                .args(["test", ALL_FEATURES, "--no-fail-fast"])
                .args(targets(&rest))
                .args(scope(&rest))
                .args(&rest),
        )
    };

    for note in &notes {
        eprintln!("xtask test: {note}");
    }
    let failed: Vec<String> = [docs, clients, tests]
        .into_iter()
        .filter_map(Result::err)
        .map(|error| format!("{error:#}"))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Fetches what the tests need and stops.
pub(crate) fn setup(args: &[String]) -> Result<()> {
    let (fetch, rest) = parse(args);
    if let Some(option) = rest.first() {
        bail!("setup does not know `{option}`");
    }
    for note in prepare(fetch)? {
        eprintln!("xtask setup: {note}");
    }
    Ok(())
}

/// Our own options, and what goes to the test runner.
fn parse(args: &[String]) -> (Fetch, Vec<String>) {
    let mut fetch = Fetch::Usual;
    let mut rest = args.to_vec();
    rest.retain(|arg| {
        fetch = match arg.as_str() {
            "--all-models" => Fetch::All,
            "--quick" => Fetch::Needed,
            "--offline" => Fetch::Nothing,
            _ => return true,
        };
        false
    });
    (fetch, rest)
}

/// Installs and fetches what the tests need. Returns what is missing and what that means.
fn prepare(fetch: Fetch) -> Result<Vec<String>> {
    if fetch != Fetch::Nothing {
        clang::install()?;
        install_tmux()?;
        browser::install()?;
        let python = models::python()?;
        eprintln!("test models: {}", models::folder().display());
        SMOLLM2.fetch(&python, LIMIT_S)?;
        if HAS_PTXAS && let Err(error) = PTXAS.fetch_program(&python, OPTIONAL_LIMIT_S) {
            eprintln!("going on without NVIDIA's assembler: {error:#}");
        }
        if let Err(error) = clients::install() {
            eprintln!("going on without the client packages: {error:#}");
        }
        match fetch {
            Fetch::All => QWEN.fetch(&python, LIMIT_S)?,
            Fetch::Usual => {
                if let Err(error) = QWEN.fetch(&python, OPTIONAL_LIMIT_S) {
                    eprintln!("going on without the optional model: {error:#}");
                }
            }
            Fetch::Needed | Fetch::Nothing => {}
        }
    }
    let mut notes = Vec::new();
    if !clang::is_there() {
        notes.push("NOT THERE: a clang for Metal kernels. The tests that need one did not run.".into());
    }
    if !has_tmux() {
        notes.push("NOT THERE: tmux. The tests that need a terminal did not run.".into());
    }
    if !browser::is_there() {
        notes.push("NOT THERE: chromedriver and its browser. The tests of the web page did not run.".into());
    }
    if !clients::can_run() {
        notes.push(
            "NOT THERE: the packages openai, anthropic, langchain and schemathesis. Their suites did not run against the server."
                .into(),
        );
    }
    for model in [&SMOLLM2, &QWEN] {
        if !model.path().exists() {
            notes.push(format!("NOT THERE: {}. The tests that need this model did not run.", model.file));
        }
    }
    if ptxas().is_none() && !works("ptxas", &["--version"]) {
        notes.push("NOT THERE: ptxas (NVIDIA's assembler). The test that needs it did not run.".into());
    }
    match shared() {
        Some(folder) => notes.push(format!("larger test data: {}", folder.display())),
        None => notes.push(
            "NOT THERE: the larger test data (METALLIC_SHARED). The tests that need it did not run.".into(),
        ),
    }
    Ok(notes)
}

/// Whether there is a terminal that tests can look at.
fn has_tmux() -> bool {
    works("tmux", &["-V"])
}

fn install_tmux() -> Result<()> {
    if has_tmux() {
        return Ok(());
    }
    if cfg!(target_os = "macos") {
        eprintln!("installing by brew: tmux");
        return crate::process::run(Command::new("brew").args(["install", "tmux"]));
    }
    apt_install(&["tmux"])
}

/// NVIDIA's assembler: the one that is named, else the one that was fetched.
fn ptxas() -> Option<PathBuf> {
    let named = std::env::var_os("SOFTMETAL_PTXAS").filter(|name| !name.is_empty()).map(PathBuf::from);
    Some(named.unwrap_or_else(|| PTXAS.path())).filter(|path| path.is_file())
}

/// The folder of larger test data, where there is one.
pub(crate) fn shared() -> Option<PathBuf> {
    let folder = match std::env::var_os("METALLIC_SHARED") {
        Some(folder) if !folder.is_empty() => root().join(folder),
        _ => root().join("..").join("shared"),
    };
    folder.is_dir().then(|| folder.canonicalize().unwrap_or(folder))
}

fn run_tests(command: &mut Command) -> Result<()> {
    command.env("METALLIC_TEST_MODELS", models::folder());
    if let Some(ptxas) = ptxas() {
        command.env("SOFTMETAL_PTXAS", ptxas);
    }
    // Without one, which only `--offline` comes to, the closing lines say what did not run.
    if clang::is_there() && has_tmux() && browser::is_there() {
        command.env("METALLIC_TEST_ALL", "1");
    }
    match shared() {
        Some(folder) => command.env("METALLIC_SHARED", folder),
        None => command.env_remove("METALLIC_SHARED"),
    };
    crate::process::run(command)
}

/// Builds all that the main run runs.
fn building(nextest: bool) -> Vec<&'static str> {
    let runner: &[&str] = if nextest { &["nextest", "run"] } else { &["test", "--all-targets"] };
    [runner, &[ALL_FEATURES, "--workspace", "--no-run"]].concat()
}

/// `--workspace`, unless the caller chose packages.
fn scope(rest: &[String]) -> &'static [&'static str] {
    let chosen = rest.iter().any(|arg| arg == "-p" || arg.starts_with("--package") || arg == "--workspace");
    if chosen { &[] } else { &["--workspace"] }
}

/// `cargo test` would run the doc tests again; with options of the caller's it shall do as it is told.
fn targets(rest: &[String]) -> &'static [&'static str] {
    if rest.is_empty() { &["--all-targets"] } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn our_options_are_taken_and_the_others_reach_the_runner_in_order() {
        assert_eq!(parse(&[]), (Fetch::Usual, vec![]));
        assert_eq!(parse(&words("-p metallic --all-models name")), (Fetch::All, words("-p metallic name")));
        assert_eq!(parse(&words("--offline")), (Fetch::Nothing, vec![]));
        assert_eq!(parse(&words("--quick --no-capture")), (Fetch::Needed, words("--no-capture")));
    }

    #[test]
    fn the_whole_workspace_is_tested_unless_packages_are_named() {
        assert_eq!(scope(&words("some_test")), ["--workspace"]);
        assert!(scope(&words("-p metallic-core")).is_empty());
        assert!(scope(&words("--package=metallic-core")).is_empty());
    }
}
