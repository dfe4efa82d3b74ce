//! What other tools see of the unsafe code: Miri, AddressSanitizer and valgrind, each on what it can reach.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::process::{apt_install, cargo, command, output, root, run, works};

/// A tool and those tests of a crate that it can follow.
struct Check {
    tool: Tool,
    package: &'static str,
    program: Program,
    /// Tests whose names contain one of these; all, if there are none.
    tests: &'static [&'static str],
    /// Tests that it cannot follow, or not in any reasonable time, and why.
    without: &'static [(&'static str, &'static str)],
    /// Whether it is done with `--quick` as well.
    quick: Quick,
}

/// What takes seconds, not minutes, once the tests are built.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quick {
    Yes,
    /// In the place of Miri, where there is none.
    WithoutMiri,
    No,
}

/// Which of a crate's tests.
#[derive(Clone, Copy)]
enum Program {
    Unit,
    Integration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Valgrind,
    AddressSanitizer,
    Miri,
}

const MANY: &str = "minutes of interpretation each; AddressSanitizer has them at speed";
const STALE: &str = "Miri lets a SeqCst load find a value from before the last SeqCst store, which C++20 forbids: by some seeds the \
                     wake-up that the test waits for is lost";
const MAPS: &str = "files are mapped, which Miri cannot do; AddressSanitizer and valgrind have them";

/// Kernels of softmetal run on stacks of their own and end by signals, which neither Miri nor valgrind follows: AddressSanitizer has
/// what it can see of them. Miri has no instruction sets beyond the first, so what it runs of `metallic-cpu` is portable code; that
/// of AVX2 and AVX-512 is AddressSanitizer's, as far as the processor has them.
const CHECKS: &[Check] = &[
    Check { tests: &["objc::"], quick: Quick::Yes, ..miri("softmetal-framework") },
    Check {
        tests: &["simd::memory", "simd::team"],
        without: &[("sleeping_workers", STALE)],
        quick: Quick::Yes,
        ..miri("metallic-cpu")
    },
    Check {
        tests: &["simd::pack", "simd::team", "kept::"],
        quick: Quick::WithoutMiri,
        ..valgrind("metallic-cpu")
    },
    // Products and attention of `simd` are minutes of interpretation each; AddressSanitizer has them at speed.
    Check { tests: &["kept::", "is_refused"], ..miri("metallic-cpu") },
    Check {
        without: &[
            ("quant::tests", MANY),
            ("sample::", MANY),
            ("reference::", MANY),
            ("tensor::tests::chains_of_views", MANY),
        ],
        ..miri("metallic-core")
    },
    Check {
        program: Program::Integration,
        without: &[
            ("truncated::", MAPS),
            ("bad::", MAPS),
            ("a_written_file_opens", MAPS),
            ("data_that_is_left_out", MAPS),
            ("a_stream_is_a_file", MAPS),
            ("tensors_outlive", MAPS),
            ("the_files_of_a_split_model", MAPS),
            ("shards_are_read", MAPS),
            ("a_broken_index", MAPS),
            ("what_is_written_is_read_back", MANY),
            ("a_file_cut_anywhere", MANY),
            ("mutations::", MANY),
        ],
        ..miri("metallic-formats")
    },
    Check { tests: &["simd::memory", "weights::"], ..valgrind("metallic-cpu") },
    Check {
        program: Program::Integration,
        without: &[("truncated::", "they end by a signal, which is for AddressSanitizer to see")],
        ..valgrind("metallic-formats")
    },
    Check { without: &[("peaks::", "they measure times")], ..sanitized("metallic-cpu") },
    Check { program: Program::Integration, ..sanitized("metallic-formats") },
    Check { ..sanitized("softmetal") },
    Check { ..sanitized("softmetal-framework") },
];

const fn of(tool: Tool, package: &'static str) -> Check {
    Check { tool, package, program: Program::Unit, tests: &[], without: &[], quick: Quick::No }
}

const fn valgrind(package: &'static str) -> Check {
    of(Tool::Valgrind, package)
}

const fn sanitized(package: &'static str) -> Check {
    of(Tool::AddressSanitizer, package)
}

const fn miri(package: &'static str) -> Check {
    of(Tool::Miri, package)
}

