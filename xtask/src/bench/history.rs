//! Figures that are kept: one line for each run, with the machine and the commit.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Options, Row, median};
use crate::process::{command, output, root};

/// The version of what a line contains.
const VERSION: u32 = 1;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) version: u32,
    /// Seconds since 1970.
    pub(super) unix: u64,
    pub(super) commit: String,
    /// Whether files differ from that commit.
    pub(super) dirty: bool,
    pub(super) machine: Machine,
    pub(super) threads: usize,
    pub(super) rounds: usize,
    /// The load of the last minute when it began, where others computed beside it.
    pub(super) busy: Option<f64>,
    pub(super) figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) os: String,
}

/// Tokens per second in one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) model: String,
    pub(super) test: String,
    /// One for each round.
    pub(super) samples: Vec<f64>,
    /// The median of llama.cpp in the same run.
    pub(super) llamacpp: Option<f64>,
}

impl Figure {
    pub(super) fn median(&self) -> f64 {
        median(&self.samples)
    }
}

impl Entry {
    pub(super) fn of(rows: &[Row], options: &Options, busy: Option<f64>) -> Result<Entry> {
        let figures = rows.iter().map(|row| Figure {
            model: row.model.clone(),
            test: row.test.clone(),
            samples: row.samples.clone(),
            llamacpp: row.llamacpp,
        });
        let commit = output(command("git").args(["rev-parse", "--short=12", "HEAD"]))?.trim().to_owned();
        let dirty = !output(command("git").args(["status", "--porcelain", "--untracked-files=no"]))?
            .trim()
            .is_empty();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Options { threads, rounds, .. } = *options;
        Ok(Entry {
            version: VERSION,
            unix,
            commit,
            dirty,
            machine: Machine::this(),
            threads,
            rounds,
            busy,
            figures: figures.collect(),
        })
    }
}

impl Machine {
    fn this() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let linux = model.map(|(_, name)| name.trim().to_owned());
        let apple = || output(command("sysctl").args(["-n", "machdep.cpu.brand_string"])).ok();
        let cpu = linux
            .or_else(apple)
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |name| name.trim().to_owned());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Machine { cpu, cores, os: std::env::consts::OS.to_owned() }
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {} cores, {}", self.cpu, self.cores, self.os)
    }
}

/// Where figures are kept, unless another file is named.
pub(super) fn file() -> PathBuf {
    root().join("docs").join("benchmarks").join("history.jsonl")
}

pub(super) fn append(path: &Path, entry: &Entry) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // What is there must be readable, or it would be lost for the page.
    read(path)?;
    let line = format!("{}\n", serde_json::to_string(entry)?);
    let mut file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.as_mut().map_err(|error| std::io::Error::new(error.kind(), error.to_string()));
    written
        .and_then(|file| file.write_all(line.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// All runs, in the order they were kept; none where there is no file.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{}:{}", path.display(), index + 1);
        let entry: Entry =
            serde_json::from_str(line).with_context(|| format!("{} is no run of a benchmark", place()))?;
        ensure!(
            entry.version == VERSION,
            "{} has version {}, this program reads {VERSION}",
            place(),
            entry.version
        );
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
pub(super) fn entry(commit: &str, samples: &[f64]) -> Entry {
    let figure =
        Figure { model: "m".into(), test: "tg64".into(), samples: samples.to_vec(), llamacpp: Some(50.0) };
    Entry {
        version: VERSION,
        unix: 1_790_000_000,
        commit: commit.into(),
        dirty: false,
        machine: Machine { cpu: "cpu".into(), cores: 2, os: "linux".into() },
        threads: 2,
        rounds: samples.len(),
        busy: None,
        figures: vec![figure],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_appended_and_read_back_and_bad_lines_are_named() {
        let folder = std::env::temp_dir().join(format!("metallic-history-{}", std::process::id()));
        let path = folder.join("deep").join("history.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        let (a, b) = (entry("a", &[1.0, 2.0]), entry("b", &[3.0]));
        append(&path, &a).unwrap();
        append(&path, &b).unwrap();
        assert_eq!(read(&path).unwrap(), [a, b]);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"version\":1}\n");
        fs::write(&path, &text).unwrap();
        let error = append(&path, &entry("c", &[1.0])).unwrap_err().to_string();
        assert!(error.contains("history.jsonl:3"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "nothing is added to what cannot be read");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn this_machine_and_this_commit_have_names() {
        let machine = Machine::this();
        assert!(!machine.cpu.is_empty() && machine.cores > 0, "{machine:?}");
    }
}
