//! Adapters: small changes of a model's matrices, `W + scale * B · A`, as PEFT and GGUF files have them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use metallic_core::quant;
use metallic_formats::{Gguf, SafeTensors, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{ModelError, Naming, read_json};
use crate::weights::plain_name;

/// An adapter to load with a model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdapterOptions {
    /// A folder that PEFT wrote, or a GGUF file.
    pub path: PathBuf,
    /// What requests call it; `None`: the name of the folder, or of the file without its ending.
    pub name: Option<String>,
    /// How much of it requests take that do not say.
    pub scale: f32,
}

impl AdapterOptions {
    /// All of the adapter at `path`, under its own name.
    pub fn new(path: impl Into<PathBuf>) -> AdapterOptions {
        AdapterOptions { path: path.into(), name: None, scale: 1.0 }
    }
}

metallic_core::setters!(AdapterOptions { path: PathBuf, name: impl Into<Option<String>>, scale: f32 });

/// How much of an adapter is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterShare {
    /// Which one.
    pub name: String,
    /// 1 takes it as it was trained, 0 takes nothing of it.
    pub scale: f32,
}

impl AdapterShare {
    /// So much of an adapter.
    pub fn new(name: impl Into<String>, scale: f32) -> AdapterShare {
        AdapterShare { name: name.into(), scale }
    }
}

/// What an adapter adds to one matrix: `factor * b · a`.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    /// `[rank, k]`
    pub(crate) a: Tensor,
    /// `[n, rank]`
    pub(crate) b: Tensor,
    /// What it was trained with.
    pub(crate) factor: f32,
}

impl Delta {
    pub(crate) fn rank(&self) -> usize {
        self.a.shape.first().copied().unwrap_or(0)
    }
}

/// An adapter as it was read.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) share: AdapterShare,
    pub(crate) file: String,
    /// How it names what it changes.
    pub(crate) naming: Naming,
    /// The architecture of its model, where it says so.
    architecture: Option<String>,
    /// By what the model calls the matrix, without the `.weight` at its end.
    pub(crate) deltas: BTreeMap<String, Delta>,
    /// Tensors of the model itself that PEFT saves beside what adapts them, by the model's names.
    pub(crate) copies: Vec<Tensor>,
}

impl Adapter {
    pub(crate) fn open(options: &AdapterOptions) -> Result<Adapter, ModelError> {
        let AdapterOptions { path, name, scale } = options;
        let file = path.display().to_string();
        let not = |reason: String| ModelError::NotAnAdapter { path: file.clone(), reason };
        let kind = std::fs::metadata(path).map_err(|e| not(format!("it cannot be opened: {e}")))?;
        if !scale.is_finite() {
            return Err(not(format!("its scale is {scale}, it must be a number")));
        }
        let called = if kind.is_dir() { path.canonicalize().ok() } else { None };
        let called = called.as_deref().unwrap_or(path);
        let called = if kind.is_dir() { called.file_name() } else { called.file_stem() };
        let called = called.map_or_else(|| file.clone(), |name| name.to_string_lossy().into_owned());
        let share = AdapterShare::new(name.clone().unwrap_or(called), *scale);
        let (naming, architecture, deltas, copies) = if kind.is_dir() {
            let (deltas, copies) = peft(path)?;
            (Naming::HuggingFace, None, deltas, copies)
        } else {
            let gguf = Gguf::open(path)?;
            let architecture = gguf.metadata.opt_str("general.architecture")?.map(str::to_owned);
            (Naming::Gguf, architecture, lora(&file, &gguf)?, Vec::new())
        };
        if deltas.is_empty() {
            return Err(not("it changes no matrix".to_owned()));
        }
        Ok(Adapter { share, file, naming, architecture, deltas, copies })
    }

