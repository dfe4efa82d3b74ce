//! Qwen2: Llama with biases on queries, keys and values, and windows on its last layers where asked for.

use metallic_core::RopePairs;

use super::config::windows;
use super::llama::Llama;
use super::{Decoder, Family, Key, Meta, ModelError, RopeConfig};

pub(super) const FAMILY: Family = Family { gguf: &["qwen2"], hf: &["qwen2"], read };

const SLIDES: Key = Key::new("", "use_sliding_window");
const FIRST_SLIDING: Key = Key::new("", "max_window_layers");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut llama = Llama::read(meta)?;
    if meta.get_or(SLIDES, false)? {
        // 28 is what transformers takes where the key is missing.
        let first: usize = meta.get_or(FIRST_SLIDING, 28)?;
        llama.windows = windows(meta, llama.config.layers, |layer| layer >= first)?;
    }
    let rope = RopeConfig { pairs: RopePairs::Halves, ..llama.rope };
    Ok(Box::new(Llama { rope, qkv_bias: Some(true), out_bias: None, ..llama }))
}
