//! StarCoder2: layer norms, biases everywhere, and a feed-forward without a gate.

use metallic_core::Unary;

use super::config::{MAX_WIDTH, activation, tied, windows};
use super::transformer::{FFN, FfnConfig, Names, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["starcoder2"], hf: &["starcoder2"], read };

const NAMES: Names =
    Names { up: Key::new("ffn_up", "mlp.c_fc"), down: Key::new("ffn_down", "mlp.c_proj"), ..Names::LLAMA };

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = FfnConfig::Plain(meta.count(FFN, MAX_WIDTH)?);
    let mut decoder = Transformer {
        names: NAMES,
        act: activation(meta, Unary::GeluTanh)?,
        tied: tied(meta, true)?,
        ..Transformer::with_ffn(meta, NormKind::Layer, ffn)?.with_biases_of_the_file()
    };
    decoder.set_windows(windows(meta, decoder.config.layers, |_| true)?);
    Ok(Box::new(decoder))
}
