//! Weights on the device: matrices and tables as they lie in their file, or matrices in cells; vectors as numbers.

use std::collections::VecDeque;
use std::sync::Arc;

use metallic_core::quant::dequantize;
use metallic_core::{Bytes, DType, Dim, Graph, Node, NodeId, Op, Sizes, TensorType, Weight, WeightUse};

use crate::backend::Shared;
use crate::command::{Access, Command, CommandList, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::{Storage, Submission};
use crate::kernels::cells;
use crate::pipelines::{HeldKernels, ReadyPipeline};
use crate::pool::Allocation;
use crate::tell;

/// Vectors begin at this many bytes, so that they can be read four numbers at a time.
const ALIGN: usize = 16;

const WHAT: &str = "weights";

/// Matrices that a device lays out while the host reads the next one.
const LAID_OUT: usize = 2;

/// A graph's weights, each in the forms its readers need.
pub(crate) struct DeviceWeights {
    shared: Arc<Shared>,
    forms: Vec<Forms>,
    /// Whether a node's matrices are in cells, by node.
    in_cells: Vec<bool>,
    memory: Vec<Allocation>,
    /// The files that are read in place.
    files: Vec<Bytes>,
    /// Oldest first.
    under_way: VecDeque<LayingOut>,
}

/// A matrix that is being laid out.
struct LayingOut {
    submission: Box<dyn Submission>,
    /// What it is made of, and the kernel that does it.
    _held: (Allocation, Arc<ReadyPipeline>),
}

#[derive(Clone, Copy, Default)]
struct Forms {
    /// As in the file.
    raw: Option<Region>,
    /// Laid out for matrix units.
    cells: Option<Region>,
    /// As numbers.
    vector: Option<Region>,
}

/// The alignment kernels count on.
fn alignment(dtype: DType) -> usize {
    if dtype.is_quantized() { 2 } else { dtype.block_bytes() }
}

impl DeviceWeights {
    /// Brings every weight that a node reads to the device.
    pub(crate) fn new(shared: &Arc<Shared>, graph: &Graph) -> Result<DeviceWeights, GpuError> {
        let forms = vec![Forms::default(); graph.weights().len()];
        let in_cells: Vec<bool> = graph.nodes().iter().map(|node| in_cells(shared, graph, node)).collect();
        let (memory, files, under_way) = (Vec::new(), Vec::new(), VecDeque::new());
        let mut weights = DeviceWeights { shared: shared.clone(), forms, in_cells, memory, files, under_way };
        let mut vectors = Vec::new();
        for (number, node) in graph.nodes().iter().enumerate() {
            for (index, input) in node.inputs.iter().enumerate() {
                let Op::Weight(id) = graph.node(*input).op else { continue };
                let weight = &graph.weights()[id.0];
                match node.op.weight_use(index) {
                    WeightUse::Matrix if weights.in_cells[number] => {
                        if weights.forms[id.0].cells.is_none() {
                            weights.forms[id.0].cells = Some(weights.cells(weight)?);
                        }
                    }
                    WeightUse::Matrix | WeightUse::Table if weights.forms[id.0].raw.is_none() => {
                        let memory = weights.raw(weight)?;
                        weights.forms[id.0].raw = Some(memory.region());
                        weights.memory.push(memory);
                    }
                    WeightUse::Vector if !vectors.contains(&id.0) => vectors.push(id.0),
                    WeightUse::Matrix | WeightUse::Table | WeightUse::Vector => {}
                }
            }
        }
        weights.vectors(graph, &vectors)?;
        weights.wait_until(0)?;
        graph.weights().iter().try_for_each(|weight| weight.data.check())?;
        Ok(weights)
    }

    /// Whether what was read of files was there.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        Ok(self.files.iter().try_for_each(Bytes::check)?)
    }

    /// A weight as it lies in its file, read in place where its alignment allows.
    fn raw(&mut self, weight: &Weight) -> Result<Allocation, GpuError> {
        let pool = &self.shared.pool;
        if let Some((file, _)) = weight.data.mapping()
            && self.files.iter().all(|known| known.as_ptr() != file.as_ptr())
        {
            self.files.push(file);
        }
        let memory = pool.import(WHAT, &weight.data)?;
        if memory.region().offset().is_multiple_of(alignment(weight.ty.dtype)) {
            return Ok(memory);
        }
        drop(memory);
        tell::warn("copy", || {
            let (name, bytes) = (&weight.name, weight.data.len());
            format!("`{name}` does not lie in its file as the device reads it: its {bytes} bytes are copied")
        });
        let copy = pool.allocate(WHAT, weight.data.len(), Storage::Shared)?;
        self.shared.gpu.write(copy.region().buffer(), copy.region().offset(), &weight.data)?;
        Ok(copy)
    }

    /// Waits until no more matrices than that are being laid out.
    fn wait_until(&mut self, left: usize) -> Result<(), GpuError> {
        while self.under_way.len() > left
            && let Some(mut oldest) = self.under_way.pop_front()
        {
            oldest.submission.wait(self.shared.options.timeout)?;
        }
        Ok(())
    }

    /// A matrix laid out for matrix units, by a kernel; what it is made of is gone afterwards.
    fn cells(&mut self, weight: &Weight) -> Result<Region, GpuError> {
        self.wait_until(LAID_OUT - 1)?;
        match self.lay_out(weight) {
            // What those before it are made of may be all that is in the way.
            Err(GpuError::OutOfMemory { .. }) if !self.under_way.is_empty() => {
                self.wait_until(0)?;
                self.lay_out(weight)
            }
            laid_out => laid_out,
        }
    }

    fn lay_out(&mut self, weight: &Weight) -> Result<Region, GpuError> {
        let refuse =
            || GpuError::unsupported("weight", format!("`{}`: no cells of {}", weight.name, weight.ty));
        let (Some([rows, cols]), dtype) = (fixed(&weight.ty), weight.ty.dtype) else { return Err(refuse()) };
        let bytes = cells::bytes(dtype, rows, cols).ok_or_else(refuse)?;
        let raw = self.raw(weight)?;
        let memory = self.shared.pool.allocate(WHAT, bytes, Storage::Private)?;
        let (gpu, limits) = (&self.shared.gpu, self.shared.gpu.limits());
        let narrow = |n: usize| u32::try_from(n).map_err(|_| refuse());
        let launch = cells::pack(dtype, (narrow(rows)?, narrow(cols)?), limits)?;
        let kernel = HeldKernels::default().take(&self.shared.pipelines, &launch.kernel)?;
        let bindings = [raw.region().bind(Access::Read), memory.region().bind(Access::Write)];
        let mut commands = CommandList::new();
        commands.push(Command::Dispatch(Dispatch::new("cells", kernel.pipeline.id, &launch, &bindings)?));
        let submission = gpu.submit(&commands)?;
        self.under_way.push_back(LayingOut { submission, _held: (raw, kernel) });
        let region = memory.region();
        self.memory.push(memory);
        Ok(region)
    }

    /// All vectors as numbers, one after another in one buffer.
    fn vectors(&mut self, graph: &Graph, ids: &[usize]) -> Result<(), GpuError> {
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
        let all = self.shared.pool.allocate(WHAT, bytes.len(), Storage::Shared)?;
        self.shared.gpu.write(all.region().buffer(), all.region().offset(), &bytes)?;
        for (id, start, len) in places {
            self.forms[id].vector = Some(all.region().slice(start, len)?);
        }
        self.memory.push(all);
        Ok(())
    }

    /// Whether a node's matrices are in cells.
    pub(crate) fn in_cells(&self, node: NodeId) -> bool {
        self.in_cells.get(node.0).copied().unwrap_or(false)
    }

    /// The region a node's weight input lies in; `None` where it is no weight.
    pub(crate) fn region(&self, graph: &Graph, reader: NodeId, index: usize) -> Option<Region> {
        let node = graph.node(reader);
        let Op::Weight(weight) = graph.node(*node.inputs.get(index)?).op else { return None };
        let forms = self.forms.get(weight.0)?;
        match node.op.weight_use(index) {
            WeightUse::Matrix if self.in_cells(reader) => forms.cells,
            WeightUse::Matrix | WeightUse::Table => forms.raw,
            WeightUse::Vector => forms.vector,
        }
    }

    /// Bytes of the file's own pages that are read where they lie.
    pub(crate) fn mapped_bytes(&self) -> usize {
        let in_place = |memory: &Allocation| memory.region().len().saturating_sub(memory.copied());
        self.memory.iter().map(in_place).sum()
    }

    /// Bytes held beyond the file's own pages.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.iter().map(Allocation::copied).sum()
    }
}

