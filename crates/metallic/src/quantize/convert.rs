//! A Hugging Face folder as a GGUF file: the other names of its numbers and tensors, and the other order of some rows.

use std::path::{Path, PathBuf};

use metallic_core::{Bytes, DType, quant};
use metallic_formats::{Metadata, Tensor, Value};

use super::mixture::is_matrix;
use super::{Described, QuantizeError, vocab};
use crate::model::{Folder, Naming, RopeScaling, yarn_magnitude};
use crate::weights::SideBySide;

/// How a family of folders is written.
#[derive(Clone, Copy, Debug)]
struct Family {
    /// `model_type` of the folder.
    hf: &'static str,
    /// `general.architecture` of the file.
    gguf: &'static str,
    /// Rows of queries and keys that are rotated together lie side by side in the file.
    permuted: bool,
}

const fn family(hf: &'static str, gguf: &'static str, permuted: bool) -> Family {
    Family { hf, gguf, permuted }
}

/// The families whose files were found to give the answers of their folders.
const FAMILIES: [Family; 27] = [
    family("llama", "llama", true),
    family("mistral", "llama", true),
    family("mixtral", "llama", true),
    family("smollm3", "smollm3", true),
    family("qwen2", "qwen2", false),
    family("qwen3", "qwen3", false),
    family("qwen3_moe", "qwen3moe", false),
    family("gemma", "gemma", false),
    family("gemma2", "gemma2", false),
    family("gemma3_text", "gemma3", false),
    family("phi3", "phi3", false),
    family("gpt2", "gpt2", false),
    family("stablelm", "stablelm", false),
    family("cohere2", "cohere2", false),
    family("cohere", "command-r", false),
    family("olmo2", "olmo2", false),
    family("olmo3", "olmo2", false),
    family("olmoe", "olmoe", false),
    family("exaone4", "exaone4", false),
    family("starcoder2", "starcoder2", false),
    family("granite", "granite", true),
    family("nemotron", "nemotron", false),
    family("arcee", "arcee", true),
    family("ernie4_5", "ernie4_5", false),
    family("seed_oss", "seed_oss", false),
    family("qwen2_moe", "qwen2moe", false),
    family("glm4", "glm4", false),
];

/// Factors on frequencies, one for each pair.
const FACTORS: &str = "rope_freqs.weight";

/// A folder on its way to a file.
#[derive(Debug)]
pub(super) struct Conversion {
    path: PathBuf,
    folder: Folder,
    family: Family,
}

impl Conversion {
    pub(super) fn open(path: &Path) -> Result<Conversion, QuantizeError> {
        let folder = Folder::open(path)?;
        let found = folder.config.architecture.clone();
        let Some(family) = FAMILIES.iter().find(|family| family.hf == found).copied() else {
            let supported = FAMILIES.map(|family| family.hf).join(", ");
            return Err(QuantizeError::Family { file: path.display().to_string(), found, supported });
        };
        let unwritable = |found: String, needed: String| QuantizeError::Unwritable {
            file: path.display().to_string(),
            found,
            needed,
        };
        if let RopeScaling::Long { .. } = folder.rope.scaling {
            let needed = "one of the kinds default, linear, llama3 and yarn".to_owned();
            return Err(unwritable("a rotation of the kind longrope".to_owned(), needed));
        }
        let head_dim = folder.config.head_dim;
        if let Some(scale) = folder.query_scale.filter(|scale| (scale - head_dim as f32).abs() > 1e-3) {
            let needed = format!("{head_dim}, the size of a head");
            return Err(unwritable(format!("`query_pre_attn_scalar` of {scale}"), needed));
        }
        Ok(Conversion { path: path.to_owned(), folder, family })
    }

