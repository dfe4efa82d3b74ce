//! The closed set of operations. Each one's doc is its formula.

use crate::{Attention, DType, Project, Qkv, Recurrence, Rope, Sdpa, StateId};

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
    /// `exp(x)`
    Exp,
    /// `ln(1 + exp(x))`
    Softplus,
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
    /// `min(a, b)`
    Min,
    /// `max(a, b)`
    Max,
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
///
/// `T` is one of `F32`, `F16` and `BF16`, the same for all activations of an operation. Arithmetic is in `F32` or better; a
/// result is rounded once, when it is stored. Vectors of numbers (norms, biases, frequencies) may be of any float type. A
/// row is what lies along the last axis.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the formulas say what the fields are")]
pub enum Op {
    /// Token ids of the step: `U32 [tokens]`.
    Tokens,
    /// Position of each token in its sequence: `U32 [tokens]`.
    Positions,
    /// Rows of the step whose result was asked for: `U32 [outputs]`.
    OutputRows,
    /// How a token is chosen from each of these rows, packed as [`crate::sample::Choices`] has it: `U32 [outputs]`.
    Choices,
    /// How much of each of so many adapters each token takes: `F32 [tokens, count]`.
    Adapters { count: usize },
    /// A tensor that does not change between steps.
    Weight(WeightId),

    /// Rows of a table: `(table [v, d], ids: U32 [n]) -> T [n, d]`, or several side by side: `(table [v, d], ids: U32 [n, c])
    /// -> T [n, c * d]`.
    Embed(DType),
    /// Rows of an activation: `(x: T [tokens, d], rows: U32 [n]) -> T [n, d]`.
    SelectRows,
    /// Columns `start .. start + len` of each row: `(x: T [.., d]) -> T [.., len]`.
    Slice { start: usize, len: usize },
    /// Of each row the elements at the row's own indices: `(x: T [.., d], ids: U32 [.., k]) -> T [.., k]`.
    Gather,
    /// The same numbers as another float type, rounded to nearest.
    Cast(DType),
    /// `f(x)` of each element.
    Unary(Unary),
    /// `f(a, b)` of each element; `b` may be one row that serves every row of `a`.
    Binary(Binary),
    /// `op(x, value)` of each element, or `op(value, x)` where it is reversed.
    Scalar { op: Binary, value: f32, reversed: bool },
    /// `cap * tanh(x / cap)`
    Softcap(f32),
    /// `act(gate) * up`: `(gate, up: T [..]) -> T [..]`. SwiGLU with SiLU, GeGLU with GELU.
    Gated(Unary),
    /// `x / sqrt(mean(x²) + eps) * w`, over each of `groups` equal parts of a row, 1 for a whole row: `(x: T [.., d], w)`, where
    /// `w` has one element for each of the row, or of a part, which then serves every part: a norm of each head.
    RmsNorm { eps: f32, groups: usize },
    /// `(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * w + b` over a row: `(x: T [.., d], w [d], b [d]?)`.
    LayerNorm { eps: f32 },
    /// `exp(x - max) / Σ exp(x - max)` over a row. A row of nothing but `-inf` gives zeros.
    Softmax,
    /// `x · Wᵀ`: `(x: T [.., m, k], w [n, k]) -> T [.., m, n]`, or with a matrix for each of the outer axes,
    /// `w [.., n, k]`. No `k` gives zeros.
    Linear,
    /// `x · W_eᵀ` with matrices chosen for each row: `(x: T [tokens, k] or T [tokens, c * k], w [experts, n, k],
    /// ids: U32 [tokens, c]) -> T [tokens, c * n]`. Each of the `c` choices of a row takes the whole row, or its part of it.
    ExpertLinear,
    /// `Σ_c weights[c] * part_c` of each row: `(x: T [tokens, c * n], weights: T [tokens, c]) -> T [tokens, n]`.
    Combine,
    /// Rotates each pair of each head of token `t` by `positions[t] * freqs[pair]`:
    /// `(x: T [tokens, heads * head_dim], positions: U32 [tokens], freqs: F32 [rotated / 2])`. Elements past the rotated ones
    /// stay as they are.
    Rope(Rope),
    /// Stores the keys and values of the step's tokens in `state`: `(k: T [tokens, kv_heads * head_dim], v: T [tokens,
    /// kv_heads * value_dim]) -> receipt`.
    KvWrite { state: StateId, kv_heads: usize },
    /// `softmax(scale * q · Kᵀ) · V` of each head over the cache of its sequence:
    /// `(q: T [tokens, heads * head_dim], receipt, sinks [heads]?) -> T [tokens, heads * value_dim]`. A row that may see
    /// nothing gives zeros.
    Attention(Attention),
    /// `softmax(scale * q · kᵀ) · v` of each head, over the keys its mask shows:
    /// `(q: T [heads, m, d], k, v: T [kv_heads, n, d], sinks [heads]?) -> T [heads, m, d]`; `heads / kv_heads` neighbouring
    /// heads share a key/value head. A row that sees no key gives zeros.
    Sdpa(Sdpa),
    /// A convolution along the sequence, column by column: `y[t] = Σ_j w[.., j] * x[t - (width - 1) + j]` over
    /// `(x: T [tokens, d], w [d, width]) -> T [tokens, d]`. Keeps the last `width - 1` rows of the sequence in `state`; before
    /// its first token there are zeros.
    ShortConv { state: StateId },
    /// Of each head and token: `S = decay * S`; `u = β * v`, or `β * (v - Sᵀ k)` by the delta rule; `S = S + k uᵀ`; `y = Sᵀ q`.
    /// `(q, k: T [tokens, key_heads * key_dim], v: T [tokens, heads * value_dim], decay, β: T [tokens, heads]) -> T [tokens,
    /// heads * value_dim]`; `heads / key_heads` heads share a query's and a key's. `S` is kept in `F32`; before a
    /// sequence's first token it is 0.
    Recurrence(Recurrence),
    /// The index of the largest number of each row: `(x: T [.., n]) -> U32 [..]`. Of equals the lowest; NaN counts as `-inf`. `n ≥ 1`.
    Argmax,
    /// The indices of the `k` largest numbers of each row, largest first: `(x: T [.., n]) -> U32 [.., k]`. Of equals the
    /// lowest index first; NaN counts as `-inf`. `1 ≤ k ≤ n`.
    TopK { k: usize },
    /// Chooses a token from each row of logits, see [`crate::sample`]: `(x: F32 [rows, n], choices: U32 [..]) -> U32 [rows]`.
    /// A row without a number gives [`u32::MAX`].
    Sample,

