//! What other tools see of the unsafe code: Miri, AddressSanitizer and valgrind, each on what it can reach.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{apt_install, cargo, command, output, root, run, works};

/// A tool and those tests of a crate that it can follow.
struct Check {
    tool: Tool,
    package: &'static str,
    program: Program,
    /// Tests whose names contain one of these; all, if there are none.
    tests: &'static [&'static str],
    /// Tests that it cannot follow, or not in any reasonable time.
    without: &'static [&'static str],
    /// Seconds, not minutes, once the tests are built.
    quick: bool,
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

/// Kernels of softmetal run on stacks of their own and end by signals, which neither Miri nor valgrind follows; its other unsafe
/// code is here. The large products of `metallic-cpu` take valgrind minutes each: AddressSanitizer has them.
const CHECKS: &[Check] = &[
    Check { tests: &["simd::pack", "simd::team", "kept::"], quick: true, ..valgrind("metallic-cpu") },
    Check { tests: &["simd::memory", "weights::"], ..valgrind("metallic-cpu") },
    // Files that are cut short while they are mapped end by a signal, which is for AddressSanitizer to see.
    Check { program: Program::Integration, without: &["truncated::"], ..valgrind("metallic-formats") },
    Check { without: &["peaks::"], ..sanitized("metallic-cpu") },
    Check { program: Program::Integration, ..sanitized("metallic-formats") },
    Check {
        tests: &["runtime::crew", "runtime::switch", "runtime::log", "runtime::worker"],
        ..sanitized("softmetal")
    },
    Check { tests: &["simd::team", "simd::memory", "kept::"], ..of(Tool::Miri, "metallic-cpu") },
];

const fn of(tool: Tool, package: &'static str) -> Check {
    Check { tool, package, program: Program::Unit, tests: &[], without: &[], quick: false }
}

const fn valgrind(package: &'static str) -> Check {
    of(Tool::Valgrind, package)
}

const fn sanitized(package: &'static str) -> Check {
    of(Tool::AddressSanitizer, package)
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Valgrind => "valgrind",
            Tool::AddressSanitizer => "AddressSanitizer",
            Tool::Miri => "Miri",
        }
    }

    /// Why it cannot be used here, and what would change that; nothing if it can.
    fn missing(self, may_install: bool) -> Option<String> {
        match self {
            Tool::Valgrind if works("valgrind", &["--version"]) => None,
            Tool::Valgrind if may_install => {
                apt_install(&["valgrind"]).err().map(|error| format!("{error:#}"))
            }
            Tool::Valgrind => Some("there is no valgrind: apt-get install valgrind".to_owned()),
            // A toolchain by name is rustup's to find.
            Tool::AddressSanitizer if works("cargo", &["+nightly", "--version"]) => None,
            Tool::AddressSanitizer => {
                Some("there is no nightly Rust: rustup toolchain install nightly".to_owned())
            }
            Tool::Miri if works("cargo", &["+nightly", "miri", "--version"]) => None,
            Tool::Miri => Some(
                "nightly Rust has no Miri: rustup component add miri rust-src --toolchain nightly".to_owned(),
            ),
        }
    }
}

pub(crate) fn soundness(args: &[String]) -> Result<()> {
    let (mut quick, mut all) = (false, false);
    for arg in args {
        match arg.as_str() {
            "--quick" => quick = true,
            "--all" => all = true,
            other => bail!("`{other}` is no option of it; there are --quick and --all"),
        }
    }
    let (mut done, mut left_out, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for check in CHECKS.iter().filter(|check| check.quick || !quick) {
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
    if all && !left_out.is_empty() {
        bail!("{} checks could not be run, and --all wants them", left_out.len());
    }
    if done.is_empty() {
        bail!("nothing could be run, so nothing is known");
    }
    Ok(())
}

impl Check {
    fn describe(&self) -> String {
        let mut tests = if self.tests.is_empty() { "all tests".to_owned() } else { self.tests.join(" ") };
        if !self.without.is_empty() {
            tests = format!("{tests} but {}", self.without.join(" "));
        }
        format!("{} on {} ({tests})", self.tool.name(), self.package)
    }

    /// What the test binary is told.
    fn filters(&self) -> Vec<&'static str> {
        let without = self.without.iter().flat_map(|name| ["--skip", *name]);
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
                run(tests.arg("--").args(self.filters()))
            }
            Tool::Miri => {
                let mut tests = nightly(&["miri"]);
                tests.args(build).env("MIRIFLAGS", "-Zmiri-disable-isolation");
                run(tests.arg("--").args(self.filters()))
            }
        }
    }
}

/// Nightly Rust, with a target folder of its own: other flags than everything else's.
fn nightly(args: &[&str]) -> std::process::Command {
    let mut nightly = command("cargo");
    nightly.arg("+nightly").args(args).env("CARGO_TARGET_DIR", root().join("target/soundness"));
    // Set by the cargo that runs this chore, for itself.
    nightly.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    nightly
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
        assert!(CHECKS.iter().any(|check| check.quick));
    }

    #[test]
    fn an_option_nobody_knows_is_refused() {
        let error = soundness(&["--quik".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--quik") && error.contains("--quick"), "{error}");
    }
}
