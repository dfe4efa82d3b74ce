//! Weights as the kernels want them: matrices packed, vectors as plain numbers, tables as they lie in the file.

use metallic_core::quant::dequantize;
use metallic_core::{BackendError, Bytes, DType, Graph, NodeId, Op, Sizes, Weight, WeightUse};

use crate::DEVICE;
use crate::simd::{PackedMatrix, Team};

/// Everything a graph's weights became; each in the forms its readers need.
pub(crate) struct Weights {
    forms: Vec<Forms>,
}

#[derive(Default)]
struct Forms {
    matrix: Option<PackedMatrix>,
    vector: Vec<f32>,
    table: Option<Table>,
}

/// A table whose rows are decoded when they are asked for.
pub(crate) struct Table {
    dtype: DType,
    row_bytes: usize,
    data: Bytes,
}

impl Table {
    /// Decodes one row.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let at = row * self.row_bytes;
        let bytes = self.data.get(at..at + self.row_bytes).unwrap_or(&[]);
        dequantize(self.dtype, bytes, out)
            .map_err(|error| BackendError::Failed { device: DEVICE, reason: format!("row {row}: {error}") })
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

impl Weights {
    pub(crate) fn new(graph: &Graph, team: &Team, exact: bool) -> Result<Weights, BackendError> {
        let mut forms: Vec<Forms> = graph.weights().iter().map(|_| Forms::default()).collect();
        for node in graph.nodes() {
            for (index, input) in node.inputs.iter().enumerate() {
                let Op::Weight(id) = graph.node(*input).op else { continue };
                let (weight, forms) = (&graph.weights()[id.0], &mut forms[id.0]);
                match node.op.weight_use(index) {
                    WeightUse::Matrix if forms.matrix.is_none() => {
                        forms.matrix = Some(pack(weight, team, exact)?);
                    }
                    WeightUse::Vector if forms.vector.is_empty() => forms.vector = numbers(weight)?,
                    WeightUse::Table if forms.table.is_none() => forms.table = Some(table(weight)?),
                    WeightUse::Matrix | WeightUse::Vector | WeightUse::Table => {}
                }
            }
        }
        Ok(Weights { forms })
    }

    fn forms(&self, graph: &Graph, id: NodeId) -> Option<&Forms> {
        match graph.node(id).op {
            Op::Weight(weight) => self.forms.get(weight.0),
            _ => None,
        }
    }

    pub(crate) fn matrix(&self, graph: &Graph, id: NodeId) -> Result<&PackedMatrix, BackendError> {
        self.forms(graph, id).and_then(|f| f.matrix.as_ref()).ok_or_else(|| not_constant("a matrix"))
    }

    pub(crate) fn table(&self, graph: &Graph, id: NodeId) -> Result<&Table, BackendError> {
        self.forms(graph, id).and_then(|f| f.table.as_ref()).ok_or_else(|| not_constant("a table"))
    }

    /// The numbers of a vector; `None` where the node is no weight.
    pub(crate) fn vector(&self, graph: &Graph, id: NodeId) -> Option<&[f32]> {
        self.forms(graph, id).map(|f| f.vector.as_slice())
    }

    /// Bytes of packed copies.
    pub(crate) fn bytes(&self) -> usize {
        self.forms.iter().map(|f| f.matrix.as_ref().map_or(0, PackedMatrix::bytes) + f.vector.len() * 4).sum()
    }
}

fn not_constant(what: &str) -> BackendError {
    BackendError::Unsupported { device: DEVICE, op: "weight", reason: format!("{what} must be a weight") }
}

fn unsupported(weight: &Weight, reason: impl std::fmt::Display) -> BackendError {
    BackendError::Unsupported { device: DEVICE, op: "weight", reason: format!("`{}`: {reason}", weight.name) }
}

/// `exact`: as 32-bit numbers, whatever the type.
fn pack(weight: &Weight, team: &Team, exact: bool) -> Result<PackedMatrix, BackendError> {
    let shape = (weight.ty.shape.rows(Sizes::default()), weight.ty.shape.cols());
    let packed = if exact && weight.ty.dtype.is_quantized() {
        let bytes: Vec<u8> = numbers(weight)?.iter().flat_map(|x| x.to_ne_bytes()).collect();
        PackedMatrix::pack(team, DType::F32, shape, &bytes)
    } else {
        PackedMatrix::pack(team, weight.ty.dtype, shape, &weight.data)
    };
    packed.map_err(|e| unsupported(weight, e))
}

fn numbers(weight: &Weight) -> Result<Vec<f32>, BackendError> {
    let mut out = vec![0.0; weight.ty.shape.elements(Sizes::default())];
    dequantize(weight.ty.dtype, &weight.data, &mut out).map_err(|e| unsupported(weight, e))?;
    Ok(out)
}

fn table(weight: &Weight) -> Result<Table, BackendError> {
    let dtype = weight.ty.dtype;
    let row_bytes = dtype
        .bytes_for(weight.ty.shape.cols())
        .ok_or_else(|| unsupported(weight, "rows of partial blocks"))?;
    Ok(Table { dtype, row_bytes, data: weight.data.clone() })
}
