//! The rules of every operation on tensors: what its operands must be, and what comes out.

use super::view::shape_text;
use super::{Operand, Sample, Sdpa, TensorError, TensorOp, View};
use crate::{DType, Rope};

/// The inputs of one operation while its rule is applied.
struct Rule<'a> {
    op: &'static str,
    inputs: &'a [&'a View],
}

/// The results of `op` on these inputs, each contiguous in a memory of its own. [`TensorOp::Copy`] keeps the type (`F32`
/// for a quantised one); [`TensorOp::Fill`] has no inputs to tell its shape from, so the list is empty.
pub fn outputs(op: &TensorOp, inputs: &[&View]) -> Result<Vec<View>, TensorError> {
    let rule = Rule { op: op.name(), inputs };
    match op {
        TensorOp::Copy => {
            rule.arity(1, 1, "1")?;
            let dtype = inputs[0].dtype();
            let kept = if dtype.is_quantized() { DType::F32 } else { dtype };
            Ok(vec![View::contiguous(kept, inputs[0].shape())?])
        }
        TensorOp::Fill(_) => rule.arity(0, 0, "0").map(|()| Vec::new()),
        TensorOp::Unary(_) | TensorOp::Scalar { .. } => rule.element_wise(1, "1"),
        TensorOp::Softcap(cap) => {
            rule.parameter(cap.is_finite() && *cap > 0.0, || format!("cap {cap}"))?;
            rule.element_wise(1, "1")
        }
        TensorOp::Binary(_) | TensorOp::Gated(_) => rule.element_wise(2, "2"),
        TensorOp::RmsNorm { eps } => rule.norm(*eps, 1, 1),
        TensorOp::LayerNorm { eps } => rule.norm(*eps, 1, 2),
        TensorOp::AddRmsNorm { eps } => rule.norm(*eps, 2, 1),
        TensorOp::AddLayerNorm { eps } => rule.norm(*eps, 2, 2),
        TensorOp::Softmax => {
            rule.arity(1, 1, "1")?;
            rule.row_type(0)?;
            rule.element_wise(1, "1")
        }
        TensorOp::Matmul => rule.matmul(),
        TensorOp::Rope(rope) => rule.rope(rope),
        TensorOp::Sdpa(sdpa) => rule.sdpa(sdpa),
        TensorOp::Argmax => {
            rule.arity(1, 1, "1")?;
            let (_, outer, n) = rule.row_type(0)?;
            rule.require(0, n > 0 && indexed(n), || format!("rows of 1 to {} numbers", u32::MAX))?;
            Ok(vec![View::contiguous(DType::U32, outer)?])
        }
        TensorOp::TopK { k } => {
            rule.arity(1, 1, "1")?;
            let (dtype, outer, n) = rule.row_type(0)?;
            rule.parameter(*k > 0, || "k of 0".to_owned())?;
            rule.require(0, *k <= n && indexed(n), || format!("rows of {k} to {} numbers", u32::MAX))?;
            let shape = [outer, &[*k]].concat();
            Ok(vec![View::contiguous(dtype, &shape)?, View::contiguous(DType::U32, &shape)?])
        }
        TensorOp::Sample(sample) => rule.sample(sample),
    }
}

