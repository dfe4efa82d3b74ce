//! DeepSeek V2 and V3: keys and values unfolded from one short row, of which a part is rotated and shared by all heads;
//! experts after the first layers, some of which every token has.

use metallic_core::{Attention, RopePairs, Shape, Var};

use super::config::MAX_WIDTH;
use super::moe::{ExpertNames, MoeConfig};
use super::rope::yarn_sharpening;
use super::transformer::{FfnConfig, NormKind, Transformer, gated};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Results, RopeConfig};
use crate::nn::{Dims, Linear, Rotary};
use crate::weights::{Recipe, WeightSource};

pub(super) const V2: Family =
    Family { gguf: &["deepseek2"], hf: &["deepseek_v2"], read: |meta| read(meta, false) };
pub(super) const V3: Family = Family { gguf: &[], hf: &["deepseek_v3"], read: |meta| read(meta, true) };

const Q_RANK: Key = Key::new("attention.q_lora_rank", "q_lora_rank");
const KV_RANK: Key = Key::new("attention.kv_lora_rank", "kv_lora_rank");
const ROTATED: Key = Key::new("rope.dimension_count", "qk_rope_head_dim");
const KEY_DIM: Key = Key::new("attention.key_length_mla|attention.key_length", "");
const PLAIN: Key = Key::new("", "qk_nope_head_dim");
const VALUE_DIM: Key = Key::new("attention.value_length_mla|attention.value_length", "v_head_dim");
const DENSE: Key = Key::new("leading_dense_block_count", "first_k_dense_replace");
const SHARED: Key = Key::new("expert_shared_count", "n_shared_experts");
const SCORES: Key = Key::new("", "scoring_func");
const METHOD: Key = Key::new("", "topk_method");
const GATING: Key = Key::new("expert_gating_func", "");

const Q: Key = Key::new("attn_q", "self_attn.q_proj");
const Q_A: Key = Key::new("attn_q_a", "self_attn.q_a_proj");
const Q_A_NORM: Key = Key::new("attn_q_a_norm", "self_attn.q_a_layernorm");
const Q_B: Key = Key::new("attn_q_b", "self_attn.q_b_proj");
const KV_A: Key = Key::new("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa");
const KV_A_NORM: Key = Key::new("attn_kv_a_norm", "self_attn.kv_a_layernorm");
const KV_B: Key = Key::new("attn_kv_b", "self_attn.kv_b_proj");
const O: Key = Key::new("attn_output", "self_attn.o_proj");

struct DeepSeek {
    base: Transformer,
    rope: RopeConfig,
    q_rank: Option<usize>,
    kv_rank: usize,
    /// Elements of a head that are not rotated; they follow those that are.
    plain: usize,
    value_dim: usize,
    scale: f32,
}

/// `sigmoid_unsaid`: what experts are weighed by where the file does not say it.
fn read(meta: &Meta<'_>, sigmoid_unsaid: bool) -> Result<Box<dyn Decoder>, ModelError> {
    let rotated = meta.count(ROTATED, MAX_WIDTH)?;
    let plain = match meta.opt_count(PLAIN, MAX_WIDTH)? {
        Some(plain) => plain,
        None => meta.count(KEY_DIM, MAX_WIDTH)?.saturating_sub(rotated),
    };
    let config = Config::with_heads(meta, rotated + plain)?;
    let mut base = Transformer::with_config(meta, NormKind::Rms, gated(meta)?, config)?;
    let rope = RopeConfig { pairs: RopePairs::Interleaved, ..RopeConfig::read(meta, rotated)? };
    let moe = MoeConfig::read(meta, &ExpertNames::QWEN)?;
    let sigmoid = meta.opt::<&str>(SCORES)?.map_or(meta.get_or(GATING, 1_usize)? == 2, |s| s == "sigmoid")
        || sigmoid_unsaid;
    let moe = if sigmoid { moe.sigmoid(meta)? } else { moe.softmax(meta, false)? };
    let greedy = meta.opt::<&str>(METHOD)?.is_some_and(|method| method == "greedy");
    let moe = if greedy && !sigmoid { moe } else { moe.grouped(meta)? };
    let shared = meta.get_or(SHARED, 0_usize)?;
    let moe = MoeConfig { shared: (shared > 0).then_some(shared * moe.inner), ..moe };
    for layer in base.layers.iter_mut().skip(meta.get_or(DENSE, 0)?) {
        layer.ffn = FfnConfig::Moe(moe.clone());
    }
    Ok(Box::new(DeepSeek {
        rope,
        q_rank: meta.opt_count(Q_RANK, MAX_WIDTH)?,
        kv_rank: meta.count(KV_RANK, MAX_WIDTH)?,
        plain,
        value_dim: meta.count(VALUE_DIM, MAX_WIDTH)?,
        scale: yarn_sharpening(meta)? / ((rotated + plain) as f32).sqrt(),
        base,
    }))
}

