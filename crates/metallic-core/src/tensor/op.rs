//! The closed set of operations on tensors. Each one's doc is its formula.

use super::Sample;
use crate::{Binary, Rope, Unary};

/// Which keys a query sees. Queries are the last of the sequence: of `m` queries and `n` keys, query `i` stands at
/// position `p = i + n - m`, which is before the first key where there are fewer keys than queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Every key.
    #[default]
    Full,
    /// Keys `j ≤ p`.
    Causal,
    /// Keys `p - window < j ≤ p`; the window is at least 1.
    Window(usize),
}

impl Mask {
    /// The keys that query `query` of `queries` sees, of `keys` keys. May be empty.
    pub fn visible(self, query: usize, queries: usize, keys: usize) -> std::ops::Range<usize> {
        // One past the last visible key.
        let end = keys.saturating_sub(queries.saturating_sub(query.saturating_add(1)));
        match self {
            Mask::Full => 0..keys,
            Mask::Causal => 0..end,
            Mask::Window(window) => end.saturating_sub(window)..end,
        }
    }
}

/// Scaled dot-product attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sdpa {
    /// Factor on `q · k`.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: Mask,
    /// `softcap * tanh(score / softcap)` before the softmax.
    pub softcap: Option<f32>,
}

/// One operation on strided views, carried out at once.
///
/// `T` is one of `F32`, `F16` and `BF16`, the same for all operands of an operation that name it. Arithmetic is in `F32`
/// or better; a result is rounded once, when it is stored. Shapes must be equal where they are named alike: a view
/// broadcasts by a stride of 0. Axes may have length 0; then there is nothing to do, or what the doc says.
///
/// Outputs hold each element once (no stride of 0) and share no memory with inputs or with one another, except that an
/// element-wise operation ([`TensorOp::is_element_wise`]) may write to the very view it reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TensorOp {
    /// `x`, cast: `(x) -> [..]`. Floats and quantised types to any float type; `U32` and `I32` to themselves.
    Copy,
    /// A number in every place: `() -> T [..]`.
    Fill(f32),
    /// `f(x)`: `(x: T [..]) -> T [..]`.
    Unary(Unary),
    /// `cap * tanh(x / cap)`: `(x: T [..]) -> T [..]`.
    Softcap(f32),
    /// `f(a, b)`: `(a, b: T [..]) -> T [..]`.
    Binary(Binary),
    /// `f(x, value)`, or `f(value, x)` where it is reversed: `(x: T [..]) -> T [..]`.
    Scalar {
        /// The function.
        op: Binary,
        /// The number.
        value: f32,
        /// Whether the number comes first.
        reversed: bool,
    },
    /// `act(gate) * up`: `(gate, up: T [..]) -> T [..]`. SwiGLU with SiLU, GeGLU with GELU.
    Gated(Unary),
    /// `x / sqrt(mean(x²) + eps) * w` over the last axis: `(x: T [.., d], w: T [d]) -> T [.., d]`.
    RmsNorm {
        /// Keeps the root away from zero.
        eps: f32,
    },
    /// `(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * w + b` over the last axis:
    /// `(x: T [.., d], w, b: T [d]) -> T [.., d]`.
    LayerNorm {
        /// Keeps the root away from zero.
        eps: f32,
    },
    /// `sum = x + residual`, then [`TensorOp::RmsNorm`] of the sum as it is stored:
    /// `(x, residual: T [.., d], w: T [d]) -> (sum, normed: T [.., d])`.
    AddRmsNorm {
        /// Keeps the root away from zero.
        eps: f32,
    },
    /// `sum = x + residual`, then [`TensorOp::LayerNorm`] of the sum as it is stored:
    /// `(x, residual: T [.., d], w, b: T [d]) -> (sum, normed: T [.., d])`.
    AddLayerNorm {
        /// Keeps the root away from zero.
        eps: f32,
    },
    /// `exp(x - max) / Σ exp(x - max)` over the last axis: `(x: T [.., d]) -> T [.., d]`. A row of nothing but `-inf` gives zeros.
    Softmax,
    /// `Σ_k a[.., i, k] * b[.., k, j]`: `(a: T [.., m, k], b [.., k, n]) -> T [.., m, n]`, all of rank 2 to 4 and alike in
    /// their outer axes. `b` is `T`, or a quantised matrix `[n, k]` seen transposed: its stride along `k` is 1. No `k` gives zeros.
    Matmul,
    /// Rotates pair `i` of each head of token `t` by `positions[t] * freqs[i]`:
    /// `(x: T [tokens, heads, head_dim], positions: U32 [tokens], freqs: F32 [rotated / 2]) -> T [tokens, heads, head_dim]`.
    /// Elements past the rotated ones stay as they are.
    Rope(Rope),
    /// `softmax(scale * q · kᵀ) · v` of each head, over the keys its mask shows:
    /// `(q: T [heads, m, d], k, v: T [kv_heads, n, d]) -> T [heads, m, d]`; `heads / kv_heads` neighbouring heads share a
    /// key/value head. With a fourth input `sinks: F32 [heads]`, each softmax has one more score, the head's sink, which
    /// takes its share and gives no value. A row that sees no key gives zeros.
    Sdpa(Sdpa),
    /// The index of the largest number of each row: `(x: T [.., n]) -> U32 [..]`. Of equals the lowest; NaN counts as `-inf`. `n ≥ 1`.
    Argmax,
    /// The `k` largest numbers of each row and their indices, largest first:
    /// `(x: T [.., n]) -> (values: T [.., k], indices: U32 [.., k])`. Of equals the lowest index first; NaN counts as `-inf`. `1 ≤ k ≤ n`.
    TopK {
        /// How many.
        k: usize,
    },
    /// Draws a token from each row of logits, as [`Sample`] says: `(logits: T [rows, n]) -> U32 [rows]`, and with penalties
    /// `(logits: T [rows, n], counts: U32 [rows, n]) -> U32 [rows]`, where `counts` is how often each token came before. `n ≥ 1`.
    Sample(Sample),
}

impl TensorOp {
    /// A short name for messages and telemetry.
    pub fn name(&self) -> &'static str {
        match self {
            TensorOp::Copy => "copy",
            TensorOp::Fill(_) => "fill",
            TensorOp::Unary(_) => "unary",
            TensorOp::Softcap(_) => "softcap",
            TensorOp::Binary(_) => "binary",
            TensorOp::Scalar { .. } => "scalar",
            TensorOp::Gated(_) => "gated",
            TensorOp::RmsNorm { .. } => "rms_norm",
            TensorOp::LayerNorm { .. } => "layer_norm",
            TensorOp::AddRmsNorm { .. } => "add_rms_norm",
            TensorOp::AddLayerNorm { .. } => "add_layer_norm",
            TensorOp::Softmax => "softmax",
            TensorOp::Matmul => "matmul",
            TensorOp::Rope(_) => "rope",
            TensorOp::Sdpa(_) => "sdpa",
            TensorOp::Argmax => "argmax",
            TensorOp::TopK { .. } => "top_k",
            TensorOp::Sample(_) => "sample",
        }
    }

    /// Whether an element of the output depends on the elements at the same index alone, so that it may be written in
    /// place of one.
    pub fn is_element_wise(&self) -> bool {
        matches!(
            self,
            TensorOp::Copy
                | TensorOp::Fill(_)
                | TensorOp::Unary(_)
                | TensorOp::Softcap(_)
                | TensorOp::Binary(_)
                | TensorOp::Scalar { .. }
                | TensorOp::Gated(_)
        )
    }
}