/// Rows and columns of a matrix.
fn fixed(ty: &TensorType) -> Option<[usize; 2]> {
    let &[Dim::Fixed(rows), Dim::Fixed(cols)] = ty.shape.dims() else { return None };
    Some([rows, cols])
}

fn in_cells(shared: &Shared, graph: &Graph, node: &Node) -> bool {
    let inputs: Vec<TensorType> = node.inputs.iter().map(|id| graph.node(*id).ty).collect();
    let is_weight = |index: usize| matches!(graph.node(node.inputs[index]).op, Op::Weight(_));
    cells::serve(&node.op, &inputs, is_weight, shared.gpu.limits())
}

#[cfg(test)]
mod tests {
    use metallic_core::{Backend, BackendError, CompileOptions, GraphBuilder, Shape};

    use super::*;
    use crate::backend::{GpuBackend, GpuOptions};
    use crate::fault::{Fault, Faulty};
    use crate::gpu::{Gpu, Limits, MatrixUnits};
    use crate::null::Null;

    const SIDE: usize = 1024;
    /// Bytes of a matrix, in its file and in cells.
    const MATRIX: u64 = 2 * (SIDE * SIDE) as u64;
    const MATRICES: u64 = 6;

    /// As many products, one after the other, of matrices that go into cells.
    fn graph() -> Graph {
        let g = GraphBuilder::new();
        let matrix = |name: String| {
            let ty = TensorType::new(DType::F16, Shape::matrix(SIDE, SIDE));
            g.weight(Weight { name, ty, data: vec![0_u8; MATRIX as usize].into() })
        };
        let x = matrix("embeddings".to_owned()).embed(g.tokens());
        let out = (0..MATRICES).fold(x, |x, number| x.linear(matrix(format!("matrix {number}"))));
        g.finish(&[out]).unwrap()
    }

