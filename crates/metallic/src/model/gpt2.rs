//! GPT-2: layer norms, a table of positions instead of a rotation, and matrices that Hugging Face stores as `[in, out]`.

use metallic_core::Unary;

use super::config::{Config, MAX_WIDTH, activation, tied};
use super::transformer::{FFN, FfnConfig, Names, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["gpt2"], hf: &["gpt2"], read };

const NAMES: Names = Names {
    embed: Key::new("token_embd", "transformer.wte|wte"),
    positions: Some(Key::new("position_embd", "transformer.wpe|wpe")),
    layers: Key::new("blk", "transformer.h|h"),
    attn_norm: Some(Key::new("attn_norm", "ln_1")),
    qkv: Some(Key::new("attn_qkv", "attn.c_attn")),
    o: Key::new("attn_output", "attn.c_proj"),
    ffn_norm: Some(Key::new("ffn_norm", "ln_2")),
    up: Key::new("ffn_up", "mlp.c_fc"),
    down: Key::new("ffn_down", "mlp.c_proj"),
    norm: Key::new("output_norm", "transformer.ln_f|ln_f"),
    ..Names::LLAMA
};

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = match meta.opt_count(FFN, MAX_WIDTH)? {
        Some(ffn) => ffn,
        None => 4 * Config::read(meta)?.hidden,
    };
    let decoder = Transformer::with_ffn(meta, NormKind::Layer, FfnConfig::Plain(ffn))?;
    let mut decoder = Transformer {
        names: NAMES,
        act: activation(meta, Unary::GeluTanh)?,
        transposed: true,
        tied: tied(meta, true)?,
        ..decoder.with_biases_of_the_file()
    };
    decoder.layers.iter_mut().for_each(|layer| layer.rope = None);
    Ok(Box::new(decoder))
}
