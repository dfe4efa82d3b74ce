//! Operations. Each one runs on the device and gives a new tensor, contiguous in a memory of its own.

use metallic_core::Op;
use metallic_core::sample::{Choices, Edit};

use super::{Binary, Choice, DType, Error, Rope, Sdpa, Tensor, TensorError, Unary, View};

impl Tensor {
    /// `f(self, other)` of each element; shapes are broadcast as in NumPy. Both are of one type, but that a single row for all
    /// may be of any float type.
    pub fn binary(&self, f: Binary, other: &Tensor) -> Result<Tensor, Error> {
        let shape = broadcast("binary", self.shape(), &other.view, other.shape())?;
        let row = &shape[shape.len().saturating_sub(1)..];
        // One row serves every row as it is.
        let is_row = shape.len() > 1 && other.shape().ends_with(row) && [other.elements()] == *row;
        let b = if is_row { other.reshape(row)? } else { other.broadcast_to(&shape)? };
        self.broadcast_to(&shape)?.eval(&Op::Binary(f), &[&b])
    }

    /// `self + other`
    pub fn add(&self, other: &Tensor) -> Result<Tensor, Error> {
        self.binary(Binary::Add, other)
    }

    /// `self - other`
    pub fn sub(&self, other: &Tensor) -> Result<Tensor, Error> {
        self.binary(Binary::Sub, other)
    }

    /// `self * other`
    pub fn mul(&self, other: &Tensor) -> Result<Tensor, Error> {
        self.binary(Binary::Mul, other)
    }

    /// `self / other`
    pub fn div(&self, other: &Tensor) -> Result<Tensor, Error> {
        self.binary(Binary::Div, other)
    }

    /// `f(self, value)` of each element.
    pub fn scalar(&self, op: Binary, value: f32) -> Result<Tensor, Error> {
        self.eval(&Op::Scalar { op, value, reversed: false }, &[])
    }

    /// `f(value, self)` of each element.
    pub fn scalar_first(&self, value: f32, op: Binary) -> Result<Tensor, Error> {
        self.eval(&Op::Scalar { op, value, reversed: true }, &[])
    }

    /// A function of each element.
    pub fn unary(&self, f: Unary) -> Result<Tensor, Error> {
        self.eval(&Op::Unary(f), &[])
    }

    /// `x / (1 + exp(-x))`
    pub fn silu(&self) -> Result<Tensor, Error> {
        self.unary(Unary::Silu)
    }

    /// `x / 2 * (1 + erf(x / √2))`
    pub fn gelu(&self) -> Result<Tensor, Error> {
        self.unary(Unary::Gelu)
    }

    /// GELU by `tanh`: see [`Unary::GeluTanh`].
    pub fn gelu_tanh(&self) -> Result<Tensor, Error> {
        self.unary(Unary::GeluTanh)
    }

    /// `max(x, 0)`
    pub fn relu(&self) -> Result<Tensor, Error> {
        self.unary(Unary::Relu)
    }

    /// `1 / (1 + exp(-x))`
    pub fn sigmoid(&self) -> Result<Tensor, Error> {
        self.unary(Unary::Sigmoid)
    }

    /// `cap * tanh(x / cap)`
    pub fn softcap(&self, cap: f32) -> Result<Tensor, Error> {
        self.eval(&Op::Softcap(cap), &[])
    }

    /// `act(self) * up`, in one pass: SwiGLU with [`Unary::Silu`], GeGLU with [`Unary::Gelu`].
    pub fn gated(&self, act: Unary, up: &Tensor) -> Result<Tensor, Error> {
        self.eval(&Op::Gated(act), &[up])
    }

