//! `cargo xtask ptx`: kernels for NVIDIA GPUs, for machines that have one and no compiler.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::models;
use crate::process::{command, root, run as run_command};
use crate::programs::{METALLIC, build};
use crate::test::shared;

/// Multiprocessors of GPUs that are planned for, many and few: plans of others take the same kernels.
pub(crate) const UNITS: &str = "132,46";
/// Compute capabilities, times ten: what runs everywhere with matrix units, and what begins early.
const CAPABILITIES: &str = "80,90";

#[derive(Debug, PartialEq)]
struct Options {
    folder: PathBuf,
    models: Vec<PathBuf>,
    golden: bool,
    /// For `metallic tool ptx`.
    rest: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let folder = root().join("target").join("metallic-ptx");
        let mut options = Options { folder, models: Vec::new(), golden: true, rest: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // The program runs at the root of the workspace.
                "-o" => options.folder = std::path::absolute(value()?)?,
                "-m" => options.models.push(std::path::absolute(value()?)?),
                "--no-golden" => options.golden = false,
                "--types" | "--kv-type" | "--capability" | "--units" | "--threads" => {
                    options.rest.extend([arg.clone(), value()?.clone()]);
                }
                "--dry-run" | "--ops" => options.rest.push(arg.clone()),
                other => bail!("ptx does not know `{other}`; see `cargo xtask help`"),
            }
        }
        Ok(options)
    }

    fn arguments(&self, golden: &[PathBuf]) -> Vec<String> {
        let mut all = ["tool", "ptx", "--known"].map(str::to_owned).to_vec();
        for (option, usual) in [("--capability", CAPABILITIES), ("--units", UNITS)] {
            if !self.rest.iter().any(|given| given == option) {
                all.extend([option.to_owned(), usual.to_owned()]);
            }
        }
        all.extend(self.rest.iter().cloned());
        for model in golden.iter().chain(&self.models) {
            all.extend(["-m".to_owned(), model.display().to_string()]);
        }
        all.extend(["-o".to_owned(), self.folder.display().to_string()]);
        all
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    for model in &options.models {
        ensure!(model.exists(), "there is no {}", model.display());
    }
    let golden = if options.golden { golden()? } else { Vec::new() };
    let metallic = build(&METALLIC)?;
    run_command(command(metallic).args(options.arguments(&golden)))
}

/// Models that tests know: those of the repository, of the larger test data, and the real ones that were fetched.
fn golden() -> Result<Vec<PathBuf>> {
    let own = root().join("crates/metallic-testkit/data");
    let sets = shared().into_iter().flat_map(|shared| ["golden", "golden2"].map(|set| shared.join(set)));
    let sets: Vec<PathBuf> = sets.chain([own.join("golden")]).collect();
    let folders = sets.iter().flat_map(|set| [set.join("arch"), set.join("gguf")]);
    let folders = folders.chain([own.join("families"), models::folder()]).filter(|folder| folder.is_dir());
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| is_model(path)));
    }
    found.sort();
    ensure!(!found.is_empty(), "{} has no models", own.display());
    Ok(found)
}

fn is_model(path: &Path) -> bool {
    /// Families of the larger test data that this engine does not run.
    const NOT_RUN: [&str; 2] = ["gemma3n", "gemma4"];
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let runs = !NOT_RUN.contains(&name.split('.').next().unwrap_or_default());
    let is_gguf = path.extension().is_some_and(|kind| kind == "gguf");
    runs && (is_gguf || path.join("config.json").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn options_are_read_and_bad_ones_are_named() {
        let options = Options::parse(&words("-m /a.gguf --types q8_0 -o /out -m /b --no-golden")).unwrap();
        let models = vec!["/a.gguf".into(), "/b".into()];
        let rest = words("--types q8_0");
        assert_eq!(options, Options { folder: "/out".into(), models, golden: false, rest });
        let expected =
            "tool ptx --known --capability 80,90 --units 132,46 --types q8_0 -m /a.gguf -m /b -o /out";
        assert_eq!(options.arguments(&[]), words(expected));
        let one = Options::parse(&words("--units 84 --capability 86")).unwrap().arguments(&[]).join(" ");
        assert!(one.contains("--units 84 --capability 86") && !one.contains(UNITS), "{one}");
        for (line, part) in
            [("-m", "-m"), ("--types", "--types"), ("--all", "`--all`"), ("x.gguf", "`x.gguf`")]
        {
            let error = Options::parse(&words(line)).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn the_models_of_the_repository_are_found_and_what_is_beside_them_is_not() {
        let found = golden().unwrap();
        let has = |name: &str| found.iter().any(|path| path.ends_with(name));
        assert!(has("golden/gguf/llama256.Q8_0.gguf") && has("families/olmo2"), "{found:?}");
        assert!(
            found.iter().all(|path| path.is_dir() || path.extension().is_some_and(|kind| kind == "gguf"))
        );
    }
}
