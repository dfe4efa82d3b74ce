//! Qwen3-Next and Qwen3.5: most layers mix tokens by a gated delta rule, every fourth by attention whose heads have gates;
//! experts in the models that have them.

use metallic_core::{Recurrence, Shape, StateId, Unary, Var};

use super::config::MAX_WIDTH;
use super::moe::MoeConfig;
use super::qwen2::{SHARED, set_experts};
use super::transformer::{Names, NormKind, QueryNorm, Transformer};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming, Results};
use crate::nn::{Dims, Linear, Norm};
use crate::weights::{Recipe, WeightSource};

pub(super) const QWEN3_NEXT: Family =
    Family { gguf: &["qwen3next"], hf: &["qwen3_next"], read: |meta| read(meta, false) };
/// Its GGUF files have the heads of values in another order.
pub(super) const QWEN3_5: Family = Family {
    gguf: &["qwen35", "qwen35moe"],
    hf: &["qwen3_5_text", "qwen3_5_moe_text"],
    read: |meta| read(meta, meta.naming() == Naming::Gguf),
};

const NAMES: Names =
    Names { ffn_norm: Some(Key::new("post_attention_norm", "post_attention_layernorm")), ..Names::LLAMA };
const QKV: Key = Key::new("attn_qkv", "linear_attn.in_proj_qkv");
const Z: Key = Key::new("attn_gate", "linear_attn.in_proj_z");
/// Of each key head: query, key, values, gates of the values.
const QKVZ: Key = Key::new("", "linear_attn.in_proj_qkvz");
const BETA: Key = Key::new("ssm_beta", "linear_attn.in_proj_b");
const ALPHA: Key = Key::new("ssm_alpha", "linear_attn.in_proj_a");
/// Of each key head: β of its values, their α.
const BETA_ALPHA: Key = Key::new("ssm_ba", "linear_attn.in_proj_ba");
const CONV: Key = Key::new("ssm_conv1d", "linear_attn.conv1d");
const A: Key = Key::new("ssm_a", "linear_attn.A_log");
const DT_BIAS: Key = Key::new("ssm_dt.bias", "linear_attn.dt_bias");
const NORM: Key = Key::new("ssm_norm", "linear_attn.norm");
const OUT: Key = Key::new("ssm_out", "linear_attn.out_proj");

const KEY_HEADS: Key = Key::new("ssm.group_count", "linear_num_key_heads");
const VALUE_HEADS: Key = Key::new("ssm.time_step_rank", "linear_num_value_heads");
const KEY_DIM: Key = Key::new("ssm.state_size", "linear_key_head_dim");
const INNER: Key = Key::new("ssm.inner_size", "");
const VALUE_DIM: Key = Key::new("", "linear_value_head_dim");
const WIDTH: Key = Key::new("ssm.conv_kernel", "linear_conv_kernel_dim");
const TYPES: Key = Key::new("", "layer_types");
const INTERVAL: Key = Key::new("full_attention_interval", "full_attention_interval");

/// Keeps the length of a query or key away from zero.
const UNIT_EPS: f32 = 1e-6;

struct Qwen3Next {
    base: Transformer,
    /// Layers that mix by attention.
    attends: Vec<bool>,
    rule: Recurrence,
    /// Tokens a convolution takes together.
    width: usize,
}

fn read(meta: &Meta<'_>, tiled: bool) -> Result<Box<dyn Decoder>, ModelError> {
    let base = Transformer::read(meta, NormKind::RmsPlusOne)?;
    let mut base = Transformer { names: NAMES, query_norm: QueryNorm::Heads, gated_queries: true, ..base };
    let shared = meta.opt_count(SHARED, MAX_WIDTH)?;
    set_experts(meta, &mut base, true, |moe| MoeConfig { shared, ..moe })?;
    let layers = base.config.layers;
    let interval = meta.get_or(INTERVAL, 4_usize)?.max(1);
    let attends = match meta.per_layer::<&str>(TYPES, layers)? {
        Some(types) => types.iter().map(|kind| *kind == "full_attention").collect(),
        None => (0..layers).map(|i| (i + 1).is_multiple_of(interval)).collect(),
    };
    let heads = meta.count(VALUE_HEADS, MAX_WIDTH)?;
    let value_dim = match meta.naming() {
        Naming::Gguf => meta.count(INNER, MAX_WIDTH)? / heads,
        Naming::HuggingFace => meta.count(VALUE_DIM, MAX_WIDTH)?,
    };
    let key_heads = meta.count(KEY_HEADS, heads)?;
    if !heads.is_multiple_of(key_heads) {
        return Err(meta.bad(KEY_HEADS, key_heads, format!("a divisor of the {heads} heads of values")));
    }
    let key_dim = meta.count(KEY_DIM, MAX_WIDTH)?;
    let rule = Recurrence { state: StateId(0), heads, key_heads, tiled, key_dim, value_dim, delta: true };
    Ok(Box::new(Qwen3Next { base, attends, rule, width: meta.count(WIDTH, 1024)? }))
}

