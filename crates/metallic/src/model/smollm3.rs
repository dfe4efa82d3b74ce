//! SmolLM3: Llama of which every fourth layer is not told positions.

use super::{Decoder, Family, Key, Meta, ModelError, llama};

pub(super) const FAMILY: Family = Family { gguf: &["smollm3"], hf: &["smollm3"], read };

/// 1 where a layer rotates.
const ROTATES: Key = Key::new("", "no_rope_layers");
const INTERVAL: Key = Key::new("", "no_rope_layer_interval");

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = llama::read(meta)?;
    let interval = meta.get_or(INTERVAL, 4_usize)?.max(1);
    let listed = meta.per_layer::<usize>(ROTATES, decoder.config.layers)?;
    for (i, layer) in decoder.layers.iter_mut().enumerate() {
        let rotates = listed.as_ref().map_or(!(i + 1).is_multiple_of(interval), |list| list[i] != 0);
        layer.rope.take_if(|_| !rotates);
    }
    decoder.tied = super::config::tied(meta, true)?;
    Ok(Box::new(decoder))
}
