//! What every operation of a program has made, read back from the device.

use std::ops::Range;

use metallic_core::quant::dequantize;
use metallic_core::{
    Aside, BLOCK_TOKENS, BackendError, DType, Graph, KvRows, KvState, NodeId, StateId, Tapped, Taps,
};

use crate::command::{Command, CommandList, Region};
use crate::error::GpuError;
use crate::gpu::Storage;
use crate::program::GpuProgram;

impl Taps for GpuProgram {
    fn graph(&self) -> &Graph {
        &self.lowered.graph
    }

    fn value(&mut self, node: NodeId) -> Result<Option<Tapped>, BackendError> {
        self.tap(node).map_err(|error| error.on(self.lowered.shared.kind()))
    }

    fn kept(
        &mut self,
        state: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<KvRows, BackendError> {
        self.kept_rows(state, table, positions).map_err(|error| error.on(self.lowered.shared.kind()))
    }

    fn set_aside(&mut self, node: NodeId, reason: &str) -> Result<Aside, BackendError> {
        self.check_idle().map_err(|error| error.on(self.lowered.shared.kind()))?;
        let Some(plan) = self.finished.clone() else { return Ok(Aside::Alone) };
        let maker = plan.makers.iter().find(|(made, _)| *made == node);
        let Some((_, maker)) = maker.copied() else { return Ok(Aside::Alone) };
        let provider = format!("{}={maker}", maker.op());
        let providers = &self.lowered.shared.options.providers;
        if providers.is_forced(maker.op()) {
            return Ok(Aside::Kept { provider, reason: "it was asked for by name".to_owned() });
        }
        providers.set_aside(maker, GpuError::unsupported(maker.op().name(), reason));
        // Where nobody else can, a wrong result is all there is.
        if let Err(error) = self.lowered.plan(&plan.shape) {
            providers.take_back(maker);
            return Ok(Aside::Kept { provider, reason: format!("no other can serve: {error}") });
        }
        self.plans.clear();
        Ok(Aside::Done { provider })
    }
}

impl GpuProgram {
    /// Steps run one after another in one arena: values are there only until the next is handed over.
    fn check_idle(&self) -> Result<(), GpuError> {
        if self.under_way.is_empty() {
            return Ok(());
        }
        Err(GpuError::unsupported("tap", "a step is under way, which writes over what the last one has made"))
    }

    fn tap(&self, node: NodeId) -> Result<Option<Tapped>, GpuError> {
        self.check_idle()?;
        let region = self.finished.as_ref().and_then(|plan| plan.taps.get(node.0).copied().flatten());
        let Some(region) = region.filter(|region| !region.is_empty()) else { return Ok(None) };
        let mut bytes = vec![0; region.len()];
        self.lowered.shared.gpu.read(region.buffer(), region.offset(), &mut bytes)?;
        Ok(Some(match self.lowered.graph.node(node).ty.dtype {
            DType::U32 | DType::I32 => {
                Tapped::Words(bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect())
            }
            dtype => Tapped::Floats(numbers(dtype, &bytes)?),
        }))
    }

    fn kept_rows(&self, state: StateId, table: &[u32], positions: Range<usize>) -> Result<KvRows, GpuError> {
        self.check_idle()?;
        let layout = &self.lowered.states.layout;
        let none = || GpuError::unsupported("state", format!("state {} holds no keys and values", state.0));
        let KvState { kv_heads, key_dim, value_dim, .. } = *layout.kv(state).ok_or_else(none)?;
        let mut rows = KvRows::default();
        for (part, dim) in [key_dim, value_dim].into_iter().enumerate() {
            // `[block][kv_head][slot]`
            let row_bytes = layout.row_bytes(dim);
            let block_bytes = kv_heads * BLOCK_TOKENS * row_bytes;
            let all = self.lowered.states.region(state, part, None)?;
            let mut held: Option<(u32, Vec<f32>)> = None;
            for position in positions.clone() {
                let missing = || GpuError::unsupported("state", format!("position {position} has no block"));
                let block = *table.get(position / BLOCK_TOKENS).ok_or_else(missing)?;
                let known = held.take().filter(|(known, _)| *known == block);
                let values = if let Some((_, values)) = known {
                    values
                } else {
                    let bytes = self.fetched(all.slice(block as usize * block_bytes, block_bytes)?)?;
                    numbers(layout.dtype(), &bytes)?
                };
                let out = if part == 0 { &mut rows.keys } else { &mut rows.values };
                for head in 0..kv_heads {
                    let row = head * BLOCK_TOKENS + position % BLOCK_TOKENS;
                    out.extend_from_slice(&values[row * dim..][..dim]);
                }
                held = Some((block, values));
            }
        }
        Ok(rows)
    }

    /// Bytes that the device alone reaches.
    fn fetched(&self, from: Region) -> Result<Vec<u8>, GpuError> {
        let shared = &self.lowered.shared;
        let held = shared.pool.allocate("what is kept, to be read", from.len(), Storage::Shared)?;
        let staged = held.region();
        let mut list = CommandList::new();
        list.push(Command::Copy { from, to: staged });
        shared.gpu.submit(&list)?.wait(shared.options.timeout)?;
        let mut bytes = vec![0; from.len()];
        shared.gpu.read(staged.buffer(), staged.offset(), &mut bytes)?;
        Ok(bytes)
    }
}

fn numbers(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>, GpuError> {
    let mut numbers = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize(dtype, bytes, &mut numbers).map_err(|e| GpuError::unsupported("tap", e.to_string()))?;
    Ok(numbers)
}
