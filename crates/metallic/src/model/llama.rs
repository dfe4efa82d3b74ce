//! Llama (and SmolLM2, Mixtral in GGUF files): pre-norm layers of rotated attention and a gated feed-forward, or experts; and siblings that differ in one thing.

use metallic_core::RopePairs;

use super::config::{MAX_WIDTH, tied};
use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FFN, FfnConfig, Names, NormKind, Transformer, unsaid};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family =
    Family { gguf: &["llama"], hf: &["llama"], read: |meta| Ok(Box::new(read(meta)?) as Box<dyn Decoder>) };
pub(super) const ARCEE: Family = Family { gguf: &["arcee"], hf: &["arcee"], read: read_arcee };
pub(super) const ERNIE: Family = Family { gguf: &["ernie4_5"], hf: &["ernie4_5"], read: read_ernie };
pub(super) const SEED: Family = Family { gguf: &["seed_oss"], hf: &["seed_oss"], read: read_seed };

const OUT_BIAS: Key = Key::new("", "attention_out_bias");

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
    decoder.turn_rows(meta);
    if MoeConfig::is_there(meta)? {
        decoder.set_ffn(&FfnConfig::Moe(MoeConfig::read(meta, &EXPERTS)?));
    }
    Ok(decoder)
}

/// Arcee: the inner numbers of the feed-forward are squared.
fn read_arcee(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = FfnConfig::Squared(meta.count(FFN, MAX_WIDTH)?);
    let mut decoder = Transformer::with_ffn(meta, NormKind::Rms, ffn)?;
    decoder.turn_rows(meta);
    Ok(Box::new(decoder))
}

/// ERNIE 4.5: neighbouring pairs are rotated.
fn read_ernie(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = Transformer { tied: tied(meta, true)?, ..Transformer::read(meta, NormKind::Rms)? };
    decoder.set_pairs(RopePairs::Interleaved);
    Ok(Box::new(decoder))
}

/// Seed-OSS: biases on queries, keys and values.
fn read_seed(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let names =
        Names { ffn_norm: Some(Key::new("post_attention_norm", "post_attention_layernorm")), ..Names::LLAMA };
    let out_bias = meta.opt(OUT_BIAS)?.or(unsaid(meta));
    Ok(Box::new(Transformer { names, out_bias, ..Transformer::read(meta, NormKind::Rms)? }))
}
