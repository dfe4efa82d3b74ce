//! Weights as the kernels want them: matrices packed, vectors as plain numbers, tables as they lie in the file.

use std::ops::Range;

use metallic_core::quant::dequantize;
use metallic_core::{
    BackendError, Bytes, DType, Dim, Graph, Op, Shape, Sizes, TensorType, Weight, WeightId, WeightUse,
};

use crate::exec::Value;
use crate::simd::{AlignedBytes, PackError, PackedMatrix, TILE, Team, bytes_of, floats_mut};
use crate::{no_room, unsupported};

/// Bytes of a file that are packed before their memory is given back: enough work for many threads, and little beside the weights.
const SPAN_BYTES: usize = 8 << 20;

/// Everything a graph's weights became; each in the forms its readers need.
pub(crate) struct PackedWeights {
    forms: Vec<Forms>,
}

struct Forms {
    /// One matrix, or one for each expert or outer axis.
    matrices: Option<Vec<PackedMatrix>>,
    /// Floats as `F32`, indices as they are.
    numbers: Option<AlignedBytes>,
    dtype: DType,
    /// As it lies in the file: what rows are picked from, where there is no matrix to pick them from.
    table: Bytes,
}

impl PackedWeights {
    pub(crate) fn new(graph: &Graph, team: &Team, exact: bool) -> Result<PackedWeights, BackendError> {
        let empty =
            |w: &Weight| Forms { matrices: None, numbers: None, dtype: w.ty.dtype, table: w.data.clone() };
        let mut forms: Vec<Forms> = graph.weights().iter().map(empty).collect();
        for node in graph.nodes() {
            for (index, input) in node.inputs.iter().enumerate() {
                let Op::Weight(id) = graph.node(*input).op else { continue };
                let (weight, forms) = (&graph.weights()[id.0], &mut forms[id.0]);
                match node.op.weight_use(index) {
                    WeightUse::Matrix if forms.matrices.is_none() => {
                        forms.matrices = Some(load(team, weight, exact)?);
                    }
                    WeightUse::Vector if forms.numbers.is_none() => forms.numbers = Some(numbers(weight)?),
                    WeightUse::Matrix | WeightUse::Vector | WeightUse::Table => {}
                }
                weight.data.check()?;
            }
        }
        Ok(PackedWeights { forms })
    }

    /// A weight as a reader of this kind wants it.
    pub(crate) fn value(&self, id: WeightId, used: WeightUse) -> Value<'_> {
        let forms = &self.forms[id.0];
        let is_index = matches!(forms.dtype, DType::U32 | DType::I32);
        match used {
            WeightUse::Matrix => Value::Matrices(forms.matrices.as_deref().unwrap_or_default()),
            WeightUse::Table => match forms.matrices.as_deref() {
                Some(matrices @ [_]) => Value::Matrices(matrices),
                Some(_) | None => Value::Encoded(forms.dtype, &forms.table),
            },
            WeightUse::Vector => {
                let numbers = forms.numbers.as_ref().map_or(&[][..], AlignedBytes::bytes);
                Value::stored(if is_index { forms.dtype } else { DType::F32 }, numbers)
            }
        }
    }

    /// Bytes of packed copies.
    pub(crate) fn bytes(&self) -> usize {
        let matrices = self.forms.iter().flat_map(|f| &f.matrices).flatten().map(PackedMatrix::bytes);
        let numbers = self.forms.iter().flat_map(|f| &f.numbers).map(|numbers| numbers.bytes().len());
        matrices.chain(numbers).sum()
    }
}

fn unusable(weight: &Weight, reason: impl std::fmt::Display) -> BackendError {
    unsupported("weight", format!("`{}`: {reason}", weight.name))
}

/// The matrices of a weight, packed piece by piece; what lies in the file leaves memory as it goes.
fn load(team: &Team, weight: &Weight, exact: bool) -> Result<Vec<PackedMatrix>, BackendError> {
    let failed = |error: PackError| match error {
        PackError::NoRoom { needed, .. } => no_room("weights", needed),
        error => unusable(weight, error),
    };
    let mut packing = Packing::new(&weight.ty, weight.data.len(), exact).map_err(failed)?;
    let mut buffer = Vec::new();
    while let Some(range) = packing.next() {
        let bytes = weight.data.read(range.clone(), &mut buffer)?;
        packing.put(team, bytes).map_err(failed)?;
        weight.data.release(range);
    }
    Ok(packing.matrices)
}

/// The matrices `[n, k]` of a tensor `[.., n, k]` in memory. `exact`: quantised ones as 32-bit numbers.
pub(crate) fn pack(
    team: &Team,
    ty: &TensorType,
    bytes: &[u8],
    exact: bool,
) -> Result<Vec<PackedMatrix>, PackError> {
    let mut packing = Packing::new(ty, bytes.len(), exact)?;
    while let Some(range) = packing.next() {
        packing.put(team, &bytes[range])?;
    }
    Ok(packing.matrices)
}

