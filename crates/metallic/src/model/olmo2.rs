//! OLMo 2 and 3, OLMoE: norms only after each half of a layer, and of all query heads and all key heads together; windows in 3; experts, and norms before,
//! in OLMoE.

use super::config::windows;
use super::qwen2::set_experts;
use super::transformer::{Names, NormKind, QueryNorm, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const OLMOE: Family = Family { gguf: &["olmoe"], hf: &["olmoe"], read: read_moe };
pub(super) const FAMILY: Family = Family { gguf: &["olmo2"], hf: &["olmo2", "olmo3"], read };

const NAMES: Names = Names { attn_norm: None, ffn_norm: None, ..Names::FOUR_NORMS };
const CLIPPED: Key = Key::new("attention.clamp_kqv", "clip_qkv");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let decoder = Transformer::read(meta, NormKind::Rms)?;
    let mut decoder = Transformer { names: NAMES, query_norm: QueryNorm::Rows, ..decoder };
    decoder.set_windows(windows(meta, decoder.config.layers, |i| !(i + 1).is_multiple_of(4))?);
    Ok(Box::new(decoder))
}

fn read_moe(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    if meta.has(CLIPPED) {
        return Err(meta.bad(
            CLIPPED,
            "a limit",
            "nothing: limits on queries, keys and values are not supported",
        ));
    }
    let mut decoder = Transformer { query_norm: QueryNorm::Rows, ..Transformer::read(meta, NormKind::Rms)? };
    set_experts(meta, &mut decoder, false, |moe| moe)?;
    Ok(Box::new(decoder))
}
