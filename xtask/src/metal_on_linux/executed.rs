//! `cargo xtask metal-on-linux executed`: which lines of the driver for Metal its tests execute on Linux, and which no run here does.
//!
//! The compiler counts (`-C instrument-coverage`), LLVM's tools of the same version read the counts. What only a Mac
//! compiles is found in the sources, by its attribute.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Shadow;
use crate::process::{command, output, root, run as run_command};
use crate::soundness::{executable, host};

/// The page that has the result, and what stands around it there.
const PAGE: &str = "docs/metal-without-a-mac.md";
const BEGIN: &str = "<!-- made by `cargo xtask metal-on-linux executed --write` -->";
const END: &str = "<!-- end -->";
/// Where the tools are, if not beside the compiler.
const TOOLS: &str = "METALLIC_LLVM_TOOLS";

/// A line of a source.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    /// Of the driver its name alone, else its path in the repository.
    file: String,
    number: usize,
    text: String,
}

/// What was found of the driver.
struct Found {
    /// Lines with code, of each file all and those that were executed.
    counts: BTreeMap<String, (usize, usize)>,
    missed: Vec<Line>,
    /// Lines that say that what follows is for a Mac alone.
    mac_only: Vec<Line>,
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let write = match args {
        [] => false,
        [option] if option == "--write" => true,
        _ => bail!("executed knows `--write` alone, not `{}`", args.join(" ")),
    };
    let tools = tools()?;
    let found = Found { mac_only: mac_only()?, ..count(&tools)? };
    let told = found.tell()?;
    print!("{told}");
    for line in &found.missed {
        eprintln!("{}:{}: {}", line.file, line.number, line.text);
    }
    if write {
        let page = root().join(PAGE);
        let text = fs::read_to_string(&page)?;
        fs::write(&page, with_part(&text, &told)?)?;
        eprintln!("written to {PAGE}");
    }
    Ok(())
}

/// The folder of LLVM's tools that read what this compiler counts.
fn tools() -> Result<PathBuf> {
    let sysroot = output(command("rustc").args(["--print", "sysroot"]))?;
    let beside = Path::new(sysroot.trim()).join("lib/rustlib").join(host()?).join("bin");
    let named = std::env::var_os(TOOLS).map(PathBuf::from);
    let places = named.into_iter().chain([beside]);
    let found = places
        .into_iter()
        .find(|place| ["llvm-profdata", "llvm-cov"].iter().all(|tool| place.join(tool).is_file()));
    found.with_context(|| {
        format!(
            "no llvm-profdata and llvm-cov of this compiler's LLVM: `rustup component add llvm-tools` brings them, or {TOOLS} \
             names their folder"
        )
    })
}

/// Runs the driver's tests with counters in the driver.
fn count(tools: &Path) -> Result<Found> {
    let shadow = Shadow::prepare()?;
    let mut build = shadow.command();
    build.args(["rustc", "-p", "metallic-gpu", "--lib", "--profile", "test"]);
    build.args(["--message-format", "json-render-diagnostics", "--", "-C", "instrument-coverage"]);
    let program = executable(&output(&mut build)?).context("cargo made no program of the driver's tests")?;
    let folder = root().join("target/executed");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let (counters, profile) = (folder.join("counters.profraw"), folder.join("counters.profdata"));
    let mut tests = Command::new(&program);
    tests
        .args(["metal::", "--skip", "apples_compiler", "--test-threads", "1"])
        .current_dir(root().join("crates/metallic-gpu"))
        .env("METALLIC_KERNEL_CACHE", shadow.folder.join("kernels"))
        .env("METALLIC_TEST_ALL", "1")
        .env("LLVM_PROFILE_FILE", &counters);
    run_command(&mut tests)?;
    let mut merge = command(tools.join("llvm-profdata"));
    run_command(merge.args(["merge", "-sparse"]).arg(&counters).arg("-o").arg(&profile))?;
    let mut export = command(tools.join("llvm-cov"));
    export.args(["export", "--format=lcov"]).arg(format!("--instr-profile={}", profile.display()));
    of_driver(&output(export.arg(&program))?)
}

/// Reads what `llvm-cov` says of the driver: `SF:` a file, `DA:` a line and how often it was executed.
fn of_driver(lcov: &str) -> Result<Found> {
    let mut found = Found { counts: BTreeMap::new(), missed: Vec::new(), mac_only: Vec::new() };
    let mut file = None;
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let inside = path.split_once("metallic-gpu/src/metal/").map(|(_, file)| file);
            let own = inside.filter(|file| !matches!(*file, "tests.rs" | "apple_tests.rs" | "on_linux.rs"));
            file = own.map(|file| (file.to_owned(), fs::read_to_string(path).unwrap_or_default()));
        }
        let (Some((name, text)), Some(counted)) = (&file, line.strip_prefix("DA:")) else { continue };
        let mut numbers = counted.split(',').map(str::parse::<usize>);
        let (Some(Ok(number)), Some(Ok(times))) = (numbers.next(), numbers.next()) else {
            bail!("llvm-cov says `{line}`, which is no line and count");
        };
        let (all, executed) = found.counts.entry(name.clone()).or_default();
        *all += 1;
        *executed += usize::from(times > 0);
        if times == 0 {
            let text = text.lines().nth(number - 1).unwrap_or_default().trim().to_owned();
            found.missed.push(Line { file: name.clone(), number, text });
        }
    }
    ensure!(!found.counts.is_empty(), "llvm-cov says nothing of the driver");
    found.missed.sort();
    Ok(found)
}

