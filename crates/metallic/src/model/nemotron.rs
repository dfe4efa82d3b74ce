//! Nemotron and Minitron: layer norms of `w + 1`, partly rotated heads, and a feed-forward whose inner numbers are squared.

use super::config::MAX_WIDTH;
use super::transformer::{FFN, FfnConfig, NormKind, Transformer};
use super::{Decoder, Family, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["nemotron"], hf: &["nemotron"], read };

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = FfnConfig::Squared(meta.count(FFN, MAX_WIDTH)?);
    Ok(Box::new(Transformer::with_ffn(meta, NormKind::LayerPlusOne, ffn)?))
}
