//! The paged cache of keys and values.

use metallic_core::{BLOCK_TOKENS, BackendError, KvLayout, SequenceSpan};

use crate::DEVICE;
use crate::simd::{Isa, KvBlock, KvType, store_key, store_value};

/// Blocks are made room for this many at a time.
const SLAB_BLOCKS: usize = 16;

/// Keys and values in blocks; a head's keys of a block lie together, and so do its values.
pub(crate) struct Cache {
    layout: KvLayout,
    kind: KvType,
    /// By layer and slab: blocks × kv heads × (keys, values), each as `simd` lays them out.
    layers: Vec<Vec<Vec<u8>>>,
    blocks: usize,
}

impl Cache {
    pub(crate) fn new(layout: KvLayout) -> Result<Cache, BackendError> {
        let unsupported = || BackendError::Unsupported {
            device: DEVICE,
            op: "kv_write",
            reason: format!("a cache of {} with heads of {}", layout.dtype, layout.head_dim),
        };
        let kind = KvType::of(layout.dtype).ok_or_else(unsupported)?;
        if !KvLayout::supports(layout.dtype, layout.head_dim) {
            return Err(unsupported());
        }
        Ok(Cache { layout, kind, layers: vec![Vec::new(); layout.layers], blocks: 0 })
    }

    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    pub(crate) fn kind(&self) -> KvType {
        self.kind
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn bytes(&self) -> usize {
        self.blocks * self.layout.block_bytes()
    }

    /// Bytes of one head's keys, or values, in a block.
    fn head_bytes(&self) -> usize {
        self.kind.block_bytes(self.layout.head_dim)
    }

    /// Bytes of a block in one layer.
    fn block_bytes(&self) -> usize {
        2 * self.layout.kv_heads * self.head_bytes()
    }

    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<(), BackendError> {
        let slabs = blocks.div_ceil(SLAB_BLOCKS);
        let len = SLAB_BLOCKS * self.block_bytes();
        for layer in &mut self.layers {
            while layer.len() < slabs {
                let mut slab = Vec::new();
                slab.try_reserve_exact(len).map_err(|_| BackendError::OutOfMemory {
                    device: DEVICE,
                    what: "keys and values",
                    needed: len,
                })?;
                slab.resize(len, 0);
                layer.push(slab);
            }
        }
        self.blocks = self.blocks.max(slabs * SLAB_BLOCKS);
        Ok(())
    }

    /// One head's keys and values in one block of a layer.
    pub(crate) fn head(&self, layer: usize, block: u32, head: usize) -> KvBlock<'_> {
        let (slab, at) = self.place(block, head);
        let rows = &self.layers[layer][slab][at..at + 2 * self.head_bytes()];
        let (keys, values) = rows.split_at(self.head_bytes());
        KvBlock { keys, values }
    }

    fn place(&self, block: u32, head: usize) -> (usize, usize) {
        let block = block as usize;
        let at = block % SLAB_BLOCKS * self.block_bytes() + head * 2 * self.head_bytes();
        (block / SLAB_BLOCKS, at)
    }

    /// Stores one token's key and value rows, `[kv_heads * head_dim]` each, at `position` of a sequence.
    pub(crate) fn store(
        &mut self,
        isa: Isa,
        (layer, position): (usize, usize),
        span: &SequenceSpan<'_>,
        (k, v): (&[f32], &[f32]),
    ) {
        let (d, bytes) = (self.layout.head_dim, self.head_bytes());
        let (block, position) = (span.blocks[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
        for (head, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
            let (slab, at) = self.place(block, head);
            let (keys, values) = self.layers[layer][slab][at..at + 2 * bytes].split_at_mut(bytes);
            store_key(isa, self.kind, k, position, keys);
            store_value(isa, self.kind, v, position, values);
        }
    }
}
