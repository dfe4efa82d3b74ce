//! GLM-4: norms before and after each half of a layer, half of each head rotated in neighbouring pairs, gate and up in one
//! matrix. Older ones lack the norms after. GLM-4-MoE: a Llama with experts that sigmoids weigh, the first layers without.

use metallic_core::RopePairs;

use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{AHEAD, FfnConfig, Names, NormKind, QueryNorm, Transformer, gated};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming};

pub(super) const GLM4: Family = Family { gguf: &["glm4"], hf: &["glm4"], read };
pub(super) const GLM: Family = Family { gguf: &[], hf: &["glm"], read: read_plain };
pub(super) const GLM4_MOE: Family = Family { gguf: &["glm4moe"], hf: &["glm4_moe"], read: read_moe };

const NAMES: Names = Names {
    attn_post_norm: Some(Key::new("post_attention_norm", "post_self_attn_layernorm")),
    ffn_norm: Some(Key::new("ffn_norm", "post_attention_layernorm")),
    gate_up: Some(Key::new("ffn_up", "mlp.gate_up_proj")),
    ffn_post_norm: Some(Key::new("post_ffw_norm", "post_mlp_layernorm")),
    ..Names::LLAMA
};
const MOE_NAMES: Names =
    Names { ffn_norm: Some(Key::new("post_attention_norm", "post_attention_layernorm")), ..Names::LLAMA };
const HEAD_NORMS: Key = Key::new("", "use_qk_norm");
const DENSE: Key = Key::new("leading_dense_block_count", "first_k_dense_replace");
const SHARED: Key = Key::new("expert_shared_count", "n_shared_experts");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let decoder = Transformer::read(meta, NormKind::Rms)?;
    let mut decoder = Transformer { names: NAMES, out_bias: Some(false), ..decoder };
    decoder.set_pairs(RopePairs::Interleaved);
    Ok(Box::new(decoder))
}

/// GLM-4 without the norms after.
fn read_plain(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let names = Names { gate_up: NAMES.gate_up, ..Names::LLAMA };
    let mut decoder = Transformer { names, out_bias: Some(false), ..Transformer::read(meta, NormKind::Rms)? };
    decoder.set_pairs(RopePairs::Interleaved);
    Ok(Box::new(decoder))
}

fn read_moe(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut config = Config::read(meta)?;
    if meta.naming() == Naming::Gguf {
        // It counts them all.
        config.layers = config.layers.saturating_sub(meta.get_or(AHEAD, 0)?);
    }
    let decoder = Transformer::with_config(meta, NormKind::Rms, gated(meta)?, config)?;
    let mut decoder = Transformer { names: MOE_NAMES, out_bias: Some(false), ..decoder };
    if meta.get_or(HEAD_NORMS, false)? {
        decoder.query_norm = QueryNorm::Heads;
    }
    let moe = MoeConfig::read(meta, &ExpertNames::QWEN)?.sigmoid(meta)?.grouped(meta)?;
    let shared = meta.get_or(SHARED, 1_usize)?;
    let moe = MoeConfig { shared: (shared > 0).then_some(shared * moe.inner), ..moe };
    for layer in decoder.layers.iter_mut().skip(meta.get_or(DENSE, 1)?) {
        layer.ffn = FfnConfig::Moe(moe.clone());
    }
    Ok(Box::new(decoder))
}
