//! `metallic inspect`: what is in a model file, without running it.

use std::{fmt::Write, fs, path::Path};

use clap::Args;
use metallic::{
    Model,
    formats::{Array, Gguf, SafeTensors, Tensor, Value as Meta},
    model::{Config, ModelError},
};
use serde_json::{Map, Value, json};

use crate::{
    escape, fail, load,
    term::{self, size},
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// A GGUF or safetensors file, a folder, or the name of a model in the cache
    #[arg(value_name = "FILE")]
    model: String,
    /// Print all of it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  metallic inspect model.gguf
  metallic inspect smollm2
  metallic inspect ./folder --json | jq .memory_estimate";

/// Elements of an array, and characters of a text, that are shown.
const SHOWN_ELEMENTS: usize = 8;
const SHOWN_CHARS_TABLE: usize = 100;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let path = load::local_path(&args.model)?;
    let report = Report::of(&path).map_err(|error| load::repairable(&args.model, error))?;
    if args.json { term::print_json(&report.json()) } else { Ok(term::print_lines(&report.text())?) }
}

/// What was found at a path.
struct Report {
    path: String,
    format: &'static str,
    metadata: Map<String, Value>,
    tensors: Vec<Tensor>,
    /// Where the engine can run it; else why not.
    model: Result<Model, anyhow::Error>,
}

impl Report {
    fn of(path: &Path) -> anyhow::Result<Self> {
        let (format, metadata, tensors) = if path.is_dir() || is_safetensors(path) {
            let file = SafeTensors::open(path)?;
            ("safetensors", folder_metadata(path, &file)?, file.tensors().cloned().collect())
        } else {
            let file = Gguf::open(path)?;
            let metadata = file.metadata.iter().map(|(key, value)| (key.to_owned(), meta(value))).collect();
            ("gguf", metadata, file.tensors().cloned().collect())
        };
        let model = Model::open(path).map_err(anyhow::Error::from);
        Ok(Self { path: path.display().to_string(), format, metadata, tensors, model })
    }

    fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements() as u64).sum()
    }

    fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.data.len() as u64).sum()
    }

    fn architecture(&self) -> Option<&str> {
        let key = if self.format == "gguf" { "general.architecture" } else { "model_type" };
        self.metadata.get(key).and_then(Value::as_str)
    }

    /// The estimate, or why there is none.
    fn memory(&self) -> Result<metallic::model::MemoryEstimate, String> {
        if self.tensors.is_empty() {
            return Err("the file holds metadata and no weights".to_owned());
        }
        let model = self.model.as_ref().map_err(fail::reason)?;
        model.memory_estimate().map_err(|error| error.to_string())
    }

    fn json(&self) -> Value {
        let row = |tensor: &Tensor| {
            let (dtype, bytes) = (tensor.dtype.name(), tensor.data.len());
            json!({"name": tensor.name, "type": dtype, "shape": tensor.shape, "bytes": bytes})
        };
        let tensors: Vec<Value> = self.tensors.iter().map(row).collect();
        let (memory, missing) = match self.memory() {
            Ok(memory) => (json!(memory), Value::Null),
            Err(reason) => (Value::Null, json!(reason)),
        };
        json!({
            "path": self.path,
            "format": self.format,
            "architecture": self.architecture(),
            "parameters": self.parameters(),
            "tensor_bytes": self.tensor_bytes(),
            "config": self.model.as_ref().ok().map(|model| config(model.config())),
            "memory_estimate": memory,
            "memory_estimate_missing": missing,
            "metadata": self.metadata,
            "tensors": tensors,
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(text, "{key:14} {}", escape::line(value));
        };
        line("path", &self.path);
        line("format", self.format);
        line("architecture", self.architecture().unwrap_or("not given"));
        line("parameters", &grouped(self.parameters()));
        line("tensors", &format!("{} ({})", self.tensors.len(), size(self.tensor_bytes())));
        match self.memory() {
            Ok(memory) => {
                line("weights", &size(memory.weights));
                line("cache", &format!("{} per 1024 tokens (f16)", size(memory.kv_per_1k_tokens)));
                line("arena", &format!("{} for steps of 512 tokens", size(memory.arena)));
            }
            Err(reason) => line("memory", &format!("no estimate: {reason}")),
        }
        if let Some(Value::Object(fields)) = self.model.as_ref().ok().map(|model| config(model.config())) {
            text.push_str("\nCONFIG\n");
            for (key, value) in &fields {
                let _ = writeln!(text, "  {key:24} {}", shown(value));
            }
        }
        text.push_str("\nMETADATA\n");
        let width = self.metadata.keys().map(String::len).max().unwrap_or(0);
        for (key, value) in &self.metadata {
            let _ = writeln!(text, "  {:width$}  {}", escape::line(key), shown(value));
        }
        text.push_str("\nTENSORS (rows first)\n");
        let width = self.tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
        for tensor in &self.tensors {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            let (name, dtype) = (escape::line(&tensor.name), tensor.dtype.name());
            let _ = writeln!(text, "  {name:width$}  {dtype:5}  [{}]", shape.join(", "));
        }
        text
    }
}

