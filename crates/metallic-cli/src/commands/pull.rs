//! `metallic pull`: fetches a model, so that later commands need no network.

use clap::Args;
use serde_json::json;

use crate::{
    commands::MODEL_HELP,
    fail::Failure,
    hub::{self, Cache, DEFAULT_MODEL, ModelName, Wishes},
    term::{self, Ui},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct PullArgs {
    /// Alias, OWNER/REPO[:FILE|:QUANT] on the hub (`--help` has the forms)
    #[arg(default_value = DEFAULT_MODEL)]
    model: String,
    /// Fetch it again, even if it is here and whole
    #[arg(long)]
    force: bool,
    /// Choose a quantisation for this much memory (`16GB`) instead of this machine's
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic pull
  metallic pull qwen2.5-1.5b
  metallic pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0
  metallic pull Qwen/Qwen2.5-0.5B-Instruct              config, tokenizer and safetensors
  HF_TOKEN=hf_… metallic pull OWNER/GATED-REPO

An interrupted download goes on where it stopped when the command is given again. A model that is here already is checked, file by file,
against the size and the sha256 it came with, and what is damaged is fetched again.

Of several quantisations in a repository the largest is taken that leaves a quarter of the memory to the context and to everything else;
float weights only where there is nothing else. A line says why, another lists the others. OWNER/REPO:Q4_K_M and OWNER/REPO:FILE.gguf are taken as they
are. A model split into files (x-00001-of-00004.gguf) is fetched, listed and removed as one.";

pub(crate) fn run(args: &PullArgs, ui: Ui) -> anyhow::Result<()> {
    let name = ModelName::parse(&args.model)?;
    if let (ModelName::Path(path), true) = (&name, args.force || args.memory.is_some()) {
        let reason = format!("`{}` is a file of yours: there is nothing to fetch", path.display());
        return Err(Failure::new(reason, "leave out `--force` and `--memory`").into());
    }
    let cache = Cache::from_env()?;
    let model = hub::pull(&name, &cache, Wishes { memory: args.memory, force: args.force }, ui)?;
    if args.json {
        return term::print_json(&json!({
            "name": args.model,
            "path": model.path,
            "size_bytes": model.bytes,
            "fetched": model.fetched,
            "repaired": model.repaired,
            "verified": model.verified,
        }));
    }
    if !model.fetched {
        ui.note(if model.verified { "already here; its checksum is right" } else { "already here" });
    }
    Ok(term::print_output(&format!("{}\n", model.path.display()))?)
}

/// `16GB`, `16GiB`, `512M`, or a number of bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a size; it is written 16GB, 16GiB, or as a number of bytes");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| bad())?;
    let unit = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return Err(bad()),
    };
    let bytes = number * unit;
    // Far more than any machine has, and exact as a float.
    if (1.0..=1e15).contains(&bytes) { Ok(bytes as u64) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_are_read_in_decimal_and_binary_units() {
        for (text, bytes) in
            [("16GB", 16_000_000_000), ("1.5 GiB", 1_610_612_736), ("6000", 6000), ("8g", 8_000_000_000)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "GB", "0", "-1GB", "1e9", "16 apples", "999999999TB"] {
            assert!(parse_size(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }
}
