//! Operations. Each one runs on the device and gives a new tensor, contiguous in a memory of its own.

use metallic_core::tensor::TensorOp;

use super::{Binary, DType, Error, Rope, Sample, Sdpa, Tensor, TensorError, Unary, View};

impl Tensor {
    /// `f(self, other)` of each element; shapes are broadcast as in NumPy.
    pub fn binary(&self, f: Binary, other: &Tensor) -> Result<Tensor, Error> {
        let shape = broadcast("binary", self.shape(), &other.view, other.shape())?;
        let (a, b) = (self.broadcast_to(&shape)?, other.broadcast_to(&shape)?);
        Tensor::one(TensorOp::Binary(f), &[&a, &b])
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
        Tensor::one(TensorOp::Scalar { op, value, reversed: false }, &[self])
    }

    /// `f(value, self)` of each element.
    pub fn scalar_first(&self, value: f32, op: Binary) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::Scalar { op, value, reversed: true }, &[self])
    }

    /// A function of each element.
    pub fn unary(&self, f: Unary) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::Unary(f), &[self])
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
        Tensor::one(TensorOp::Softcap(cap), &[self])
    }

    /// `act(self) * up`, in one pass: SwiGLU with [`Unary::Silu`], GeGLU with [`Unary::Gelu`].
    pub fn gated(&self, act: Unary, up: &Tensor) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::Gated(act), &[self, up])
    }

    /// `x / sqrt(mean(x²) + eps) * w` over the last axis, which is as long as `w`.
    pub fn rms_norm(&self, w: &Tensor, eps: f32) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::RmsNorm { eps }, &[self, w])
    }

    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + b` over the last axis, which is as long as `w` and `b`.
    pub fn layer_norm(&self, w: &Tensor, b: &Tensor, eps: f32) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::LayerNorm { eps }, &[self, w, b])
    }

    /// `sum = self + residual` and the [`Tensor::rms_norm`] of it: `(sum, normed)`.
    pub fn add_rms_norm(&self, residual: &Tensor, w: &Tensor, eps: f32) -> Result<(Tensor, Tensor), Error> {
        Tensor::two(TensorOp::AddRmsNorm { eps }, &[self, residual, w])
    }

    /// `sum = self + residual` and the [`Tensor::layer_norm`] of it: `(sum, normed)`.
    pub fn add_layer_norm(
        &self,
        residual: &Tensor,
        w: &Tensor,
        b: &Tensor,
        eps: f32,
    ) -> Result<(Tensor, Tensor), Error> {
        Tensor::two(TensorOp::AddLayerNorm { eps }, &[self, residual, w, b])
    }

    /// Softmax over the last axis. A row of nothing but `-inf` gives zeros.
    pub fn softmax(&self) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::Softmax, &[self])
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
        let (a, b) = (self.shape(), other.shape());
        let ([a_outer @ .., m, k], [b_outer @ .., l, n]) = (a, b) else {
            return Tensor::one(TensorOp::Matmul, &[self, other]);
        };
        let outer = broadcast("matmul", a_outer, &other.view, b_outer)?;
        let a = self.broadcast_to([&outer[..], &[*m, *k]].concat())?;
        let b = other.broadcast_to([&outer[..], &[*l, *n]].concat())?;
        Tensor::one(TensorOp::Matmul, &[&a, &b])
    }

    /// Rotary position embedding of `[tokens, heads, head_dim]`: pair `i` of each head of token `t` turns by
    /// `positions[t] * freqs[i]`. `positions` is `U32 [tokens]`, `freqs` is `F32` and has at most `head_dim / 2` of them.
    pub fn rope(&self, rope: Rope, positions: &Tensor, freqs: &Tensor) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::Rope(rope), &[self, positions, freqs])
    }

    /// Attention of these queries `[heads, m, d]` over keys and values `[kv_heads, n, d]`, or of a batch of them:
    /// `[batch, heads, m, d]` over `[batch, kv_heads, n, d]`. `sinks` is `F32 [heads]`: see [`TensorOp::Sdpa`].
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
        let op = TensorOp::Sdpa(sdpa);
        let &[batch, ..] = self.shape() else { return Tensor::one(op, &[self, keys, values]) };
        if self.shape().len() < 4 {
            let inputs: Vec<&Tensor> = [self, keys, values].into_iter().chain(sinks).collect();
            return Tensor::one(op, &inputs);
        }
        for (operand, tensor) in [("keys", keys), ("values", values)] {
            if tensor.shape().len() != 4 || tensor.shape()[0] != batch {
                return Err(TensorError::Operand {
                    op: op.name(),
                    operand: operand.to_owned(),
                    found: tensor.view.to_string(),
                    needed: format!("[{batch}, kv_heads, n, d]"),
                }
                .into());
            }
        }
        let all = Tensor::empty(&self.device, View::contiguous(self.dtype(), self.shape())?)?;
        // Items without elements are alike, however many there are: one is checked.
        let items = if all.view.is_empty() { batch.min(1) } else { batch };
        for index in 0..items {
            let item = [self, keys, values].map(|tensor| tensor.select(0, index));
            let [q, k, v] = item;
            let (q, k, v, out) = (q?, k?, v?, all.select(0, index)?);
            let mut inputs = vec![q.operand(), k.operand(), v.operand()];
            inputs.extend(sinks.map(Tensor::operand));
            self.device.run(&op, &inputs, &[out.operand()])?;
        }
        Ok(all)
    }

    /// The index of the largest number of each row, `U32`; the last axis is gone. Of equals the lowest.
    pub fn argmax(&self) -> Result<Tensor, Error> {
        Tensor::one(TensorOp::Argmax, &[self])
    }

    /// The `k` largest numbers of each row, largest first, and their indices: `(values, indices)`.
    pub fn top_k(&self, k: usize) -> Result<(Tensor, Tensor), Error> {
        Tensor::two(TensorOp::TopK { k }, &[self])
    }

    /// Draws a token from each row of these logits `[rows, n]`: `U32 [rows]`. `counts` is how often each token came
    /// before, `U32 [rows, n]`, and is needed for penalties. Every device draws the same token: see [`Sample`].
    pub fn sample(&self, sample: Sample, counts: Option<&Tensor>) -> Result<Tensor, Error> {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(counts).collect();
        Tensor::one(TensorOp::Sample(sample), &inputs)
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
        Tensor::one(TensorOp::Copy, &[self])
    }

    fn copied(&self, view: View) -> Result<Tensor, Error> {
        let out = Tensor::empty(&self.device, view)?;
        self.device.run(&TensorOp::Copy, &[self.operand()], &[out.operand()])?;
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
        self.device.run(&TensorOp::Copy, &[source.operand()], &[self.operand()])
    }
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