    /// `x / sqrt(mean(x²) + eps) * w` over the last axis, which is as long as `w`.
    pub fn rms_norm(&self, w: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.eval(&Op::RmsNorm { eps, groups: 1 }, &[w])
    }

    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + b` over the last axis, which is as long as `w` and `b`.
    pub fn layer_norm(&self, w: &Tensor, b: &Tensor, eps: f32) -> Result<Tensor, Error> {
        self.eval(&Op::LayerNorm { eps }, &[w, b])
    }

    /// `sum = self + residual` and the [`Tensor::rms_norm`] of it: `(sum, normed)`.
    pub fn add_rms_norm(&self, residual: &Tensor, w: &Tensor, eps: f32) -> Result<(Tensor, Tensor), Error> {
        let sum = self.add(residual)?;
        let normed = sum.rms_norm(w, eps)?;
        Ok((sum, normed))
    }

    /// `sum = self + residual` and the [`Tensor::layer_norm`] of it: `(sum, normed)`.
    pub fn add_layer_norm(
        &self,
        residual: &Tensor,
        w: &Tensor,
        b: &Tensor,
        eps: f32,
    ) -> Result<(Tensor, Tensor), Error> {
        let sum = self.add(residual)?;
        let normed = sum.layer_norm(w, b, eps)?;
        Ok((sum, normed))
    }

    /// Softmax over the last axis. A row of nothing but `-inf` gives zeros.
    pub fn softmax(&self) -> Result<Tensor, Error> {
        self.eval(&Op::Softmax, &[])
    }

    /// `[.., m, k]` times `[.., k, n]`; outer axes are broadcast. The right side may be a quantised matrix `[n, k]`,
    /// transposed by [`Tensor::t`].
    ///
    /// ```
    /// # use metallic::{Device, tensor::{DType, OpenDevice, Tensor}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let batch = Tensor::ones(&device, DType::F32, [3, 1, 2])?;
    /// let y = batch.matmul(&x)?;
    /// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[3, 1, 2][..], vec![4.0, 6.0, 4.0, 6.0, 4.0, 6.0]));
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor, Error> {
        let [a_outer @ .., m, k] = self.shape() else {
            return Err(operand("matmul", "input 0", self, "a matrix [.., m, k]".to_owned()));
        };
        let (b_outer, n) = match other.shape() {
            [outer @ .., l, n] if k == l => (outer, n),
            _ => return Err(operand("matmul", "input 1", other, format!("a matrix [.., {k}, n]"))),
        };
        let outer = broadcast("matmul", a_outer, &other.view, b_outer)?;
        let shape = |rows: usize, cols: usize| [&outer[..], &[rows, cols]].concat();
        // Counted before anything is copied.
        let result = View::contiguous(self.dtype(), &shape(*m, *n))?;
        // The matrix as it is multiplied: [.., n, k]. A transposed view of one is that again.
        let w = other.t()?;
        let y = if b_outer.iter().all(|len| *len == 1) {
            self.eval(&Op::Linear, &[&w.reshape([*n, *k])?])
        } else {
            self.broadcast_to(shape(*m, *k))?.eval(&Op::Linear, &[&w.broadcast_to(shape(*n, *k))?])
        };
        y?.reshape(result.shape())
    }

    /// Rotary position embedding of `[tokens, heads, head_dim]`: pair `i` of each head of token `t` turns by
    /// `positions[t] * freqs[i]`. `positions` is `U32 [tokens]`, `freqs` is `F32` and has at most `head_dim / 2` of them.
    pub fn rope(&self, rope: Rope, positions: &Tensor, freqs: &Tensor) -> Result<Tensor, Error> {
        let rows = match *self.shape() {
            [tokens, heads, d] if d == rope.head_dim => self.flat([tokens, heads * d])?,
            _ => return Err(operand("rope", "input 0", self, format!("[tokens, heads, {}]", rope.head_dim))),
        };
        rows.eval(&Op::Rope(rope), &[positions, freqs])?.reshape(self.shape())
    }

    /// Attention of these queries `[heads, m, d]` over keys and values `[kv_heads, n, d]`, or of a batch of them:
    /// `[batch, heads, m, d]` over `[batch, kv_heads, n, d]`. `sinks` is `[heads]`, one more score of
    /// each head, which takes its share of the softmax and gives no value.
    ///
    /// ```
    /// # use metallic::{Device, tensor::{DType, Mask, OpenDevice, Sdpa, Tensor}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let q = Tensor::randn(&device, DType::F32, [8, 5, 64], 1)?;
    /// let kv = Tensor::randn(&device, DType::F32, [2, 5, 64], 2)?; // Four query heads share one of these.
    /// let sdpa = Sdpa { scale: 0.125, mask: Mask::Causal, softcap: None };
    /// let out = q.sdpa(&kv, &kv, sdpa, None)?;
    /// // The first query sees the first key alone.
    /// assert_eq!(out.slice(0, 0..1)?.slice(1, 0..1)?.to_vec::<f32>()?, kv.slice(0, 0..1)?.slice(1, 0..1)?.to_vec::<f32>()?);
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn sdpa(
        &self,
        keys: &Tensor,
        values: &Tensor,
        sdpa: Sdpa,
        sinks: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let op = Op::Sdpa(sdpa);
        let &[batch, heads, m, d] = self.shape() else {
            let more: Vec<&Tensor> = [keys, values].into_iter().chain(sinks).collect();
            return self.eval(&op, &more);
        };
        // Items side by side are so many more heads: neighbours share keys and values as before.
        let together = |name: &str, tensor: &Tensor| match tensor.shape() {
            &[items, kv_heads, n, d] if items == batch => tensor.flat([batch * kv_heads, n, d]),
            _ => Err(operand(op.name(), name, tensor, format!("[{batch}, kv_heads, n, {d}]"))),
        };
        let (k, v) = (together("keys", keys)?, together("values", values)?);
        let sinks =
            sinks.map(|sinks| sinks.broadcast_to([batch, heads])?.flat([batch * heads])).transpose()?;
        let more: Vec<&Tensor> = [&k, &v].into_iter().chain(sinks.as_ref()).collect();
        self.flat([batch * heads, m, d])?.eval(&op, &more)?.reshape(self.shape())
    }