/// Matrices that are packed a few rows at a time.
struct Packing {
    dtype: DType,
    matrices: Vec<PackedMatrix>,
    /// Bytes of a row in the file.
    row_bytes: usize,
    /// The next matrix, and the next of its rows.
    at: (usize, usize),
    /// Quantised matrices are unpacked into these first.
    numbers: Option<Vec<f32>>,
}

impl Packing {
    /// `len`: the bytes of the tensor.
    fn new(ty: &TensorType, len: usize, exact: bool) -> Result<Packing, PackError> {
        let dtype = ty.dtype;
        let MatrixShape { count, n, k } = matrix_shape(&ty.shape);
        let impossible = PackError::Shape { dtype, rows: n, cols: k };
        let row_bytes = dtype.bytes_for(k).filter(|_| k > 0).ok_or(impossible.clone())?;
        let needed = row_bytes.checked_mul(n).and_then(|len| len.checked_mul(count)).ok_or(impossible)?;
        if needed != len {
            return Err(PackError::Bytes {
                dtype,
                rows: n.saturating_mul(count),
                cols: k,
                needed,
                found: len,
            });
        }
        let numbers = (exact && dtype.is_quantized()).then(Vec::new);
        let packed = if numbers.is_some() { DType::F32 } else { dtype };
        let matrices = (0..count).map(|_| PackedMatrix::zeros(packed, (n, k))).collect::<Result<_, _>>()?;
        Ok(Packing { dtype, matrices, row_bytes, at: (0, 0), numbers })
    }

    /// The rows that are packed next.
    fn rows(&self) -> Option<Range<usize>> {
        let (index, row) = self.at;
        let rows = self.matrices.get(index)?.rows();
        // Of small matrices there are many; each is one piece.
        let most = (SPAN_BYTES / self.row_bytes).next_multiple_of(TILE).max(TILE);
        Some(row..rows.min(row + most))
    }

    /// The bytes of the tensor that are packed next.
    fn next(&self) -> Option<Range<usize>> {
        let (rows, (index, _)) = (self.rows()?, self.at);
        let start = index * self.matrices[index].rows() * self.row_bytes;
        Some(start + rows.start * self.row_bytes..start + rows.end * self.row_bytes)
    }

    /// Packs what [`next`](Packing::next) named.
    fn put(&mut self, team: &Team, bytes: &[u8]) -> Result<(), PackError> {
        let (Some(rows), (index, row)) = (self.rows(), self.at) else { return Ok(()) };
        let matrix = &mut self.matrices[index];
        if let Some(numbers) = &mut self.numbers {
            numbers.resize(rows.len() * matrix.cols(), 0.0);
            dequantize(self.dtype, bytes, numbers).map_err(|_| PackError::Bytes {
                dtype: self.dtype,
                rows: rows.len(),
                cols: matrix.cols(),
                needed: rows.len() * self.row_bytes,
                found: bytes.len(),
            })?;
            matrix.put_rows(team, row, bytes_of(numbers))?;
        } else {
            matrix.put_rows(team, row, bytes)?;
        }
        self.at = if rows.end < matrix.rows() { (index, rows.end) } else { (index + 1, 0) };
        Ok(())
    }
}

/// `count` matrices `[n, k]`.
pub(crate) struct MatrixShape {
    pub(crate) count: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

pub(crate) fn matrix_shape(shape: &Shape) -> MatrixShape {
    let len = |dim: &Dim| Sizes::default().of(*dim);
    match shape.dims() {
        [outer @ .., n, k] => MatrixShape { count: outer.iter().map(len).product(), n: len(n), k: len(k) },
        [k] => MatrixShape { count: 1, n: 1, k: len(k) },
        [] => MatrixShape { count: 1, n: 1, k: 1 },
    }
}

fn numbers(weight: &Weight) -> Result<AlignedBytes, BackendError> {
    let mut memory = AlignedBytes::default();
    let needed = weight.ty.shape.elements(Sizes::default()).saturating_mul(size_of::<f32>());
    memory.grow(needed).map_err(|_| no_room("weights", needed))?;
    match weight.ty.dtype {
        DType::U32 | DType::I32 if weight.data.len() == needed => {
            memory.bytes_mut().copy_from_slice(&weight.data);
        }
        dtype => {
            let out = floats_mut(memory.bytes_mut());
            dequantize(dtype, &weight.data, out).map_err(|error| unusable(weight, error))?;
        }
    }
    Ok(memory)
}
