//! EXAONE 4: norms only after each half of a layer and of each head; where there are windows, the layers without one are not
//! told positions.

use super::config::windows;
use super::transformer::{Names, NormKind, QueryNorm, Transformer};
use super::{Decoder, Family, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["exaone4"], hf: &["exaone4"], read };

const NAMES: Names = Names { attn_norm: None, ffn_norm: None, ..Names::FOUR_NORMS };

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let decoder = Transformer::read(meta, NormKind::Rms)?;
    let mut decoder = Transformer { names: NAMES, query_norm: QueryNorm::Heads, ..decoder };
    let windows = windows(meta, decoder.config.layers, |i| !(i + 1).is_multiple_of(4))?;
    let mixed = windows.iter().any(Option::is_some);
    decoder.set_windows(windows);
    for layer in decoder.layers.iter_mut().filter(|layer| mixed && layer.window.is_none()) {
        layer.rope = None;
    }
    Ok(Box::new(decoder))
}