/// Checks everything a device relies on: number, types and shapes of the operands, the operation's own numbers, that every
/// view lies inside its memory, and that outputs overlap neither inputs nor one another (see [`TensorOp`]).
pub fn check(op: &TensorOp, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<(), TensorError> {
    let views: Vec<&View> = inputs.iter().map(|input| input.view).collect();
    let mut needed = self::outputs(op, &views)?;
    if let (TensorOp::Fill(_), [output]) = (op, outputs) {
        float(op, output.view)?;
        needed.push(*output.view);
    }
    if needed.len() != outputs.len() || needed.is_empty() {
        let needed = if needed.len() == 2 { "2" } else { "1" };
        return Err(TensorError::Arity { op: op.name(), what: "outputs", needed, found: outputs.len() });
    }
    for (index, (output, needed)) in outputs.iter().zip(&needed).enumerate() {
        let view = output.view;
        // A copy also casts, among floats.
        let casts = *op == TensorOp::Copy && needed.dtype().is_float() && view.dtype().is_float();
        if view.shape() != needed.shape() || !(casts || view.dtype() == needed.dtype()) {
            let operand = format!("output {index}");
            let needed = if casts || (*op == TensorOp::Copy && needed.dtype().is_float()) {
                format!("floats {}", shape_text(needed.shape()))
            } else {
                needed.to_string()
            };
            return Err(TensorError::Operand { op: op.name(), operand, found: view.to_string(), needed });
        }
    }
    let all = || inputs.iter().map(|i| ("input", i)).chain(outputs.iter().map(|o| ("output", o)));
    for (place, (kind, operand)) in all().enumerate() {
        let index = if kind == "input" { place } else { place - inputs.len() };
        let (needed, found) = (operand.view.byte_range().end, operand.memory.len());
        if needed > found {
            let operand = format!("{kind} {index}");
            return Err(TensorError::Bounds { op: op.name(), operand, needed, found });
        }
    }
    overlaps(op, inputs, outputs)
}

/// Whether `n` things have indices of type `U32`.
fn indexed(n: usize) -> bool {
    u32::try_from(n).is_ok()
}

fn float(op: &TensorOp, view: &View) -> Result<(), TensorError> {
    if view.dtype().is_float() {
        return Ok(());
    }
    Err(TensorError::Operand {
        op: op.name(),
        operand: "output 0".to_owned(),
        found: view.to_string(),
        needed: "floats".to_owned(),
    })
}

fn overlaps(op: &TensorOp, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Result<(), TensorError> {
    let clash = |index: usize, with: String| {
        Err(TensorError::Overlap { op: op.name(), operand: format!("output {index}"), with })
    };
    let touch = |a: &Operand<'_>, b: &Operand<'_>| {
        let (x, y) = (a.view.byte_range(), b.view.byte_range());
        a.same_memory(b) && x.start < y.end && y.start < x.end
    };
    for (index, output) in outputs.iter().enumerate() {
        if output.view.repeats() {
            return clash(index, "itself".to_owned());
        }
        for (other, input) in inputs.iter().enumerate() {
            let in_place = op.is_element_wise() && input.view == output.view;
            if touch(output, input) && !in_place {
                return clash(index, format!("input {other}"));
            }
        }
        for (other, before) in outputs[..index].iter().enumerate() {
            if touch(output, before) {
                return clash(index, format!("output {other}"));
            }
        }
    }
    Ok(())
}

impl Rule<'_> {
    fn arity(&self, least: usize, most: usize, needed: &'static str) -> Result<(), TensorError> {
        let found = self.inputs.len();
        if (least..=most).contains(&found) {
            return Ok(());
        }
        Err(TensorError::Arity { op: self.op, what: "inputs", needed, found })
    }

    fn parameter(&self, ok: bool, what: impl FnOnce() -> String) -> Result<(), TensorError> {
        if ok { Ok(()) } else { Err(TensorError::Parameter { op: self.op, what: what() }) }
    }

    fn require(&self, index: usize, ok: bool, needed: impl FnOnce() -> String) -> Result<(), TensorError> {
        if ok { Ok(()) } else { Err(self.wrong(index, needed())) }
    }

    fn wrong(&self, index: usize, needed: impl Into<String>) -> TensorError {
        let (operand, found) = (format!("input {index}"), self.inputs[index].to_string());
        TensorError::Operand { op: self.op, operand, found, needed: needed.into() }
    }

    /// The float type of an input.
    fn float(&self, index: usize) -> Result<DType, TensorError> {
        let dtype = self.inputs[index].dtype();
        self.require(index, dtype.is_float(), || "F32, F16 or BF16".to_owned())?;
        Ok(dtype)
    }

    /// An input of exactly this type and shape.
    fn exact(&self, index: usize, dtype: DType, shape: &[usize]) -> Result<(), TensorError> {
        let view = self.inputs[index];
        self.require(index, view.dtype() == dtype && view.shape() == shape, || {
            format!("{dtype} {}", shape_text(shape))
        })
    }

    /// Float rows: their type, the outer axes and the length of a row.
    fn row_type(&self, index: usize) -> Result<(DType, &[usize], usize), TensorError> {
        let dtype = self.float(index)?;
        let axes = self.inputs[index].shape().split_last();
        let (cols, outer) = axes.ok_or_else(|| self.wrong(index, "rows: at least one axis"))?;
        Ok((dtype, outer, *cols))
    }

    fn element_wise(&self, count: usize, needed: &'static str) -> Result<Vec<View>, TensorError> {
        self.arity(count, count, needed)?;
        let dtype = self.float(0)?;
        let shape = self.inputs[0].shape();
        for index in 1..count {
            self.exact(index, dtype, shape)?;
        }
        Ok(vec![View::contiguous(dtype, shape)?])
    }

    /// `(x, residual?, w, b?)`, one output for each of the first two.
    fn norm(&self, eps: f32, rows: usize, vectors: usize) -> Result<Vec<View>, TensorError> {
        let count = rows + vectors;
        self.arity(count, count, ["2", "3", "4"][count.clamp(2, 4) - 2])?;
        self.parameter(eps.is_finite() && eps >= 0.0, || format!("epsilon {eps}"))?;
        let (dtype, _, cols) = self.row_type(0)?;
        let shape = self.inputs[0].shape();
        for index in 1..count {
            self.exact(index, dtype, if index < rows { shape } else { std::slice::from_ref(&cols) })?;
        }
        Ok(vec![View::contiguous(dtype, shape)?; rows])
    }

    fn matmul(&self) -> Result<Vec<View>, TensorError> {
        self.arity(2, 2, "2")?;
        let dtype = self.float(0)?;
        let (a, b) = (self.inputs[0], self.inputs[1]);
        let ([outer @ .., m, k], 2..) = (a.shape(), a.rank()) else {
            return Err(self.wrong(0, "a matrix [.., m, k]"));
        };
        let needed =
            || format!("{dtype} or quantised {} with any n", shape_text(&[outer, &[*k, 0]].concat()));
        let right_type = b.dtype() == dtype || b.dtype().is_quantized();
        let ([b_outer @ .., b_k, n], true) = (b.shape(), right_type) else {
            return Err(self.wrong(1, needed()));
        };
        self.require(1, b_outer == outer && b_k == k, needed)?;
        if b.dtype().is_quantized() && !b.is_empty() {
            let along_k = b.strides()[b.rank() - 2] == 1;
            self.require(1, along_k, || "a quantised matrix [n, k] seen transposed".to_owned())?;
        }
        Ok(vec![View::contiguous(dtype, &[outer, &[*m, *n]].concat())?])
    }

    fn rope(&self, rope: &Rope) -> Result<Vec<View>, TensorError> {
        self.arity(3, 3, "3")?;
        let dtype = self.float(0)?;
        self.parameter(rope.magnitude.is_finite(), || format!("magnitude {}", rope.magnitude))?;
        let shape = self.inputs[0].shape();
        let heads = shape.len() == 3 && shape[2] == rope.head_dim;
        self.require(0, heads, || format!("[tokens, heads, {}]", rope.head_dim))?;
        self.exact(1, DType::U32, &shape[..1])?;
        let freqs = self.inputs[2];
        let fits = freqs.dtype() == DType::F32 && freqs.rank() == 1 && freqs.elements() <= rope.head_dim / 2;
        self.require(2, fits, || format!("F32 frequencies, at most [{}]", rope.head_dim / 2))?;
        Ok(vec![View::contiguous(dtype, shape)?])
    }

    fn sdpa(&self, sdpa: &Sdpa) -> Result<Vec<View>, TensorError> {
        self.arity(3, 4, "3 or 4")?;
        let dtype = self.float(0)?;
        self.parameter(sdpa.scale.is_finite(), || format!("scale {}", sdpa.scale))?;
        self.parameter(sdpa.mask != super::Mask::Window(0), || "a window of 0".to_owned())?;
        let cap_ok = sdpa.softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0);
        self.parameter(cap_ok, || format!("cap {:?}", sdpa.softcap))?;
        let &[heads, _, d] = self.inputs[0].shape() else {
            return Err(self.wrong(0, "[heads, m, d]"));
        };
        let keys = self.inputs[1];
        let needed = || format!("{dtype} [kv_heads, n, {d}] with kv_heads a divisor of {heads}");
        let fits = matches!(keys.shape(), [kv, _, k] if *k == d && *kv > 0 && heads.is_multiple_of(*kv));
        self.require(1, fits && keys.dtype() == dtype, needed)?;
        self.exact(2, dtype, keys.shape())?;
        if self.inputs.len() == 4 {
            self.exact(3, DType::F32, &[heads])?;
        }
        Ok(vec![View::contiguous(dtype, self.inputs[0].shape())?])
    }

    fn sample(&self, sample: &Sample) -> Result<Vec<View>, TensorError> {
        self.arity(1, 2, "1 or 2")?;
        if let Err(error) = sample.choice(0).validate() {
            self.parameter(false, || error.to_string())?;
        }
        let (_, outer, n) = self.row_type(0)?;
        let rows = outer.len() == 1 && n > 0 && indexed(n) && indexed(outer[0]);
        self.require(0, rows, || format!("logits [rows, n] of 1 to {} tokens", u32::MAX))?;
        if self.inputs.len() == 2 {
            self.exact(1, DType::U32, self.inputs[0].shape())?;
        } else {
            self.parameter(!sample.has_penalties(), || "penalties without counts".to_owned())?;
        }
        Ok(vec![View::contiguous(DType::U32, outer)?])
    }
}