impl Qwen3Next {
    /// Rows of a matrix that has for each key head `parts` rows: those from `start` on, `len` of them.
    fn of_groups(
        &self,
        parts: usize,
        start: usize,
        len: usize,
    ) -> impl Iterator<Item = Option<usize>> + use<> {
        (0..self.rule.key_heads * len).map(move |row| Some(row / len * parts + start + row % len))
    }

    /// `out(norm(rule(q, k, v)) * silu(z))`, where `q | k | v` is `silu(conv(x))`.
    fn delta_rule<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, x: Var<'g>) -> Var<'g> {
        let Config { layers, hidden, .. } = self.base.config;
        let Recurrence { heads, key_heads, key_dim, value_dim, .. } = self.rule;
        let (keys, inner, sharing) = (key_heads * key_dim, heads * value_dim, heads / key_heads);
        let product = |recipe: Recipe, rows: usize| {
            Linear::made(w, Dims { rows, cols: hidden }, recipe, None).forward(x)
        };
        let (qkv, z) = if w.has(QKVZ.weight()) {
            let (parts, values) = (2 * key_dim + 2 * sharing * value_dim, sharing * value_dim);
            let group = |start, len| self.of_groups(parts, start, len);
            let rows = group(0, key_dim).chain(group(key_dim, key_dim)).chain(group(2 * key_dim, values));
            let gates = group(2 * key_dim + values, values).collect();
            (QKVZ.weight().picked(rows.collect()), QKVZ.weight().picked(gates))
        } else {
            (QKV.weight(), Z.weight())
        };
        let (beta, alpha) = if w.has(BETA_ALPHA.weight()) {
            let part =
                |start| BETA_ALPHA.weight().picked(self.of_groups(2 * sharing, start, sharing).collect());
            (part(0), part(sharing))
        } else {
            (BETA.weight(), ALPHA.weight())
        };
        let taps = w.weight(CONV.weight(), Shape::matrix(2 * keys + inner, self.width));
        let mixed = product(qkv, 2 * keys + inner).short_conv(taps, StateId(i)).unary(Unary::Silu);
        let ones = w.constant("ones", Shape::vector(key_dim), &vec![1.0; key_dim]);
        // `x / |x|`, whose mean square is that of `x` over its number of elements.
        let unit = |x: Var<'g>| x.rms_norm_groups(ones, UNIT_EPS / key_dim as f32, key_heads);
        let root = (key_dim as f32).sqrt();
        let (q, k) = (unit(mixed.slice(0, keys)), unit(mixed.slice(keys, keys)));
        let vector = |recipe: Recipe| w.weight(recipe, Shape::vector(heads));
        let a = vector(Recipe::by_file(A.into(), Recipe::from(A).negated_exp()));
        let softened = (product(alpha, heads) + vector(DT_BIAS.into())).unary(Unary::Softplus);
        let decay = (softened * a).unary(Unary::Exp); // [tokens, heads]
        let more = [
            k.scale(root.recip()),
            mixed.slice(2 * keys, inner),
            decay,
            product(beta, heads).unary(Unary::Sigmoid),
        ];
        let rule = Recurrence { state: StateId(layers + i), ..self.rule };
        let y = q.scale(root.recip() / root).recurrence(more, rule); // [tokens, inner]
        let norm = Norm::rms(w, NORM.weight(), value_dim, self.base.eps);
        let gated = product(z, inner).gated(Unary::Silu, norm.forward_heads(y, heads));
        Linear::new(w, OUT, Dims { rows: hidden, cols: inner }, false).forward(gated)
    }
}

impl Decoder for Qwen3Next {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        self.base.forward_mixed(w, &self.attends, |layer, i, x| self.delta_rule(layer, i, x))
    }
}
