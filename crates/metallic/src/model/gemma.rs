//! Gemma 1, 2 and 3: norms of `w + 1` before (and from 2 on after) each half of a layer, embeddings scaled by the root of their length,
//! windows on most layers and soft caps in 2, norms of the heads and a rotation of its own for windows in 3.

use metallic_core::Unary;

use super::config::{activation, tied, windows};
use super::transformer::{Names, NormKind, QueryNorm, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError, RopeConfig};

pub(super) const GEMMA: Family = Family { gguf: &["gemma"], hf: &["gemma"], read: read1 };
pub(super) const GEMMA2: Family = Family { gguf: &["gemma2"], hf: &["gemma2"], read: read2 };
pub(super) const GEMMA3: Family = Family { gguf: &["gemma3"], hf: &["gemma3_text"], read: read3 };

const QUERY_SCALE: Key = Key::new("", "query_pre_attn_scalar");
const ATTENTION_CAP: Key = Key::new("attn_logit_softcapping", "attn_logit_softcapping");
const LOGIT_CAP: Key = Key::new("final_logit_softcapping", "final_logit_softcapping");
const PATTERN: Key = Key::new("", "sliding_window_pattern");

fn read(meta: &Meta<'_>) -> Result<Transformer, ModelError> {
    let decoder = Transformer::read(meta, NormKind::RmsPlusOne)?;
    Ok(Transformer {
        names: Names::FOUR_NORMS,
        act: activation(meta, Unary::GeluTanh)?,
        embed_scale: (decoder.config.hidden as f32).sqrt(),
        attention_scale: meta.opt::<f32>(QUERY_SCALE)?.map(|scalar| scalar.sqrt().recip()),
        attention_softcap: meta.opt(ATTENTION_CAP)?,
        logit_softcap: meta.opt(LOGIT_CAP)?,
        tied: tied(meta, true)?,
        ..decoder
    })
}

fn read1(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    Ok(Box::new(Transformer { names: Names::LLAMA, ..read(meta)? }))
}

fn read2(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = read(meta)?;
    decoder.set_windows(windows(meta, decoder.config.layers, |i| i % 2 == 0)?);
    Ok(Box::new(decoder))
}

fn read3(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = Transformer { query_norm: QueryNorm::Heads, ..read(meta)? };
    let pattern = meta.get_or(PATTERN, 6_usize)?.max(1);
    decoder.set_windows(windows(meta, decoder.config.layers, |i| !(i + 1).is_multiple_of(pattern))?);
    let local = RopeConfig::read_local(meta, decoder.config.head_dim)?;
    for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        layer.rope = Some(local.clone());
    }
    Ok(Box::new(decoder))
}