    /// Refuses an adapter that was saved with other tensors of the model than these. PEFT saves the head and the embeddings
    /// with an adapter of them, because a vocabulary may have grown meanwhile.
    pub(crate) fn same(&self, tensors: &BTreeMap<String, &Tensor>) -> Result<(), ModelError> {
        for copy in &self.copies {
            let own = tensors.get(&copy.name).filter(|own| own.shape == copy.shape);
            let pair = own.and_then(|own| Some((numbers(own)?, numbers(copy)?)));
            // The one may be rounded to halves and the other not.
            let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 0.01 * x.abs().max(1e-4);
            if !pair.is_some_and(|(own, copy)| own.iter().zip(&copy).all(near)) {
                return Err(ModelError::AdapterShape {
                    file: self.file.clone(),
                    target: copy.name.clone(),
                    found: format!("a whole tensor, {} {:?}", copy.dtype, copy.shape),
                    needed: "that of the model, in the model's own file, or saved without it (PEFT's \
                             `save_embedding_layers=False`)"
                        .to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Refuses an adapter of another architecture than the model's, where both say theirs.
    pub(crate) fn fits(&self, naming: Naming, architecture: &str) -> Result<(), ModelError> {
        match &self.architecture {
            Some(found) if naming == Naming::Gguf && found != architecture => Err(ModelError::AdapterBase {
                file: self.file.clone(),
                found: found.clone(),
                needed: architecture.to_owned(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

/// The halves of what is added to each matrix, until both are there.
#[derive(Default)]
struct Halves {
    a: Option<Tensor>,
    b: Option<Tensor>,
}

impl Halves {
    /// Takes one of them; where it is there already, both their names.
    fn take(&mut self, is_a: bool, tensor: &Tensor) -> Result<(), [String; 2]> {
        let half = if is_a { &mut self.a } else { &mut self.b };
        match half.replace(tensor.clone()) {
            None => Ok(()),
            Some(other) => Err([other.name, tensor.name.clone()]),
        }
    }
}

/// Puts the halves of each matrix together; `factor` is of a matrix and its rank.
fn joined(
    file: &str,
    halves: BTreeMap<String, Halves>,
    factor: impl Fn(&str, usize) -> Result<f32, ModelError>,
) -> Result<BTreeMap<String, Delta>, ModelError> {
    let mut deltas = BTreeMap::new();
    for (target, halves) in halves {
        let wrong = |found: String, needed: &str| ModelError::AdapterShape {
            file: file.to_owned(),
            target: target.clone(),
            found,
            needed: needed.to_owned(),
        };
        let (a, b) = match halves {
            Halves { a: Some(a), b: Some(b) } => (a, b),
            Halves { a, .. } => {
                let found = if a.is_some() { "A alone" } else { "B alone" };
                return Err(wrong(found.to_owned(), "both A and B"));
            }
        };
        let shapes = || format!("A {} {:?} and B {} {:?}", a.dtype, a.shape, b.dtype, b.shape);
        match (a.shape.as_slice(), b.shape.as_slice()) {
            (&[rank, _], &[_, same]) if rank == same && rank > 0 => {
                let factor = factor(&target, rank)?;
                deltas.insert(target, Delta { a, b, factor });
            }
            (&[_, _], &[_, _]) => return Err(wrong(shapes(), "A [rank, k] and B [n, rank] of one rank")),
            _ => return Err(wrong(shapes(), "A [rank, k] and B [n, rank]")),
        }
    }
    Ok(deltas)
}

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// What comes before the names of a model's own tensors.
const WRAPPER: &str = "base_model.model.";

/// Reads a folder that PEFT wrote.
fn peft(path: &Path) -> Result<(BTreeMap<String, Delta>, Vec<Tensor>), ModelError> {
    let config_file = path.join(CONFIG);
    let not = |reason: &str| ModelError::NotAnAdapter {
        path: path.display().to_string(),
        reason: reason.to_owned(),
    };
    if !config_file.is_file() {
        return Err(not("the folder has no adapter_config.json"));
    }
    let file = path.join(TENSORS);
    if !file.is_file() {
        let pickled = path.join("adapter_model.bin").is_file();
        return Err(not(if pickled {
            "it has adapter_model.bin, which may run code when it is read; save it as adapter_model.safetensors"
        } else {
            "the folder has no adapter_model.safetensors"
        }));
    }
    let config = PeftConfig { file: config_file.display().to_string(), map: read_json(&config_file)? };
    config.check()?;
    let tensors = SafeTensors::open(&file)?;
    let file = file.display().to_string();
    let (mut halves, mut copies): (BTreeMap<String, Halves>, _) = (BTreeMap::new(), Vec::new());
    for tensor in tensors.tensors() {
        let unknown = || ModelError::AdapterTarget {
            file: file.clone(),
            target: tensor.name.clone(),
            others: 0,
            needed: "the halves `lora_A` and `lora_B` of a matrix of each layer, or of `lm_head`".to_owned(),
        };
        let inner = tensor.name.strip_prefix(WRAPPER).unwrap_or(&tensor.name);
        if let Some(copied) = inner.strip_suffix(".base_layer.weight").and_then(plain_name) {
            copies.push(Tensor { name: format!("{copied}.weight"), ..tensor.clone() });
            continue;
        }
        let (target, is_a) = split(inner).ok_or_else(unknown)?;
        let target = plain_name(target).ok_or_else(unknown)?;
        halves.entry(target.clone()).or_default().take(is_a, tensor).map_err(|[one, other]| {
            let found = format!("both `{one}` and `{other}`");
            let needed = "one adapter: A and B of each matrix once".to_owned();
            ModelError::AdapterShape { file: file.clone(), target, found, needed }
        })?;
    }
    Ok((joined(&file, halves, |target, rank| config.factor(target, rank))?, copies))
}

/// `q_proj.lora_A.weight` and `q_proj.lora_A.default.weight`: the matrix, and whether it is the first half.
fn split(name: &str) -> Option<(&str, bool)> {
    let (target, rest, is_a) = match name.split_once(".lora_A") {
        Some((target, rest)) => (target, rest, true),
        None => name.split_once(".lora_B").map(|(target, rest)| (target, rest, false))?,
    };
    let ends =
        rest.is_empty() || rest.starts_with('.') && (rest.ends_with(".weight") || !rest.contains(".bias"));
    ends.then_some((target, is_a))
}

/// `adapter_config.json`
struct PeftConfig {
    file: String,
    map: Map<String, Value>,
}

impl PeftConfig {
    fn wrong(&self, key: &str, found: &Value, needed: &str) -> ModelError {
        let (file, key, needed) = (self.file.clone(), key.to_owned(), needed.to_owned());
        ModelError::Config { file, key, found: found.to_string(), needed }
    }

    /// Refuses what is more than two factors.
    fn check(&self) -> Result<(), ModelError> {
        let found = |key: &str| self.map.get(key).filter(|value| !value.is_null());
        match found("peft_type") {
            Some(Value::String(kind)) if kind == "LORA" => {}
            other => return Err(self.wrong("peft_type", other.unwrap_or(&Value::Null), "LORA")),
        }
        for key in ["use_dora", "lora_bias", "use_qalora"] {
            if let Some(value) = found(key).filter(|value| **value != Value::Bool(false)) {
                return Err(self.wrong(key, value, "false"));
            }
        }
        if let Some(bias) = found("bias").filter(|bias| *bias != "none") {
            return Err(self.wrong("bias", bias, "none"));
        }
        // Others begin by changing the matrices themselves, so that what is added fits no model as it was.
        let plain = |start: &Value| match start {
            Value::String(start) => ["gaussian", "eva", "orthogonal"].contains(&start.as_str()),
            _ => start.is_boolean(),
        };
        if let Some(start) = found("init_lora_weights").filter(|start| !plain(start)) {
            let needed = "true: an adapter of the model's own matrices (PEFT can convert it when it saves)";
            return Err(self.wrong("init_lora_weights", start, needed));
        }
        for patterns in ["rank_pattern", "alpha_pattern"] {
            let names = found(patterns).and_then(Value::as_object).into_iter().flat_map(Map::keys);
            if let Some(name) = names.into_iter().find(|name| literal(name).is_none()) {
                let needed = "names of matrices, or the ends of such";
                return Err(self.wrong(patterns, &Value::from(name.as_str()), needed));
            }
        }
        let empty = |value: &Value| match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(items) => items.is_empty(),
            _ => false,
        };
        // The last is for adapters that count only after certain tokens.
        for key in [
            "modules_to_save",
            "trainable_token_indices",
            "layer_replication",
            "target_parameters",
            "alora_invocation_tokens",
        ] {
            if let Some(value) = found(key).filter(|value| !empty(value)) {
                return Err(self.wrong(key, value, "empty: the adapter may change matrices only"));
            }
        }
        Ok(())
    }

    /// `alpha / rank`, or `alpha / √rank`, by the numbers of this matrix or of all.
    fn factor(&self, target: &str, rank: usize) -> Result<f32, ModelError> {
        let number = |patterns: &str, key: &str| {
            let value = self.pattern(patterns, target).or_else(|| self.map.get(key));
            let value = value.unwrap_or(&Value::Null);
            let found = value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
            found.ok_or_else(|| self.wrong(key, value, "a number above 0"))
        };
        let (said, alpha) = (number("rank_pattern", "r")?, number("alpha_pattern", "lora_alpha")?);
        if said != rank as f64 {
            return Err(ModelError::AdapterShape {
                file: self.file.clone(),
                target: target.to_owned(),
                found: format!("rank {rank}"),
                needed: format!("rank {said}, which `{CONFIG}` says"),
            });
        }
        let rooted = self.map.get("use_rslora") == Some(&Value::Bool(true));
        Ok((alpha / if rooted { (rank as f64).sqrt() } else { rank as f64 }) as f32)
    }

    /// The number of the first pattern that names the end of this matrix's name.
    fn pattern(&self, patterns: &str, target: &str) -> Option<&Value> {
        let patterns = self.map.get(patterns)?.as_object()?;
        let ends = |name: &str| {
            let Some(name) = literal(name) else { return false };
            target == name || target.strip_suffix(name.as_str()).is_some_and(|before| before.ends_with('.'))
        };
        patterns.iter().find_map(|(name, value)| ends(name).then_some(value))
    }
}

/// The name that a pattern stands for; `None` where it stands for several.
fn literal(pattern: &str) -> Option<String> {
    let name = pattern.trim_start_matches('^').trim_end_matches('$').replace("\\.", ".");
    let plain = |c: char| c.is_alphanumeric() || ['_', '-', '.'].contains(&c);
    name.chars().all(plain).then_some(name)
}

/// Reads an adapter in a GGUF file.
fn lora(file: &str, gguf: &Gguf) -> Result<BTreeMap<String, Delta>, ModelError> {
    let metadata = &gguf.metadata;
    for (key, needed) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = metadata.opt_str(key)?;
        if found != Some(needed) {
            let (file, key) = (file.to_owned(), key.to_owned());
            let found = found.map_or_else(|| "absent".to_owned(), |found| format!("`{found}`"));
            return Err(ModelError::Config { file, key, found, needed: format!("`{needed}`") });
        }
    }
    let key = "adapter.lora.alpha";
    let alpha = metadata.opt_f32(key)?.unwrap_or(0.0);
    if !alpha.is_finite() || alpha < 0.0 {
        let (file, key, needed) = (file.to_owned(), key.to_owned(), "a number above 0".to_owned());
        return Err(ModelError::Config { file, key, found: alpha.to_string(), needed });
    }
    let mut halves: BTreeMap<String, Halves> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let half = |end: &str| Some(tensor.name.strip_suffix(end)?.to_owned());
        let (target, is_a) = match (half(".weight.lora_a"), half(".weight.lora_b")) {
            (Some(target), _) => (target, true),
            (None, Some(target)) => (target, false),
            (None, None) => {
                let needed = "tensors `NAME.weight.lora_a` and `NAME.weight.lora_b` alone".to_owned();
                let (file, target) = (file.to_owned(), tensor.name.clone());
                return Err(ModelError::AdapterTarget { file, target, others: 0, needed });
            }
        };
        let halves = halves.entry(target).or_default();
        // No two tensors of a file have one name.
        *(if is_a { &mut halves.a } else { &mut halves.b }) = Some(tensor.clone());
    }
    // Without an alpha the factors count as they are.
    joined(file, halves, |_, rank| Ok(if alpha == 0.0 { 1.0 } else { alpha / rank as f32 }))
}

/// The numbers of one half.
pub(crate) fn numbers(tensor: &Tensor) -> Option<Vec<f32>> {
    let mut numbers = vec![0.0; tensor.elements()];
    quant::dequantize(tensor.dtype, &tensor.data, &mut numbers).ok()?;
    Some(numbers)
}
