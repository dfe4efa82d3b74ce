//! `cargo xtask replay`: every check of the NVIDIA device as a folder of programs and PTX, for a machine with such a GPU and nothing
//! else: no cargo, no clang.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{command, root, run as run_command, works};
use crate::programs::{Built, METALLIC, build};

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

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (folder, capability) = parse(args)?;
    if folder.exists() {
        let ours = folder.join("replay.sh").is_file() || fs::read_dir(&folder)?.next().is_none();
        ensure!(ours, "{} is there and is no replay; name another folder", folder.display());
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let ptx = folder.join("metallic-ptx");
    let programs = [("metallic", METALLIC), ("kernels", KERNELS), ("families", FAMILIES)];
    for (name, what) in &programs {
        carry(&build(what)?, &folder.join(name))?;
    }
    let test = |name: &str, filter: &str| {
        let mut test = command(folder.join(name));
        test.args([filter, "--quiet"]).env("METALLIC_TEST_PTX", &ptx);
        run_command(test.env("METALLIC_TEST_CAPABILITY", &capability).env("METALLIC_TEST_ALL", "1"))
    };
    test("kernels", "kernels::")?;
    test("families", "plans_of_nvidia_gpus_have_kernels_for_every_family")?;
    let ops = ["tool", "ptx", "--ops", "--capability", &capability, "-o"];
    run_command(command(folder.join("metallic")).args(ops).arg(&ptx))?;
    let script = folder.join("replay.sh");
    fs::write(&script, SCRIPT)?;
    if works("nvidia-smi", &[]) {
        return run_command(command("sh").arg(&script));
    }
    eprintln!("no NVIDIA GPU here; on a machine that has one: sh {}", script.display());
    Ok(())
}

/// The folder and the compute capability.
fn parse(args: &[String]) -> Result<(PathBuf, String)> {
    let (mut folder, mut capability) = (root().join("target/replay"), CAPABILITY.to_owned());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--capability" => capability.clone_from(args.next().context("--capability needs a number")?),
            given if !given.starts_with('-') => folder = std::path::absolute(given)?,
            other => bail!("replay takes a folder and --capability, found `{other}`"),
        }
    }
    let number: Option<u32> = capability.parse().ok();
    ensure!(
        number.is_some_and(|number| (70..200).contains(&number)),
        "--capability is a compute capability times ten, from 70 on, found `{capability}`"
    );
    Ok((folder, capability))
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
    fn a_folder_and_a_capability_are_taken_and_anything_else_is_named() {
        assert_eq!(parse(&words("/f --capability 80")).unwrap(), ("/f".into(), "80".to_owned()));
        assert_eq!(parse(&[]).unwrap().1, "90");
        for (line, part) in
            [("--all", "`--all`"), ("--capability", "a number"), ("--capability 8.0", "`8.0`")]
        {
            let error = parse(&words(line)).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn the_script_runs_what_is_carried() {
        for program in ["./metallic tool ops --device cuda", "./kernels kernels::", "./families"] {
            assert!(SCRIPT.contains(program), "{program}");
        }
        let family = include_str!("../../crates/metallic-testkit/tests/it/agree.rs");
        assert!(family.contains("fn plans_of_nvidia_gpus_have_kernels_for_every_family()"));
    }
}
