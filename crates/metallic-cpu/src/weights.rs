//! Weights as the kernels want them: matrices packed, vectors as plain numbers, tables as they lie in the file.

use std::ops::Range;

use metallic_core::quant::dequantize;
use metallic_core::{
    BackendError, Binary, Bytes, DType, Dim, Graph, Node, Op, Shape, Sizes, TensorType, Weight, WeightId,
    WeightUse,
};

use crate::exec::Value;
use crate::simd::{AlignedBytes, PackError, PackedMatrix, TILE, Team, bytes_of, floats_mut};
use crate::{Processor, no_room, unsupported};

/// Bytes of a file that are packed before their memory is given back: enough work for many threads, and little beside the weights.
const SPAN_BYTES: usize = 8 << 20;

/// Everything a graph's weights became; each in the forms its readers need.
pub(crate) struct PackedWeights {
    forms: Vec<Forms>,
    /// Those that are read where they lie in the file.
    tables: Vec<usize>,
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
    pub(crate) fn new(graph: &Graph, p: Processor<'_>, exact: bool) -> Result<PackedWeights, BackendError> {
        let empty =
            |w: &Weight| Forms { matrices: None, numbers: None, dtype: w.ty.dtype, table: w.data.clone() };
        let mut forms: Vec<Forms> = graph.weights().iter().map(empty).collect();
        // One for all: what is taken and given back in turn is not all given back to the system.
        let mut buffer = Vec::new();
        for node in graph.nodes() {
            for (index, input) in node.inputs.iter().enumerate() {
                let Op::Weight(id) = graph.node(*input).op else { continue };
                let (weight, forms) = (&graph.weights()[id.0], &mut forms[id.0]);
                match node.op.weight_use(index) {
                    WeightUse::Matrix => {
                        let matrices = match forms.matrices.take() {
                            Some(matrices) => matrices,
                            None => load(p.team, weight, exact, &mut buffer)?,
                        };
                        let matrices = forms.matrices.insert(matrices);
                        if p.isa.has_cheap_halves(weight.ty.dtype) || wants_halves(graph, node) {
                            matrices.iter_mut().for_each(PackedMatrix::take_halves);
                        }
                    }
                    WeightUse::Vector if forms.numbers.is_none() => {
                        let numbers = numbers(weight);
                        weight.data.check()?;
                        forms.numbers = Some(numbers?);
                    }
                    WeightUse::Vector | WeightUse::Table => {}
                }
                weight.data.check()?;
            }
        }
        let tables = tables(graph).filter(|id| forms[*id].matrices.is_none()).collect();
        let weights = PackedWeights { forms, tables };
        // A file that is not mapped is read now, not in the first step.
        let first = |id: &usize| weights.forms[*id].table.first();
        weights.tables.iter().for_each(|id| _ = first(id));
        weights.check()?;
        Ok(weights)
    }

    /// Whether what was read of files was there.
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        Ok(self.tables.iter().try_for_each(|id| self.forms[*id].table.check())?)
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

    /// Bytes that are read where they lie.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.tables.iter().map(|id| self.forms[*id].table.len()).sum()
    }

    /// Bytes of packed copies.
    pub(crate) fn bytes(&self) -> usize {
        let matrices = self.forms.iter().flat_map(|f| &f.matrices).flatten().map(PackedMatrix::bytes);
        let numbers = self.forms.iter().flat_map(|f| &f.numbers).map(|numbers| numbers.bytes().len());
        matrices.chain(numbers).sum()
    }
}

/// The weights that rows are picked from.
fn tables(graph: &Graph) -> impl Iterator<Item = usize> {
    graph.nodes().iter().flat_map(|node| {
        node.inputs.iter().enumerate().filter_map(|(index, input)| {
            let Op::Weight(id) = graph.node(*input).op else { return None };
            (node.op.weight_use(index) == WeightUse::Table).then_some(id.0)
        })
    })
}

fn unusable(weight: &Weight, reason: impl std::fmt::Display) -> BackendError {
    unsupported("weight", format!("`{}`: {reason}", weight.name))
}

