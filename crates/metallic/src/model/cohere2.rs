//! Cohere2 (Command R7B): one layer norm, from which attention and feed-forward go side by side; windows with neighbouring
//! pairs rotated, and every fourth layer without either; logits scaled.

use metallic_core::RopePairs;

use super::config::{tied, windows};
use super::transformer::{Names, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["cohere2"], hf: &["cohere2"], read };

const NAMES: Names = Names { ffn_norm: None, ..Names::LLAMA };
const LOGIT_SCALE: Key = Key::new("logit_scale", "logit_scale");
const PATTERN: Key = Key::new("", "sliding_window_pattern");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = Transformer {
        names: NAMES,
        parallel: true,
        logit_scale: meta.get_or(LOGIT_SCALE, 0.0625)?,
        tied: tied(meta, true)?,
        ..Transformer::read(meta, NormKind::Layer)?
    };
    let pattern = meta.get_or(PATTERN, 4_usize)?.max(1);
    decoder.set_windows(windows(meta, decoder.config.layers, |i| !(i + 1).is_multiple_of(pattern))?);
    decoder.set_pairs(RopePairs::Interleaved);
    for layer in &mut decoder.layers {
        layer.rope.take_if(|_| layer.window.is_none());
    }
    Ok(Box::new(decoder))
}
