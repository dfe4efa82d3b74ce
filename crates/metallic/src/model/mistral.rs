//! Mistral: Llama whose layers look back through a window.

use super::config::windows;
use super::llama::Llama;
use super::{Decoder, Family, Meta, ModelError};

pub(super) const FAMILY: Family = Family { gguf: &["mistral"], hf: &["mistral"], read };

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let llama = Llama::read(meta)?;
    let windows = windows(meta, llama.config.layers, |_| true)?;
    Ok(Box::new(Llama { windows, ..llama }))
}
