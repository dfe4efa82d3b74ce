//! OLMo 2 and 3: norms only after each half of a layer, and of all query heads and all key heads together; windows in 3.

use super::config::windows;
use super::transformer::{Names, NormKind, QueryNorm, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["olmo2"], hf: &["olmo2", "olmo3"], read };

const NAMES: Names = Names { attn_norm: None, ffn_norm: None, ..Names::FOUR_NORMS };
/// Of layers with a window.
const LOCAL_SCALING: Key = Key::new("", "sliding_window");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let decoder = Transformer::read(meta, NormKind::Rms)?;
    let mut decoder = Transformer { names: NAMES, query_norm: QueryNorm::Rows, ..decoder };
    if meta.has(LOCAL_SCALING) {
        decoder.set_windows(windows(meta, decoder.config.layers, |i| !(i + 1).is_multiple_of(4))?);
    }
    Ok(Box::new(decoder))
}
