//! A decoder of experts: queries, keys and values in one matrix, a sink for each head, norms with a bias, and a router that
//! chooses who follows.

use metallic::core::{Shape, Unary};
use metallic::model::config::{MAX_WIDTH, epsilon};
use metallic::model::{Config, Decoder, Family, Key, Meta, ModelError, Results, RopeConfig};
use metallic::nn::{Dims, Experts, Ffn, Linear, Norm, Rotary, SelfAttention};
use metallic::weights::WeightSource;

pub(crate) const FAMILY: Family = Family { gguf: &[], hf: &["experts"], read };

const INNER: Key = Key::new("", "intermediate_size");
const EPSILON: Key = Key::new("", "layer_norm_eps");
const COUNT: Key = Key::new("", "num_experts");
const TOP: Key = Key::new("", "num_experts_per_tok");

const EMBED: Key = Key::new("", "model.embed_tokens");
const LAYERS: Key = Key::new("", "model.layers");
const ATTN_NORM: Key = Key::new("", "input_layernorm");
const QKV: Key = Key::new("", "self_attn.qkv_proj");
const O: Key = Key::new("", "self_attn.o_proj");
const SINKS: Key = Key::new("", "self_attn.sinks");
const FFN_NORM: Key = Key::new("", "post_attention_layernorm");
const ROUTER: Key = Key::new("", "mlp.router");
const GATE: Key = Key::new("", "mlp.experts.{}.gate_proj");
const UP: Key = Key::new("", "mlp.experts.{}.up_proj");
const DOWN: Key = Key::new("", "mlp.experts.{}.down_proj");
const NORM: Key = Key::new("", "model.norm");
const HEAD: Key = Key::new("", "lm_head");

struct Moe {
    config: Config,
    inner: usize,
    count: usize,
    top: usize,
    eps: f32,
    rope: RopeConfig,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let config = Config::read(meta)?;
    let count = meta.count(COUNT, MAX_WIDTH)?;
    Ok(Box::new(Moe {
        inner: meta.count(INNER, MAX_WIDTH)?,
        top: meta.count(TOP, count)?,
        count,
        eps: epsilon(meta, EPSILON)?,
        rope: RopeConfig::read(meta, config.head_dim)?,
        config,
    }))
}

impl Moe {
    fn attention<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, rotary: Rotary<'g>) -> SelfAttention<'g> {
        let Config { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let part = |start: usize, rows: usize| {
            let [matrix, bias] = [QKV.weight(), QKV.bias()].map(|whole| whole.rows(start..start + rows));
            Linear::made(w, Dims { rows, cols: hidden }, matrix, Some(bias))
        };
        let o = Linear::new(w, O, Dims { rows: hidden, cols: q }, true);
        let all = [part(0, q), part(q, kv), part(q + kv, kv), o];
        SelfAttention {
            rotary: Some(rotary),
            sinks: Some(w.weight(SINKS, Shape::vector(heads))),
            ..SelfAttention::new(all, self.config.attention(i))
        }
    }

    fn ffn<'g>(&self, w: &WeightSource<'_, 'g>) -> Ffn<'g> {
        let (hidden, inner, count) = (self.config.hidden, self.inner, self.count);
        let stack =
            |name: Key, rows, cols| w.weight(name.weight().stacked(count), Shape::stack(count, rows, cols));
        let router = Linear::new(w, ROUTER, Dims { rows: count, cols: hidden }, true);
        let matrices = [stack(GATE, inner, hidden), stack(UP, inner, hidden), stack(DOWN, hidden, inner)];
        Ffn::Moe(Experts::new(router, matrices, Unary::Silu, self.top))
    }
}

impl Decoder for Moe {
    fn config(&self) -> &Config {
        &self.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let Config { layers, hidden, vocab, head_dim, .. } = self.config;
        let rotary = Rotary::new(w, &self.rope, head_dim);
        let embed = w.weight(EMBED.weight(), Shape::matrix(vocab, hidden));
        let norm = |w: &WeightSource<'_, 'g>, name: Key| Norm::layer(w, name, hidden, self.eps);
        let mut x = embed.embed(w.graph().tokens()); // [tokens, hidden]
        for i in 0..layers {
            let w = &w.item(LAYERS, i);
            let h = x + self.attention(w, i, rotary).forward(norm(w, ATTN_NORM).forward(x));
            x = h + self.ffn(w).forward(norm(w, FFN_NORM).forward(h));
        }
        let (norm, head) = (norm(w, NORM), Linear::head(w, HEAD, embed, Some(false)));
        Results::new(x, |last| norm.forward(last), |last| head.forward(last))
    }
}
