//! The typing rule of every operation: input types to output type, or what is wrong with them.

use crate::{Attention, DType, Dim, Op, Project, Qkv, Recurrence, Rope, Sdpa, Shape, TensorType};

/// Why an operation cannot take these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TypeError {
    /// The number of inputs is wrong.
    #[error("`{op}` takes {needed} inputs, it was given {found}")]
    Arity { op: &'static str, needed: String, found: usize },
    /// An input's type does not fit.
    #[error("input {index} of `{op}` is {found}, it needs {needed}")]
    Input { op: &'static str, index: usize, found: Box<TensorType>, needed: String },
    /// The operation's own numbers make no sense.
    #[error("`{op}` cannot have {what}")]
    Parameter { op: &'static str, what: String },
}

/// The inputs of one operation while its rule is applied.
struct Rule<'a> {
    op: &'static str,
    inputs: &'a [TensorType],
}

/// The result of a rule that only checks.
type Checked = Result<(), TypeError>;

impl Rule<'_> {
    /// The rule of an operation with so many inputs.
    fn of(&self, needed: usize) -> Result<&Self, TypeError> {
        self.arity_within(needed..=needed)?;
        Ok(self)
    }

    fn arity_within(&self, needed: std::ops::RangeInclusive<usize>) -> Checked {
        let found = self.inputs.len();
        if needed.contains(&found) {
            return Ok(());
        }
        let (least, most) = (needed.start(), needed.end());
        let needed = if least == most { least.to_string() } else { format!("{least} or {most}") };
        Err(TypeError::Arity { op: self.op, needed, found })
    }

    fn wrong(&self, index: usize, needed: impl Into<String>) -> TypeError {
        TypeError::Input { op: self.op, index, found: Box::new(self.inputs[index]), needed: needed.into() }
    }

    fn require(&self, index: usize, ok: bool, needed: impl FnOnce() -> String) -> Checked {
        if ok { Ok(()) } else { Err(self.wrong(index, needed())) }
    }

    fn parameter(&self, ok: bool, what: impl FnOnce() -> String) -> Checked {
        if ok { Ok(()) } else { Err(TypeError::Parameter { op: self.op, what: what() }) }
    }

    /// An activation.
    fn activation(&self, index: usize) -> Result<TensorType, TypeError> {
        let ty = self.inputs[index];
        if ty.dtype.is_float() { Ok(ty) } else { Err(self.wrong(index, "floats")) }
    }

    /// An activation with rows: at least one axis, the last of a fixed length.
    fn rows(&self, index: usize) -> Result<TensorType, TypeError> {
        let ty = self.activation(index)?;
        match ty.shape.dims().last() {
            Some(Dim::Fixed(_)) => Ok(ty),
            Some(Dim::Tokens | Dim::Outputs) | None => Err(self.wrong(index, "floats in rows")),
        }
    }

    /// An activation `[rows, cols]`; returns its rows.
    fn matrix_rows(&self, index: usize) -> Result<Dim, TypeError> {
        let ty = self.rows(index)?;
        match ty.shape.dims() {
            [rows, _] => Ok(*rows),
            _ => Err(self.wrong(index, "floats [rows, columns]")),
        }
    }

    fn exact(&self, index: usize, needed: TensorType) -> Checked {
        self.require(index, self.inputs[index] == needed, || needed.to_string())
    }

    /// An activation of the first input's type and leading axis, of so many columns.
    fn beside_first(&self, index: usize, cols: usize) -> Checked {
        let first = self.inputs[0];
        self.exact(index, TensorType::new(first.dtype, Shape::matrix(first.shape.leading(), cols)))
    }

    /// `T [tokens, cols]`
    fn token_rows(&self, index: usize, cols: usize) -> Checked {
        let needed = TensorType::new(self.activation(index)?.dtype, Shape::matrix(Dim::Tokens, cols));
        self.exact(index, needed)
    }

    /// A vector of `len` floats, such as a norm's weight or a bias.
    fn vector(&self, index: usize, len: usize) -> Checked {
        let ty = self.inputs[index];
        let fits = ty.dtype.is_float() && ty.shape == Shape::vector(len);
        self.require(index, fits, || format!("a float vector [{len}]"))
    }

    /// A matrix `[n, k]` of any weight type; returns `n`.
    fn matrix(&self, index: usize, k: usize) -> Result<usize, TypeError> {
        let ty = self.inputs[index];
        match ty.shape.dims() {
            [Dim::Fixed(n), Dim::Fixed(found)] if *found == k && is_number(ty.dtype) => Ok(*n),
            _ => Err(self.wrong(index, format!("a matrix [n, {k}]"))),
        }
    }

    /// A vector of `U32`; returns its length.
    fn ids(&self, index: usize) -> Result<Dim, TypeError> {
        let ty = self.inputs[index];
        match ty.shape.dims() {
            [axis] if ty.dtype == DType::U32 => Ok(*axis),
            _ => Err(self.wrong(index, "a vector of U32")),
        }
    }

    /// `U32 [rows, k]`, one row of indices for each row of the first input; returns `k`.
    fn ids_of_rows(&self, index: usize) -> Result<usize, TypeError> {
        let (ty, first) = (self.inputs[index], self.inputs[0].shape);
        let k = ty.shape.cols();
        let needed = TensorType::new(DType::U32, first.with_cols(k));
        self.require(index, ty == needed && k > 0, || format!("U32 indices {}", first.with_cols(k)))?;
        Ok(k)
    }

    /// Columns of so many heads, each of `dim` elements; there must be some.
    fn heads(&self, heads: usize, dim: usize) -> Result<usize, TypeError> {
        let cols = heads.checked_mul(dim).filter(|cols| *cols > 0);
        cols.ok_or_else(|| TypeError::Parameter { op: self.op, what: format!("{heads} heads of {dim}") })
    }

    fn eps(&self, eps: f32) -> Checked {
        self.parameter(eps.is_finite() && eps >= 0.0, || format!("epsilon {eps}"))
    }

    fn softcap(&self, cap: Option<f32>) -> Checked {
        let fits = cap.is_none_or(|cap| cap.is_finite() && cap > 0.0);
        self.parameter(fits, || format!("cap {}", cap.unwrap_or_default()))
    }

    fn same_as_first(&self, count: usize) -> Result<TensorType, TypeError> {
        let first = self.of(count)?.activation(0)?;
        (1..count).try_for_each(|index| self.exact(index, first))?;
        Ok(first)
    }

    fn rms_norm(&self, eps: f32, groups: usize) -> Result<TensorType, TypeError> {
        self.of(2)?.eps(eps)?;
        let x = self.rows(0)?;
        let cols = x.shape.cols();
        let whole = groups > 0 && cols > 0 && cols.is_multiple_of(groups);
        self.parameter(whole, || format!("{groups} parts of rows of {cols}"))?;
        self.vector(1, cols / groups)
            .or_else(|error| if groups > 1 { self.vector(1, cols).map_err(|_| error) } else { Err(error) })?;
        Ok(x)
    }

    /// `x [.., m, k]` with `w [n, k]`, or with `w [.., n, k]`.
    fn linear(&self) -> Result<TensorType, TypeError> {
        let (x, w) = (self.of(2)?.rows(0)?, self.inputs[1]);
        let (k, dims) = (x.shape.cols(), x.shape.dims());
        if w.shape.dims().len() == 2 {
            return Ok(x.with_cols(self.matrix(1, k)?));
        }
        let outer = dims.len().saturating_sub(2);
        let needed = || format!("a matrix [n, {k}], or one for each of {}", x.shape);
        let [w_outer @ .., Dim::Fixed(n), Dim::Fixed(found)] = w.shape.dims() else {
            return Err(self.wrong(1, needed()));
        };
        let fits = outer > 0 && *w_outer == dims[..outer] && *found == k && is_number(w.dtype);
        self.require(1, fits, needed)?;
        Ok(x.with_cols(*n))
    }

    fn expert_linear(&self) -> Result<TensorType, TypeError> {
        let (rows, x, w) = (self.of(3)?.matrix_rows(0)?, self.inputs[0], self.inputs[1]);
        let [Dim::Fixed(_), Dim::Fixed(n), Dim::Fixed(k)] = *w.shape.dims() else {
            return Err(self.wrong(1, "matrices [experts, n, k]"));
        };
        self.require(1, is_number(w.dtype), || "matrices of numbers".to_owned())?;
        let choices = self.ids_of_rows(2)?;
        let fits = x.shape.cols() == k || x.shape.cols() == choices.saturating_mul(k);
        self.require(0, fits, || format!("rows of {k}, or of {choices} times that"))?;
        Ok(TensorType::new(x.dtype, Shape::matrix(rows, choices.saturating_mul(n))))
    }

    fn rope(&self, rope: &Rope, positions: usize, freqs: usize) -> Checked {
        self.parameter(rope.magnitude.is_finite(), || format!("magnitude {}", rope.magnitude))?;
        let axis = self.inputs[0].shape.leading();
        self.exact(positions, TensorType::new(DType::U32, Shape::vector(axis)))?;
        let ty = self.inputs[freqs];
        match ty.shape.dims() {
            [Dim::Fixed(pairs)] if ty.dtype == DType::F32 && pairs * 2 <= rope.head_dim => Ok(()),
            _ => Err(self.wrong(freqs, format!("F32 frequencies, at most [{}]", rope.head_dim / 2))),
        }
    }

    fn attention(&self, a: &Attention) -> Result<TensorType, TypeError> {
        self.of(2 + usize::from(a.sinks))?;
        let grouped = a.kv_heads > 0 && a.heads > 0 && a.heads.is_multiple_of(a.kv_heads);
        self.parameter(grouped, || format!("{} heads on {} kv heads", a.heads, a.kv_heads))?;
        self.parameter(a.window != Some(0), || "a window of 0".to_owned())?;
        self.parameter(a.scale.is_finite(), || format!("scale {}", a.scale))?;
        self.softcap(a.softcap)?;
        self.token_rows(0, self.heads(a.heads, a.head_dim)?)?;
        if a.sinks {
            self.vector(2, a.heads)?;
        }
        Ok(self.inputs[0].with_cols(self.heads(a.heads, a.value_dim)?))
    }

    fn sdpa(&self, sdpa: &Sdpa) -> Result<TensorType, TypeError> {
        self.arity_within(3..=4)?;
        let q = self.activation(0)?;
        self.parameter(sdpa.scale.is_finite(), || format!("scale {}", sdpa.scale))?;
        self.parameter(sdpa.mask != crate::Mask::Window(0), || "a window of 0".to_owned())?;
        self.softcap(sdpa.softcap)?;
        let [Dim::Fixed(heads), _, Dim::Fixed(d)] = *q.shape.dims() else {
            return Err(self.wrong(0, "floats [heads, m, d]"));
        };
        let keys = self.inputs[1];
        let shared = |kv: usize| kv > 0 && heads.is_multiple_of(kv);
        let fits = matches!(keys.shape.dims(), [Dim::Fixed(kv), _, Dim::Fixed(k)] if *k == d && shared(*kv));
        self.require(1, fits && keys.dtype == q.dtype, || {
            format!("{} [kv_heads, n, {d}] with kv_heads a divisor of {heads}", q.dtype)
        })?;
        self.exact(2, keys)?;
        if self.inputs.len() == 4 {
            self.vector(3, heads)?;
        }
        Ok(q)
    }

    fn recurrence(&self, r: &Recurrence) -> Result<TensorType, TypeError> {
        self.of(5)?;
        let whole = r.heads > 0 && r.key_dim > 0 && r.value_dim > 0;
        self.parameter(whole, || format!("{} heads of {} and {}", r.heads, r.key_dim, r.value_dim))?;
        let shared = r.key_heads > 0 && r.heads.is_multiple_of(r.key_heads);
        self.parameter(shared, || format!("{} heads that share {} of keys", r.heads, r.key_heads))?;
        self.token_rows(0, self.heads(r.key_heads, r.key_dim)?)?;
        let inputs = [(r.key_heads, r.key_dim), (r.heads, r.value_dim), (r.heads, 1), (r.heads, 1)];
        for (index, (heads, cols)) in inputs.into_iter().enumerate() {
            self.beside_first(index + 1, self.heads(heads, cols)?)?;
        }
        Ok(self.inputs[2])
    }

    /// Float rows of 1 to [`u32::MAX`] numbers, and the type without the last axis.
    fn ranked(&self, least: usize) -> Result<Shape, TypeError> {
        let x = self.rows(0)?;
        let n = x.shape.cols();
        let counted = n >= least && u32::try_from(n).is_ok();
        self.require(0, counted, || format!("rows of {least} to {} numbers", u32::MAX))?;
        Ok(x.shape)
    }

    fn project(&self, spec: &Project) -> Result<TensorType, TypeError> {
        let at = spec.inputs();
        self.of(at.count)?.parameter(spec.parts > 0, || "no matrix".to_owned())?;
        let x = self.rows(0)?;
        if let (Some(eps), Some(norm)) = (spec.norm, at.norm) {
            self.eps(eps)?;
            self.vector(norm, x.shape.cols())?;
        }
        let mut cols = 0;
        for part in 0..spec.parts {
            let n = self.matrix(at.weights + part, x.shape.cols())?;
            if let Some(biases) = at.biases {
                self.vector(biases + part, n)?;
            }
            cols += n;
        }
        let out = x.with_cols(cols);
        if let Some(residual) = at.residual {
            self.exact(residual, out)?;
        }
        Ok(out)
    }

    fn qkv(&self, spec: &Qkv) -> Result<TensorType, TypeError> {
        let project = spec.project();
        self.heads(spec.heads, spec.rope.head_dim)?;
        self.heads(spec.kv_heads, spec.rope.head_dim)?;
        let (at, cols) = (project.inputs(), spec.cols());
        self.of(spec.freqs() + 1)?;
        let product = Rule { op: self.op, inputs: &self.inputs[..at.count] }.project(&project)?;
        for (part, needed) in cols.into_iter().enumerate() {
            let index = at.weights + part;
            let fits = self.inputs[index].shape.leading() == Dim::Fixed(needed);
            self.require(index, fits, || format!("a matrix [{needed}, {}]", self.inputs[0].shape.cols()))?;
        }
        if let (Some(eps), Some(first)) = (spec.head_norm, spec.head_norms()) {
            self.eps(eps)?;
            self.vector(first, spec.rope.head_dim)?;
            self.vector(first + 1, spec.rope.head_dim)?;
        }
        self.require(0, product.shape.leading() == Dim::Tokens, || "floats [tokens, k]".to_owned())?;
        self.rope(&spec.rope, spec.positions(), spec.freqs())?;
        Ok(product.with_cols(cols[0]))
    }
}

