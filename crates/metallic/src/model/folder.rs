//! A Hugging Face folder as GGUF would have it: the names and values of its numbers, and how its tensors are made.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use metallic_core::{Attention, Graph, GraphBuilder, Op, Rope, RopePairs};
use metallic_formats::{Metadata, SafeTensors, Tensor, Value};

use super::meta::Found;
use super::{Config, FAMILIES, Family, Key, Meta, ModelError, Naming, Results, RopeConfig, read_json};
use crate::weights::{Ledger, Packing, Part, Recipe};

const QUERY_SCALE: Key = Key::new("", "query_pre_attn_scalar");

/// A folder that was read as its family reads it, and what that reading found.
#[derive(Debug)]
pub(crate) struct Folder {
    file: String,
    tensors: SafeTensors,
    packing: Packing,
    /// Its hyper-parameters.
    pub(crate) config: Config,
    /// What `q · k` is divided by the root of, where `config.json` says it; GGUF has no place for that.
    pub(crate) query_scale: Option<f32>,
    /// How it rotates.
    pub(crate) rope: RopeConfig,
    /// What `config.json` says, by the names of GGUF without the architecture before them; a later one counts.
    pub(crate) numbers: Vec<(&'static str, Value)>,
    /// What it computes.
    outline: Outline,
    /// The tensors by the names of GGUF.
    pub(crate) parts: BTreeMap<String, Part>,
}

impl Folder {
    /// Reads `config.json` and the names of all tensors.
    pub(crate) fn open(path: &Path) -> Result<Folder, ModelError> {
        let name = path.display().to_string();
        let json = path.join("config.json");
        if !json.is_file() {
            return Err(ModelError::NotAModel {
                path: name,
                reason: "the folder has no config.json".to_owned(),
            });
        }
        let (file, map) = (json.display().to_string(), read_json(&json)?);
        let found: Found = RefCell::default();
        let meta = Meta::of_text(&file, &map, FAMILIES)?.noting(&found);
        let decoder = Family::decoder(FAMILIES, &meta)?;
        let config = decoder.config().clone();
        let rope = RopeConfig::read(&meta, config.head_dim)?;
        let query_scale = meta.opt(QUERY_SCALE)?;
        let tensors = SafeTensors::open(path)?;
        let builder = GraphBuilder::new();
        let packing = Packing::read(&Meta::json(&file, &map)?)?;
        let ledger =
            Ledger::new(Naming::HuggingFace, name.clone(), tensors.tensors()).packed(packing.clone());
        let Results { logits, .. } = decoder.forward(&ledger.source(&builder));
        let taken = ledger.parts();
        ledger.finish()?;
        let outline = Outline::of(&builder.finish(&[logits])?);
        let mut parts = BTreeMap::new();
        for part in taken {
            let (inner, recipe) = as_gguf(&part.recipe).ok_or_else(|| ModelError::Mismatch {
                file: name.clone(),
                name: format!("{}*", part.gguf_prefix),
                found: "made of several, or of parts of one".to_owned(),
                needed: "something that one tensor of a GGUF file can hold".to_owned(),
            })?;
            parts.insert(format!("{}{inner}", part.gguf_prefix), Part { recipe, ..part });
        }
        let numbers = found.into_inner();
        Ok(Folder { file: name, tensors, packing, config, query_scale, rope, numbers, outline, parts })
    }

    /// In what a GGUF file with these keys and tensors would compute something else, if in anything. `windows`: whether it counts
    /// how far back layers look.
    pub(crate) fn compare(
        &self,
        metadata: &Metadata,
        tensors: &[Tensor],
        windows: bool,
    ) -> Result<Option<String>, ModelError> {
        let decoder = Family::decoder(FAMILIES, &Meta::gguf(&self.file, metadata)?)?;
        let builder = GraphBuilder::new();
        let ledger = Ledger::new(Naming::Gguf, self.file.clone(), tensors.iter());
        let Results { logits, .. } = decoder.forward(&ledger.source(&builder));
        ledger.finish()?;
        Ok(self.outline.differs(&Outline::of(&builder.finish(&[logits])?), windows))
    }

