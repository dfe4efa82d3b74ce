//! What operations are told besides their inputs.

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

/// What a layer keeps between steps, by number: keys and values, or a recurrent state. What exactly is derived from the
/// operations that use it, see [`crate::StateLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub usize);

/// Which part of the cache a query may see, and how scores are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Whose keys and values are read.
    pub state: StateId,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements of a query's and a key's head.
    pub head_dim: usize,
    /// Elements of a value's head.
    pub value_dim: usize,
    /// Factor on `q · k`.
    pub scale: f32,
    /// A query at position `p` sees positions `p - window < j ≤ p`; all `j ≤ p` without a window.
    pub window: Option<usize>,
    /// `softcap * tanh(score / softcap)` before the softmax.
    pub softcap: Option<f32>,
    /// Each head has one more score, its sink, which takes its share of the softmax and gives no value.
    pub sinks: bool,
}

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

/// Attention over keys and values that are given, not kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sdpa {
    /// Factor on `q · k`.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: Mask,
    /// `softcap * tanh(score / softcap)` before the softmax.
    pub softcap: Option<f32>,
}

/// A state of one matrix `S [key_dim, value_dim]` a head that every token fades, corrects and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// Whose matrices.
    pub state: StateId,
    /// Heads of values.
    pub heads: usize,
    /// Heads of queries and keys; each serves `heads / key_heads` of the values'.
    pub key_heads: usize,
    /// Those that share one lie `key_heads` apart instead of side by side.
    pub tiled: bool,
    /// Elements of a query's and a key's head.
    pub key_dim: usize,
    /// Elements of a value's head.
    pub value_dim: usize,
    /// Write what the state lacks (delta rule) instead of adding to it (linear attention, state spaces).
    pub delta: bool,
}

impl Recurrence {
    /// Of heads counted over tokens, the head of its query and key.
    pub fn key_head(&self, head: usize) -> usize {
        if self.tiled {
            return head / self.heads * self.key_heads + head % self.heads % self.key_heads;
        }
        head / (self.heads / self.key_heads)
    }

    /// Numbers it keeps for a sequence.
    pub fn elements(&self) -> usize {
        self.heads.saturating_mul(self.key_dim).saturating_mul(self.value_dim)
    }
}

/// What a fused projection adds to `W · x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Project {
    /// Normalise `x` by [`crate::Op::RmsNorm`] with this epsilon first.
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
    /// Normalise `x` by [`crate::Op::RmsNorm`] with this epsilon first.
    pub norm: Option<f32>,
    /// Each of the three matrices has a bias vector.
    pub bias: bool,
    /// Normalise each query head and each key head by [`crate::Op::RmsNorm`] with this epsilon before it is rotated.
    pub head_norm: Option<f32>,
    /// The rotation of queries and keys.
    pub rope: Rope,
    /// Whose keys and values are written.
    pub state: StateId,
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

    /// Where the weight of the query heads' norm lies among the inputs; that of the key heads' follows.
    pub fn head_norms(&self) -> Option<usize> {
        self.head_norm.map(|_| self.project().inputs().count)
    }

    /// Where the positions lie among the inputs.
    pub fn positions(&self) -> usize {
        self.project().inputs().count + if self.head_norm.is_some() { 2 } else { 0 }
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
    /// `W · x` alone.
    pub const PLAIN: Project = Project { norm: None, parts: 1, bias: false, residual: false };

    pub(crate) fn matrices(&self) -> std::ops::Range<usize> {
        let first = self.inputs().weights;
        first..first + self.parts
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
