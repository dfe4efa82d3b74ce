//! The typing rule of every operation: input types to output type, or what is wrong with them.

use crate::op::source_axis;
use crate::{DType, Dim, Op, Project, Rope, Shape, TensorType};

/// Why an operation cannot take these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// The number of inputs is wrong.
    #[error("`{op}` takes {needed} inputs, it was given {found}")]
    Arity {
        /// The operation.
        op: &'static str,
        /// Inputs it takes.
        needed: usize,
        /// Inputs it was given.
        found: usize,
    },
    /// An input's type does not fit.
    #[error("input {index} of `{op}` is {found}, it needs {needed}")]
    Input {
        /// The operation.
        op: &'static str,
        /// Which input.
        index: usize,
        /// Its type.
        found: Box<TensorType>,
        /// What would fit.
        needed: String,
    },
    /// The operation's own numbers make no sense.
    #[error("`{op}` cannot have {what}")]
    Parameter {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// The inputs of one node while its rule is applied.
struct Rule<'a> {
    op: &'static str,
    inputs: &'a [TensorType],
}

impl Rule<'_> {
    fn arity(&self, needed: usize) -> Result<(), TypeError> {
        let found = self.inputs.len();
        if found == needed { Ok(()) } else { Err(TypeError::Arity { op: self.op, needed, found }) }
    }

    fn wrong(&self, index: usize, needed: impl Into<String>) -> TypeError {
        TypeError::Input { op: self.op, index, found: Box::new(self.inputs[index]), needed: needed.into() }
    }

    /// An activation: `F32` rows.
    fn activation(&self, index: usize) -> Result<Shape, TypeError> {
        let ty = self.inputs[index];
        let rank_ok = (1..=3).contains(&ty.shape.dims().len());
        if ty.dtype == DType::F32 && rank_ok { Ok(ty.shape) } else { Err(self.wrong(index, "F32 rows")) }
    }

    /// An activation of exactly `cols` columns and the leading axis of the tokens.
    fn token_rows(&self, index: usize, cols: usize) -> Result<(), TypeError> {
        let needed = TensorType::f32(Shape::matrix(Dim::Tokens, cols));
        self.exact(index, needed)
    }

    fn exact(&self, index: usize, needed: TensorType) -> Result<(), TypeError> {
        if self.inputs[index] == needed { Ok(()) } else { Err(self.wrong(index, needed.to_string())) }
    }

    /// A vector of `len` floats, such as a norm's weight or a bias.
    fn vector(&self, index: usize, len: usize) -> Result<(), TypeError> {
        let ty = self.inputs[index];
        if ty.dtype.is_float() && ty.shape == Shape::vector(len) {
            return Ok(());
        }
        Err(self.wrong(index, format!("a float vector [{len}]")))
    }

    /// A matrix `[n, k]` of any weight type; returns `n`.
    fn matrix(&self, index: usize, k: usize) -> Result<usize, TypeError> {
        let ty = self.inputs[index];
        match ty.shape.dims() {
            [Dim::Fixed(n), Dim::Fixed(found)]
                if *found == k && (ty.dtype.is_float() || ty.dtype.is_quantized()) =>
            {
                Ok(*n)
            }
            _ => Err(self.wrong(index, format!("a matrix [n, {k}]"))),
        }
    }

    fn ids(&self, index: usize) -> Result<Dim, TypeError> {
        let ty = self.inputs[index];
        match ty.shape.dims() {
            [axis] if ty.dtype == DType::U32 => Ok(*axis),
            _ => Err(self.wrong(index, "a vector of U32")),
        }
    }

    fn rope(&self, rope: &Rope, positions: usize, freqs: usize) -> Result<(), TypeError> {
        if self.ids(positions)? != Dim::Tokens {
            return Err(self.wrong(positions, "U32 [tokens]"));
        }
        let ty = self.inputs[freqs];
        match ty.shape.dims() {
            [Dim::Fixed(pairs)] if ty.dtype == DType::F32 && pairs * 2 <= rope.head_dim => Ok(()),
            _ => Err(self.wrong(freqs, format!("F32 frequencies, at most [{}]", rope.head_dim / 2))),
        }
    }

    fn parameter(&self, ok: bool, what: impl FnOnce() -> String) -> Result<(), TypeError> {
        if ok { Ok(()) } else { Err(TypeError::Parameter { op: self.op, what: what() }) }
    }

    fn eps(&self, eps: f32) -> Result<(), TypeError> {
        self.parameter(eps.is_finite() && eps >= 0.0, || format!("epsilon {eps}"))
    }

    fn project(&self, spec: &Project) -> Result<TensorType, TypeError> {
        let at = spec.inputs();
        self.arity(at.count)?;
        self.parameter(spec.parts > 0, || "no matrix".to_owned())?;
        let x = self.activation(0)?;
        if let (Some(eps), Some(norm)) = (spec.norm, at.norm) {
            self.eps(eps)?;
            self.vector(norm, x.cols())?;
        }
        let mut cols = 0;
        for part in 0..spec.parts {
            let n = self.matrix(at.weights + part, x.cols())?;
            if let Some(biases) = at.biases {
                self.vector(biases + part, n)?;
            }
            cols += n;
        }
        let out = TensorType::f32(x.with_cols(cols));
        if let Some(residual) = at.residual {
            self.exact(residual, out)?;
        }
        Ok(out)
    }
}

/// The type of the receipt a cache write gives, which orders attention after it.
pub(crate) fn receipt() -> TensorType {
    TensorType::new(DType::U32, Shape::vector(0))
}