    fn compile(gpu: &Arc<Faulty>, budget: Option<u64>) -> Result<(), BackendError> {
        let backend = GpuBackend::new(gpu.clone(), GpuOptions::default().budget(budget));
        backend.compile(&graph(), CompileOptions::kv(DType::F16)).map(drop)
    }

    fn device() -> Arc<Faulty> {
        let matrix_units = Some(MatrixUnits { cores: 132, threadgroup_memory: 99 << 10 });
        let null = Null::with(Limits { matrix_units, ..*Null::new().limits() });
        Arc::new(Faulty::new(Arc::new(null)))
    }

    #[test]
    fn matrices_are_laid_out_side_by_side_only_where_there_is_room() {
        let gpu = device();
        // The table, all cells and what one of them is made of.
        let needed = (1 + MATRICES + 1) * MATRIX;
        compile(&gpu, Some(needed + MATRIX / 2)).unwrap();
        assert_eq!(gpu.calls(Fault::Submit), MATRICES);
        let error = compile(&gpu, Some(needed - MATRIX / 2)).unwrap_err();
        assert!(matches!(error, BackendError::OutOfMemory { .. }), "{error:?}");
    }

    #[test]
    fn a_matrix_that_cannot_be_laid_out_fails_the_program_and_leaves_nothing() {
        for nth in 1..=MATRICES {
            let gpu = device();
            gpu.fail(Fault::Execute, nth);
            let error = compile(&gpu, None).unwrap_err().to_string();
            assert!(error.contains("injected failure"), "{nth}: {error}");
            assert_eq!(gpu.counts().buffers, 0, "{nth}");
        }
    }
}
