//! The weights of two models beside each other.

use metallic_core::quant::dequantize;
use metallic_core::{BackendError, DType, Graph, NodeId, Op, Weight};

use super::lineage::Lineage;
use super::report::Finding;
use super::{DiffError, What};

/// A weight that is not the same in both models.
#[derive(Clone, Debug)]
pub(crate) struct WeightDiff {
    /// Its name in the first.
    pub(crate) name: String,
    pub(crate) types: [DType; 2],
    /// The first node of the model's graph that reads it.
    pub(crate) reader: usize,
    /// The row that is furthest off, and how far, relative to its length.
    row: usize,
    relative: f64,
    /// Whether the types do not explain it.
    pub(crate) differs: bool,
}

impl WeightDiff {
    pub(crate) fn finding(&self, lineage: &Lineage, node: NodeId) -> Finding {
        let graph = &lineage.carried.graph;
        let [a, b] = self.types;
        let reason = if a == b {
            format!(
                "`{}` is not the same in both files: row {} is off by {:.3} of its length",
                self.name, self.row, self.relative
            )
        } else {
            let (name, row, relative) = (&self.name, self.row, self.relative);
            format!(
                "`{name}` is {a} and {b}: row {row} is off by {relative:.3} of its length, which these types do not explain"
            )
        };
        Finding {
            side: "weights".to_owned(),
            op: graph.node(node).op.name().to_owned(),
            what: What::Output,
            layer: lineage.layer(lineage.carried.origins[node.0].node),
            part: graph.part(node),
            tensors: vec![self.name.clone()],
            step: 0,
            error: None,
            parts: Vec::new(),
            bisected: None,
            reason: Some(reason),
        }
    }
}

/// The weights that differ, in the order they are first read. Graphs of the same architecture have them at the same nodes.
pub(crate) fn compare(a: &Graph, b: &Graph) -> Result<Vec<WeightDiff>, DiffError> {
    let mut found = Vec::new();
    for id in (0..a.nodes().len()).map(NodeId) {
        let (Some(of_a), Some(of_b)) = (a.weight(id), b.weight(id)) else { continue };
        let same_bytes =
            of_a.ty == of_b.ty && std::ptr::eq(&raw const of_a.data[..], &raw const of_b.data[..]);
        if same_bytes || (of_a.ty == of_b.ty && of_a.data[..] == of_b.data[..]) {
            continue;
        }
        let (row, relative) = furthest(of_a, of_b)?;
        let types = [of_a.ty.dtype, of_b.ty.dtype];
        let differs = types[0] == types[1] || relative > types.into_iter().map(coarseness).sum();
        let reads =
            |node: &metallic_core::Node| node.inputs.contains(&id) && !matches!(node.op, Op::Weight(_));
        let reader = a.nodes().iter().position(reads).unwrap_or(id.0);
        found.push(WeightDiff { name: of_a.name.clone(), types, reader, row, relative, differs });
    }
    found.sort_by_key(|weight| weight.reader);
    Ok(found)
}

/// The row that is furthest off, relative to its length, and how far.
fn furthest(a: &Weight, b: &Weight) -> Result<(usize, f64), BackendError> {
    let cols = a.ty.shape.cols().max(1);
    let mut worst = (0, 0.0);
    for (index, (a, b)) in rows(a, cols).zip(rows(b, cols)).enumerate() {
        let square = |x: f64| x * x;
        let off: f64 = a.iter().zip(&b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
        let of = |row: &[f32]| row.iter().map(|x| square(f64::from(*x))).sum::<f64>();
        let length = of(&a).max(of(&b));
        let relative = match off {
            0.0 => 0.0,
            off if off.is_finite() && length.is_finite() => (off / length).sqrt(),
            _ => f64::INFINITY,
        };
        if relative > worst.1 {
            worst = (index, relative);
        }
    }
    a.data.check()?;
    b.data.check()?;
    Ok(worst)
}

/// The rows of a weight as numbers.
fn rows(weight: &Weight, cols: usize) -> impl Iterator<Item = Vec<f32>> {
    let dtype = weight.ty.dtype;
    weight.data.chunks(dtype.bytes_for(cols).unwrap_or(1).max(1)).map(move |bytes| {
        let mut row = vec![0.0; cols];
        // Indices are no numbers of any format: they are compared byte by byte.
        match dequantize(dtype, bytes, &mut row) {
            Ok(()) => row,
            Err(_) => bytes.iter().map(|byte| f32::from(*byte)).collect(),
        }
    })
}

/// How far a row of this type may be off what it was made from, relative to its length.
fn coarseness(dtype: DType) -> f64 {
    match dtype {
        DType::F32 | DType::I32 | DType::U32 | DType::U8 => 1e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        DType::Q8_0 => 0.03,
        DType::Q6K => 0.06,
        DType::Q5_0 | DType::Q5_1 | DType::Q5K => 0.12,
        DType::Q4_0 | DType::Q4_1 | DType::Q4K | DType::IQ4NL | DType::IQ4XS | DType::MXFP4 => 0.3,
        DType::Q3K => 0.45,
        DType::Q2K => 0.8,
    }
}
