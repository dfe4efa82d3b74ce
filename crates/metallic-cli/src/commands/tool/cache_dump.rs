//! `tool cache-dump`: compiled kernels and measured numbers on disk, and what can go of them.

use std::{
    fmt::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use metallic::device::caches::{CacheFile, CacheFolder, CacheKind, FileState, PruneOptions, Pruned, list};
use serde_json::{Value, json};

use crate::{
    commands::options::one_of,
    fail::Failure,
    term::{self, Ui, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CacheDumpArgs {
    /// Kinds that are looked at [default: all; pruning takes soft, ptx and archive]
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = one_of(&KINDS), ignore_case = true)]
    kind: Vec<CacheKind>,
    /// Remove what is damaged, what was left behind, and what the options below name
    #[arg(long)]
    prune: bool,
    /// With --prune: what was not used for so long: `30d`, `12h`, `90m`
    #[arg(long, value_name = "AGE", value_parser = parse_age, requires = "prune")]
    older_than: Option<Duration>,
    /// With --prune: what was used least recently, until the rest takes no more than that: `1G`, `500M`
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "prune")]
    max_size: Option<u64>,
    /// With --prune: say what would go, and remove nothing
    #[arg(long, requires = "prune")]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const KINDS: [(&str, CacheKind); 5] = [
    ("soft", CacheKind::Soft),
    ("ptx", CacheKind::Ptx),
    ("bundle", CacheKind::Bundle),
    ("archive", CacheKind::Archive),
    ("tuning", CacheKind::Tuning),
];

const EXAMPLES: &str = "\
KIND is one of
  soft      kernels for `--device soft`, compiled by clang (SOFTMETAL_CACHE)
  ptx       kernels for NVIDIA GPUs that this machine made (`ptx` in the same folder)
  bundle    the same, made with `tool ptx`: METALLIC_PTX, and `metallic-ptx` beside the program; never pruned
  archive   kernels compiled for Metal (METALLIC_KERNEL_CACHE)
  tuning    numbers that `metallic tune` measured; pruned only where --kind names them

What lies in memory (pipelines, graphs of MPSGraph) goes with its process, so nothing of it is seen from here.

Examples:
  metallic tool cache-dump
  metallic tool cache-dump --kind soft --json
  metallic tool cache-dump --prune --older-than 30d --max-size 1G --dry-run";

/// Of the JSON: what is added does not change it, what means something else does.
const VERSION: u32 = 1;

/// A whole number and a unit.
fn parse_unit(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, String> {
    let wrong = || format!("it must be a whole number with a unit, like {example}");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim().to_ascii_lowercase();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(*factor).ok_or_else(|| "it is too large".to_owned())
}

fn parse_age(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 5] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86400), ("w", 7 * 86400)];
    parse_unit(text, &UNITS, "30d, 12h or 90m").map(Duration::from_secs)
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 11] = [
        ("", 1),
        ("b", 1),
        ("k", 1_000),
        ("kb", 1_000),
        ("m", 1_000_000),
        ("mb", 1_000_000),
        ("g", 1_000_000_000),
        ("gb", 1_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
    ];
    parse_unit(text, &UNITS, "1G, 500M or 1GiB")
}

pub(super) fn run(args: &CacheDumpArgs, ui: Ui) -> anyhow::Result<()> {
    if args.prune && args.kind.contains(&CacheKind::Bundle) {
        let reason = "bundles are not pruned: somebody made them for machines without a compiler";
        return Err(Failure::new(reason, "remove the folder yourself where it is not wanted").into());
    }
    let asked = |kind: &CacheKind| match (args.kind.is_empty(), args.prune) {
        (true, true) => kind.is_pruned_by_default(),
        (true, false) => true,
        (false, _) => args.kind.contains(kind),
    };
    let kinds: Vec<CacheKind> = CacheKind::ALL.into_iter().filter(asked).collect();
    let folders = list(&kinds);
    let pruned = args.prune.then(|| {
        let options =
            PruneOptions { older_than: args.older_than, max_size: args.max_size, dry_run: args.dry_run };
        options.prune(&folders, SystemTime::now())
    });
    if args.json {
        return term::print_json(&as_json(args, &folders, pruned.as_ref()));
    }
    let text = match &pruned {
        Some(pruned) => pruned_text(args, pruned),
        None => folders_text(&folders),
    };
    term::print_lines(&text)?;
    if pruned.is_none() {
        ui.note("note: kernels in memory go with their process; `metallic::device::caches::in_memory` tells a program of its own");
    }
    Ok(())
}

