//! Weights by name: typed from the file's own tensors, and nothing missing, misshapen or left unread.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use metallic_core::{Bytes, DType, Dim, GraphBuilder, Shape, TensorType, Var, Weight};
use metallic_formats::Tensor;

use crate::model::ModelError;

/// How a file spells the names this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// `blk.3.attn_q.weight`
    Gguf,
    /// `model.layers.3.self_attn.q_proj.weight`
    HuggingFace,
}

/// Our name, GGUF's, Hugging Face's. A layer's names stand behind its prefix.
const NAMES: [(&str, &str, &str); 13] = [
    ("embed", "token_embd", "model.embed_tokens"),
    ("norm", "output_norm", "model.norm"),
    ("head", "output", "lm_head"),
    ("rope_factors", "rope_freqs", "model.rope_factors"),
    ("attn_norm", "attn_norm", "input_layernorm"),
    ("q", "attn_q", "self_attn.q_proj"),
    ("k", "attn_k", "self_attn.k_proj"),
    ("v", "attn_v", "self_attn.v_proj"),
    ("o", "attn_output", "self_attn.o_proj"),
    ("mlp_norm", "ffn_norm", "post_attention_layernorm"),
    ("gate", "ffn_gate", "mlp.gate_proj"),
    ("up", "ffn_up", "mlp.up_proj"),
    ("down", "ffn_down", "mlp.down_proj"),
];

/// Tensors some files carry that hold nothing a model needs.
fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name.ends_with("attn_rot_embd")
}

/// The tensors of a file while a model takes them.
pub(crate) struct Weights<'g, 'f> {
    graph: &'g GraphBuilder,
    naming: Naming,
    file: String,
    tensors: BTreeMap<&'f str, &'f Tensor>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    read: BTreeSet<String>,
    error: Option<ModelError>,
}

impl<'g, 'f> Weights<'g, 'f> {
    pub(crate) fn new(
        graph: &'g GraphBuilder,
        naming: Naming,
        file: String,
        tensors: impl Iterator<Item = &'f Tensor>,
    ) -> Weights<'g, 'f> {
        let tensors = tensors.map(|t| (t.name.as_str(), t)).collect();
        Weights { graph, naming, file, tensors, state: RefCell::default() }
    }

    pub(crate) fn graph(&self) -> &'g GraphBuilder {
        self.graph
    }

    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// The file's spelling of `ours` in `layer`, with the suffix `.weight` or `.bias`.
    fn name(&self, layer: Option<usize>, ours: &str, suffix: &str) -> String {
        let row = NAMES.iter().find(|(name, ..)| *name == ours);
        let spelled = row.map_or(ours, |(_, gguf, hf)| match self.naming {
            Naming::Gguf => gguf,
            Naming::HuggingFace => hf,
        });
        match (layer, self.naming) {
            (None, _) => format!("{spelled}.{suffix}"),
            (Some(i), Naming::Gguf) => format!("blk.{i}.{spelled}.{suffix}"),
            (Some(i), Naming::HuggingFace) => format!("model.layers.{i}.{spelled}.{suffix}"),
        }
    }

    /// Whether the file has this weight.
    pub(crate) fn has(&self, ours: &str) -> bool {
        self.tensors.contains_key(self.name(None, ours, "weight").as_str())
    }

    /// Marks a weight as known without using it.
    pub(crate) fn skip(&self, ours: &str) {
        self.state.borrow_mut().read.insert(self.name(None, ours, "weight"));
    }

    /// `[rows, cols]` of any weight type.
    pub(crate) fn matrix(&self, layer: Option<usize>, ours: &str, rows: usize, cols: usize) -> Var<'g> {
        self.take(self.name(layer, ours, "weight"), Shape::matrix(rows, cols), false)
    }

    /// `[len]` of floats.
    pub(crate) fn vector(&self, layer: Option<usize>, ours: &str, len: usize) -> Var<'g> {
        self.take(self.name(layer, ours, "weight"), Shape::vector(len), true)
    }

    /// The bias `[len]` that goes with a matrix.
    pub(crate) fn bias(&self, layer: Option<usize>, ours: &str, len: usize) -> Var<'g> {
        self.take(self.name(layer, ours, "bias"), Shape::vector(len), true)
    }

    /// The numbers of a small `F32` vector, all above 0, where the file has it.
    pub(crate) fn numbers(&self, ours: &str, len: usize) -> Option<Vec<f32>> {
        let name = self.name(None, ours, "weight");
        let tensor = *self.tensors.get(name.as_str())?;
        self.state.borrow_mut().read.insert(name.clone());
        if tensor.dtype != DType::F32 || tensor.shape != [len] {
            let needed = format!("F32 [{len}]");
            self.fail(ModelError::Mismatch {
                file: self.file.clone(),
                name,
                found: describe(tensor),
                needed,
            });
            return None;
        }
        let numbers: Vec<f32> =
            tensor.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(bad) = numbers.iter().find(|x| !(x.is_finite() && **x > 0.0)) {
            let (file, found) = (self.file.clone(), format!("{} with {bad} in it", describe(tensor)));
            self.fail(ModelError::Mismatch { file, name, found, needed: "positive numbers".to_owned() });
            return None;
        }
        Some(numbers)
    }

    fn fail(&self, error: ModelError) {
        self.state.borrow_mut().error.get_or_insert(error);
    }

    fn take(&self, name: String, shape: Shape, floats_only: bool) -> Var<'g> {
        self.state.borrow_mut().read.insert(name.clone());
        let stand_in = |name: String| {
            let ty = TensorType::f32(shape);
            self.graph.weight(Weight { name, ty, data: Bytes::from(Vec::new()) })
        };
        let Some(tensor) = self.tensors.get(name.as_str()) else {
            self.fail(ModelError::Missing {
                file: self.file.clone(),
                name: name.clone(),
                needed: shape.to_string(),
            });
            return stand_in(name);
        };
        let found: Vec<Dim> = tensor.shape.iter().map(|n| Dim::Fixed(*n)).collect();
        let dtype_ok = tensor.dtype.is_float() || (tensor.dtype.is_quantized() && !floats_only);
        if found != shape.dims() || !dtype_ok {
            let kind = if floats_only { "F32, F16 or BF16" } else { "floats or a quantised type" };
            let needed = format!("{kind} {shape}");
            let (file, found) = (self.file.clone(), describe(tensor));
            self.fail(ModelError::Mismatch { file, name: name.clone(), found, needed });
            return stand_in(name);
        }
        let ty = TensorType::new(tensor.dtype, shape);
        self.graph.weight(Weight { name, ty, data: tensor.data.clone() })
    }

    /// Nothing was missing or misshapen, and every tensor of the file was read.
    pub(crate) fn finish(self) -> Result<(), ModelError> {
        let State { read, error } = self.state.into_inner();
        if let Some(error) = error {
            return Err(error);
        }
        let unread: Vec<&str> =
            self.tensors.keys().copied().filter(|name| !read.contains(*name) && !is_derived(name)).collect();
        match unread.first() {
            None => Ok(()),
            Some(first) => Err(ModelError::Unread {
                file: self.file,
                name: (*first).to_owned(),
                others: unread.len() - 1,
            }),
        }
    }
}

fn describe(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.dtype, tensor.shape)
}