const NO_NIGHTLY: &str = "there is no nightly Rust: rustup toolchain install nightly --profile minimal";
const NO_MIRI: &str = "nightly Rust has no Miri: rustup component add miri rust-src --toolchain nightly";

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Valgrind => "valgrind",
            Tool::AddressSanitizer => "AddressSanitizer",
            Tool::Miri => "Miri",
        }
    }

    /// Why it cannot be used here, and what would change that; nothing if it can. Installs it where that is allowed.
    fn missing(self, may_install: bool) -> Option<String> {
        let there = || match self {
            Tool::Valgrind => works("valgrind", &["--version"]),
            Tool::AddressSanitizer => has_nightly(),
            // A toolchain by name is rustup's to find.
            Tool::Miri => has_nightly() && works("cargo", &["+nightly", "miri", "--version"]),
        };
        if there() {
            return None;
        }
        let installed = match self {
            Tool::Valgrind if may_install => apt_install(&["valgrind"]),
            Tool::AddressSanitizer if may_install => install_nightly(),
            Tool::Miri if may_install => install_nightly().and_then(|()| install_miri()),
            Tool::Valgrind => Err(anyhow!("there is no valgrind: apt-get install valgrind")),
            Tool::Miri if has_nightly() => Err(anyhow!(NO_MIRI)),
            Tool::AddressSanitizer | Tool::Miri => Err(anyhow!(NO_NIGHTLY)),
        };
        match installed {
            Ok(()) if there() => None,
            Ok(()) => Some(format!("{} was installed and does not start", self.name())),
            Err(error) => Some(format!("{error:#}")),
        }
    }
}

fn has_nightly() -> bool {
    works("cargo", &["+nightly", "--version"])
}

