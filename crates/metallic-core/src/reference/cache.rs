//! The paged cache, kept as plain numbers that were rounded to the storage type.

use crate::quant::{dequantize, quantize};
use crate::{BLOCK_TOKENS, BackendError, DType, KvLayout, Step};

pub(super) struct Cache {
    layout: KvLayout,
    /// Per layer: blocks × tokens of a block × (key heads, value heads) × head_dim.
    layers: Vec<Vec<f32>>,
    blocks: usize,
}

impl Cache {
    pub(super) fn new(layout: KvLayout) -> Cache {
        Cache { layout, layers: vec![Vec::new(); layout.layers], blocks: 0 }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks * self.layout.block_bytes()
    }

    fn token_len(&self) -> usize {
        2 * self.layout.kv_heads * self.layout.head_dim
    }

    pub(super) fn reserve(&mut self, blocks: usize) {
        self.blocks = self.blocks.max(blocks);
        let len = self.blocks * BLOCK_TOKENS * self.token_len();
        for layer in &mut self.layers {
            // Unwritten cache is poison: reading it must show.
            layer.resize(len, f32::NAN);
        }
    }

    fn offset(&self, blocks: &[u32], position: usize) -> usize {
        let slot = blocks[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS;
        slot * self.token_len()
    }

    pub(super) fn write(
        &mut self,
        layer: usize,
        step: &Step<'_>,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), BackendError> {
        let cols = self.layout.kv_heads * self.layout.head_dim;
        for span in step.sequences {
            for (i, token) in span.tokens.clone().enumerate() {
                let at = self.offset(span.blocks, span.past + i);
                let k = self.rounded(&keys[token * cols..][..cols])?;
                let v = self.rounded(&values[token * cols..][..cols])?;
                self.layers[layer][at..at + cols].copy_from_slice(&k);
                self.layers[layer][at + cols..at + 2 * cols].copy_from_slice(&v);
            }
        }
        Ok(())
    }

    /// What storing and loading in the cache's type makes of these numbers.
    fn rounded(&self, x: &[f32]) -> Result<Vec<f32>, BackendError> {
        let dtype = self.layout.dtype;
        if dtype == DType::F32 {
            return Ok(x.to_vec());
        }
        let unsupported =
            |reason: String| BackendError::Unsupported { device: "reference", op: "kv_write", reason };
        let bytes =
            dtype.bytes_for(x.len()).ok_or_else(|| unsupported(format!("{dtype} rows of {}", x.len())))?;
        let mut stored = vec![0u8; bytes];
        let mut back = vec![0f32; x.len()];
        quantize(dtype, x, &mut stored).map_err(|e| unsupported(e.to_string()))?;
        dequantize(dtype, &stored, &mut back).map_err(|e| unsupported(e.to_string()))?;
        Ok(back)
    }

    /// The key or value row of one head at one position.
    pub(super) fn row(
        &self,
        layer: usize,
        blocks: &[u32],
        position: usize,
        head: usize,
        value: bool,
    ) -> &[f32] {
        let d = self.layout.head_dim;
        let cols = self.layout.kv_heads * d;
        let at = self.offset(blocks, position) + usize::from(value) * cols + head * d;
        &self.layers[layer][at..at + d]
    }
}
