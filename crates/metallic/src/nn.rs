//! The layers models are made of. A layer holds its weights; `of` applies it.

use metallic_core::{Attention, Rope, Unary, Var};

use crate::model::Config;
use crate::weights::Weights;

/// `W · x + b`
pub(crate) struct Linear<'g> {
    w: Var<'g>,
    b: Option<Var<'g>>,
}

/// The shape of a layer's matrix.
#[derive(Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl<'g> Linear<'g> {
    pub(crate) fn new(
        w: &Weights<'g, '_>,
        layer: Option<usize>,
        name: &str,
        dims: Dims,
        bias: bool,
    ) -> Linear<'g> {
        let b = bias.then(|| w.bias(layer, name, dims.rows));
        Linear { w: w.matrix(layer, name, dims.rows, dims.cols), b }
    }

    pub(crate) fn tied(table: Var<'g>) -> Linear<'g> {
        Linear { w: table, b: None }
    }

    pub(crate) fn of(&self, x: Var<'g>) -> Var<'g> {
        let y = x.linear(self.w);
        match self.b {
            Some(b) => y + b,
            None => y,
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * w`
pub(crate) struct RmsNorm<'g> {
    w: Var<'g>,
    eps: f32,
}

impl<'g> RmsNorm<'g> {
    pub(crate) fn new(w: &Weights<'g, '_>, layer: Option<usize>, name: &str, c: &Config) -> RmsNorm<'g> {
        RmsNorm { w: w.vector(layer, name, c.hidden), eps: c.norm_eps }
    }

    pub(crate) fn of(&self, x: Var<'g>) -> Var<'g> {
        x.rms_norm(self.w, self.eps)
    }
}

/// `down(act(gate(x)) * up(x))`
pub(crate) struct Mlp<'g> {
    gate: Linear<'g>,
    up: Linear<'g>,
    down: Linear<'g>,
    act: Unary,
}

impl<'g> Mlp<'g> {
    pub(crate) fn new(w: &Weights<'g, '_>, layer: usize, c: &Config) -> Mlp<'g> {
        let linear = |name, rows, cols| Linear::new(w, Some(layer), name, Dims { rows, cols }, c.mlp_bias);
        Mlp {
            gate: linear("gate", c.ffn, c.hidden),
            up: linear("up", c.ffn, c.hidden),
            down: linear("down", c.hidden, c.ffn),
            act: c.act,
        }
    }

    pub(crate) fn of(&self, x: Var<'g>) -> Var<'g> {
        self.down.of(self.gate.of(x).unary(self.act) * self.up.of(x))
    }
}

/// Rotary embedding: the rotation and its table of frequencies.
#[derive(Clone, Copy)]
pub(crate) struct Rotary<'g> {
    rope: Rope,
    freqs: Var<'g>,
}

impl<'g> Rotary<'g> {
    /// The table as the config gives it, divided by the file's own factors where it has them.
    pub(crate) fn new(w: &Weights<'g, '_>, c: &Config) -> Rotary<'g> {
        let mut freqs = c.rope.frequencies();
        if let Some(factors) = w.numbers("rope_factors", freqs.len()) {
            freqs.iter_mut().zip(factors).for_each(|(freq, factor)| *freq /= factor);
        }
        let rope = Rope { head_dim: c.head_dim, pairs: c.rope.pairs, magnitude: 1.0 };
        Rotary { rope, freqs: w.graph().constant("rope.frequencies", &freqs) }
    }

    fn of(&self, x: Var<'g>) -> Var<'g> {
        x.rope(self.rope, x.graph().positions(), self.freqs)
    }
}

/// Multi-head attention over the layer's cache, with key/value heads shared by groups of query heads.
pub(crate) struct SelfAttention<'g> {
    q: Linear<'g>,
    k: Linear<'g>,
    v: Linear<'g>,
    o: Linear<'g>,
    rotary: Rotary<'g>,
    attention: Attention,
}

impl<'g> SelfAttention<'g> {
    pub(crate) fn new(
        w: &Weights<'g, '_>,
        layer: usize,
        c: &Config,
        rotary: Rotary<'g>,
    ) -> SelfAttention<'g> {
        let (q_rows, kv_rows) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let linear = |name, rows, cols, bias| Linear::new(w, Some(layer), name, Dims { rows, cols }, bias);
        SelfAttention {
            q: linear("q", q_rows, c.hidden, c.qkv_bias),
            k: linear("k", kv_rows, c.hidden, c.qkv_bias),
            v: linear("v", kv_rows, c.hidden, c.qkv_bias),
            o: linear("o", c.hidden, q_rows, c.out_bias),
            rotary,
            attention: Attention {
                layer,
                heads: c.heads,
                kv_heads: c.kv_heads,
                head_dim: c.head_dim,
                scale: (c.head_dim as f32).sqrt().recip(),
                window: c.windows.get(layer).copied().flatten(),
                softcap: None,
            },
        }
    }

    pub(crate) fn of(&self, x: Var<'g>) -> Var<'g> {
        let q = self.rotary.of(self.q.of(x)); // [tokens, heads * head_dim]
        let k = self.rotary.of(self.k.of(x)); // [tokens, kv_heads * head_dim]
        let stored = k.kv_write(self.v.of(x), self.attention.layer);
        self.o.of(q.attention(stored, self.attention))
    }
}
