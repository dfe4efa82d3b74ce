//! LFM2: most layers mix tokens by a short convolution between two gates, the others by attention with norms of its heads.

use metallic_core::{Shape, StateId, Var};

use super::config::{MAX_WIDTH, tied};
use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FfnConfig, Names, NormKind, QueryNorm, Transformer};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming, Results};
use crate::nn::{Dims, Linear};
use crate::weights::WeightSource;

pub(super) const FAMILY: Family = Family { gguf: &["lfm2", "lfm2moe"], hf: &["lfm2", "lfm2_moe"], read };

const NAMES: Names = Names {
    attn_norm: Some(Key::new("attn_norm", "operator_norm")),
    o: Key::new("attn_output", "self_attn.out_proj"),
    q_norm: Key::new("attn_q_norm", "self_attn.q_layernorm"),
    k_norm: Key::new("attn_k_norm", "self_attn.k_layernorm"),
    ffn_norm: Some(Key::new("ffn_norm", "ffn_norm")),
    gate: Key::new("ffn_gate", "feed_forward.w1"),
    up: Key::new("ffn_up", "feed_forward.w3"),
    down: Key::new("ffn_down", "feed_forward.w2"),
    norm: Key::new("token_embd_norm", "model.embedding_norm"),
    ..Names::LLAMA
};
const EXPERTS: ExpertNames = ExpertNames {
    router: Key::new("ffn_gate_inp", "feed_forward.gate"),
    gate: Key::new("ffn_gate_exps", "feed_forward.experts.{}.w1"),
    up: Key::new("ffn_up_exps", "feed_forward.experts.{}.w3"),
    down: Key::new("ffn_down_exps", "feed_forward.experts.{}.w2"),
    bias: Key::new("exp_probs_b.bias", "feed_forward.expert_bias"),
    ..ExpertNames::QWEN
};
const DENSE: Key = Key::new("leading_dense_block_count", "num_dense_layers");
const IN: Key = Key::new("shortconv.in_proj", "conv.in_proj");
const CONV: Key = Key::new("shortconv.conv", "conv.conv");
const OUT: Key = Key::new("shortconv.out_proj", "conv.out_proj");

const WIDTH: Key = Key::new("shortconv.l_cache", "conv_L_cache");
const KV_HEADS: Key = Key::new("attention.head_count_kv", "");
const TYPES: Key = Key::new("", "layer_types");
const ATTENTION_LAYERS: Key = Key::new("", "full_attn_idxs");
const FFN: Key = Key::new("feed_forward_length", "intermediate_size|block_ff_dim");
const ADJUSTED: Key = Key::new("", "block_auto_adjust_ff_dim");
const FFN_FACTOR: Key = Key::new("", "block_ffn_dim_multiplier");
const FFN_MULTIPLE: Key = Key::new("", "block_multiple_of");

struct Lfm2 {
    base: Transformer,
    /// Layers that mix by attention.
    attends: Vec<bool>,
    /// Tokens a convolution takes together.
    width: usize,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = FfnConfig::Gated(ffn(meta)?);
    let base = Transformer::with_ffn(meta, NormKind::Rms, ffn)?;
    let base = Transformer { names: NAMES, query_norm: QueryNorm::Heads, tied: tied(meta, true)?, ..base };
    let layers = base.config.layers;
    let mut base = base;
    if MoeConfig::is_there(meta)? {
        let moe = MoeConfig::read(meta, &EXPERTS)?.sigmoid(meta)?;
        let sparse = base.layers.iter_mut().skip(meta.get_or(DENSE, 0)?);
        sparse.for_each(|layer| layer.ffn = FfnConfig::Moe(moe.clone()));
    }
    let attends = match meta.naming() {
        Naming::Gguf => {
            let heads = meta.per_layer::<usize>(KV_HEADS, layers)?.unwrap_or_else(|| vec![1; layers]);
            heads.iter().map(|heads| *heads > 0).collect()
        }
        Naming::HuggingFace => {
            let listed = meta.opt::<Vec<usize>>(ATTENTION_LAYERS)?;
            let types = meta.per_layer::<&str>(TYPES, layers)?;
            let attends = |i: usize| match (&listed, &types) {
                (Some(listed), _) => listed.contains(&i),
                (None, Some(types)) => types[i] != "conv",
                (None, None) => true,
            };
            (0..layers).map(attends).collect()
        }
    };
    Ok(Box::new(Lfm2 { base, attends, width: meta.count(WIDTH, 1024)? }))
}

/// Elements inside the feed-forward, which `config.json` says in a roundabout way.
fn ffn(meta: &Meta<'_>) -> Result<usize, ModelError> {
    let said = meta.count(FFN, MAX_WIDTH)?;
    if meta.naming() == Naming::Gguf || !meta.get_or(ADJUSTED, meta.has(FFN_MULTIPLE))? {
        return Ok(said);
    }
    let part = (2 * said / 3) as f64 * f64::from(meta.get_or::<f32>(FFN_FACTOR, 1.0)?);
    meta.checked(FFN, (part as usize).next_multiple_of(meta.get_or(FFN_MULTIPLE, 256)?.max(1)), MAX_WIDTH)
}

impl Lfm2 {
    /// `out(c * conv(b * h))`, where `in(x)` is `b | c | h`.
    fn conv<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, x: Var<'g>) -> Var<'g> {
        let hidden = self.base.config.hidden;
        let linear = |name, rows| Linear::new(w, name, Dims { rows, cols: hidden }, false);
        let both = linear(IN, 3 * hidden).forward(x); // [tokens, 3 * hidden]
        let [b, c, h] = [0, 1, 2].map(|part| both.slice(part * hidden, hidden));
        let taps = w.weight(CONV.weight(), Shape::matrix(hidden, self.width));
        linear(OUT, hidden).forward(c * (b * h).short_conv(taps, StateId(i)))
    }
}

impl Decoder for Lfm2 {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        self.base.forward_mixed(w, &self.attends, |layer, i, x| self.conv(layer, i, x))
    }
}
