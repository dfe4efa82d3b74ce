//! Weights as the kernels want them: matrices packed, vectors as plain numbers, tables as they lie in the file.

use metallic_core::quant::dequantize;
use metallic_core::{
    BackendError, Bytes, DType, Dim, Graph, Op, Shape, Sizes, TensorType, Weight, WeightId, WeightUse,
};

use crate::exec::Value;
use crate::simd::{AlignedBytes, PackError, PackedMatrix, Team, bytes_of, floats_mut};
use crate::{no_room, unsupported};

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
    /// As it lies in the file.
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
                        let packed = pack(team, &weight.ty, &weight.data, exact);
                        forms.matrices = Some(packed.map_err(|error| unusable(weight, error))?);
                    }
                    WeightUse::Vector if forms.numbers.is_none() => forms.numbers = Some(numbers(weight)?),
                    WeightUse::Matrix | WeightUse::Vector | WeightUse::Table => {}
                }
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
            WeightUse::Table => Value::Encoded(forms.dtype, &forms.table),
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

/// The matrices `[n, k]` of a tensor `[.., n, k]`. `exact`: quantised ones as 32-bit numbers.
pub(crate) fn pack(
    team: &Team,
    ty: &TensorType,
    bytes: &[u8],
    exact: bool,
) -> Result<Vec<PackedMatrix>, PackError> {
    let MatrixShape { count, n, k } = matrix_shape(&ty.shape);
    let len = ty.dtype.bytes_for(k).and_then(|row| row.checked_mul(n));
    let len = len.ok_or(PackError::Shape { dtype: ty.dtype, rows: n, cols: k })?;
    let one = |index: usize| {
        let all = if count == 1 { Some(bytes) } else { bytes.get(index * len..(index + 1) * len) };
        let bytes = all.unwrap_or(&[]);
        let mut numbers = if exact && ty.dtype.is_quantized() { vec![0.0; n * k] } else { Vec::new() };
        // Bytes of the wrong length are left for `pack` to refuse.
        if !numbers.is_empty() && dequantize(ty.dtype, bytes, &mut numbers).is_ok() {
            return PackedMatrix::pack(team, DType::F32, (n, k), bytes_of(&numbers));
        }
        PackedMatrix::pack(team, ty.dtype, (n, k), bytes)
    };
    (0..count).map(one).collect()
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
