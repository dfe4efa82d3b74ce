//! Llama (and SmolLM2, Mixtral in GGUF files): pre-norm layers of rotated attention and a gated feed-forward, or experts.

use metallic_core::RopePairs;

use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FfnConfig, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError, Naming};

pub(super) const FAMILY: Family =
    Family { gguf: &["llama"], hf: &["llama"], read: |meta| Ok(Box::new(read(meta)?) as Box<dyn Decoder>) };

/// Experts as Mixtral has them.
pub(super) const EXPERTS: ExpertNames = ExpertNames {
    router: Key::new("ffn_gate_inp", "block_sparse_moe.gate"),
    gate: Key::new("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
    down: Key::new("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
    up: Key::new("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
    ..ExpertNames::QWEN
};

/// What Llama is, and what those that GGUF files call so are.
pub(super) fn read(meta: &Meta<'_>) -> Result<Transformer, ModelError> {
    let mut decoder = Transformer::read(meta, NormKind::Rms)?;
    decoder.set_pairs(permuted(meta));
    if MoeConfig::is_there(meta)? {
        decoder.set_ffn(&FfnConfig::Moe(MoeConfig::read(meta, EXPERTS)?));
    }
    Ok(decoder)
}

/// How pairs lie in families whose GGUF files store the rows of queries and keys so that they lie side by side.
pub(super) fn permuted(meta: &Meta<'_>) -> RopePairs {
    match meta.naming() {
        Naming::Gguf => RopePairs::Interleaved,
        Naming::HuggingFace => RopePairs::Halves,
    }
}
