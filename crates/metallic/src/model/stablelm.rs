//! StableLM: Llama with layer norms, partly rotated heads and, where asked for, both halves of a layer side by side.

use super::transformer::{NormKind, Transformer};
use super::{Decoder, Family, Key, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["stablelm"], hf: &["stablelm"], read };

const PARALLEL: Key = Key::new("use_parallel_residual", "use_parallel_residual");
const QKV_BIAS: Key = Key::new("", "use_qkv_bias");
const HEAD_NORMS: Key = Key::new("", "qk_layernorm");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    if meta.get_or(HEAD_NORMS, false)? {
        return Err(meta.bad(HEAD_NORMS, true, "false: layer norms of heads are not supported"));
    }
    let mut decoder = Transformer::read(meta, NormKind::Layer)?;
    decoder.qkv_bias = meta.opt(QKV_BIAS)?.or(decoder.qkv_bias);
    decoder.parallel = meta.get_or(PARALLEL, false)?;
    Ok(Box::new(decoder))
}