/// Whether elements of this type stand for real numbers.
fn is_number(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_quantized()
}

/// The type of the receipt a cache write gives, which orders attention after it.
pub(crate) fn receipt() -> TensorType {
    TensorType::new(DType::U32, Shape::vector(0))
}

fn source(rule: &Rule<'_>, axis: Dim) -> Result<TensorType, TypeError> {
    rule.of(0)?;
    Ok(TensorType::new(DType::U32, Shape::vector(axis)))
}

/// The type of `op`'s result on these inputs. A weight's type is its own, so [`Op::Weight`] has none here.
pub fn infer(op: &Op, inputs: &[TensorType]) -> Result<TensorType, TypeError> {
    let rule = Rule { op: op.name(), inputs };
    match op {
        Op::Tokens | Op::Positions => source(&rule, Dim::Tokens),
        Op::OutputRows | Op::Choices => source(&rule, Dim::Outputs),
        Op::Adapters { count } => {
            rule.of(0)?.parameter(*count > 0, || "none".to_owned())?;
            Ok(TensorType::f32(Shape::matrix(Dim::Tokens, *count)))
        }
        Op::Weight(_) => {
            Err(TypeError::Parameter { op: rule.op, what: "a type that inputs decide".to_owned() })
        }
        Op::Embed(dtype) => {
            rule.of(2)?.parameter(dtype.is_float(), || format!("rows of {dtype}"))?;
            let cols = inputs[0].shape.cols();
            rule.matrix(0, cols)?;
            let ids = inputs[1];
            let several = match ids.shape.dims() {
                [_, Dim::Fixed(several)] if ids.dtype == DType::U32 => cols.checked_mul(*several),
                _ => return Ok(TensorType::new(*dtype, Shape::matrix(rule.ids(1)?, cols))),
            };
            let several = several.ok_or_else(|| rule.wrong(1, "fewer indices"))?;
            Ok(TensorType::new(*dtype, ids.shape.with_cols(several)))
        }
        Op::SelectRows => {
            rule.of(2)?.matrix_rows(0)?;
            Ok(TensorType::new(inputs[0].dtype, Shape::matrix(rule.ids(1)?, inputs[0].shape.cols())))
        }
        Op::Slice { start, len } => {
            let x = rule.of(1)?.rows(0)?;
            let cols = x.shape.cols();
            let inside = start.checked_add(*len).is_some_and(|end| end <= cols);
            rule.parameter(inside, || format!("columns {start}..+{len} of {cols}"))?;
            Ok(x.with_cols(*len))
        }
        Op::Gather => Ok(rule.of(2)?.rows(0)?.with_cols(rule.ids_of_rows(1)?)),
        Op::Cast(dtype) => {
            rule.of(1)?.parameter(dtype.is_float(), || format!("results of {dtype}"))?;
            Ok(TensorType::new(*dtype, rule.activation(0)?.shape))
        }
        Op::Unary(_) => rule.same_as_first(1),
        Op::Scalar { value, .. } => {
            rule.parameter(!value.is_nan(), || "no number".to_owned())?;
            rule.same_as_first(1)
        }
        Op::Softcap(cap) => {
            rule.softcap(Some(*cap))?;
            rule.same_as_first(1)
        }
        Op::Binary(_) => {
            let a = rule.of(2)?.activation(0)?;
            if inputs[1] != a {
                rule.vector(1, a.shape.cols()).map_err(|_| rule.wrong(1, format!("{a} or one row of it")))?;
            }
            Ok(a)
        }
        Op::Gated(_) => rule.same_as_first(2),
        Op::RmsNorm { eps, groups } => rule.rms_norm(*eps, *groups),
        Op::LayerNorm { eps } => {
            rule.arity_within(2..=3)?;
            rule.eps(*eps)?;
            let x = rule.rows(0)?;
            (1..inputs.len()).try_for_each(|index| rule.vector(index, x.shape.cols()))?;
            Ok(x)
        }
        Op::Softmax => rule.of(1)?.rows(0),
        Op::Linear => rule.linear(),
        Op::ExpertLinear => rule.expert_linear(),
        Op::Combine => {
            let (rows, x, choices) = (rule.of(2)?.matrix_rows(0)?, inputs[0], inputs[1].shape.cols());
            let whole = choices > 0 && x.shape.cols().is_multiple_of(choices);
            rule.require(1, whole, || format!("weights for parts of rows of {}", x.shape.cols()))?;
            rule.beside_first(1, choices)?;
            Ok(TensorType::new(x.dtype, Shape::matrix(rows, x.shape.cols() / choices)))
        }
        Op::Rope(rope) => {
            rule.of(3)?.matrix_rows(0)?;
            let x = inputs[0];
            let whole = rope.head_dim > 0 && x.shape.cols().is_multiple_of(rope.head_dim);
            rule.parameter(whole, || format!("heads of {} in rows of {}", rope.head_dim, x.shape.cols()))?;
            rule.rope(rope, 1, 2)?;
            Ok(x)
        }
        Op::KvWrite { kv_heads, .. } => {
            let (k, v) = (rule.of(2)?.rows(0)?.shape.cols(), rule.rows(1)?.shape.cols());
            let whole = *kv_heads > 0 && k.is_multiple_of(*kv_heads) && v.is_multiple_of(*kv_heads);
            rule.parameter(whole, || format!("{kv_heads} heads in rows of {k} and {v}"))?;
            rule.token_rows(0, k)?;
            rule.beside_first(1, v)?;
            Ok(receipt())
        }
        Op::Attention(a) => rule.attention(a),
        Op::Sdpa(sdpa) => rule.sdpa(sdpa),
        Op::ShortConv { .. } => {
            let cols = rule.of(2)?.rows(0)?.shape.cols();
            rule.token_rows(0, cols)?;
            let w = inputs[1];
            let fits =
                matches!(w.shape.dims(), [Dim::Fixed(d), Dim::Fixed(width)] if *d == cols && d * width > 0);
            rule.require(1, fits && w.dtype.is_float(), || format!("floats [{cols}, width]"))?;
            Ok(inputs[0])
        }
        Op::Recurrence(r) => rule.recurrence(r),
        Op::Argmax => Ok(TensorType::new(DType::U32, rule.of(1)?.ranked(1)?.without_cols())),
        Op::TopK { k } => {
            rule.of(1)?.parameter(*k > 0, || "k of 0".to_owned())?;
            Ok(TensorType::new(DType::U32, rule.ranked(*k)?.with_cols(*k)))
        }
        Op::Sample => {
            let rows = rule.of(2)?.matrix_rows(0)?;
            rule.ranked(1)?;
            rule.require(0, inputs[0].dtype == DType::F32, || "F32 logits [rows, n]".to_owned())?;
            rule.ids(1)?;
            Ok(TensorType::new(DType::U32, Shape::vector(rows)))
        }
        Op::Project(spec) => rule.project(spec),
        Op::GatedProject { norm, .. } => {
            let spec = Project { norm: *norm, parts: 2, ..Project::PLAIN };
            let both = rule.project(&spec)?;
            let at = spec.inputs().weights;
            let alike = inputs[at].shape == inputs[at + 1].shape;
            rule.require(at + 1, alike, || inputs[at].shape.to_string())?;
            Ok(both.with_cols(both.shape.cols() / 2))
        }
        Op::Qkv(spec) => rule.qkv(spec),
    }
}