    pub(super) fn metadata(&self) -> Result<Metadata, QuantizeError> {
        let (config, rope, architecture) = (&self.folder.config, &self.folder.rope, self.family.gguf);
        let mut metadata = Metadata::empty(self.path.display().to_string());
        let name = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let name = name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        metadata.insert("general.architecture", architecture);
        metadata.insert("general.type", "model");
        metadata.insert("general.name", name);
        let is_stretched = matches!(rope.scaling, RopeScaling::Linear(_) | RopeScaling::Yarn { .. });
        // What files of most families must have, whether or not `config.json` says it.
        let sizes: [(&str, Value); 8] = [
            ("block_count", Value::U32(config.layers as u32)),
            ("context_length", Value::U32(config.context as u32)),
            ("embedding_length", Value::U32(config.hidden as u32)),
            ("feed_forward_length", Value::U32(4 * config.hidden as u32)),
            ("attention.head_count", Value::U32(config.heads as u32)),
            ("attention.head_count_kv", Value::U32(config.kv_heads as u32)),
            ("vocab_size", Value::U32(config.vocab as u32)),
            ("rope.dimension_count", Value::U32(rope.dims as u32)),
        ];
        let lengths =
            [("attention.key_length", config.head_dim), ("attention.value_length", config.head_dim)];
        let lengths = lengths.map(|(key, n)| (key, Value::U32(n as u32)));
        let epsilon = [("attention.layer_norm_rms_epsilon", Value::F32(1e-6))];
        let said = self.folder.numbers.iter().cloned();
        for (key, value) in sizes.into_iter().chain(lengths).chain(epsilon).chain(said) {
            // Llama 3 is written as factors, and readers do not know the names of what stretches nothing.
            let absent = !is_stretched && key.starts_with("rope.scaling.");
            if absent || key.starts_with("general.") {
                continue;
            }
            metadata.insert(format!("{architecture}.{key}"), value);
        }
        if let RopeScaling::Yarn { factor, magnitude, .. } = rope.scaling {
            // Readers multiply it by what they take where nothing is said.
            let more = magnitude / yarn_magnitude(factor, 1.0);
            metadata.insert(format!("{architecture}.rope.scaling.attn_factor"), more);
        }
        if let Some(window) = self.lost_window() {
            metadata.insert(format!("{architecture}.context_length"), window as u32);
        }
        vocab::write(&self.path, config.vocab, &mut metadata)?;
        Ok(metadata)
    }

    /// How far back layers look, in a family whose files cannot say it.
    fn lost_window(&self) -> Option<usize> {
        let is_lost = self.family.gguf == "llama";
        let said = self.folder.numbers.iter().rev().find(|(key, _)| *key == "attention.sliding_window");
        match said {
            Some((_, Value::U32(window))) if is_lost => {
                Some(*window as usize).filter(|window| (1..self.folder.config.context).contains(window))
            }
            _ => None,
        }
    }

    /// What the file cannot say as the folder does.
    pub(super) fn notes(&self) -> Vec<String> {
        let window = self.lost_window().map(|window| {
            format!(
                "layers look back {window} tokens, which `{}` files cannot say: the context is cut to that",
                self.family.gguf
            )
        });
        window.into_iter().collect()
    }

    pub(super) fn tensors(&self) -> Result<Vec<Described>, QuantizeError> {
        let mut all = Vec::new();
        for (name, part) in &self.folder.parts {
            let Tensor { dtype, shape, .. } = self.folder.make(part)?;
            let dtype = if is_matrix(name, &shape) { dtype } else { DType::F32 };
            all.push(Described { name: name.clone(), dtype, shape });
        }
        if let Some(factors) = self.factors() {
            all.push(Described { name: FACTORS.to_owned(), dtype: DType::F32, shape: vec![factors.len()] });
        }
        all.sort_by_key(|tensor| place(&tensor.name));
        Ok(all)
    }

