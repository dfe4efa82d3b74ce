//! DeviceWeights on the device: matrices and tables as they lie in their file, vectors as numbers.

use std::sync::Arc;

use metallic_core::quant::dequantize;
use metallic_core::{Bytes, DType, Graph, NodeId, Op, Sizes, Weight, WeightUse};

use crate::command::Region;
use crate::error::GpuError;
use crate::gpu::{Gpu, Storage};
use crate::pool::{Allocation, Pool};

/// Vectors begin at this many bytes, so that they can be read four numbers at a time.
const ALIGN: usize = 16;

const WHAT: &str = "weights";

/// A graph's weights, each in the forms its readers need.
pub(crate) struct DeviceWeights {
    gpu: Arc<dyn Gpu>,
    forms: Vec<Forms>,
    memory: Vec<Allocation>,
    /// The files that are read in place.
    files: Vec<Bytes>,
}

#[derive(Clone, Copy, Default)]
struct Forms {
    /// As in the file.
    raw: Option<Region>,
    /// As numbers.
    vector: Option<Region>,
}

/// The alignment kernels count on.
fn alignment(dtype: DType) -> usize {
    if dtype.is_quantized() { 2 } else { dtype.block_bytes() }
}

impl DeviceWeights {
    /// Brings every weight that a node reads to the device.
    pub(crate) fn new(gpu: &Arc<dyn Gpu>, pool: &Pool, graph: &Graph) -> Result<DeviceWeights, GpuError> {
        let forms = vec![Forms::default(); graph.weights().len()];
        let mut weights = DeviceWeights { gpu: gpu.clone(), forms, memory: Vec::new(), files: Vec::new() };
        let mut vectors = Vec::new();
        for node in graph.nodes() {
            for (index, input) in node.inputs.iter().enumerate() {
                let Op::Weight(id) = graph.node(*input).op else { continue };
                let weight = &graph.weights()[id.0];
                match node.op.weight_use(index) {
                    WeightUse::Matrix | WeightUse::Table if weights.forms[id.0].raw.is_none() => {
                        weights.forms[id.0].raw = Some(weights.raw(pool, weight)?);
                    }
                    WeightUse::Vector if !vectors.contains(&id.0) => vectors.push(id.0),
                    WeightUse::Matrix | WeightUse::Table | WeightUse::Vector => {}
                }
            }
        }
        weights.vectors(pool, graph, &vectors)?;
        graph.weights().iter().try_for_each(|weight| weight.data.check())?;
        Ok(weights)
    }

    /// Whether what was read of files was there.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        Ok(self.files.iter().try_for_each(Bytes::check)?)
    }

    /// A weight as it lies in its file, read in place where its alignment allows.
    fn raw(&mut self, pool: &Pool, weight: &Weight) -> Result<Region, GpuError> {
        if let Some((file, _)) = weight.data.mapping()
            && self.files.iter().all(|known| known.as_ptr() != file.as_ptr())
        {
            self.files.push(file);
        }
        let memory = pool.import(WHAT, &weight.data)?;
        let memory = if memory.region().offset().is_multiple_of(alignment(weight.ty.dtype)) {
            memory
        } else {
            drop(memory);
            let copy = pool.allocate(WHAT, weight.data.len(), Storage::Shared)?;
            self.gpu.write(copy.region().buffer(), copy.region().offset(), &weight.data)?;
            copy
        };
        let region = memory.region();
        self.memory.push(memory);
        Ok(region)
    }

    /// All vectors as numbers, one after another in one buffer.
    fn vectors(&mut self, pool: &Pool, graph: &Graph, ids: &[usize]) -> Result<(), GpuError> {
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        for id in ids {
            let weight = &graph.weights()[*id];
            let mut numbers = vec![0.0; weight.ty.shape.elements(Sizes::default())];
            let decoded = dequantize(weight.ty.dtype, &weight.data, &mut numbers);
            weight.data.check()?;
            decoded
                .map_err(|error| GpuError::unsupported("weight", format!("`{}`: {error}", weight.name)))?;
            bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
            places.push((*id, bytes.len(), numbers.len() * 4));
            bytes.extend(numbers.iter().flat_map(|x: &f32| x.to_ne_bytes()));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let all = pool.allocate(WHAT, bytes.len(), Storage::Shared)?;
        self.gpu.write(all.region().buffer(), all.region().offset(), &bytes)?;
        for (id, start, len) in places {
            self.forms[id].vector = Some(all.region().slice(start, len)?);
        }
        self.memory.push(all);
        Ok(())
    }

    /// The region a node's weight input lies in; `None` where it is no weight.
    pub(crate) fn region(&self, graph: &Graph, reader: &Op, index: usize, id: NodeId) -> Option<Region> {
        let Op::Weight(weight) = graph.node(id).op else { return None };
        let forms = self.forms.get(weight.0)?;
        match reader.weight_use(index) {
            WeightUse::Matrix | WeightUse::Table => forms.raw,
            WeightUse::Vector => forms.vector,
        }
    }

    /// Bytes held beyond the file's own pages.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.iter().map(Allocation::copied).sum()
    }
}