/// Whether a product is worth activations whose scales are those of 16 values, which cost it a few hundredths of its speed with
/// many tokens: its rows are products of two activations, which have a few values far above the rest; or its results are
/// exponentiated, as those of the way into attention; or its rows are those that were asked for, which are few and decide.
fn wants_halves(graph: &Graph, product: &Node) -> bool {
    let Some(x) = product.inputs.first().map(|id| graph.node(*id)) else { return false };
    let gated = matches!(x.op, Op::GatedProject { .. } | Op::Gated(_) | Op::Binary(Binary::Mul));
    let to_attention = matches!(product.op, Op::Qkv(_));
    gated || to_attention || x.ty.shape.dims().first() == Some(&Dim::Outputs)
}

/// The matrices of a weight, packed piece by piece; what lies in the file leaves memory as it goes.
fn load(
    team: &Team,
    weight: &Weight,
    exact: bool,
    buffer: &mut Vec<u8>,
) -> Result<Vec<PackedMatrix>, BackendError> {
    let failed = |error: PackError| match error {
        PackError::NoRoom { needed, .. } => no_room("weights", needed),
        error => unusable(weight, error),
    };
    let mut packing = Packing::new(&weight.ty, weight.data.len(), exact).map_err(failed)?;
    while let Some(range) = packing.next() {
        let bytes = weight.data.read(range.clone(), buffer)?;
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

#[cfg(test)]
mod tests {
    use metallic_core::{GraphBuilder, Unary, rewrite};

    use super::*;
    use crate::simd::{Grain, Isa};

    /// A layer without attention and a head that is the table of embeddings as well, in Q8_0.
    fn graph() -> Graph {
        let builder = GraphBuilder::new();
        let weight = |name: &str, dtype: DType, dims: [usize; 2]| {
            let bytes = dtype.bytes_for(dims[0] * dims[1]).unwrap();
            let data: Vec<u8> = (0..bytes).map(|i| if i % 34 < 2 { 0x20 } else { i as u8 }).collect();
            let ty = TensorType::new(dtype, Shape::matrix(dims[0], dims[1]));
            builder.weight(Weight { name: name.to_owned(), ty, data: data.into() })
        };
        let table = weight("table", DType::Q8_0, [48, 32]);
        let norm = builder.constant("norm", &[1.0; 32]);
        let x = table.embed(builder.tokens());
        let h = x.rms_norm(norm, 1e-5);
        let [gate, up] = ["gate", "up"].map(|name| h.linear(weight(name, DType::Q8_0, [64, 32])));
        let x = x + gate.gated(Unary::Silu, up).linear(weight("down", DType::Q8_0, [32, 64]));
        let last = x.select_rows(builder.output_rows()).rms_norm(norm, 1e-5);
        rewrite::fuse(&builder.finish(&[last.linear(table)]).unwrap()).unwrap()
    }

    #[test]
    fn products_that_lose_most_have_finer_activations_on_every_processor() {
        let (graph, team) = (graph(), Team::new(1).unwrap());
        for isa in Isa::available() {
            let weights = PackedWeights::new(&graph, Processor { isa, team: &team }, false).unwrap();
            for (weight, forms) in graph.weights().iter().zip(&weights.forms) {
                let fine =
                    isa.has_cheap_halves(weight.ty.dtype) || ["table", "down"].contains(&&*weight.name);
                let expected = if fine { Grain::Half } else { Grain::Group };
                for matrix in forms.matrices.iter().flatten() {
                    assert_eq!(matrix.takes(), expected, "{} on {isa:?}", weight.name);
                }
            }
        }
    }

    #[test]
    fn a_table_that_is_the_head_is_there_once_and_rows_come_from_it() {
        let (graph, team) = (graph(), Team::new(1).unwrap());
        let processor = Processor { isa: Isa::detect(), team: &team };
        let weights = PackedWeights::new(&graph, processor, false).unwrap();
        let id = graph.weights().iter().position(|weight| weight.name == "table").unwrap();
        assert!(weights.tables.is_empty());
        let Value::Matrices([table]) = weights.value(WeightId(id), WeightUse::Table) else {
            panic!("a table of its own");
        };
        let (mut row, mut numbers) = (vec![0.0; 32], vec![0.0; 48 * 32]);
        dequantize(DType::Q8_0, &graph.weights()[id].data, &mut numbers).unwrap();
        for (index, expected) in numbers.chunks_exact(32).enumerate() {
            table.row(index, &mut row);
            assert_eq!(row, expected);
        }
    }
}
