//! Keys and values of every layer, in blocks.

use std::sync::Arc;
use std::time::Duration;

use metallic_core::{BLOCK_TOKENS, KvLayout};

use crate::command::{Command, CommandList, Region};
use crate::error::GpuError;
use crate::gpu::{Gpu, Storage};
use crate::pool::{Allocation, Pool};

/// Blocks are had by so many at a time.
const SLAB: usize = 16;

/// The cache of a program: one buffer a layer, keys in its first half and values in its second.
pub(crate) struct KvCache {
    layout: KvLayout,
    layers: Vec<Option<Layer>>,
}

struct Layer {
    memory: Allocation,
    blocks: usize,
}

impl KvCache {
    pub(crate) fn new(layout: KvLayout) -> KvCache {
        KvCache { layout, layers: (0..layout.layers).map(|_| None).collect() }
    }

    /// Bytes of the keys, or of the values, of one block of one layer.
    fn half_block(&self) -> usize {
        BLOCK_TOKENS * self.layout.kv_heads * self.layout.row_bytes()
    }

    /// Blocks every layer has.
    pub(crate) fn blocks(&self) -> usize {
        self.layers.iter().map(|l| l.as_ref().map_or(0, |l| l.blocks)).min().unwrap_or(0)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(|l| l.memory.region().len()).sum()
    }

    /// Makes room for at least `blocks`. Contents move to the larger buffers on the device, a layer at a time, so that
    /// no more than one layer is held twice. A failure leaves every layer with what it had or more.
    pub(crate) fn reserve(
        &mut self,
        (gpu, pool): (&Arc<dyn Gpu>, &Pool),
        blocks: usize,
        bound: Duration,
    ) -> Result<(), GpuError> {
        if blocks <= self.blocks() {
            return Ok(());
        }
        let exact = blocks.next_multiple_of(SLAB);
        // Growing by a share keeps the copies of a long context few.
        let roomy = exact.max((self.blocks() + self.blocks() / 4).next_multiple_of(SLAB));
        let half = self.half_block();
        for layer in &mut self.layers {
            let had = layer.as_ref().map_or(0, |l| l.blocks);
            if had >= blocks {
                continue;
            }
            let ask = |blocks: usize| pool.allocate("keys and values", 2 * half * blocks, Storage::Private);
            let (memory, blocks) = match ask(roomy) {
                Ok(memory) => (memory, roomy),
                Err(_) if roomy > exact => (ask(exact)?, exact),
                Err(error) => return Err(error),
            };
            let new = Layer { memory, blocks };
            if let Some(old) = layer.as_ref() {
                let mut list = CommandList::new();
                for (from, to) in old.halves(half)?.into_iter().zip(new.halves(half)?) {
                    list.push(Command::Copy { from, to: to.slice(0, from.len())? });
                }
                gpu.submit(&list)?.wait(bound)?;
            }
            *layer = Some(new);
        }
        Ok(())
    }

    /// Keys and values of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Result<[Region; 2], GpuError> {
        match self.layers.get(layer).and_then(Option::as_ref) {
            Some(found) => found.halves(self.half_block()),
            None => Err(GpuError::Unsupported {
                op: "attention",
                reason: format!("layer {layer} of {} with a cache that was reserved", self.layers.len()),
            }),
        }
    }
}

impl Layer {
    fn halves(&self, half_block: usize) -> Result<[Region; 2], GpuError> {
        let half = half_block * self.blocks;
        Ok([self.memory.region().slice(0, half)?, self.memory.region().slice(half, half)?])
    }
}
