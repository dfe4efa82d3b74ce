//! Models of real shapes without weights: GGUF files whose data are holes.

use std::path::Path;

use metallic::core::DType;
use metallic::formats::{FormatError, GgufStream, Metadata, TensorSpec};

/// The shape of a model as its authors publish it (`config.json`).
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    family: &'static str,
    hidden: usize,
    layers: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
    /// The table of embeddings is the head as well.
    tied: bool,
}

const fn qwen2(
    name: &'static str,
    [hidden, layers, inner]: [usize; 3],
    [heads, kv_heads]: [usize; 2],
) -> Shape {
    Shape { name, family: "qwen2", hidden, layers, inner, heads, kv_heads, vocab: 151_936, tied: true }
}

pub(crate) const SHAPES: &[Shape] = &[
    Shape {
        name: "SmolLM2-135M",
        family: "llama",
        hidden: 576,
        layers: 30,
        inner: 1536,
        heads: 9,
        kv_heads: 3,
        vocab: 49_152,
        tied: true,
    },
    qwen2("Qwen2.5-0.5B", [896, 24, 4864], [14, 2]),
    qwen2("Qwen2.5-1.5B", [1536, 28, 8960], [12, 2]),
    Shape {
        name: "Llama-3.2-3B",
        family: "llama",
        hidden: 3072,
        layers: 28,
        inner: 8192,
        heads: 24,
        kv_heads: 8,
        vocab: 128_256,
        tied: true,
    },
    Shape { vocab: 152_064, tied: false, ..qwen2("Qwen2.5-7B", [3584, 28, 18_944], [28, 4]) },
];

/// Types of all matrices.
pub(crate) const TYPES: [DType; 4] = [DType::Q4_0, DType::Q4K, DType::Q8_0, DType::F16];

impl Shape {
    /// Writes a file of this shape whose matrices, the table of embeddings included, are of one type; where rows are no whole
    /// blocks of Q4_K, Q5_0 takes its place, as it does in files that are quantised.
    pub(crate) fn write(&self, path: &Path, dtype: DType) -> Result<(), FormatError> {
        let tensors = self.tensors(dtype);
        let specs = tensors.iter().map(|(name, dtype, shape)| TensorSpec { name, dtype: *dtype, shape });
        let mut file = GgufStream::create(path, &self.metadata(), specs)?;
        tensors.iter().try_for_each(|_| file.skip())?;
        file.finish()
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::empty("shape");
        metadata.insert("general.architecture", self.family);
        metadata.insert("tokenizer.ggml.model", "no_vocab");
        let mut set = |key: &str, value: usize| {
            metadata.insert(format!("{}.{key}", self.family), value as u32);
        };
        set("context_length", 1 << 15);
        set("embedding_length", self.hidden);
        set("block_count", self.layers);
        set("feed_forward_length", self.inner);
        set("attention.head_count", self.heads);
        set("attention.head_count_kv", self.kv_heads);
        set("vocab_size", self.vocab);
        metadata.insert(format!("{}.attention.layer_norm_rms_epsilon", self.family), 1e-6_f32);
        metadata.insert(format!("{}.rope.freq_base", self.family), 1e6_f32);
        metadata
    }

    fn tensors(&self, dtype: DType) -> Vec<(String, DType, Vec<usize>)> {
        let mut all = Vec::new();
        let mut matrix = |name: String, rows: usize, cols: usize| {
            let whole = cols.is_multiple_of(dtype.block_len());
            all.push((name, if whole { dtype } else { DType::Q5_0 }, vec![rows, cols]));
        };
        let (hidden, kv) = (self.hidden, self.hidden / self.heads * self.kv_heads);
        matrix("token_embd.weight".to_owned(), self.vocab, hidden);
        if !self.tied {
            matrix("output.weight".to_owned(), self.vocab, hidden);
        }
        for layer in 0..self.layers {
            for (name, rows, cols) in [
                ("attn_q", hidden, hidden),
                ("attn_k", kv, hidden),
                ("attn_v", kv, hidden),
                ("attn_output", hidden, hidden),
                ("ffn_gate", self.inner, hidden),
                ("ffn_up", self.inner, hidden),
                ("ffn_down", hidden, self.inner),
            ] {
                matrix(format!("blk.{layer}.{name}.weight"), rows, cols);
            }
        }
        let mut vector = |name: String, len: usize| all.push((name, DType::F32, vec![len]));
        vector("output_norm.weight".to_owned(), hidden);
        for layer in 0..self.layers {
            vector(format!("blk.{layer}.attn_norm.weight"), hidden);
            vector(format!("blk.{layer}.ffn_norm.weight"), hidden);
            if self.family == "qwen2" {
                for (name, len) in [("attn_q", hidden), ("attn_k", kv), ("attn_v", kv)] {
                    vector(format!("blk.{layer}.{name}.bias"), len);
                }
            }
        }
        all
    }
}