    /// Refuses a file that its reader would take for another model than the folder's.
    pub(super) fn check(&self, metadata: &Metadata, tensors: &[Described]) -> Result<(), QuantizeError> {
        let factors = self.factors().map(|_| self.load(FACTORS)).transpose()?;
        let most = tensors.iter().filter_map(|t| t.dtype.bytes_for(t.shape.iter().product())).max();
        // No number of it is looked at, so no page of it is ever there.
        let nothing = Bytes::from(vec![0; most.unwrap_or(0)]);
        let stand_in = |t: &Described| {
            let data = t.dtype.bytes_for(t.shape.iter().product()).and_then(|len| nothing.slice(0..len));
            let (name, shape) = (t.name.clone(), t.shape.clone());
            Tensor { name, dtype: t.dtype, shape, data: data.unwrap_or_else(|| Bytes::from(Vec::new())) }
        };
        let others = tensors.iter().filter(|t| t.name != FACTORS).map(stand_in);
        let tensors: Vec<Tensor> = others.chain(factors).collect();
        let different = self
            .folder
            .compare(metadata, &tensors, self.lost_window().is_none())
            .map_err(|error| self.unwritable(&error.to_string()))?;
        different.map_or(Ok(()), |what| Err(self.unwritable(&what)))
    }

    fn unwritable(&self, found: &str) -> QuantizeError {
        QuantizeError::Unwritable {
            file: self.path.display().to_string(),
            found: format!("a `{}` model ({found})", self.family.hf),
            needed: format!("one that `{}` files can describe", self.family.gguf),
        }
    }

    /// What Llama 3 divides its frequencies by.
    fn factors(&self) -> Option<Vec<f32>> {
        let rope = &self.folder.rope;
        let RopeScaling::Llama3 { .. } = rope.scaling else { return None };
        let plain = |i: usize| f64::from(rope.theta).powf(-2.0 * i as f64 / rope.dims as f64);
        let factors = rope.frequencies().into_iter().enumerate();
        Some(factors.map(|(i, found)| (plain(i) / f64::from(found)) as f32).collect())
    }

    pub(super) fn load(&self, name: &str) -> Result<Tensor, QuantizeError> {
        if let Some(factors) = self.factors().filter(|_| name == FACTORS) {
            let data: Vec<u8> = factors.iter().flat_map(|v| v.to_le_bytes()).collect();
            let shape = vec![factors.len()];
            return Ok(Tensor { name: name.to_owned(), dtype: DType::F32, shape, data: data.into() });
        }
        let part = self.folder.parts.get(name).ok_or_else(|| QuantizeError::Unwritable {
            file: self.path.display().to_string(),
            found: format!("tensor `{name}`"),
            needed: "one of the family's".to_owned(),
        })?;
        let tensor = Tensor { name: name.to_owned(), ..self.folder.make(part)? };
        let tensor = if self.family.permuted { self.side_by_side(tensor) } else { tensor };
        if is_matrix(name, &tensor.shape) || tensor.dtype == DType::F32 {
            return Ok(tensor);
        }
        let mut numbers = vec![0.0; tensor.elements()];
        quant::dequantize(tensor.dtype, &tensor.data, &mut numbers)
            .map_err(|error| QuantizeError::Quant { name: name.to_owned(), error })?;
        let data: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Tensor { dtype: DType::F32, data: data.into(), ..tensor })
    }

    /// Queries and keys of which row `i` of a head is rotated with row `i + dims / 2`, in an order in which it is the next.
    fn side_by_side(&self, tensor: Tensor) -> Tensor {
        let is_rotated = [".attn_q.", ".attn_k."].iter().any(|part| tensor.name.contains(part));
        let (head_dim, rotated) = (self.folder.config.head_dim, self.folder.rope.dims);
        let order = SideBySide { head_dim, rotated };
        let rows = tensor.shape.first().copied().unwrap_or(0);
        if !is_rotated || rows == 0 || !rows.is_multiple_of(head_dim) {
            return tensor;
        }
        let row = tensor.data.len() / rows;
        let mut data = Vec::with_capacity(tensor.data.len());
        for to in 0..rows {
            let from = order.source(Naming::HuggingFace, Naming::Gguf, to);
            data.extend_from_slice(&tensor.data[from * row..(from + 1) * row]);
        }
        Tensor { data: data.into(), ..tensor }
    }
}

/// The embedding table first, then layer by layer, then what comes after.
fn place(name: &str) -> (usize, usize, String) {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    match layer {
        Some(layer) => (1, layer, name.to_owned()),
        None => (if name.starts_with("output") { 2 } else { 0 }, 0, name.to_owned()),
    }
}
