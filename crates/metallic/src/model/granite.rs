//! Granite 3: Llama with factors on embeddings, attention, what layers add, and logits; experts in the models that have them.

use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FfnConfig, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family {
    gguf: &["granite", "granitemoe"],
    hf: &["granite", "granitemoe"],
    read: |meta| Ok(Box::new(read(meta)?) as Box<dyn Decoder>),
};

const EMBED_SCALE: Key = Key::new("embedding_scale", "embedding_multiplier");
const ATTENTION_SCALE: Key = Key::new("attention.scale", "attention_multiplier");
const RESIDUAL_SCALE: Key = Key::new("residual_scale", "residual_multiplier");
const LOGIT_DIVISOR: Key = Key::new("logit_scale", "logits_scaling");

/// Experts with gate and up in one matrix.
pub(super) const EXPERTS: ExpertNames = ExpertNames {
    router: Key::new("ffn_gate_inp", "block_sparse_moe.router.layer"),
    gate_up: Some(Key::new("", "block_sparse_moe.input_linear")),
    down: Key::new("ffn_down_exps", "block_sparse_moe.output_linear"),
    ..ExpertNames::QWEN
};

fn read(meta: &Meta<'_>) -> Result<Transformer, ModelError> {
    let mut decoder = Transformer::read(meta, NormKind::Rms)?;
    decoder.turn_rows(meta);
    if MoeConfig::is_there(meta)? {
        decoder.set_ffn(&FfnConfig::Moe(MoeConfig::read(meta, &EXPERTS)?));
    }
    scaled(meta, decoder)
}

/// With the family's factors.
pub(super) fn scaled(meta: &Meta<'_>, decoder: Transformer) -> Result<Transformer, ModelError> {
    let divisor: f32 = meta.get_or(LOGIT_DIVISOR, 1.0)?;
    if !(divisor.is_finite() && divisor > 0.0) {
        return Err(meta.bad(LOGIT_DIVISOR, divisor, "a positive number"));
    }
    Ok(Transformer {
        embed_scale: meta.get_or(EMBED_SCALE, 1.0)?,
        attention_scale: meta.opt(ATTENTION_SCALE)?,
        residual_scale: meta.get_or(RESIDUAL_SCALE, 1.0)?,
        logit_scale: divisor.recip(),
        ..decoder
    })
}