    /// The index of the largest number of each row, `U32`; the last axis is gone. Of equals the lowest.
    pub fn argmax(&self) -> Result<Tensor, Error> {
        self.eval(&Op::Argmax, &[])
    }

    /// The `k` largest numbers of each row, largest first, and their indices: `(values, indices)`.
    pub fn top_k(&self, k: usize) -> Result<(Tensor, Tensor), Error> {
        let x = self.contiguous()?;
        let indices = x.eval(&Op::TopK { k }, &[])?;
        Ok((x.eval(&Op::Gather, &[&indices])?, indices))
    }

    /// Chooses a token from each row of these logits `[rows, n]`: `U32 [rows]`, [`u32::MAX`] for a row without a number. Row
    /// `r` is draw `choice.draw + 2³² r`. `counts` is how often each token came before, `U32 [rows, n]`, and is needed for
    /// penalties. Every device chooses the same tokens: see [`metallic_core::sample`].
    pub fn sample(&self, choice: &Choice, counts: Option<&Tensor>) -> Result<Tensor, Error> {
        let &[rows, cols] = self.shape() else {
            return Err(operand("sample", "input 0", self, "[rows, n]".to_owned()));
        };
        let logits = self.to_dtype(DType::F32)?.contiguous()?;
        let counts = match counts {
            Some(counts) if counts.shape() == self.shape() => counts.to_vec::<u32>()?,
            Some(counts) => {
                return Err(operand("sample", "counts", counts, format!("U32 {:?}", self.shape())));
            }
            None => Vec::new(),
        };
        let mut choices = Choices::default();
        for row in 0..rows {
            let of_row = counts.get(row * cols..(row + 1) * cols).unwrap_or(&[]);
            let seen = (0..).zip(of_row).filter(|(_, count)| **count > 0);
            let edits: Vec<Edit> = seen.map(|(id, count)| Edit { id, count: *count, bias: 0.0 }).collect();
            let draw = choice.draw.wrapping_add((row as u64) << 32);
            choices.push(&Choice { draw, ..*choice }, &edits)?;
        }
        let words = choices.words();
        let words = Tensor::from_slice(&self.device, words, [words.len()])?;
        logits.eval(&Op::Sample, &[&words])
    }

    /// The same numbers as another float type, rounded to nearest. Quantised types can be read, not made.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor, Error> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        self.copied(View::contiguous(dtype, self.shape())?)
    }

    /// A tensor whose elements lie one after another: this one where they do, else a copy. A quantised one becomes `F32`.
    pub fn contiguous(&self) -> Result<Tensor, Error> {
        if self.view.is_contiguous() {
            return Ok(self.clone());
        }
        self.copied(View::contiguous(
            if self.dtype().is_quantized() { DType::F32 } else { self.dtype() },
            self.shape(),
        )?)
    }

    /// The same elements in the same order with other axes, by a copy where that needs one.
    fn flat(&self, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        self.reshape(&shape).or_else(|_| self.contiguous()?.reshape(&shape))
    }

    fn copied(&self, view: View) -> Result<Tensor, Error> {
        let out = Tensor::empty(&self.device, view)?;
        self.device.copy(self.operand(), out.operand())?;
        Ok(out)
    }

    /// Writes another tensor's numbers to this one's elements, broadcast and cast as needed. Every tensor that shares the
    /// memory sees them: this is how a cache is filled.
    ///
    /// ```
    /// # use metallic::{Device, tensor::{DType, OpenDevice, Tensor}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let cache = Tensor::zeros(&device, DType::F16, [2, 3])?;
    /// cache.slice(1, 1..2)?.copy_from(&Tensor::ones(&device, DType::F32, [1])?)?;
    /// assert_eq!(cache.to_vec::<f32>()?, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn copy_from(&self, source: &Tensor) -> Result<(), Error> {
        let source = source.broadcast_to(self.shape())?;
        self.device.copy(source.operand(), self.operand())
    }
}

fn operand(op: &'static str, operand: &str, tensor: &Tensor, needed: String) -> Error {
    let (operand, found) = (operand.to_owned(), tensor.view.to_string());
    TensorError::Operand { op, operand, found, needed }.into()
}

/// The shape two shapes are broadcast to: axes are matched from the last, and one of length 1 takes the other's length.
fn broadcast(op: &'static str, a: &[usize], other: &View, b: &[usize]) -> Result<Vec<usize>, TensorError> {
    let rank = a.len().max(b.len());
    let len =
        |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
    (0..rank)
        .map(|axis| match (len(a, axis), len(b, axis)) {
            (a, b) if a == b => Ok(a),
            (1, b) => Ok(b),
            (a, 1) => Ok(a),
            _ => Err(TensorError::Operand {
                op,
                operand: "input 1".to_owned(),
                found: other.to_string(),
                needed: format!("axes that are 1 or those of {a:?}"),
            }),
        })
        .collect()
}