fn install_nightly() -> Result<()> {
    if has_nightly() {
        return Ok(());
    }
    run(command("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]))
        .context(NO_NIGHTLY)
}

fn install_miri() -> Result<()> {
    run(command("rustup").args(["component", "add", "miri", "rust-src", "--toolchain", "nightly"]))
        .context(NO_MIRI)
}

#[derive(Default)]
struct Options {
    quick: bool,
    all: bool,
    /// Checks whose descriptions contain one of these; all, if there are none.
    words: Vec<String>,
}

fn options(args: &[String]) -> Result<Options> {
    let mut options = Options::default();
    for arg in args {
        match arg.as_str() {
            "--quick" => options.quick = true,
            "--all" => options.all = true,
            other if other.starts_with('-') => {
                bail!("`{other}` is no option of it; there are --quick and --all")
            }
            word => options.words.push(word.to_owned()),
        }
    }
    Ok(options)
}

pub(crate) fn soundness(args: &[String]) -> Result<()> {
    let Options { quick, all, words } = options(args)?;
    let (mut done, mut left_out, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let without_miri = quick && Tool::Miri.missing(false).is_some();
    let wanted = |check: &&Check| match check.quick {
        Quick::Yes => true,
        Quick::WithoutMiri => !quick || without_miri,
        Quick::No => !quick,
    };
    let named = |check: &&Check| words.is_empty() || words.iter().any(|word| check.describe().contains(word));
    for check in CHECKS.iter().filter(wanted).filter(named) {
        let name = check.describe();
        if let Some(reason) = check.tool.missing(!quick) {
            left_out.push(format!("{name}: {reason}"));
            continue;
        }
        let begun = Instant::now();
        match check.run() {
            Ok(()) => done.push(format!("{name}, {:.1} s", begun.elapsed().as_secs_f64())),
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
        left_out.extend(
            check
                .without
                .iter()
                .map(|(test, why)| format!("{} on {}, `{test}`: {why}", check.tool.name(), check.package)),
        );
    }
    for (what, names) in [("passed", &done), ("NOT RUN", &left_out), ("FAILED", &failed)] {
        for name in names {
            println!("{what}: {name}");
        }
    }
    if quick {
        println!("NOT RUN: everything that takes longer; `cargo xtask soundness` does");
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed", failed.len(), failed.len() + done.len());
    }
    if done.is_empty() {
        // A machine without the tools may still build and test the rest; it has been told.
        if quick && !all && words.is_empty() {
            println!("NOT RUN: neither Miri nor valgrind is here, so nothing is known of the unsafe code");
            return Ok(());
        }
        bail!("nothing could be run, so nothing is known");
    }
    let missing =
        CHECKS.iter().filter(wanted).filter(named).filter(|check| check.tool.missing(false).is_some());
    match missing.count() {
        count if all && count > 0 => bail!("{count} checks could not be run, and --all wants them"),
        _ => Ok(()),
    }
}

impl Check {
    fn describe(&self) -> String {
        let mut tests = if self.tests.is_empty() { "all tests".to_owned() } else { self.tests.join(" ") };
        if !self.without.is_empty() {
            tests = format!("{tests} but {}", self.without.len());
        }
        format!("{} on {} ({tests})", self.tool.name(), self.package)
    }

    /// What the test binary is told.
    fn filters(&self) -> Vec<&'static str> {
        let without = self.without.iter().flat_map(|(name, _)| ["--skip", *name]);
        self.tests.iter().copied().chain(without).collect()
    }

    fn run(&self) -> Result<()> {
        let mut build = vec!["test", "--locked", "--package", self.package];
        build.extend_from_slice(match self.program {
            Program::Unit => &["--lib"],
            Program::Integration => &["--test", "it"],
        });
        match self.tool {
            Tool::Valgrind => {
                let binary = binary(&build)?;
                let mut valgrind = command("valgrind");
                // What was leaked at the end of a test program is nobody's harm; a wrong access is.
                valgrind.args(["--quiet", "--error-exitcode=99", "--leak-check=no"]).arg(binary);
                run(valgrind.args(self.filters()).args(["--test-threads", "1"]).stdout(Stdio::null()))
            }
            Tool::AddressSanitizer => {
                let mut tests = nightly(&build);
                tests.args(["--target", host()?.as_str()]).env("RUSTFLAGS", "-Zsanitizer=address");
                // Objects of the framework are never freed, on purpose; and tests of mapped files that are cut short want the signal
                // for themselves.
                tests.env("ASAN_OPTIONS", "detect_leaks=0:handle_sigbus=0");
                run(tests.arg("--").args(self.filters()))
            }
            Tool::Miri => {
                let mut tests = nightly(&["miri"]);
                tests.args(build).env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks");
                // The trace of each panic that a test expects takes seconds to make.
                tests.env("RUST_BACKTRACE", "0");
                run(tests.arg("--").args(self.filters()))
            }
        }
    }
}

/// Nightly Rust, with a target folder of its own: other flags than everything else's.
fn nightly(args: &[&str]) -> std::process::Command {
    let mut nightly = command("cargo");
    nightly.arg("+nightly").args(args).env("CARGO_TARGET_DIR", target().join("soundness"));
    // Set by the cargo that runs this chore, for itself.
    nightly.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    nightly
}

/// Where cargo builds.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(target)
}

/// The machine that code is made for here.
pub(crate) fn host() -> Result<String> {
    let said = output(command("rustc").arg("-vV"))?;
    let line = said.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("`rustc -vV` does not say what its host is")
}

/// The program that `cargo test` would run.
fn binary(build: &[&str]) -> Result<PathBuf> {
    let said = output(cargo().args(build).args(["--no-run", "--message-format", "json"]))?;
    executable(&said).with_context(|| format!("`cargo {}` has made no program", build.join(" ")))
}

/// The last program in what cargo prints, a JSON object a line.
pub(crate) fn executable(messages: &str) -> Option<PathBuf> {
    let each = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    each.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_last_that_cargo_names() {
        let said = "{\"reason\":\"compiler-artifact\",\"executable\":null}\nnoise\n\
                    {\"executable\":\"/t/first\"}\n{\"executable\":\"/t/it-1\"}\n{\"reason\":\"build-finished\"}";
        assert_eq!(executable(said), Some(PathBuf::from("/t/it-1")));
        assert_eq!(executable("{}"), None);
    }

    #[test]
    fn every_tool_has_something_to_do_and_some_of_it_is_quick() {
        for tool in [Tool::Valgrind, Tool::AddressSanitizer, Tool::Miri] {
            assert!(CHECKS.iter().any(|check| check.tool == tool), "{}", tool.name());
        }
        let quick = |quick: Quick| CHECKS.iter().filter(move |check| check.quick == quick);
        assert!(quick(Quick::Yes).count() > 0 && quick(Quick::Yes).all(|check| check.tool == Tool::Miri));
        assert!(quick(Quick::WithoutMiri).any(|check| check.tool == Tool::Valgrind));
    }

    #[test]
    fn what_is_left_out_has_a_name_and_a_reason() {
        for (check, (name, why)) in
            CHECKS.iter().flat_map(|c| c.without.iter().map(move |without| (c, without)))
        {
            assert!(!name.is_empty() && why.len() > 10, "{}: {name}", check.describe());
            assert!(check.filters().contains(name));
        }
    }

    #[test]
    fn an_option_nobody_knows_is_refused() {
        let error = soundness(&["--quik".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--quik") && error.contains("--quick"), "{error}");
    }
}
