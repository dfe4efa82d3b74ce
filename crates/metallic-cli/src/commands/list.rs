//! `metallic list`: what the cache holds, and which aliases there are.

use std::{
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde_json::json;

use crate::{
    escape,
    hub::{ALIASES, Cache, Entry},
    term::{self, Ui, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ListArgs {
    /// Show the aliases that can be pulled instead
    #[arg(long)]
    aliases: bool,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic list
  metallic list --aliases
  metallic list --json";

pub(crate) fn run(args: &ListArgs, ui: Ui) -> anyhow::Result<()> {
    if args.aliases {
        return aliases(args.json);
    }
    let cache = Cache::from_env()?;
    let entries = cache.entries()?;
    if args.json {
        let rows: Vec<_> = entries.iter().map(row).collect();
        return term::print_json(&rows);
    }
    if entries.is_empty() {
        ui.note(&format!("no models in {}; `metallic pull` fetches one", cache.models().display()));
        return Ok(());
    }
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:width$}  {:>9}  {:16}  PATH\n", "NAME", "SIZE", "WHEN (UTC)");
    for entry in &entries {
        let when = &timestamp(entry.modified)[..16].replace('T', " ");
        let part = match entry {
            Entry { complete: false, .. } => " (unfinished: pull again to resume)",
            Entry { damaged: true, .. } => " (damaged: pull again to repair)",
            _ => "",
        };
        let (name, path) = (escape::line(&entry.name), entry.path.display().to_string());
        writeln!(text, "{name:width$}  {:>9}  {when}  {}{part}", size(entry.bytes), escape::line(&path))?;
    }
    Ok(term::print_lines(&text)?)
}

fn aliases(json: bool) -> anyhow::Result<()> {
    if json {
        let rows: Vec<_> = ALIASES
            .iter()
            .map(|alias| json!({"alias": alias.name, "source": alias.source, "about": alias.about}))
            .collect();
        return term::print_json(&rows);
    }
    let width = ALIASES.iter().map(|alias| alias.name.len()).max().unwrap_or(0);
    let lines =
        ALIASES.iter().map(|alias| format!("{:width$}  {:32}  {}\n", alias.name, alias.about, alias.source));
    Ok(term::print_lines(&lines.collect::<String>())?)
}

fn row(entry: &Entry) -> serde_json::Value {
    json!({
        "name": entry.name,
        "size_bytes": entry.bytes,
        "path": entry.path,
        "modified": timestamp(entry.modified),
        "complete": entry.complete,
        "damaged": entry.damaged,
    })
}

/// `2026-01-31T07:05:09Z`.
fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day counted from 1970-01-01. Years are counted from 1 March, so that the leap
/// day is the last of its year and the lengths of the months follow `(153 m + 2) / 5`.
fn civil(days: i64) -> (i64, i64, i64) {
    let from_march_0000 = days + 719_468;
    let era = from_march_0000.div_euclid(146_097); // 400 years
    let of_era = from_march_0000.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timestamps_know_leap_days_and_centuries() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
