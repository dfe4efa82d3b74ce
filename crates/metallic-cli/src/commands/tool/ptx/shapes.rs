//! Models of known shapes without weights: files whose data are holes, which decide the kernels as the real ones do.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

use anyhow::Context;
use metallic::{
    core::DType,
    formats::{GgufStream, Metadata, TensorSpec},
    quantize::{Input, Mixture, Plan, QuantizeOptions},
};

/// The shape of models as their authors publish it (`config.json`).
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// The short names of models that have it.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test holds the list of short names to it"))]
    aliases: &'static [&'static str],
    family: Family,
    hidden: usize,
    layers: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    /// The table of embeddings is the head as well.
    tied: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Family {
    Llama,
    /// Llama whose rotations are stretched by factors that come with it.
    Llama3,
    Qwen2,
    Qwen3,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Family::Llama | Family::Llama3 => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }
}

const fn shape(
    (name, aliases): (&'static str, &'static [&'static str]),
    family: Family,
    [hidden, layers, inner]: [usize; 3],
    [heads, kv_heads, head_dim]: [usize; 3],
    (vocab, tied): (usize, bool),
) -> Shape {
    Shape { name, aliases, family, hidden, layers, inner, heads, kv_heads, head_dim, vocab, tied }
}

use Family::{Llama, Llama3, Qwen2, Qwen3};

/// Every model that has a short name, and Qwen3.
#[rustfmt::skip]
pub(super) const SHAPES: [Shape; 16] = [
    shape(("SmolLM2 135M", &["smollm2"]), Llama, [576, 30, 1536], [9, 3, 64], (49_152, true)),
    shape(("SmolLM2 360M", &["smollm2-360m"]), Llama, [960, 32, 2560], [15, 5, 64], (49_152, true)),
    shape(("SmolLM2 1.7B", &["smollm2-1.7b"]), Llama, [2048, 24, 8192], [32, 32, 64], (49_152, true)),
    shape(("Qwen2.5 0.5B", &["qwen2.5-0.5b", "qwen2.5-coder-0.5b"]), Qwen2, [896, 24, 4864], [14, 2, 64], (151_936, true)),
    shape(("Qwen2.5 1.5B", &["qwen2.5-1.5b", "qwen2.5-coder-1.5b"]), Qwen2, [1536, 28, 8960], [12, 2, 128], (151_936, true)),
    shape(("Qwen2.5 3B", &["qwen2.5-3b"]), Qwen2, [2048, 36, 11_008], [16, 2, 128], (151_936, true)),
    shape(("Qwen2.5 7B", &["qwen2.5-7b"]), Qwen2, [3584, 28, 18_944], [28, 4, 128], (152_064, false)),
    shape(("Llama 3.2 1B", &["llama3.2-1b"]), Llama3, [2048, 16, 8192], [32, 8, 64], (128_256, true)),
    shape(("Llama 3.2 3B", &["llama3.2-3b"]), Llama3, [3072, 28, 8192], [24, 8, 128], (128_256, true)),
    shape(("Llama 3.1 8B", &["llama3.1-8b"]), Llama3, [4096, 32, 14_336], [32, 8, 128], (128_256, false)),
    shape(("Mistral 7B", &["mistral-7b"]), Llama, [4096, 32, 14_336], [32, 8, 128], (32_768, false)),
    shape(("Qwen3 0.6B", &[]), Qwen3, [1024, 28, 3072], [16, 8, 128], (151_936, true)),
    shape(("Qwen3 1.7B", &[]), Qwen3, [2048, 28, 6144], [16, 8, 128], (151_936, true)),
    shape(("Qwen3 4B", &[]), Qwen3, [2560, 36, 9728], [32, 8, 128], (151_936, true)),
    shape(("Qwen3 8B", &[]), Qwen3, [4096, 36, 12_288], [32, 8, 128], (151_936, false)),
    shape(("Qwen3 14B", &[]), Qwen3, [5120, 40, 17_408], [40, 8, 128], (151_936, false)),
];

/// Layers that are enough for every type a mixture gives to some layer or other: kernels see one layer at a time.
const ENOUGH_LAYERS: usize = 16;

/// What stretches rotations.
const FACTORS: &str = "rope_freqs.weight";

type Tensor = (String, DType, Vec<usize>);

impl Shape {
    /// A file of this shape whose matrices have the types that a mixture gives them. It goes with what is returned.
    pub(super) fn file(&self, mixture: &Mixture) -> anyhow::Result<Holes> {
        let plain = Holes::write(&self.metadata(), &self.tensors())?;
        let options = QuantizeOptions::new(*mixture, NonZeroUsize::MIN);
        let plan = Plan::new(Input::open(&plain.0)?, options)?;
        let typed: Vec<Tensor> = plan
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.to, tensor.shape.clone()))
            .collect();
        Holes::write(&self.metadata(), &typed)
    }

    fn layers(&self) -> usize {
        self.layers.min(ENOUGH_LAYERS)
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::empty("shape");
        let family = self.family.name();
        metadata.insert("general.architecture", family);
        metadata.insert("tokenizer.ggml.model", "no_vocab");
        for (key, value) in [
            ("context_length", 1 << 15),
            ("embedding_length", self.hidden),
            ("block_count", self.layers()),
            ("feed_forward_length", self.inner),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("vocab_size", self.vocab),
        ] {
            metadata.insert(format!("{family}.{key}"), value as u32);
        }
        metadata.insert(format!("{family}.attention.layer_norm_rms_epsilon"), 1e-6_f32);
        metadata.insert(format!("{family}.rope.freq_base"), 1e6_f32);
        metadata
    }

    /// Every tensor, matrices as halfs.
    fn tensors(&self) -> Vec<Tensor> {
        let (hidden, inner) = (self.hidden, self.inner);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all: Vec<Tensor> = Vec::new();
        let mut matrix =
            |name: String, rows: usize, cols: usize| all.push((name, DType::F16, vec![rows, cols]));
        matrix("token_embd.weight".to_owned(), self.vocab, hidden);
        if !self.tied {
            matrix("output.weight".to_owned(), self.vocab, hidden);
        }
        for layer in 0..self.layers() {
            for (name, rows, cols) in [
                ("attn_q", queries, hidden),
                ("attn_k", keys, hidden),
                ("attn_v", keys, hidden),
                ("attn_output", hidden, queries),
                ("ffn_gate", inner, hidden),
                ("ffn_up", inner, hidden),
                ("ffn_down", hidden, inner),
            ] {
                matrix(format!("blk.{layer}.{name}.weight"), rows, cols);
            }
        }
        let mut vector = |name: String, len: usize| all.push((name, DType::F32, vec![len]));
        vector("output_norm.weight".to_owned(), hidden);
        if self.family == Llama3 {
            vector(FACTORS.to_owned(), self.head_dim / 2);
        }
        for layer in 0..self.layers() {
            let mut of_layer = |name: &str, len: usize| vector(format!("blk.{layer}.{name}"), len);
            of_layer("attn_norm.weight", hidden);
            of_layer("ffn_norm.weight", hidden);
            match self.family {
                Llama | Llama3 => {}
                Qwen2 => {
                    of_layer("attn_q.bias", queries);
                    of_layer("attn_k.bias", keys);
                    of_layer("attn_v.bias", keys);
                }
                Qwen3 => {
                    of_layer("attn_q_norm.weight", self.head_dim);
                    of_layer("attn_k_norm.weight", self.head_dim);
                }
            }
        }
        all
    }
}