fn is_safetensors(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

/// `config.json` of a folder, else what the safetensors header says.
fn folder_metadata(path: &Path, file: &SafeTensors) -> anyhow::Result<Map<String, Value>> {
    let config = path.join("config.json");
    if path.is_dir() && config.exists() {
        let name = config.display().to_string();
        let text = fs::read(&config).map_err(|error| ModelError::Read { file: name.clone(), error })?;
        let map: Map<String, Value> = serde_json::from_slice(&text)
            .map_err(|error| ModelError::Json { file: name, reason: error.to_string() })?;
        return Ok(map.into_iter().map(|(key, value)| (key, abbreviated(value))).collect());
    }
    Ok(file.metadata().iter().map(|(key, value)| (key.to_owned(), meta(value))).collect())
}

fn abbreviated(value: Value) -> Value {
    match value {
        Value::Array(items) if items.len() > SHOWN_ELEMENTS => {
            array(items.len(), "value", &items[..SHOWN_ELEMENTS])
        }
        other => other,
    }
}

fn array(len: usize, of: &str, first: &[Value]) -> Value {
    json!({"array_of": of, "len": len, "first": first})
}

/// A metadata value as JSON; long arrays abbreviated, texts such as chat templates whole.
fn meta(value: &Meta) -> Value {
    match value {
        Meta::F32(v) => float(*v),
        Meta::Array(v) => elements(v),
        other => json!(other),
    }
}

/// The number as it is written: 1e-5 and not 0.000009999999747378752.
fn float(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value))
}

fn elements(values: &Array) -> Value {
    let first: Vec<Value> = values.values().take(SHOWN_ELEMENTS).map(|value| meta(&value)).collect();
    if values.len() > SHOWN_ELEMENTS {
        array(values.len(), values.type_name(), &first)
    } else {
        Value::Array(first)
    }
}

fn config(config: &Config) -> Value {
    json!({
        "architecture": config.architecture,
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab": config.vocab,
        "context": config.context,
    })
}

/// A value in a line of the table.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(map) => match (map.get("len"), map.get("first")) {
            (Some(len), Some(first)) => {
                let of = map.get("array_of").and_then(Value::as_str).unwrap_or("value");
                format!("{len} × {of}: {first}")
            }
            _ => value.to_string(),
        },
        other => other.to_string(),
    };
    let text = escape::line(&text);
    match text.char_indices().nth(SHOWN_CHARS_TABLE) {
        None => text.into_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// `134515008` as `134 515 008`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_and_texts_are_cut_and_say_their_length() {
        let long: Vec<i32> = (0..100).collect();
        assert_eq!(meta(&long.into())["len"], 100);
        assert_eq!(meta(&vec![1, 2, 3].into()), json!([1, 2, 3]));
        let text = "ä".repeat(500);
        assert_eq!(meta(&text.clone().into()), json!(text));
    }

    #[test]
    fn numbers_read_as_they_were_written() {
        assert_eq!(meta(&1e-5_f32.into()), json!(1e-5));
        assert_eq!(meta(&f32::NAN.into()), Value::Null);
        assert_eq!(grouped(134515008), "134 515 008");
        assert_eq!(grouped(12), "12");
    }

    #[test]
    fn a_file_cannot_steer_the_terminal() {
        assert_eq!(shown(&json!("a\x1b[2Jb\n")), "a\\u{1b}[2Jb\\n");
    }
}