impl DeepSeek {
    fn attention<'g>(
        &self,
        root: &WeightSource<'_, 'g>,
        w: &WeightSource<'_, 'g>,
        i: usize,
        x: Var<'g>,
    ) -> Var<'g> {
        let Config { hidden, heads, head_dim, .. } = self.base.config;
        let (rotated, value_dim) = (self.rope.dims, self.value_dim);
        let linear = |recipe: Recipe, rows, cols| Linear::made(w, Dims { rows, cols }, recipe, None);
        let turned = |x| Rotary::new(root, &self.rope, head_dim).forward(x);

        // The file has what is rotated at the end of each head, a rotation takes the beginning.
        let rotated_first = |head: usize| {
            (self.plain..head_dim).chain(0..self.plain).map(move |row| Some(head * head_dim + row))
        };
        let rows: Vec<Option<usize>> = (0..heads).flat_map(rotated_first).collect();
        let q = match self.q_rank {
            None => linear(Q.weight().picked(rows), heads * head_dim, hidden).forward(x),
            Some(rank) => {
                let short =
                    self.base.norm(w, Q_A_NORM, rank).forward(linear(Q_A.weight(), rank, hidden).forward(x));
                linear(Q_B.weight().picked(rows), heads * head_dim, rank).forward(short)
            }
        };
        let kv = linear(KV_A.weight(), self.kv_rank + rotated, hidden).forward(x);
        let short = self.base.norm(w, KV_A_NORM, self.kv_rank).forward(kv.slice(0, self.kv_rank));
        let shared = Rotary::new(root, &self.rope, rotated).forward(kv.slice(self.kv_rank, rotated));
        let unfolded = |rows: Vec<Option<usize>>| {
            let count = rows.len();
            linear(KV_B.weight().picked(rows), count, self.kv_rank).forward(short)
        };
        let head = |head: usize, part: std::ops::Range<usize>| {
            let start = head * (self.plain + value_dim);
            part.map(move |row| Some(start + row))
        };
        // Keys: the rotated part, the same for all heads, then a part of their own.
        let own = |i| std::iter::repeat_n(None, rotated).chain(head(i, 0..self.plain));
        let spread = w.constant("shared keys", Shape::matrix(heads * head_dim, rotated), &self.spread());
        let k = unfolded((0..heads).flat_map(own).collect()) + shared.linear(spread);
        let v = unfolded((0..heads).flat_map(|i| head(i, self.plain..self.plain + value_dim)).collect());
        let attention = Attention {
            kv_heads: heads,
            head_dim,
            value_dim,
            scale: self.scale,
            ..self.base.config.attention(i)
        };
        let mixed = turned(q).attention(k.kv_write(v, attention.state, heads), attention, None);
        linear(O.weight(), hidden, heads * value_dim).forward(mixed)
    }

    /// `[heads * head_dim, rotated]` that puts one rotated part at the beginning of every head.
    fn spread(&self) -> Vec<f32> {
        let (rotated, head_dim) = (self.rope.dims, self.rope.dims + self.plain);
        let cell = |row: usize, col: usize| if row % head_dim == col { 1.0 } else { 0.0 };
        let rows = 0..self.base.config.heads * head_dim;
        rows.flat_map(|row| (0..rotated).map(move |col| cell(row, col))).collect()
    }
}

impl Decoder for DeepSeek {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        self.base.forward_with(w, |layer, i, x| self.attention(w, layer, i, x))
    }
}
