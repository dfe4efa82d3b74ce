//! The cache folder, its disk, and the models in it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use metallic::{Model, model::FAMILIES};

use super::{Finding, Status, system::said};
use crate::{
    fail,
    hub::{self, Cache, Entry, ModelName},
    interrupt::Listener,
    term::{Ui, size},
};

const STORAGE: &str = "storage";
const MODELS: &str = "models";
/// Free bytes below which a download is likely to fail.
const LITTLE: u64 = 2_000_000_000;

/// Whether checksums are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    Checked,
    LeftOut,
}

pub(crate) fn storage(cache: &Cache) -> Vec<Finding> {
    let folder = cache.models();
    let there = existing(&folder);
    let mut findings = vec![writable(&there, &folder)];
    findings.extend(free(&there).map(|bytes| disk(bytes, &there)));
    findings
}

/// The folder itself, or the nearest one above it that is there.
fn existing(folder: &Path) -> PathBuf {
    folder.ancestors().find(|path| path.is_dir()).unwrap_or(folder).to_owned()
}

fn writable(there: &Path, folder: &Path) -> Finding {
    let probe = there.join(format!(".metallic-doctor-{}", std::process::id()));
    let written = fs::write(&probe, b"x");
    // What cannot be written cannot be removed either.
    let _ = fs::remove_file(&probe);
    let found = folder.display().to_string();
    match written {
        Ok(()) => Finding::new(STORAGE, "cache folder", Status::Ok, found),
        Err(error) => {
            let found = format!("{found} cannot be written: {error}");
            Finding::new(STORAGE, "cache folder", Status::Failure, found)
                .advice("set METALLIC_HOME to a folder of yours, or mend its rights")
        }
    }
}

/// Bytes that are free where a folder lies, by `df`.
fn free(folder: &Path) -> Option<u64> {
    let table = said("df", &["-kP", folder.to_str()?])?;
    kilobytes(&table)?.checked_mul(1024)
}

/// The fourth column of the second line.
fn kilobytes(table: &str) -> Option<u64> {
    table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

fn disk(bytes: u64, there: &Path) -> Finding {
    let found = format!("{} free at {}", size(bytes), there.display());
    if bytes < LITTLE {
        return Finding::new(STORAGE, "disk", Status::Warning, found)
            .advice("`metallic list` shows what can go, `metallic rm` removes it");
    }
    Finding::new(STORAGE, "disk", Status::Ok, found)
}

/// The models of the cache, and one that is named.
pub(crate) fn models(cache: &Cache, named: Option<&str>, sums: Sums, ui: Ui) -> Vec<Finding> {
    let _listener = Listener::new();
    let entries = match cache.entries() {
        Ok(entries) => entries,
        Err(error) => {
            return vec![
                Finding::new(MODELS, "cache", Status::Failure, error.to_string()).advice(error.hint()),
            ];
        }
    };
    let mut findings: Vec<Finding> = entries.iter().map(|entry| model(entry, cache, sums, ui)).collect();
    if let Some(path) = named.map(Path::new) {
        findings.push(file(&path.display().to_string(), path));
    }
    if findings.is_empty() {
        let found = format!("none in {}", cache.models().display());
        findings
            .push(Finding::new(MODELS, "models", Status::Note, found).advice("`metallic pull` fetches one"));
    }
    findings
}

fn model(entry: &Entry, cache: &Cache, sums: Sums, ui: Ui) -> Finding {
    let again = format!("`metallic pull {}` repairs it", entry.name);
    if !entry.complete {
        let found = format!("unfinished: {} so far", size(entry.bytes));
        return Finding::new(MODELS, &entry.name, Status::Warning, found)
            .advice(format!("`metallic pull {}` goes on with it", entry.name));
    }
    let problem = match sums {
        Sums::Checked => checked(entry, cache, ui),
        Sums::LeftOut if entry.damaged => Ok(Some("a file has another size than it came with".to_owned())),
        Sums::LeftOut => Ok(None),
    };
    match problem {
        Ok(Some(problem)) => {
            Finding::new(MODELS, &entry.name, Status::Failure, format!("damaged: {problem}")).advice(again)
        }
        Err(error) => Finding::new(MODELS, &entry.name, Status::Warning, error),
        Ok(None) => {
            let opened = file(&entry.name, &entry.path);
            if opened.status == Status::Failure {
                return opened.advice(again);
            }
            let sums = match sums {
                Sums::Checked => "checksums are right",
                Sums::LeftOut => "checksums not looked at (without --quick they are)",
            };
            let found = format!("{}, {sums}{}", opened.found, in_memory(&entry.path));
            Finding { found, ..opened }
        }
    }
}

/// What is wrong with a model's files, by their checksums.
fn checked(entry: &Entry, cache: &Cache, ui: Ui) -> Result<Option<String>, String> {
    let name = ModelName::parse(&entry.name).map_err(|error| error.to_string())?;
    hub::problem(&name, cache, ui).map_err(|error| error.to_string())
}

/// Whether a file opens as a model.
fn file(name: &str, path: &Path) -> Finding {
    match Model::open_with(path, FAMILIES, &metallic::model::ModelOptions::default()) {
        Ok(model) => {
            let (family, bytes) = (model.config().architecture.clone(), size(model.weight_bytes()));
            Finding::new(MODELS, name, Status::Ok, format!("{family}, {bytes}, mapped"))
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            let hint =
                fail::hint(&error).unwrap_or_else(|| "fetch it again, or take another model".to_owned());
            Finding::new(MODELS, name, Status::Failure, fail::reason(&error)).advice(hint)
        }
    }
}

/// How much of a file the system has in memory, where it tells.
fn in_memory(path: &Path) -> String {
    let told = path.to_str().and_then(|path| said("fincore", &["-b", "-n", "-r", "-o", "RES", path]));
    let (Some(resident), Ok(all)) =
        (told.and_then(|bytes| bytes.trim().parse::<u64>().ok()), fs::metadata(path))
    else {
        return String::new();
    };
    format!(", {:.0} % in the page cache", 100.0 * resident as f64 / all.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_bytes_are_read_off_the_second_line() {
        assert_eq!(kilobytes("Filesystem 1024-blocks Used Available\n/dev/a 1000 400 600 40% /"), Some(600));
        assert_eq!(kilobytes("one line"), None);
    }

    #[test]
    fn a_full_disk_is_a_warning_and_a_folder_that_is_not_there_is_looked_for_above() {
        assert_eq!(disk(1, Path::new("/")).status, Status::Warning);
        assert_eq!(disk(1 << 40, Path::new("/")).status, Status::Ok);
        assert_eq!(existing(Path::new("/nothing/here")), Path::new("/"));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_failure() {
        let finding = writable(Path::new("/proc"), Path::new("/proc/models"));
        assert_eq!(finding.status, Status::Failure, "{finding:?}");
    }

    #[test]
    fn a_file_that_is_no_model_is_named_with_its_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
        let finding = file("x", &path);
        assert_eq!(finding.status, Status::Failure);
        assert!(finding.found.contains("x.gguf") && finding.advice.is_some(), "{finding:?}");
    }
}
