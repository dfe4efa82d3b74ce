//! The layers models are made of. A layer holds its weights; `forward` applies it.

use metallic_core::{Attention, Binary, Rope, Shape, Sizes, Unary, Var};

use crate::model::{Key, RopeConfig};
use crate::weights::{LowRank, Recipe, WeightSource};

/// `W · x + b`
pub struct Linear<'g> {
    w: Var<'g>,
    b: Option<Var<'g>>,
    adapters: Option<LowRank<'g>>,
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
        let (w, adapters) = w.matrix(matrix, dims);
        Linear { w, b, adapters }
    }

    /// The matrix that makes logits: the table of embeddings where they are `tied`, else `name.weight`. Where nothing is
    /// said, a file without such a matrix means the table.
    pub fn head(w: &WeightSource<'_, 'g>, name: Key, table: Var<'g>, tied: Option<bool>) -> Linear<'g> {
        let shape = table.ty().shape;
        let dims = Dims { rows: shape.rows(Sizes::default()), cols: shape.cols() };
        if tied.unwrap_or_else(|| !w.has(name.weight())) {
            w.skip(name.weight());
            let adapters = w.beside(&name.weight(), dims);
            return Linear { w: table, b: None, adapters };
        }
        Linear::new(w, name, dims, false)
    }

    /// `[.., cols]` gives `[.., rows]`.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        let y = x.linear(self.w);
        let y = self.b.map_or(y, |b| y + b);
        self.adapters.as_ref().map_or(y, |adapters| y + adapters.forward(x))
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
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + b`
    Layer {
        /// `[cols]`
        w: Var<'g>,
        /// `[cols]`
        b: Option<Var<'g>>,
        /// Keeps the root away from zero.
        eps: f32,
    },
}

impl<'g> Norm<'g> {
    /// [`Norm::Rms`] of rows of `cols` elements.
    pub fn rms(w: &WeightSource<'_, 'g>, weight: Recipe, cols: usize, eps: f32) -> Norm<'g> {
        Norm::Rms { w: w.weight(weight, Shape::vector(cols)), eps }
    }

    /// [`Norm::Layer`] of rows of `cols` elements.
    pub fn layer(w: &WeightSource<'_, 'g>, name: Key, cols: usize, eps: f32) -> Norm<'g> {
        let b = w.has(name.bias()).then(|| w.weight(name.bias(), Shape::vector(cols)));
        Norm::Layer { w: w.weight(name.weight(), Shape::vector(cols)), b, eps }
    }

    /// The same shape again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        match *self {
            Norm::Rms { w, eps } => x.rms_norm(w, eps),
            Norm::Layer { w, b, eps } => x.layer_norm(w, b, eps),
        }
    }

    /// The same, of each of `heads` equal parts of a row.
    pub fn forward_heads(&self, x: Var<'g>, heads: usize) -> Var<'g> {
        match *self {
            Norm::Rms { w, eps } => x.rms_norm_groups(w, eps, heads),
            // Nobody has these; a row is one head then, and its type says that the weight does not fit.
            Norm::Layer { .. } => self.forward(x),
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
    /// The experts a router chooses for each token, see [`Experts`].
    Moe(Experts<'g>),
    /// `down(relu(up(x))²)`
    Squared { up: Linear<'g>, down: Linear<'g> },
    /// `experts(x) + shared(x)`, or `experts(x) + sigmoid(gate(x)) * shared(x)`.
    Shared { experts: Experts<'g>, shared: Box<Ffn<'g>>, gate: Option<Linear<'g>> },
}

/// What each of the chosen experts counts.
pub enum Routing<'g> {
    /// Softmax over the scores of the chosen.
    Chosen,
    /// Their parts of a softmax over all scores.
    All,
    /// `sigmoid` of their scores, where asked for as parts of their sum. `bias [experts]` helps to choose, and counts for nothing else.
    Sigmoid {
        /// `[experts]`
        bias: Option<Var<'g>>,
        /// `ones [top, top]`, where they are parts of their sum.
        parts: Option<Var<'g>>,
    },
}

/// `scale * Σ_e p_e * down_e(act(gate_e(x)) * up_e(x))` over the `top` experts whose scores `router(x)` are largest.
pub struct Experts<'g> {
    /// To `[tokens, experts]`.
    pub router: Linear<'g>,
    /// `[experts, inner, hidden]`
    pub gate: Var<'g>,
    /// `[experts, inner, hidden]`
    pub up: Var<'g>,
    /// `[experts, hidden, inner]`
    pub down: Var<'g>,
    /// Of the gate.
    pub act: Unary,
    /// Experts of a token.
    pub top: usize,
    /// What `p` is.
    pub routing: Routing<'g>,
    /// On the sum.
    pub scale: f32,
    /// What is added to the results of gate, up and down: `[experts, inner]`, `[experts, inner]`, `[experts, hidden]`.
    pub biases: Option<[Var<'g>; 3]>,
    /// Another gate than `act(gate) * up`.
    pub clamped: Option<Clamped>,
    /// Experts are chosen from some groups of them only.
    pub groups: Option<ExpertGroups<'g>>,
}

/// Experts in equal groups, one after another, of which a token takes those whose best experts score the most together.
pub struct ExpertGroups<'g> {
    /// Experts of a group.
    size: usize,
    /// Groups of a token.
    kept: usize,
    /// By group, `[groups, best]`: puts the sum of its best scores in its column.
    columns: Vec<Var<'g>>,
    /// `[groups, groups]`
    identity: Var<'g>,
    /// `[experts, kept * groups]`: 1 for an expert in one of the kept groups.
    members: Var<'g>,
    /// How many of a group's best count.
    best: usize,
}

impl<'g> ExpertGroups<'g> {
    /// `count` groups of `size` experts, of which `kept` are taken by their `best` scores.
    pub fn new(
        w: &WeightSource<'_, 'g>,
        count: usize,
        size: usize,
        kept: usize,
        best: usize,
    ) -> ExpertGroups<'g> {
        let constant = |name: &str, rows: usize, cols: usize, one: &dyn Fn(usize, usize) -> bool| {
            let cell = |i: usize| f32::from(one(i / cols.max(1), i % cols.max(1)));
            let values: Vec<f32> = (0..rows * cols).map(cell).collect();
            w.constant(name, Shape::matrix(rows, cols), &values)
        };
        let column = |group: usize| constant(&format!("group {group}"), count, best, &|row, _| row == group);
        ExpertGroups {
            size,
            kept,
            columns: (0..count).map(column).collect(),
            identity: constant("groups", count, count, &|row, col| row == col),
            members: constant("members of groups", count * size, kept * count, &|expert, col| {
                expert / size.max(1) == col % count.max(1)
            }),
            best,
        }
    }

    /// The scores `[tokens, experts]`, far below all others for experts of other groups.
    fn limit(&self, scores: Var<'g>) -> Var<'g> {
        let sums = self.columns.iter().enumerate().map(|(group, column)| {
            let own = scores.slice(group * self.size, self.size);
            own.gather(own.top_k(self.best)).linear(*column) // [tokens, groups]
        });
        let Some(sums) = sums.reduce(|sum, more| sum + more) else { return scores };
        let member = self.identity.embed(sums.top_k(self.kept)).linear(self.members); // [tokens, experts]
        scores + member.scalar(Binary::Sub, 1.0).scale(1e30)
    }
}

/// `(up + 1) * gate * sigmoid(alpha * gate)`, `gate` being at most `limit` and `up` no further from 0 than that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamped {
    /// How steep the sigmoid is.
    pub alpha: f32,
    /// How far numbers may go.
    pub limit: f32,
}

impl Clamped {
    /// The same shape as either.
    pub fn forward<'g>(self, gate: Var<'g>, up: Var<'g>) -> Var<'g> {
        let gate = gate.scalar(Binary::Min, self.limit);
        let up = up.scalar(Binary::Min, self.limit).scalar(Binary::Max, -self.limit);
        gate * gate.scale(self.alpha).unary(Unary::Sigmoid) * up.scalar(Binary::Add, 1.0)
    }
}

impl<'g> Experts<'g> {
    /// The `top` of so many experts by `router`, whose matrices are `gate`, `up` and `down`, with nothing else.
    pub fn new(router: Linear<'g>, [gate, up, down]: [Var<'g>; 3], act: Unary, top: usize) -> Experts<'g> {
        let (routing, scale, biases, clamped, groups) = (Routing::Chosen, 1.0, None, None, None);
        Experts { router, gate, up, down, act, top, routing, scale, biases, clamped, groups }
    }

    /// `[tokens, hidden]` again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        let scores = self.router.forward(x); // [tokens, experts]
        let best = |scores: Var<'g>| {
            self.groups.as_ref().map_or(scores, |groups| groups.limit(scores)).top_k(self.top) // [tokens, top]
        };
        let (chosen, weights) = match &self.routing {
            Routing::Chosen => {
                let chosen = best(scores);
                (chosen, scores.gather(chosen).softmax())
            }
            Routing::All => {
                let parts = scores.softmax();
                let chosen = best(parts);
                (chosen, parts.gather(chosen))
            }
            Routing::Sigmoid { bias, parts } => {
                let scores = scores.unary(Unary::Sigmoid);
                let chosen = best(bias.map_or(scores, |bias| scores + bias));
                let weights = scores.gather(chosen);
                (chosen, parts.map_or(weights, |ones| weights / weights.linear(ones)))
            }
        };
        let product = |x: Var<'g>, w: Var<'g>, which: usize| {
            let y = x.expert_linear(w, chosen);
            self.biases.map_or(y, |biases| y + biases[which].embed(chosen))
        };
        let (gate, up) = (product(x, self.gate, 0), product(x, self.up, 1)); // [tokens, top * inner]
        let inner =
            self.clamped.map_or_else(|| gate.gated(self.act, up), |clamped| clamped.forward(gate, up));
        product(inner, self.down, 2).combine(scaled(weights, self.scale))
    }
}

/// `factor * x`
pub fn scaled(x: Var<'_>, factor: f32) -> Var<'_> {
    if factor == 1.0 { x } else { x.scale(factor) }
}

impl<'g> Ffn<'g> {
    /// `[tokens, hidden]` again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        match self {
            Ffn::Gated { gate, up, down, act } => down.forward(gate.forward(x).unary(*act) * up.forward(x)),
            Ffn::Plain { up, down, act } => down.forward(up.forward(x).unary(*act)),
            Ffn::Squared { up, down } => {
                let inner = up.forward(x).unary(Unary::Relu);
                down.forward(inner * inner)
            }
            Ffn::Moe(experts) => experts.forward(x),
            Ffn::Shared { experts, shared, gate } => {
                let shared = shared.forward(x);
                // One number for each row: a sum of one part.
                let gated = |gate: &Linear<'g>| shared.combine(gate.forward(x).unary(Unary::Sigmoid));
                experts.forward(x) + gate.as_ref().map_or(shared, gated)
            }
        }
    }
}

/// Rotary embedding: the rotation and its table of frequencies.
#[derive(Clone, Copy)]
pub struct Rotary<'g> {
    rope: Rope,
    freqs: Var<'g>,
}

/// Divisors of the frequencies that a GGUF file may bring, and those it brings for longer contexts.
const FACTORS: Key = Key::new("rope_freqs|rope_factors_short", "");
const SHORT_FACTORS: Key = Key::new("rope_factors_short", "");
const LONG_FACTORS: Key = Key::new("rope_factors_long", "");

impl<'g> Rotary<'g> {
    /// The rotation of heads of `head_dim` elements, its frequencies divided by the file's own factors where it has them.
    pub fn new(w: &WeightSource<'_, 'g>, config: &RopeConfig, head_dim: usize) -> Rotary<'g> {
        let mut freqs = config.frequencies();
        let (taken, left) = if config.is_long() { (LONG_FACTORS, FACTORS) } else { (FACTORS, LONG_FACTORS) };
        if config.needs_factors() && !w.has(taken.weight()) {
            // Said at the end: without them the rotation would be another one.
            let needed = if config.is_long() { LONG_FACTORS } else { SHORT_FACTORS };
            let _ = w.weight(needed.weight(), Shape::vector(freqs.len()));
        }
        if let Some(factors) = w.numbers(taken.weight(), freqs.len()) {
            freqs.iter_mut().zip(factors).for_each(|(freq, factor)| *freq /= factor);
        }
        w.skip(left.weight());
        let rope = Rope { head_dim, pairs: config.pairs, magnitude: config.magnitude() };
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
    /// Norms of each query head and of each key head, where there are any.
    pub head_norms: Option<[Norm<'g>; 2]>,
    /// Norms of all query heads together and of all key heads together, where there are any.
    pub row_norms: Option<[Norm<'g>; 2]>,
    /// How queries and keys are told where they stand, where they are.
    pub rotary: Option<Rotary<'g>>,
    /// One more score for each head, where there are any: `[heads]`.
    pub sinks: Option<Var<'g>>,
    /// To `[tokens, heads * head_dim]`; its sigmoid is a factor on what the heads give, where there is one.
    pub gate: Option<Linear<'g>>,
    /// Heads, scale, window, soft cap.
    pub attention: Attention,
}

impl<'g> SelfAttention<'g> {
    /// Queries, keys, values and what follows, with nothing else.
    pub fn new([q, k, v, o]: [Linear<'g>; 4], attention: Attention) -> SelfAttention<'g> {
        let (head_norms, row_norms, rotary, sinks, gate) = (None, None, None, None, None);
        SelfAttention { q, k, v, o, head_norms, row_norms, rotary, sinks, gate, attention }
    }

    /// `[tokens, hidden]` again.
    pub fn forward(&self, x: Var<'g>) -> Var<'g> {
        let Attention { state, heads, kv_heads, .. } = self.attention;
        let attention = Attention { sinks: self.sinks.is_some(), ..self.attention };
        let placed = |x: Var<'g>, which: usize, heads: usize| {
            let x = self.row_norms.as_ref().map_or(x, |norms| norms[which].forward(x));
            let x = self.head_norms.as_ref().map_or(x, |norms| norms[which].forward_heads(x, heads));
            self.rotary.map_or(x, |rotary| rotary.forward(x))
        };
        let q = placed(self.q.forward(x), 0, heads);
        let k = placed(self.k.forward(x), 1, kv_heads);
        let stored = k.kv_write(self.v.forward(x), state, kv_heads);
        let mixed = q.attention(stored, attention, self.sinks);
        self.o.forward(self.gate.as_ref().map_or(mixed, |gate| mixed * gate.forward(x).unary(Unary::Sigmoid)))
    }
}
