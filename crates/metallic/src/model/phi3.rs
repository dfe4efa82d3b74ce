//! Phi-3 and Phi-4: Llama with queries, keys and values in one matrix, and gate and up in another.

use super::config::windows;
use super::transformer::{Names, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["phi3"], hf: &["phi3"], read };

const NAMES: Names = Names {
    qkv: Some(Key::new("attn_qkv", "self_attn.qkv_proj")),
    gate_up: Some(Key::new("ffn_up", "mlp.gate_up_proj")),
    ..Names::LLAMA
};

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = Transformer { names: NAMES, ..Transformer::read(meta, NormKind::Rms)? };
    decoder.set_windows(windows(meta, decoder.config.layers, |_| true)?);
    Ok(Box::new(decoder))
}