    /// `concat_i(W_i · norm(x) + b_i) + residual`: `(x, norm_w?, W_0.., b_0..?, residual?)`.
    Project(Project),
    /// `act(G · norm(x)) * (U · norm(x))`: `(x, norm_w?, G, U)`, with the norm of a [`Project`].
    GatedProject { norm: Option<f32>, act: Unary },
    /// The way into attention: `q | k | v = concat_i(W_i · norm(x) + b_i)`, query heads and key heads normalised and rotated,
    /// keys and values stored. Returns the queries: `(x, norm_w?, W_q, W_k, W_v, b_q, b_k, b_v?, head_norm_q, head_norm_k?,
    /// positions, freqs) -> T [tokens, heads * head_dim]`.
    Qkv(Qkv),
}

/// Gives operations their names, and each list of them a pattern: a `match` that has no use for them stays exhaustive.
macro_rules! ops {
    ($($list:ident { $($pattern:pat => $name:literal,)* })*) => {
        $(
            macro_rules! $list {
                () => { $($pattern)|* };
            }
            pub(crate) use $list;
        )*

        impl Op {
            /// A short name for messages and telemetry.
            pub fn name(&self) -> &'static str {
                match self {
                    $($($pattern => $name,)*)*
                }
            }
        }
    };
}

