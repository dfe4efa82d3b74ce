//! The layers models are made of. A layer holds its weights; `forward` applies it.

use metallic_core::{Attention, Rope, Shape, Sizes, Unary, Var};

use crate::model::{Key, RopeConfig};
use crate::weights::{Recipe, WeightSource};

/// `W · x + b`
pub struct Linear<'g> {
    w: Var<'g>,
    b: Option<Var<'g>>,
}

/// The shape of a layer's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Elements that come out.
    pub rows: usize,
    /// Elements that go in.
    pub cols: usize,
}

impl<'g> Linear<'g> {
    /// The tensors `name.weight` and, with a bias, `name.bias`, as they are.
    pub fn new(w: &WeightSource<'_, 'g>, name: Key, dims: Dims, bias: bool) -> Linear<'g> {
        Linear::made(w, dims, name.weight(), bias.then(|| name.bias()))
    }

    /// A matrix, and a bias where there is one, by their recipes.
    pub fn made(w: &WeightSource<'_, 'g>, dims: Dims, matrix: Recipe, bias: Option<Recipe>) -> Linear<'g> {
        let b = bias.map(|bias| w.weight(bias, Shape::vector(dims.rows)));
        Linear { w: w.weight(matrix, Shape::matrix(dims.rows, dims.cols)), b }
    }

    /// The matrix that makes logits: the table of embeddings where they are `tied`, else `name.weight`. Where nothing is
    /// said, a file without such a matrix means the table.
    pub fn head(w: &WeightSource<'_, 'g>, name: Key, table: Var<'g>, tied: Option<bool>) -> Linear<'g> {
        if tied.unwrap_or_else(|| !w.has(name.weight())) {
            w.skip(name.weight());
            return Linear { w: table, b: None };
        }
        let shape = table.ty().shape;
        Linear::new(w, name, Dims { rows: shape.rows(Sizes::default()), cols: shape.cols() }, false)
    }

    /// `[.., cols]` gives `[.., rows]`.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        let y = x.linear(self.w);
        match self.b {
            Some(b) => y + b,
            None => y,
        }
    }
}

/// Brings rows to one size.
pub enum Norm<'g> {
    /// `x / sqrt(mean(x²) + eps) * w`
    Rms {
        /// `[cols]`
        w: Var<'g>,
        /// Keeps the root away from zero.
        eps: f32,
    },
}

impl<'g> Norm<'g> {
    /// [`Norm::Rms`] of rows of `cols` elements.
    pub fn rms(w: &WeightSource<'_, 'g>, weight: Recipe, cols: usize, eps: f32) -> Norm<'g> {
        Norm::Rms { w: w.weight(weight, Shape::vector(cols)), eps }
    }

    /// The same shape again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        match *self {
            Norm::Rms { w, eps } => x.rms_norm(w, eps),
        }
    }
}

/// What follows attention, each token by itself.
#[allow(missing_docs, reason = "the formulas say what the fields are")]
pub enum Ffn<'g> {
    /// `down(act(gate(x)) * up(x))`
    Gated { gate: Linear<'g>, up: Linear<'g>, down: Linear<'g>, act: Unary },
    /// `down(act(up(x)))`
    Plain { up: Linear<'g>, down: Linear<'g>, act: Unary },
}

impl<'g> Ffn<'g> {
    /// `[tokens, hidden]` again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        match self {
            Ffn::Gated { gate, up, down, act } => down.forward(gate.forward(x).unary(*act) * up.forward(x)),
            Ffn::Plain { up, down, act } => down.forward(up.forward(x).unary(*act)),
        }
    }
}

/// Rotary embedding: the rotation and its table of frequencies.
#[derive(Clone, Copy)]
pub struct Rotary<'g> {
    rope: Rope,
    freqs: Var<'g>,
}

/// Divisors of the frequencies that a GGUF file may bring.
const FACTORS: Key = Key::new("rope_freqs", "");

impl<'g> Rotary<'g> {
    /// The rotation of heads of `head_dim` elements, its frequencies divided by the file's own factors where it has them.
    pub fn new(w: &WeightSource<'_, 'g>, config: &RopeConfig, head_dim: usize) -> Rotary<'g> {
        let mut freqs = config.frequencies();
        if let Some(factors) = w.numbers(FACTORS.weight(), freqs.len()) {
            freqs.iter_mut().zip(factors).for_each(|(freq, factor)| *freq /= factor);
        }
        let rope = Rope { head_dim, pairs: config.pairs, magnitude: 1.0 };
        // Constants are told apart by name, and a model may have more than one rotation.
        Rotary { rope, freqs: w.graph().constant(&format!("frequencies of {config:?}"), &freqs) }
    }

    /// `[tokens, heads * head_dim]` again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        x.rope(self.rope, x.graph().positions(), self.freqs)
    }
}

/// Multi-head attention over the layer's cache, with key/value heads shared by groups of query heads.
pub struct SelfAttention<'g> {
    /// To `[tokens, heads * head_dim]`.
    pub q: Linear<'g>,
    /// To `[tokens, kv_heads * head_dim]`.
    pub k: Linear<'g>,
    /// To `[tokens, kv_heads * head_dim]`.
    pub v: Linear<'g>,
    /// From `[tokens, heads * head_dim]`.
    pub o: Linear<'g>,
    /// How queries and keys are told where they stand, where they are.
    pub rotary: Option<Rotary<'g>>,
    /// Heads, scale, window, soft cap.
    pub attention: Attention,
}

impl<'g> SelfAttention<'g> {
    /// `[tokens, hidden]` again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        let placed = |x| self.rotary.map_or(x, |rotary| rotary.forward(x));
        let (q, k) = (placed(self.q.forward(x)), placed(self.k.forward(x)));
        let stored = k.kv_write(self.v.forward(x), self.attention.layer);
        self.o.forward(q.attention(stored, self.attention))
    }
}