/// The type of `op`'s result on these inputs; `weight` is the type of the weight an [`Op::Weight`] names.
pub(crate) fn infer(
    op: &Op,
    inputs: &[TensorType],
    weight: Option<TensorType>,
) -> Result<TensorType, TypeError> {
    let rule = Rule { op: op.name(), inputs };
    if let Some(axis) = source_axis(op) {
        rule.arity(0)?;
        return Ok(TensorType::new(DType::U32, Shape::vector(axis)));
    }
    match op {
        Op::Tokens | Op::Positions | Op::OutputRows | Op::Weight(_) => {
            weight.ok_or(TypeError::Parameter { op: rule.op, what: "an unknown weight".to_owned() })
        }
        Op::Embed => {
            rule.arity(2)?;
            let cols = inputs[0].shape.cols();
            rule.matrix(0, cols)?;
            Ok(TensorType::f32(Shape::matrix(rule.ids(1)?, cols)))
        }
        Op::SelectRows => {
            rule.arity(2)?;
            let x = rule.activation(0)?;
            rule.token_rows(0, x.cols())?;
            Ok(TensorType::f32(Shape::matrix(rule.ids(1)?, x.cols())))
        }
        Op::Slice { start, len } => {
            rule.arity(1)?;
            let x = rule.activation(0)?;
            let inside = start.checked_add(*len).is_some_and(|end| end <= x.cols());
            rule.parameter(inside, || format!("columns {start}..+{len} of {}", x.cols()))?;
            Ok(TensorType::f32(x.with_cols(*len)))
        }
        Op::Unary(_) | Op::Softmax => {
            rule.arity(1)?;
            Ok(TensorType::f32(rule.activation(0)?))
        }
        Op::Scale(by) => {
            rule.arity(1)?;
            rule.parameter(by.is_finite(), || format!("factor {by}"))?;
            Ok(TensorType::f32(rule.activation(0)?))
        }
        Op::Softcap(cap) => {
            rule.arity(1)?;
            rule.parameter(cap.is_finite() && *cap > 0.0, || format!("cap {cap}"))?;
            Ok(TensorType::f32(rule.activation(0)?))
        }
        Op::Binary(_) => {
            rule.arity(2)?;
            let a = rule.activation(0)?;
            if inputs[1] != inputs[0] {
                rule.vector(1, a.cols())
                    .map_err(|_| rule.wrong(1, format!("{} or one row of it", inputs[0])))?;
            }
            Ok(TensorType::f32(a))
        }
        Op::RmsNorm { eps } => {
            rule.arity(2)?;
            rule.eps(*eps)?;
            let x = rule.activation(0)?;
            rule.vector(1, x.cols())?;
            Ok(TensorType::f32(x))
        }
        Op::Linear => {
            rule.arity(2)?;
            let x = rule.activation(0)?;
            let n = rule.matrix(1, x.cols())?;
            Ok(TensorType::f32(x.with_cols(n)))
        }
        Op::Rope(rope) => {
            rule.arity(3)?;
            let x = rule.activation(0)?;
            let whole = rope.head_dim > 0 && x.cols().is_multiple_of(rope.head_dim);
            rule.parameter(whole, || format!("heads of {} in rows of {}", rope.head_dim, x.cols()))?;
            rule.token_rows(0, x.cols())?;
            rule.rope(rope, 1, 2)?;
            Ok(TensorType::f32(x))
        }
        Op::KvWrite { .. } => {
            rule.arity(2)?;
            let k = rule.activation(0)?;
            rule.token_rows(0, k.cols())?;
            rule.token_rows(1, k.cols())?;
            Ok(receipt())
        }
        Op::Attention(a) => {
            rule.arity(2)?;
            let grouped = a.kv_heads > 0 && a.heads > 0 && a.heads.is_multiple_of(a.kv_heads);
            rule.parameter(grouped, || format!("{} heads on {} kv heads", a.heads, a.kv_heads))?;
            rule.parameter(a.window != Some(0), || "a window of 0".to_owned())?;
            rule.token_rows(0, a.heads * a.head_dim)?;
            Ok(inputs[0])
        }
        Op::Project(spec) => rule.project(spec),
        Op::GatedProject { norm, .. } => {
            let spec = Project { norm: *norm, parts: 2, bias: false, residual: false };
            let both = rule.project(&spec)?;
            let at = spec.inputs().weights;
            if inputs[at].shape != inputs[at + 1].shape {
                return Err(rule.wrong(at + 1, inputs[at].shape.to_string()));
            }
            Ok(TensorType::f32(both.shape.with_cols(both.shape.cols() / 2)))
        }
        Op::Qkv(spec) => {
            let project = spec.project();
            let (at, cols) = (project.inputs(), spec.cols());
            rule.arity(spec.freqs() + 1)?;
            let product = Rule { op: rule.op, inputs: &inputs[..at.count] }.project(&project)?;
            for (part, needed) in cols.into_iter().enumerate() {
                let index = at.weights + part;
                if inputs[index].shape.leading() != Dim::Fixed(needed) {
                    return Err(rule.wrong(index, format!("a matrix [{needed}, {}]", inputs[0].shape.cols())));
                }
            }
            if product.shape.leading() != Dim::Tokens {
                return Err(rule.wrong(0, "F32 [tokens, k]"));
            }
            rule.rope(&spec.rope, spec.positions(), spec.freqs())?;
            Ok(TensorType::f32(Shape::matrix(Dim::Tokens, cols[0])))
        }
    }
}
