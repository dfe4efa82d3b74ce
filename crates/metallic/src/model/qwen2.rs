//! Qwen2 and Qwen3: Llama with biases on queries, keys and values, or norms of their heads, and windows on its last layers
//! where asked for; experts in the models that have them.

use super::config::{MAX_WIDTH, windows};
use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FfnConfig, NormKind, QueryNorm, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const QWEN2: Family =
    Family { gguf: &["qwen2", "qwen2moe"], hf: &["qwen2", "qwen2_moe"], read: read2 };
pub(super) const QWEN3: Family =
    Family { gguf: &["qwen3", "qwen3moe"], hf: &["qwen3", "qwen3_moe"], read: read3 };

const SLIDES: Key = Key::new("", "use_sliding_window");
const FIRST_SLIDING: Key = Key::new("", "max_window_layers");
pub(super) const SHARED: Key =
    Key::new("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
const DENSE: Key = Key::new("", "mlp_only_layers");
const SPARSE_STEP: Key = Key::new("", "decoder_sparse_step");

fn read(meta: &Meta<'_>) -> Result<Transformer, ModelError> {
    let mut decoder = Transformer::read(meta, NormKind::Rms)?;
    if meta.get_or(SLIDES, false)? {
        // 28 is what transformers takes where the key is missing.
        let first: usize = meta.get_or(FIRST_SLIDING, 28)?;
        decoder.set_windows(windows(meta, decoder.config.layers, |layer| layer >= first)?);
    }
    Ok(decoder)
}

fn read2(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = Transformer { qkv_bias: Some(true), out_bias: None, ..read(meta)? };
    let shared = meta.opt_count(SHARED, MAX_WIDTH)?;
    set_experts(meta, &mut decoder, false, |moe| MoeConfig { shared, ..moe })?;
    Ok(Box::new(decoder))
}

fn read3(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = Transformer { query_norm: QueryNorm::Heads, ..read(meta)? };
    set_experts(meta, &mut decoder, true, |moe| moe)?;
    Ok(Box::new(decoder))
}

/// Experts where the file has them, in the layers that are not said to be dense. Where it does not say whether the parts of
/// the chosen are made the whole, `normalised` does.
pub(super) fn set_experts(
    meta: &Meta<'_>,
    decoder: &mut Transformer,
    normalised: bool,
    more: impl Fn(MoeConfig) -> MoeConfig,
) -> Result<(), ModelError> {
    if !MoeConfig::is_there(meta)? {
        return Ok(());
    }
    let moe = more(MoeConfig::read(meta, &ExpertNames::QWEN)?.softmax(meta, normalised)?);
    let (dense, step) = (meta.get_or::<Vec<usize>>(DENSE, Vec::new())?, meta.get_or(SPARSE_STEP, 1_usize)?);
    let sparse = |i: usize| !dense.contains(&i) && (i + 1).is_multiple_of(step.max(1));
    for (_, layer) in decoder.layers.iter_mut().enumerate().filter(|(i, _)| sparse(*i)) {
        layer.ffn = FfnConfig::Moe(moe.clone());
    }
    Ok(())
}
