//! The closed set of operations. Each one's doc is its formula.

use crate::Dim;

/// Index of a weight in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub usize);

/// Functions of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + erf(x / √2))`
    Gelu,
    /// `x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 x³)))`
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
}

/// Functions of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
}

/// How the pairs of a rotation lie in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// Element `i` with element `i + rotated/2`.
    Halves,
    /// Element `2i` with element `2i + 1`.
    Interleaved,
}

/// Rotary position embedding of every head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Elements of a head.
    pub head_dim: usize,
    /// How pairs lie.
    pub pairs: RopePairs,
    /// Factor on sine and cosine (YaRN's attention factor); 1 for plain RoPE.
    pub magnitude: f32,
}

/// Which part of the cache a query may see, and how scores are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The layer whose cache is read.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor on `q · k`.
    pub scale: f32,
    /// A query at position `p` sees positions `p - window < j ≤ p`; all `j ≤ p` without a window.
    pub window: Option<usize>,
    /// `softcap * tanh(score / softcap)` before the softmax.
    pub softcap: Option<f32>,
}

/// What a fused projection adds to `W · x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Project {
    /// Normalise `x` by [`Op::RmsNorm`] with this epsilon first.
    pub norm: Option<f32>,
    /// How many matrices; their results stand side by side in each row.
    pub parts: usize,
    /// Each matrix has a bias vector.
    pub bias: bool,
    /// Add a tensor of the result's shape.
    pub residual: bool,
}

/// Everything of a layer that comes before its attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Qkv {
    /// Normalise `x` by [`Op::RmsNorm`] with this epsilon first.
    pub norm: Option<f32>,
    /// Each of the three matrices has a bias vector.
    pub bias: bool,
    /// The rotation of queries and keys.
    pub rope: Rope,
    /// The layer whose cache is written.
    pub layer: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
}

impl Qkv {
    /// The product it begins with; its inputs are the first ones.
    pub fn project(&self) -> Project {
        Project { norm: self.norm, parts: 3, bias: self.bias, residual: false }
    }

    /// Where the positions lie among the inputs.
    pub fn positions(&self) -> usize {
        self.project().inputs().count
    }

    /// Where the frequencies lie among the inputs, after which there are none.
    pub fn freqs(&self) -> usize {
        self.positions() + 1
    }

    /// Columns of the queries, of the keys and of the values.
    pub fn cols(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.rope.head_dim)
    }
}

/// How an operation uses a weight, which says in what form a backend should keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// The matrix of a product, in the type it has in its file.
    Matrix,
    /// A table whose rows are picked by index, in the type it has in its file.
    Table,
    /// Numbers.
    Vector,
}

/// One operation. Inputs are listed in the order the node holds them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Token ids of the step: `U32 [tokens]`.
    Tokens,
    /// Position of each token in its sequence: `U32 [tokens]`.
    Positions,
    /// Rows of the step whose result was asked for: `U32 [outputs]`.
    OutputRows,
    /// A tensor that does not change between steps.
    Weight(WeightId),

    /// Rows of a table: `(table [v, d], ids [n]) -> [n, d]`, dequantised to `F32`.
    Embed,
    /// Rows of an activation: `(x [tokens, d], rows [n]) -> [n, d]`.
    SelectRows,
    /// Columns `start .. start + len` of each row: `(x [.., d]) -> [.., len]`.
    Slice {
        /// First column.
        start: usize,
        /// Number of columns.
        len: usize,
    },
    /// `f(x)` of each element.
    Unary(Unary),
    /// `f(a, b)` of each element; `b` may be one row that serves every row of `a`.
    Binary(Binary),
    /// `x * factor`
    Scale(f32),
    /// `cap * tanh(x / cap)`
    Softcap(f32),
    /// `x / sqrt(mean(x²) + eps) * w`, over the last axis: `(x [.., d], w [d])`.
    RmsNorm {
        /// Keeps the root away from zero.
        eps: f32,
    },
    /// `exp(x - max) / Σ exp(x - max)` over the last axis.
    Softmax,
    /// `x · Wᵀ`: `(x [.., k], w [n, k]) -> [.., n]`.
    Linear,
    /// Rotates each pair of each head by `position * freqs[pair]`: `(x [tokens, heads * head_dim], positions, freqs [rotated / 2])`.
    Rope(Rope),
    /// Stores the keys and values of the step's tokens in a layer's cache: `(k, v [tokens, kv_heads * head_dim]) -> receipt`.
    KvWrite {
        /// The layer whose cache is written.
        layer: usize,
    },
    /// `softmax(scale * q · Kᵀ) · V` of each head over the cache of its sequence:
    /// `(q [tokens, heads * head_dim], receipt)`. A row that may see nothing gives zeros.
    Attention(Attention),

    /// `concat_i(W_i · norm(x) + b_i) + residual`: `(x, norm_w?, W_0.., b_0..?, residual?)`.
    Project(Project),
    /// `act(G · norm(x)) * (U · norm(x))`: `(x, norm_w?, G, U)`.
    GatedProject {
        /// Normalise `x` by [`Op::RmsNorm`] with this epsilon first.
        norm: Option<f32>,
        /// The gate's activation.
        act: Unary,
    },
    /// The way into attention: `q | k | v = concat_i(W_i · norm(x) + b_i)`, query heads and key heads rotated, keys and values
    /// stored. Returns the queries: `(x, norm_w?, W_q, W_k, W_v, b_q, b_k, b_v?, positions, freqs) -> [tokens, heads * head_dim]`.
    Qkv(Qkv),
}