    /// The tensor of this part, as a GGUF file would have it but for the order of its rows.
    pub(crate) fn make(&self, part: &Part) -> Result<Tensor, ModelError> {
        let ledger = Ledger::new(Naming::HuggingFace, self.file.clone(), self.tensors.tensors());
        ledger.packed(self.packing.clone()).make(part)
    }
}

/// What a graph computes, but for the numbers in its weights and the order of rows that rotate together.
#[derive(Debug)]
struct Outline {
    ops: Vec<Op>,
    /// The frequencies of its rotations.
    frequencies: Vec<Vec<f32>>,
}

impl Outline {
    fn of(graph: &Graph) -> Outline {
        let plain = |op: Op| match op {
            Op::Rope(rope) => Op::Rope(Rope { pairs: RopePairs::Halves, ..rope }),
            other => other,
        };
        let ops = graph.nodes().iter().filter(|node| !matches!(node.op, Op::Weight(_)));
        let rotations = graph.nodes().iter().filter(|node| matches!(node.op, Op::Rope(_)));
        let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let frequencies =
            rotations.filter_map(|node| Some(numbers(&graph.weight(*node.inputs.get(2)?)?.data)));
        Outline { ops: ops.map(|node| plain(node.op)).collect(), frequencies: frequencies.collect() }
    }

    fn differs(&self, other: &Outline, windows: bool) -> Option<String> {
        let near = |a: f32, b: f32| (a - b).abs() <= 1e-4 * a.abs().max(b.abs());
        let same = |a: &Op, b: &Op| match (a, b) {
            (Op::Attention(a), Op::Attention(b)) => {
                let window = if windows { b.window } else { a.window };
                near(a.scale, b.scale) && Attention { scale: a.scale, window, ..*b } == *a
            }
            (Op::Rope(a), Op::Rope(b)) => {
                near(a.magnitude, b.magnitude) && Rope { magnitude: a.magnitude, ..*b } == *a
            }
            (Op::Scalar { value: a, .. }, Op::Scalar { value: b, .. }) => near(*a, *b),
            (a, b) => a == b,
        };
        if self.ops.len() != other.ops.len() {
            return Some(format!("{} operations, and {} in the file", self.ops.len(), other.ops.len()));
        }
        let pairs = self.ops.iter().zip(&other.ops);
        if let Some((a, b)) = pairs.clone().find(|(a, b)| !same(a, b)) {
            return Some(format!("{a:?}, and {b:?} in the file"));
        }
        let flat = |outline: &Outline| outline.frequencies.concat();
        let (a, b) = (flat(self), flat(other));
        let alike = a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| near(*a, *b));
        (!alike).then(|| "rotations of other frequencies than in the file".to_owned())
    }
}

/// The tensor of a GGUF file that a weight is, or is part of, and how it is made of a folder's.
fn as_gguf(recipe: &Recipe) -> Option<(String, Recipe)> {
    match recipe {
        Recipe::Tensor { name, suffix } => {
            let name = name.spellings(Naming::Gguf).next()?;
            Some((format!("{name}{suffix}"), recipe.clone()))
        }
        Recipe::ByFile { gguf, hf } => match (gguf.as_ref(), hf.as_ref()) {
            (Recipe::Rows { of: gguf, rows }, Recipe::Rows { of: hf, rows: same }) if rows == same => {
                as_gguf(&Recipe::by_file(gguf.as_ref().clone(), hf.as_ref().clone()))
            }
            (Recipe::Tensor { name, suffix }, hf) => {
                let name = name.spellings(Naming::Gguf).next()?;
                Some((format!("{name}{suffix}"), hf.clone()))
            }
            _ => None,
        },
        Recipe::Stacked { of, count } => {
            let (name, of) = as_gguf(of)?;
            Some((name, of.stacked(*count)))
        }
        // What is done to either kind of file is done to what is written, too.
        Recipe::Rows { of, .. }
        | Recipe::Picked { of, .. }
        | Recipe::PlusOne(of)
        | Recipe::Transposed(of)
        | Recipe::NegatedExp(of) => as_gguf(of),
        Recipe::Mxfp4 { .. } => None,
    }
}
