//! Llama (and SmolLM2): pre-norm decoder layers with rotary attention and a gated feed-forward.
//! Siblings that differ in windows, biases or pairs reuse it from files of their own.

use metallic_core::{Attention, RopePairs, Shape, Unary, Var};

use super::config::{MAX_WIDTH, activation, epsilon, plain_weights, tied};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming, Results, RopeConfig};
use crate::nn::{Dims, Ffn, Linear, Norm, Rotary, SelfAttention};
use crate::weights::WeightSource;

pub(super) const FAMILY: Family =
    Family { gguf: &["llama"], hf: &["llama"], read: |meta| Ok(Box::new(Llama::read(meta)?)) };

const FFN: Key = Key::new("feed_forward_length", "intermediate_size");
const EPSILON: Key = Key::new("attention.layer_norm_rms_epsilon", "rms_norm_eps");
const ATTENTION_BIAS: Key = Key::new("", "attention_bias");
const MLP_BIAS: Key = Key::new("", "mlp_bias");

const EMBED: Key = Key::new("token_embd", "model.embed_tokens");
const LAYERS: Key = Key::new("blk", "model.layers");
const ATTN_NORM: Key = Key::new("attn_norm", "input_layernorm");
const Q: Key = Key::new("attn_q", "self_attn.q_proj");
const K: Key = Key::new("attn_k", "self_attn.k_proj");
const V: Key = Key::new("attn_v", "self_attn.v_proj");
const O: Key = Key::new("attn_output", "self_attn.o_proj");
const FFN_NORM: Key = Key::new("ffn_norm", "post_attention_layernorm");
const GATE: Key = Key::new("ffn_gate", "mlp.gate_proj");
const UP: Key = Key::new("ffn_up", "mlp.up_proj");
const DOWN: Key = Key::new("ffn_down", "mlp.down_proj");
const NORM: Key = Key::new("output_norm", "model.norm");
const HEAD: Key = Key::new("output", "lm_head");

/// The family's numbers. Of biases and the head, `None` leaves it to the tensors of the file.
pub(super) struct Llama {
    pub(super) config: Config,
    pub(super) ffn: usize,
    pub(super) norm_eps: f32,
    pub(super) act: Unary,
    pub(super) rope: RopeConfig,
    pub(super) windows: Vec<Option<usize>>,
    pub(super) qkv_bias: Option<bool>,
    pub(super) out_bias: Option<bool>,
    pub(super) mlp_bias: Option<bool>,
    pub(super) tied: Option<bool>,
}

impl Llama {
    pub(super) fn read(meta: &Meta<'_>) -> Result<Llama, ModelError> {
        plain_weights(meta)?;
        let config = Config::read(meta)?;
        // GGUF stores the rows of queries and keys so that pairs lie side by side.
        let (pairs, unsaid) = match meta.naming() {
            Naming::Gguf => (RopePairs::Interleaved, None),
            Naming::HuggingFace => (RopePairs::Halves, Some(false)),
        };
        let attention_bias = meta.opt(ATTENTION_BIAS)?.or(unsaid);
        Ok(Llama {
            ffn: meta.count(FFN, MAX_WIDTH)?,
            norm_eps: epsilon(meta, EPSILON)?,
            act: activation(meta, Unary::Silu)?,
            rope: RopeConfig { pairs, ..RopeConfig::read(meta, config.head_dim)? },
            windows: vec![None; config.layers],
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias: meta.opt(MLP_BIAS)?.or(unsaid),
            tied: tied(meta, false)?,
            config,
        })
    }

    /// Where the numbers do not say which biases there are, the first layer does.
    fn layer<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, rotary: Rotary<'g>) -> Layer<'g> {
        let Config { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let (first, w) = (w.item(LAYERS, 0), &w.item(LAYERS, i));
        let bias = |said: Option<bool>, name: Key| said.unwrap_or_else(|| first.has(name.bias()));
        let (qkv, out, mlp) = (bias(self.qkv_bias, Q), bias(self.out_bias, O), bias(self.mlp_bias, DOWN));
        let linear = |name, rows, cols, bias| Linear::new(w, name, Dims { rows, cols }, bias);
        Layer {
            attn_norm: Norm::rms(w, ATTN_NORM.weight(), hidden, self.norm_eps),
            attn: SelfAttention {
                q: linear(Q, heads * head_dim, hidden, qkv),
                k: linear(K, kv_heads * head_dim, hidden, qkv),
                v: linear(V, kv_heads * head_dim, hidden, qkv),
                o: linear(O, hidden, heads * head_dim, out),
                head_norms: None,
                rotary: Some(rotary),
                sinks: None,
                attention: Attention { window: self.windows[i], ..self.config.attention(i) },
            },
            ffn_norm: Norm::rms(w, FFN_NORM.weight(), hidden, self.norm_eps),
            ffn: Ffn::Gated {
                gate: linear(GATE, self.ffn, hidden, mlp),
                up: linear(UP, self.ffn, hidden, mlp),
                down: linear(DOWN, hidden, self.ffn, mlp),
                act: self.act,
            },
        }
    }
}

struct Layer<'g> {
    attn_norm: Norm<'g>,
    attn: SelfAttention<'g>,
    ffn_norm: Norm<'g>,
    ffn: Ffn<'g>,
}

impl<'g> Layer<'g> {
    fn forward(&self, x: Var<'g>) -> Var<'g> {
        let h = x + self.attn.forward(self.attn_norm.forward(x));
        h + self.ffn.forward(self.ffn_norm.forward(h))
    }
}

impl Decoder for Llama {
    fn config(&self) -> &Config {
        &self.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let Config { layers, hidden, vocab, head_dim, .. } = self.config;
        let rotary = Rotary::new(w, &self.rope, head_dim);
        let embed = w.weight(EMBED.weight(), Shape::matrix(vocab, hidden));
        let norm = Norm::rms(w, NORM.weight(), hidden, self.norm_eps);
        let head = Linear::head(w, HEAD, embed, self.tied);

        let mut x = embed.embed(w.graph().tokens()); // [tokens, hidden]
        for i in 0..layers {
            x = self.layer(w, i, rotary).forward(x);
        }
        Results::new(x, |last| norm.forward(last), |last| head.forward(last))
    }
}
