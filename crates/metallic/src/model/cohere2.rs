//! Cohere (Command R): one layer norm, from which attention and feed-forward go side by side, neighbouring pairs rotated,
//! logits scaled. Cohere2 (Command R7B): windows, and every fourth layer without window or rotation.

use metallic_core::RopePairs;

use super::config::{tied, windows};
use super::transformer::{Names, NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const COHERE: Family = Family { gguf: &["command-r"], hf: &["cohere"], read: read1 };
pub(super) const COHERE2: Family = Family { gguf: &["cohere2"], hf: &["cohere2"], read: read2 };

const NAMES: Names = Names { ffn_norm: None, ..Names::LLAMA };
const LOGIT_SCALE: Key = Key::new("logit_scale", "logit_scale");
const HEAD_NORMS: Key = Key::new("", "use_qk_norm");
const PATTERN: Key = Key::new("", "sliding_window_pattern");

fn read(meta: &Meta<'_>) -> Result<Transformer, ModelError> {
    if meta.get_or(HEAD_NORMS, false)? {
        return Err(meta.bad(HEAD_NORMS, true, "false: layer norms of heads are not supported"));
    }
    let mut decoder = Transformer {
        names: NAMES,
        parallel: true,
        logit_scale: meta.get_or(LOGIT_SCALE, 0.0625)?,
        tied: tied(meta, true)?,
        ..Transformer::read(meta, NormKind::Layer)?
    };
    decoder.set_pairs(RopePairs::Interleaved);
    Ok(decoder)
}

fn read1(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    Ok(Box::new(read(meta)?))
}

fn read2(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = read(meta)?;
    let pattern = meta.get_or(PATTERN, 4_usize)?.max(1);
    decoder.set_windows(windows(meta, decoder.config.layers, |i| !(i + 1).is_multiple_of(pattern))?);
    for layer in &mut decoder.layers {
        layer.rope.take_if(|_| layer.window.is_none());
    }
    Ok(Box::new(decoder))
}