ops! {
    // Given from outside.
    source_ops {
        Op::Tokens => "tokens",
        Op::Positions => "positions",
        Op::OutputRows => "output_rows",
        Op::Choices => "choices",
        Op::Adapters { .. } => "adapters",
        Op::Weight(_) => "weight",
    }
    // Functions of their inputs, one of them a table or a matrix.
    matrix_ops {
        Op::Embed(_) => "embed",
        Op::Linear => "linear",
        Op::ExpertLinear => "expert_linear",
        Op::Project(_) => "project",
        Op::GatedProject { .. } => "gated_project",
    }
    // Functions of their inputs, all of them plain numbers.
    plain_ops {
        Op::SelectRows => "select_rows",
        Op::Slice { .. } => "slice",
        Op::Gather => "gather",
        Op::Cast(_) => "cast",
        Op::Unary(_) => "unary",
        Op::Binary(_) => "binary",
        Op::Scalar { .. } => "scalar",
        Op::Softcap(_) => "softcap",
        Op::Gated(_) => "gated",
        Op::RmsNorm { .. } => "rms_norm",
        Op::LayerNorm { .. } => "layer_norm",
        Op::Softmax => "softmax",
        Op::Combine => "combine",
        Op::Rope(_) => "rope",
        Op::Sdpa(_) => "sdpa",
        Op::Argmax => "argmax",
        Op::TopK { .. } => "top_k",
        Op::Sample => "sample",
    }
    // With what is kept between steps.
    state_ops {
        Op::KvWrite { .. } => "kv_write",
        Op::Attention(_) => "attention",
        Op::ShortConv { .. } => "short_conv",
        Op::Recurrence(_) => "recurrence",
        Op::Qkv(_) => "qkv",
    }
}

impl Op {
    /// What kind of thing it is; every other question about all operations is asked of this.
    pub fn class(&self) -> OpClass {
        match self {
            source_ops!() => OpClass::Source,
            Op::Attention(Attention { state, .. }) => OpClass::State { state: *state, writes: false },
            Op::KvWrite { state, .. }
            | Op::Qkv(Qkv { state, .. })
            | Op::ShortConv { state }
            | Op::Recurrence(Recurrence { state, .. }) => OpClass::State { state: *state, writes: true },
            matrix_ops!() | plain_ops!() => OpClass::Pure,
        }
    }

    /// How the input at `index` is used where it is a weight.
    pub fn weight_use(&self, index: usize) -> WeightUse {
        let matrices = match self {
            Op::Embed(_) => return if index == 0 { WeightUse::Table } else { WeightUse::Vector },
            Op::Linear | Op::ExpertLinear => 1..2,
            Op::Project(spec) => spec.matrices(),
            Op::Qkv(spec) => spec.project().matrices(),
            Op::GatedProject { norm, .. } => {
                let first = 1 + usize::from(norm.is_some());
                first..first + 2
            }
            Op::KvWrite { .. }
            | Op::Attention(_)
            | Op::ShortConv { .. }
            | Op::Recurrence(_)
            | source_ops!()
            | plain_ops!() => 0..0,
        };
        if matrices.contains(&index) { WeightUse::Matrix } else { WeightUse::Vector }
    }

    /// What it reads or writes between steps.
    pub fn state(&self) -> Option<StateId> {
        match self.class() {
            OpClass::State { state, .. } => Some(state),
            OpClass::Source | OpClass::Pure => None,
        }
    }

    /// Whether the node is given from outside instead of computed.
    pub fn is_source(&self) -> bool {
        self.class() == OpClass::Source
    }

    /// Whether running it changes what is kept between steps, so that it may not be dropped.
    pub fn has_effect(&self) -> bool {
        matches!(self.class(), OpClass::State { writes: true, .. })
    }
}

/// What kind of thing an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// Given from outside: by the step, or when the program is made.
    Source,
    /// A function of its inputs: it can be carried out alone.
    Pure,
    /// It needs a step: it reads, or also writes, a state that is kept between steps.
    #[allow(missing_docs, reason = "the variant says what the fields are")]
    State { state: StateId, writes: bool },
}
