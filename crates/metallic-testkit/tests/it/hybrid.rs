//! A hybrid decoder: every other layer is attention, with a norm of each head and a partial rotation; those between keep a
//! short convolution and the state of a gated delta rule.

use metallic::core::{Recurrence, Shape, StateId, Unary, Var};
use metallic::model::config::{MAX_WIDTH, epsilon};
use metallic::model::{Config, Decoder, Family, Key, Meta, ModelError, Results, RopeConfig};
use metallic::nn::{Dims, Ffn, Linear, Norm, Rotary, SelfAttention};
use metallic::weights::WeightSource;

pub(crate) const FAMILY: Family = Family { gguf: &[], hf: &["hybrid"], read };

const FFN: Key = Key::new("", "intermediate_size");
const EPSILON: Key = Key::new("", "rms_norm_eps");

const EMBED: Key = Key::new("", "model.embed_tokens");
const LAYERS: Key = Key::new("", "model.layers");
const MIX_NORM: Key = Key::new("", "input_layernorm");
const Q: Key = Key::new("", "mixer.q_proj");
const K: Key = Key::new("", "mixer.k_proj");
const V: Key = Key::new("", "mixer.v_proj");
const O: Key = Key::new("", "mixer.o_proj");
const Q_NORM: Key = Key::new("", "mixer.q_norm");
const K_NORM: Key = Key::new("", "mixer.k_norm");
const CONV: Key = Key::new("", "mixer.conv");
const DECAY: Key = Key::new("", "mixer.decay_proj");
const BETA: Key = Key::new("", "mixer.beta_proj");
const FFN_NORM: Key = Key::new("", "post_attention_layernorm");
const GATE: Key = Key::new("", "mlp.gate_proj");
const UP: Key = Key::new("", "mlp.up_proj");
const DOWN: Key = Key::new("", "mlp.down_proj");
const NORM: Key = Key::new("", "model.norm");

/// Rows that a convolution takes together.
const CONV_WIDTH: usize = 4;

struct Hybrid {
    config: Config,
    ffn: usize,
    eps: f32,
    rope: RopeConfig,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let config = Config::read(meta)?;
    Ok(Box::new(Hybrid {
        ffn: meta.count(FFN, MAX_WIDTH)?,
        eps: epsilon(meta, EPSILON)?,
        rope: RopeConfig::read(meta, config.head_dim)?,
        config,
    }))
}

impl Hybrid {
    fn attention<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, rotary: Rotary<'g>) -> SelfAttention<'g> {
        let Config { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let [q_rows, k_rows, v_rows] =
            [(Q, q), (K, kv), (V, kv)].map(|(name, rows)| linear(w, name, rows, hidden));
        let all = [q_rows, k_rows, v_rows, linear(w, O, hidden, q)];
        SelfAttention {
            head_norms: Some([Q_NORM, K_NORM].map(|name| self.norm(w, name, head_dim))),
            rotary: Some(rotary),
            ..SelfAttention::new(all, self.config.attention(i))
        }
    }

    /// `o(recurrence(q, k, v, decay, β))` of `silu(conv(x))`; heads of queries and keys are vectors of length 1.
    fn delta_rule<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, x: Var<'g>) -> Var<'g> {
        let Config { layers, hidden, heads, head_dim, .. } = self.config;
        let inner = heads * head_dim;
        let taps = w.weight(CONV.weight(), Shape::matrix(hidden, CONV_WIDTH));
        let x = x.short_conv(taps, StateId(i)).unary(Unary::Silu); // [tokens, hidden]
        let rows = |name, cols| linear(w, name, cols, hidden).forward(x);
        let unit = |name, norm| {
            let heads = self.norm(w, norm, head_dim).forward_heads(rows(name, inner), heads);
            heads.scale((head_dim as f32).sqrt().recip())
        };
        let [decay, beta] = [DECAY, BETA].map(|name| rows(name, heads).unary(Unary::Sigmoid)); // [tokens, heads]
        let (q, k, v) = (unit(Q, Q_NORM), unit(K, K_NORM), rows(V, inner)); // [tokens, inner]
        let (state, key_dim, value_dim) = (StateId(layers + i), head_dim, head_dim);
        let rule =
            Recurrence { state, heads, key_heads: heads, tiled: false, key_dim, value_dim, delta: true };
        linear(w, O, hidden, inner).forward(q.recurrence([k, v, decay, beta], rule))
    }

    fn norm<'g>(&self, w: &WeightSource<'_, 'g>, name: Key, cols: usize) -> Norm<'g> {
        Norm::rms(w, name.weight(), cols, self.eps)
    }

    fn ffn<'g>(&self, w: &WeightSource<'_, 'g>) -> Ffn<'g> {
        let (hidden, ffn) = (self.config.hidden, self.ffn);
        let [gate, up] = [GATE, UP].map(|name| linear(w, name, ffn, hidden));
        Ffn::Gated { gate, up, down: linear(w, DOWN, hidden, ffn), act: Unary::Silu }
    }
}

fn linear<'g>(w: &WeightSource<'_, 'g>, name: Key, rows: usize, cols: usize) -> Linear<'g> {
    Linear::new(w, name, Dims { rows, cols }, false)
}

impl Decoder for Hybrid {
    fn config(&self) -> &Config {
        &self.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let Config { layers, hidden, vocab, head_dim, .. } = self.config;
        let rotary = Rotary::new(w, &self.rope, head_dim);
        let embed = w.weight(EMBED.weight(), Shape::matrix(vocab, hidden));
        let mut x = embed.embed(w.graph().tokens()); // [tokens, hidden]
        for i in 0..layers {
            let w = &w.item(LAYERS, i);
            let h = self.norm(w, MIX_NORM, hidden).forward(x);
            x = x + match i % 2 {
                0 => self.delta_rule(w, i, h),
                _ => self.attention(w, i, rotary).forward(h),
            };
            x = x + self.ffn(w).forward(self.norm(w, FFN_NORM, hidden).forward(x));
        }
        let norm = self.norm(w, NORM, hidden);
        Results::new(x, |last| norm.forward(last), |last| last.linear(embed))
    }
}