/// Lines of library code that keep what follows to Macs.
fn mac_only() -> Result<Vec<Line>> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let skipped = ["tests", "benches", "examples", "metal"].iter().any(|name| path.ends_with(name));
            if path.is_dir() && !skipped {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let file = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                let text = fs::read_to_string(&path)?;
                let lines = text.lines().enumerate().filter(|(_, line)| keeps_to_macs(line));
                found.extend(lines.map(|(index, line)| Line {
                    file: file.clone(),
                    number: index + 1,
                    text: line.trim().to_owned(),
                }));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn keeps_to_macs(line: &str) -> bool {
    let said = line.contains("cfg(") || line.contains("cfg!(");
    let others = ["metal_on_linux", "not(", "\"linux\"", "windows"];
    said && line.contains("target_os = \"macos\"") && !others.iter().any(|other| line.contains(other))
}

impl Found {
    fn tell(&self) -> Result<String> {
        let (all, executed) = self.counts.values().fold((0, 0), |sum, file| (sum.0 + file.0, sum.1 + file.1));
        let day = output(command("date").args(["-u", "+%Y-%m-%d"]))?;
        let mut told = format!(
            "Counted on {}: {all} lines of the driver have code, and its own tests execute {executed} of them on Linux.\n\n\
             | file | lines with code | executed |\n| --- | --- | --- |\n",
            day.trim()
        );
        for (file, (all, executed)) in &self.counts {
            writeln!(told, "| `{file}` | {all} | {executed} |")?;
        }
        writeln!(told, "\nNot executed are {}:\n\n```text", self.missed.len())?;
        for line in &self.missed {
            writeln!(told, "{}: {}", line.file, line.text)?;
        }
        writeln!(
            told,
            "```\n\nNot even compiled here is what these lines keep to Macs, outside of the driver:\n\n```text"
        )?;
        for line in &self.mac_only {
            writeln!(told, "{}: {}", line.file, line.text)?;
        }
        told.push_str("```\n");
        Ok(told)
    }
}

/// The page with another part.
fn with_part(page: &str, part: &str) -> Result<String> {
    let ends = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = ends.with_context(|| format!("{PAGE} has no `{BEGIN}` and `{END}`"))?;
    Ok(format!("{before}{BEGIN}\n{part}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_file_and_tests_are_not() {
        let driver = root().join("crates/metallic-gpu/src/metal/clock.rs");
        let lcov = format!(
            "SF:/x/metallic-gpu/src/metal/tests.rs\nDA:1,0\nend_of_record\nSF:{}\nDA:1,7\nDA:2,0\n",
            driver.display()
        );
        let found = of_driver(&lcov).expect("it is well formed");
        assert_eq!(found.counts, BTreeMap::from([("clock.rs".to_owned(), (2, 1))]));
        assert_eq!((found.missed.len(), found.missed[0].number), (1, 2));
        assert!(of_driver("SF:/x/metallic-gpu/src/metal/clock.rs\nDA:1\n").is_err());
        assert!(of_driver("").is_err(), "nothing is not everything");
    }

    #[test]
    fn what_is_for_macs_alone_is_told_from_what_is_for_linux_too() {
        assert!(
            keeps_to_macs("#[cfg(target_os = \"macos\")]")
                && keeps_to_macs("if cfg!(target_os = \"macos\") {")
        );
        for other in
            ["#[cfg(any(target_os = \"macos\", metal_on_linux))]", "#[cfg(not(target_os = \"macos\"))]"]
        {
            assert!(!keeps_to_macs(other), "{other}");
        }
    }

    #[test]
    fn the_lines_that_the_page_says_are_not_executed_are_still_there() {
        let page = fs::read_to_string(root().join(PAGE)).expect("the page");
        let (_, part) = page.split_once(BEGIN).expect("it has the part");
        let (part, _) = part.split_once(END).expect("it ends");
        let blocks: Vec<&str> = part.split("```").collect();
        let [_, missed, _, mac_only, _] = blocks[..] else { panic!("two lists, not {}", blocks.len() / 2) };
        for (list, folder) in [(missed, "crates/metallic-gpu/src/metal"), (mac_only, "")] {
            for line in list.lines().skip(1) {
                let (file, text) = line.split_once(": ").unwrap_or_else(|| panic!("`{line}` names no file"));
                let found = fs::read_to_string(root().join(folder).join(file)).unwrap_or_default();
                assert!(
                    found.lines().any(|known| known.trim() == text),
                    "{file} has no `{text}` any more: cargo xtask metal-on-linux executed --write"
                );
            }
        }
        let mac_only_now: Vec<String> =
            super::mac_only().expect("sources").iter().map(|l| format!("{}: {}", l.file, l.text)).collect();
        assert_eq!(mac_only.lines().skip(1).collect::<Vec<_>>(), mac_only_now);
    }

    #[test]
    fn a_page_without_a_place_for_it_is_refused() {
        assert!(with_part("nothing", "x").is_err());
        let page = with_part(&format!("a\n{BEGIN}\nold\n{END}\nb\n"), "new\n").expect("it has a place");
        assert_eq!(page, format!("a\n{BEGIN}\nnew\n{END}\nb\n"));
    }
}
