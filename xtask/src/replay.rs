//! `cargo xtask replay`: the launches of the kernels' tests on an NVIDIA GPU, as PTX made of the same Metal sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::models;
use crate::process::{cargo, command, output, root, run as run_command, works};

const SCRIPT: &str = include_str!("replay.py");
/// The least compute capability whose matrix units the kernels use.
const SM: &str = "80";

/// What one specialisation of a family launches.
#[derive(Default)]
struct Specialisation {
    family: String,
    constants: BTreeMap<usize, u64>,
    functions: BTreeSet<String>,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let folder = match args {
        [] => root().join("target/replay"),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => bail!("replay takes a folder and nothing else"),
    };
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let folder = folder.canonicalize()?;
    run_command(
        cargo()
            .args(["test", "--quiet", "-p", "metallic-gpu", "--lib", "kernels::"])
            .env("METALLIC_RECORD_LAUNCHES", &folder),
    )?;
    let found = specialisations(&folder)?;
    eprintln!("PTX of {} specialisations", found.len());
    let softmetal = softmetal()?;
    let all: Vec<_> = found.iter().collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let translate = |part| translate_all((&softmetal, &folder), part);
        let parts = all.chunks(all.len().div_ceil(workers));
        let running: Vec<_> = parts.map(|part| scope.spawn(move || translate(part))).collect();
        let mut done = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        done.try_for_each(|result| result.unwrap_or_else(|_| bail!("a translation panicked")))
    })?;
    let script = folder.join("replay.py");
    std::fs::write(&script, SCRIPT)?;
    if works("nvidia-smi", &[]) {
        return run_command(command(models::python()?).arg(&script));
    }
    eprintln!("no NVIDIA GPU here; on a machine that has one: python3 {}", script.display());
    Ok(())
}

/// Everything that was recorded, by its name.
fn specialisations(folder: &Path) -> Result<BTreeMap<String, Specialisation>> {
    let mut found: BTreeMap<String, Specialisation> = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "jsonl") {
            continue;
        }
        for line in std::fs::read_to_string(&path)?.lines() {
            let launch: Value = serde_json::from_str(line).with_context(|| format!("{}", path.display()))?;
            let text = |key: &str| launch[key].as_str().unwrap_or_default().to_owned();
            let entry = found.entry(text("id")).or_default();
            entry.family = text("family");
            entry.functions.insert(text("function"));
            for (index, value) in launch["constants"].as_object().into_iter().flatten() {
                entry.constants.insert(index.parse()?, value.as_u64().unwrap_or_default());
            }
        }
    }
    if found.is_empty() {
        bail!("the tests launched nothing: is there a clang?");
    }
    Ok(found)
}

/// The translator, built here.
fn softmetal() -> Result<PathBuf> {
    let messages =
        output(cargo().args(["build", "--quiet", "-p", "softmetal", "--bins", "--message-format=json"]))?;
    let values = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found = values.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.next_back().context("cargo built no `softmetal`")
}

fn translate_all(
    (softmetal, folder): (&Path, &Path),
    specialisations: &[(&String, &Specialisation)],
) -> Result<()> {
    for (id, specialisation) in specialisations {
        let file = folder.join(format!("{}.metal", specialisation.family));
        let source = std::fs::read_to_string(&file)?;
        let mut translate = command(softmetal);
        translate.args(["ptx", "--json", "--sm", SM]).arg(&file);
        for function in &specialisation.functions {
            translate.args(["--kernel", function]);
        }
        for (index, value) in &specialisation.constants {
            if let Some(name) = constant(&source, *index) {
                translate.args(["--set", &format!("{name}={value}u")]);
            }
        }
        let text = output(&mut translate).with_context(|| format!("PTX of `{}`", specialisation.family))?;
        std::fs::write(folder.join(format!("{id}.json")), text)?;
    }
    Ok(())
}

/// The name a source gives a function constant.
fn constant(source: &str, index: usize) -> Option<&str> {
    let mark = format!("[[function_constant({index})]]");
    let line = source.lines().find(|line| line.contains(&mark))?;
    line[..line.find(&mark)?].split_whitespace().next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_found_by_its_index() {
        let source =
            "constant uint KIND [[function_constant(1)]];\nconstant uint WIDE [[function_constant(12)]];\n";
        assert_eq!(constant(source, 1), Some("KIND"));
        assert_eq!(constant(source, 12), Some("WIDE"));
        assert_eq!(constant(source, 2), None);
    }
}