fn folders_text(folders: &[CacheFolder]) -> String {
    let now = SystemTime::now();
    let mut text = String::new();
    for folder in folders {
        let path =
            folder.path.as_ref().map_or_else(|| "no folder".to_owned(), |path| path.display().to_string());
        let bytes: u64 = folder.files.iter().map(|file| file.bytes).sum();
        let _ = match &folder.state {
            Some(why) => writeln!(text, "{}: {path}: {why}", folder.kind.name()),
            None => writeln!(
                text,
                "{}: {path}: {} entries, {}",
                folder.kind.name(),
                folder.files.len(),
                size(bytes)
            ),
        };
        if folder.files.is_empty() {
            continue;
        }
        let _ = writeln!(text, "  ({})", folder.kind.times());
        let _ = writeln!(
            text,
            "  {:<13} {:>10} {:>9} {:>9}  {:<34} NAME",
            "STATE", "SIZE", "USED", "TOOK", "KEY"
        );
        let mut files: Vec<&CacheFile> = folder.files.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.used));
        for file in files {
            let took =
                file.took.map_or_else(|| "-".to_owned(), |took| format!("{:.2} s", took.as_secs_f64()));
            let why = file.state.reason().map(|why| format!(": {why}")).unwrap_or_default();
            let _ = writeln!(
                text,
                "  {:<13} {:>10} {:>9} {took:>9}  {:<34} {}{why}",
                file.state.name(),
                size(file.bytes),
                ago(file.used, now),
                file.key,
                file.name
            );
        }
    }
    text
}

/// How long ago, in one unit.
fn ago(then: Option<SystemTime>, now: SystemTime) -> String {
    let Some(age) = then.and_then(|then| now.duration_since(then).ok()) else { return "-".to_owned() };
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

fn pruned_text(args: &CacheDumpArgs, pruned: &Pruned) -> String {
    let mut text = String::new();
    let word = if args.dry_run { "would remove" } else { "removed" };
    for removed in &pruned.removed {
        let _ =
            writeln!(text, "{word} {} ({}): {}", removed.path.display(), size(removed.bytes), removed.why);
    }
    for kept in &pruned.kept {
        let _ = writeln!(text, "left {}: {}", kept.path.display(), kept.why);
    }
    let freed = if args.dry_run { "would free" } else { "freed" };
    let count = match pruned.removed.len() {
        1 => "1 entry".to_owned(),
        n => format!("{n} entries"),
    };
    let _ = writeln!(text, "{count}, {} {freed}", size(pruned.freed()));
    text
}

fn as_json(args: &CacheDumpArgs, folders: &[CacheFolder], pruned: Option<&Pruned>) -> Value {
    let seconds = |time: Option<SystemTime>| {
        time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs())
    };
    let file = |file: &CacheFile| {
        json!({
            "path": file.path.display().to_string(),
            "name": file.name,
            "key": file.key,
            "source_hashes": file.sources,
            "bytes": file.bytes,
            // An entry is made once, under a name of its own.
            "compiles": u32::from(!matches!(file.state, FileState::Foreign(_) | FileState::Begun)),
            "compile_s": file.took.map(|took| took.as_secs_f64()),
            "made_unix_s": seconds(file.made),
            "used_unix_s": seconds(file.used),
            "state": file.state.name(),
            "reason": file.state.reason(),
        })
    };
    let folder = |folder: &CacheFolder| {
        json!({
            "kind": folder.kind.name(),
            "path": folder.path.as_ref().map(|path| path.display().to_string()),
            "state": folder.state,
            "times": folder.kind.times(),
            "bytes": folder.files.iter().map(|file| file.bytes).sum::<u64>(),
            "entries": folder.files.iter().map(file).collect::<Vec<_>>(),
        })
    };
    let pruned = pruned.map(|pruned| {
        let removed = pruned.removed.iter().map(|removed| {
            json!({ "path": removed.path.display().to_string(), "bytes": removed.bytes, "why": removed.why })
        });
        let kept = pruned
            .kept
            .iter()
            .map(|kept| json!({ "path": kept.path.display().to_string(), "why": kept.why }));
        json!({
            "dry_run": args.dry_run,
            "freed_bytes": pruned.freed(),
            "removed": removed.collect::<Vec<_>>(),
            "left": kept.collect::<Vec<_>>(),
        })
    });
    json!({
        "version": VERSION,
        "folders": folders.iter().map(folder).collect::<Vec<_>>(),
        "pruned": pruned,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_have_units() {
        assert_eq!(parse_age("30d"), Ok(Duration::from_secs(30 * 86400)));
        assert_eq!(parse_age("90 m"), Ok(Duration::from_secs(5400)));
        assert_eq!(
            (parse_bytes("1G"), parse_bytes("2MiB"), parse_bytes("7")),
            (Ok(1_000_000_000), Ok(2 << 20), Ok(7))
        );
        for wrong in ["30", "d", "-3d", "1.5h", "3 years"] {
            assert!(parse_age(wrong).unwrap_err().contains("30d"), "{wrong}");
        }
        assert!(parse_bytes("99999999999G").unwrap_err().contains("too large"));
        assert!(parse_bytes("many").is_err());
    }
}