/// A file whose data are holes; removed when it is let go.
pub(super) struct Holes(PathBuf);

impl Drop for Holes {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Holes {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn write(metadata: &Metadata, tensors: &[Tensor]) -> anyhow::Result<Holes> {
        static MADE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = Holes(env::temp_dir().join(format!("metallic-shape-{}-{number}.gguf", process::id())));
        let specs = tensors.iter().map(|(name, dtype, shape)| TensorSpec { name, dtype: *dtype, shape });
        let written = GgufStream::create(&file.0, metadata, specs).and_then(|mut stream| {
            for (name, _, shape) in tensors {
                // Factors of 0 would be refused.
                let ones = || shape.iter().flat_map(|len| vec![1_f32; *len]).flat_map(f32::to_le_bytes);
                if name == FACTORS { stream.write(&ones().collect::<Vec<u8>>())? } else { stream.skip()? }
            }
            stream.finish()
        });
        written.with_context(|| format!("cannot write `{}`, a file of holes", file.0.display()))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::ALIASES;

    #[test]
    fn every_short_name_has_a_shape() {
        let known = |alias: &str| SHAPES.iter().any(|shape| shape.aliases.contains(&alias));
        for alias in ALIASES {
            assert!(known(alias.name), "`{}` has no shape: the bundle leaves it out", alias.name);
        }
    }

    #[test]
    fn every_shape_is_a_model_in_every_mixture_and_leaves_no_file() {
        for shape in &SHAPES {
            // The families' own rules, and rows that fill no block of 256.
            let mixtures = ["Q4_K_M", "F16"].map(|name| name.parse::<Mixture>().unwrap());
            for mixture in mixtures {
                let file = shape.file(&mixture).unwrap();
                let path = file.path().to_owned();
                let model = metallic::Model::open(&path).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
                assert_eq!(model.config().vocab, shape.vocab, "{}", shape.name);
                drop((model, file));
                assert!(!path.exists());
            }
        }
    }
}
