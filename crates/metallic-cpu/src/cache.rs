//! The paged cache of keys and values.

use metallic_core::{BLOCK_TOKENS, BackendError, KvLayout, SequenceSpan, Step};

use crate::DEVICE;
use crate::simd::{Isa, KvBlock, KvType, Team, store_key, store_value};

/// Blocks are made room for this many at a time.
const SLAB_BLOCKS: usize = 16;

/// Tokens of a step from which on threads store its blocks together.
const FORK_TOKENS: usize = 64;

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

    /// Stores the keys and values of a step; `rows(token)` gives them, `[kv_heads * head_dim]` each.
    pub(crate) fn store<'r>(
        &mut self,
        (isa, team): (Isa, &Team),
        (layer, step): (usize, &Step<'_>),
        rows: impl Fn(usize) -> (&'r [f32], &'r [f32]) + Sync,
    ) {
        let (kind, head_dim, bytes) = (self.kind, self.layout.head_dim, self.head_bytes());
        let block_bytes = self.block_bytes();
        let write = |piece: &Piece, block: &mut [u8]| {
            for (head, kv) in block.chunks_exact_mut(2 * bytes).enumerate() {
                let (keys, values) = kv.split_at_mut(bytes);
                let columns = head * head_dim..(head + 1) * head_dim;
                for i in 0..piece.len {
                    let (k, v) = rows(piece.token + i);
                    store_key(isa, kind, &k[columns.clone()], piece.position + i, keys);
                    store_value(isa, kind, &v[columns.clone()], piece.position + i, values);
                }
            }
        };
        if step.tokens.len() < FORK_TOKENS {
            for piece in step.sequences.iter().flat_map(pieces) {
                let (slab, at) = self.place(piece.block, 0);
                write(&piece, &mut self.layers[layer][slab][at..at + block_bytes]);
            }
            return;
        }
        for (index, slab) in self.layers[layer].iter_mut().enumerate() {
            let of_slab = |piece: &Piece| piece.block as usize / SLAB_BLOCKS == index;
            if !step.sequences.iter().flat_map(pieces).any(|piece| of_slab(&piece)) {
                continue;
            }
            team.for_chunks(slab, block_bytes, |i, block| {
                for piece in step.sequences.iter().flat_map(pieces) {
                    if piece.block as usize == index * SLAB_BLOCKS + i {
                        write(&piece, block);
                    }
                }
            });
        }
    }
}

/// Tokens of a step that lie in one block.
struct Piece {
    block: u32,
    /// The first one's place in the block, its index in the step, and how many.
    position: usize,
    token: usize,
    len: usize,
}

fn pieces<'s>(span: &'s SequenceSpan<'_>) -> impl Iterator<Item = Piece> + 's {
    (span.past / BLOCK_TOKENS..span.kv_len().div_ceil(BLOCK_TOKENS)).map(|index| {
        let from = span.past.max(index * BLOCK_TOKENS);
        let to = span.kv_len().min((index + 1) * BLOCK_TOKENS);
        Piece {
            block: span.blocks[index],
            position: from % BLOCK_TOKENS,
            token: span.tokens.start + from - span.past,
            len: to - from,
        }
    })
}