impl Op {
    /// A short name for messages and telemetry.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Tokens => "tokens",
            Op::Positions => "positions",
            Op::OutputRows => "output_rows",
            Op::Weight(_) => "weight",
            Op::Embed => "embed",
            Op::SelectRows => "select_rows",
            Op::Slice { .. } => "slice",
            Op::Unary(_) => "unary",
            Op::Binary(_) => "binary",
            Op::Scale(_) => "scale",
            Op::Softcap(_) => "softcap",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Softmax => "softmax",
            Op::Linear => "linear",
            Op::Rope(_) => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention(_) => "attention",
            Op::Project(_) => "project",
            Op::GatedProject { .. } => "gated_project",
            Op::Qkv(_) => "qkv",
        }
    }

    /// How the input at `index` is used where it is a weight.
    pub fn weight_use(&self, index: usize) -> WeightUse {
        let matrix = match self {
            Op::Embed if index == 0 => return WeightUse::Table,
            Op::Linear => index == 1,
            Op::Project(spec) => spec.has_matrix_at(index),
            Op::Qkv(spec) => spec.project().has_matrix_at(index),
            Op::GatedProject { norm, .. } => index > usize::from(norm.is_some()),
            Op::Tokens
            | Op::Positions
            | Op::OutputRows
            | Op::Weight(_)
            | Op::Embed
            | Op::SelectRows
            | Op::Slice { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Scale(_)
            | Op::Softcap(_)
            | Op::RmsNorm { .. }
            | Op::Softmax
            | Op::Rope(_)
            | Op::KvWrite { .. }
            | Op::Attention(_) => false,
        };
        if matrix { WeightUse::Matrix } else { WeightUse::Vector }
    }

    /// The layer whose cache it writes or reads.
    pub fn layer(&self) -> Option<usize> {
        match self {
            Op::KvWrite { layer } => Some(*layer),
            Op::Attention(attention) => Some(attention.layer),
            Op::Qkv(qkv) => Some(qkv.layer),
            Op::Tokens
            | Op::Positions
            | Op::OutputRows
            | Op::Weight(_)
            | Op::Embed
            | Op::SelectRows
            | Op::Slice { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Scale(_)
            | Op::Softcap(_)
            | Op::RmsNorm { .. }
            | Op::Softmax
            | Op::Linear
            | Op::Rope(_)
            | Op::Project(_)
            | Op::GatedProject { .. } => None,
        }
    }

    /// Whether the node is given from outside instead of computed.
    pub fn is_source(&self) -> bool {
        matches!(self, Op::Tokens | Op::Positions | Op::OutputRows | Op::Weight(_))
    }

    /// Whether running it changes the cache, so that it may not be dropped.
    pub fn has_effect(&self) -> bool {
        matches!(self, Op::KvWrite { .. } | Op::Qkv(_))
    }
}

/// Where the inputs of a fused projection lie in its node's list.
#[derive(Clone, Copy, Debug)]
pub struct ProjectInputs {
    /// The norm's weight, if it normalises.
    pub norm: Option<usize>,
    /// First matrix; the others follow.
    pub weights: usize,
    /// First bias, if there are any; the others follow.
    pub biases: Option<usize>,
    /// The residual, if there is one.
    pub residual: Option<usize>,
    /// Number of inputs in all.
    pub count: usize,
}

impl Project {
    fn has_matrix_at(&self, index: usize) -> bool {
        let first = self.inputs().weights;
        (first..first + self.parts).contains(&index)
    }

    /// Where each input lies.
    pub fn inputs(&self) -> ProjectInputs {
        let norm = self.norm.map(|_| 1);
        let weights = 1 + usize::from(norm.is_some());
        let mut next = weights + self.parts;
        let biases = self.bias.then_some(next);
        next += if self.bias { self.parts } else { 0 };
        let residual = self.residual.then_some(next);
        ProjectInputs { norm, weights, biases, residual, count: next + usize::from(self.residual) }
    }
}

/// The leading axis of a per-token source.
pub(crate) fn source_axis(op: &Op) -> Option<Dim> {
    match op {
        Op::Tokens | Op::Positions => Some(Dim::Tokens),
        Op::OutputRows => Some(Dim::Outputs),
        _ => None,
    }
}
