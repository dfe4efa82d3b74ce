//! Mistral and Ministral: Llama whose layers look back through a window. Mixtral: the same with experts.

use super::config::windows;
use super::{Decoder, Family, Meta, ModelError, llama};

pub(super) const FAMILY: Family =
    Family { gguf: &["mistral"], hf: &["mistral", "ministral", "mixtral"], read };

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut decoder = llama::read(meta)?;
    decoder.set_windows(windows(meta, decoder.config.layers, |_| true)?);
    Ok(Box::new(decoder))
}
