//! `cargo xtask replay`: every check of the NVIDIA device as a folder of programs and PTX, for a machine with such a GPU and nothing
//! else: no cargo, no clang.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{command, root, run as run_command, works};
use crate::programs::{Built, METALLIC, build};
use crate::ptx::UNITS;

const SCRIPT: &str = include_str!("replay.sh");

/// The tests of single kernels, and those of the throw-away families.
const KERNELS: Built<'static> = Built {
    args: &["test", "--no-run", "--workspace", "--all-features", "--lib"],
    package: "metallic-gpu",
    kind: "lib",
    is_test: true,
};
const FAMILIES: Built<'static> = Built {
    args: &["test", "--no-run", "--workspace", "--all-features", "--test", "it"],
    package: "metallic-testkit",
    kind: "test",
    is_test: true,
};

/// An H100's and an H200's, where nothing else is asked for.
const CAPABILITY: &str = "90";
/// Lies in every folder of these, from before anything else does: a folder without it is somebody else's.
const MARKER: &str = ".metallic-replay";

#[derive(Debug, PartialEq)]
struct Options {
    folder: PathBuf,
    /// Compute capability times ten.
    capability: String,
    /// Multiprocessors of the GPUs that plans are made for.
    units: String,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let Options { folder, capability, units } = Options::parse(args)?;
    empty(&folder)?;
    let ptx = folder.join("metallic-ptx");
    let programs = [("metallic", METALLIC), ("kernels", KERNELS), ("families", FAMILIES)];
    for (name, what) in &programs {
        carry(&build(what)?, &folder.join(name))?;
    }
    let test = |name: &str, filter: &str| {
        let mut test = command(folder.join(name));
        test.args([filter, "--quiet"]).env("METALLIC_TEST_PTX", &ptx);
        test.env("METALLIC_TEST_CAPABILITY", &capability).env("METALLIC_TEST_UNITS", &units);
        run_command(test.env("METALLIC_TEST_ALL", "1"))
    };
    test("kernels", "kernels::")?;
    test("families", "plans_of_nvidia_gpus_have_kernels_for_every_family")?;
    let ops = ["tool", "ptx", "--ops", "--capability", &capability, "--units", &units, "-o"];
    run_command(command(folder.join("metallic")).args(ops).arg(&ptx))?;
    let script = folder.join("replay.sh");
    fs::write(&script, SCRIPT)?;
    if works("nvidia-smi", &[]) {
        return run_command(command("sh").arg(&script));
    }
    eprintln!("no NVIDIA GPU here; on a machine that has one: sh {}", script.display());
    Ok(())
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let folder = root().join("target/replay");
        let mut options = Options { folder, capability: CAPABILITY.to_owned(), units: UNITS.to_owned() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().with_context(|| format!("{arg} needs a number"));
            match arg.as_str() {
                "--capability" => options.capability = value()?,
                "--units" => options.units = value()?,
                given if !given.starts_with('-') => options.folder = std::path::absolute(given)?,
                other => bail!("replay takes a folder, --capability and --units, found `{other}`"),
            }
        }
        let (capability, units) = (&options.capability, &options.units);
        let number: Option<u32> = capability.parse().ok();
        ensure!(
            number.is_some_and(|number| (70..200).contains(&number)),
            "--capability is a compute capability times ten, from 70 on, found `{capability}`"
        );
        ensure!(
            units.split(',').all(|number| number.parse::<u32>().is_ok_and(|number| number > 0)),
            "--units are numbers of multiprocessors, as in `{UNITS}`, found `{units}`"
        );
        Ok(options)
    }
}

/// Makes the folder, empty but for the marker. What is in it goes where a run of this made it, also one that failed.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        let entries =
            || fs::read_dir(folder).with_context(|| format!("cannot look into {}", folder.display()));
        let ours = folder.join(MARKER).is_file() || entries()?.next().is_none();
        ensure!(
            ours,
            "{} is there and was not made by `cargo xtask replay`, whose folders have a file {MARKER}; name another folder",
            folder.display()
        );
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let marker = folder.join(MARKER);
    fs::write(&marker, "").with_context(|| format!("cannot write {}", marker.display()))
}

/// Copies a program without what only a debugger reads: it has to travel.
fn carry(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    // Without `strip` it is larger and as good.
    let _ = command("strip").arg(to).status();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn a_folder_a_capability_and_units_are_taken_and_anything_else_is_named() {
        let given = Options::parse(&words("/f --capability 80 --units 108")).unwrap();
        let (capability, units) = ("80".to_owned(), "108".to_owned());
        assert_eq!(given, Options { folder: "/f".into(), capability, units });
        let usual = Options::parse(&[]).unwrap();
        assert_eq!((&*usual.capability, &*usual.units), ("90", "132,46"));
        for (line, part) in [
            ("--all", "`--all`"),
            ("--capability", "a number"),
            ("--capability 8.0", "`8.0`"),
            ("--units", "--units needs"),
            ("--units 132,", "`132,`"),
            ("--units 0", "`0`"),
        ] {
            let error = Options::parse(&words(line)).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn only_a_folder_of_a_replay_is_emptied_also_of_one_that_failed() {
        let folder = std::env::temp_dir().join(format!("metallic-replay-{}", std::process::id()));
        let has = |name: &str| folder.join(name).is_file();
        fs::create_dir_all(&folder).unwrap();
        // As in a folder of sources that has a script of this name.
        fs::write(folder.join("replay.sh"), "").unwrap();
        let error = empty(&folder).unwrap_err().to_string();
        assert!(error.contains(MARKER) && has("replay.sh"), "{error}");
        fs::remove_file(folder.join("replay.sh")).unwrap();
        empty(&folder).unwrap();
        assert!(has(MARKER));
        fs::write(folder.join("kernels"), "what a run left that failed").unwrap();
        empty(&folder).unwrap();
        assert!(has(MARKER) && !has("kernels"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_script_runs_what_is_carried() {
        for program in ["./metallic tool ops --device cuda", "./kernels kernels::", "./families"] {
            assert!(SCRIPT.contains(program), "{program}");
        }
        let family = include_str!("../../crates/metallic-testkit/tests/it/agree.rs");
        assert!(family.contains("fn plans_of_nvidia_gpus_have_kernels_for_every_family()"));
        let crowd = include_str!("../../crates/metallic-testkit/tests/it/crowd.rs");
        let skipped = SCRIPT.split_once("--skip ").and_then(|(_, rest)| rest.split_whitespace().next());
        assert!(skipped.is_some_and(|test| crowd.contains(&format!("fn {test}()"))), "{skipped:?}");
    }
}
