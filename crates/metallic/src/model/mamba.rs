//! Mamba-2: layers that mix tokens by a state space, alone; and that mixing, for families that have it beside attention.

use metallic_core::{Recurrence, Shape, StateId, Unary, Var};

use super::config::{self, MAX_WIDTH, tied};
use super::transformer::{FfnConfig, Names, NormKind, Transformer};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming, Results};
use crate::nn::{Dims, Linear, Norm};
use crate::weights::{Recipe, WeightSource};

pub(super) const FAMILY: Family = Family { gguf: &["mamba2"], hf: &["mamba2"], read };

const NAMES: Names = Names {
    embed: Key::new("token_embd", "backbone.embeddings"),
    layers: Key::new("blk", "backbone.layers"),
    attn_norm: Some(Key::new("attn_norm", "norm")),
    ffn_norm: None,
    norm: Key::new("output_norm", "backbone.norm_f"),
    ..Names::LLAMA
};

const HEADS: Key = Key::new("ssm.time_step_rank", "mamba_n_heads|num_heads");
const INNER: Key = Key::new("ssm.inner_size", "");
const HEAD_DIM: Key = Key::new("", "mamba_d_head|head_dim");
const GROUPS: Key = Key::new("ssm.group_count", "mamba_n_groups|n_groups");
const STATE: Key = Key::new("ssm.state_size", "mamba_d_state|state_size");
const WIDTH: Key = Key::new("ssm.conv_kernel", "mamba_d_conv|conv_kernel");

const IN: Key = Key::new("ssm_in", "mamba.in_proj|mixer.in_proj");
const CONV: Key = Key::new("ssm_conv1d", "mamba.conv1d|mixer.conv1d");
const A: Key = Key::new("ssm_a", "mamba.A_log|mixer.A_log");
const DT_BIAS: Key = Key::new("ssm_dt.bias", "mamba.dt_bias|mixer.dt_bias");
const SKIP: Key = Key::new("ssm_d", "mamba.D|mixer.D");
const NORM: Key = Key::new("ssm_norm", "mamba.norm|mixer.norm");
const OUT: Key = Key::new("ssm_out", "mamba.out_proj|mixer.out_proj");

/// The mixing of a state space, in numbers.
#[derive(Clone, Debug)]
pub(super) struct Mamba {
    rule: Recurrence,
    /// Tokens a convolution takes together.
    width: usize,
    /// Parts of a row that the norm before the last matrix takes by themselves.
    pub(super) norm_groups: usize,
    pub(super) eps: f32,
    /// Factors on what comes in: gate, values, keys, queries, steps.
    pub(super) factors: Option<[f32; 5]>,
}

impl Mamba {
    pub(super) fn read(meta: &Meta<'_>, eps: f32) -> Result<Mamba, ModelError> {
        let heads = meta.count(HEADS, MAX_WIDTH)?;
        let value_dim = match meta.naming() {
            Naming::Gguf => meta.count(INNER, MAX_WIDTH)? / heads,
            Naming::HuggingFace => meta.count(HEAD_DIM, MAX_WIDTH)?,
        };
        let key_heads = meta.opt_count(GROUPS, heads)?.unwrap_or(1);
        if !heads.is_multiple_of(key_heads) {
            return Err(meta.bad(GROUPS, key_heads, format!("a divisor of the {heads} heads")));
        }
        let key_dim = meta.count(STATE, MAX_WIDTH)?;
        let rule = Recurrence {
            state: StateId(0),
            heads,
            key_heads,
            tiled: false,
            key_dim,
            value_dim,
            delta: false,
        };
        let norm_groups = match meta.naming() {
            Naming::Gguf => key_heads,
            Naming::HuggingFace => 1,
        };
        Ok(Mamba { rule, width: meta.count(WIDTH, 1024)?, norm_groups, eps, factors: None })
    }

    /// `out(norm(silu(z) * (space(x, B, C, dt) + D * x)))`, where `in(x)` is `z | x | B | C | dt` and `silu(conv(..))` is taken of
    /// the middle three. Its states are `i` and `layers + i`.
    pub(super) fn forward<'g>(
        &self,
        w: &WeightSource<'_, 'g>,
        config: &Config,
        i: usize,
        x: Var<'g>,
    ) -> Var<'g> {
        let Recurrence { heads, key_heads, key_dim, value_dim, .. } = self.rule;
        let (inner, keys, hidden) = (heads * value_dim, key_heads * key_dim, config.hidden);
        let (mixed, all) = (inner + 2 * keys, 2 * inner + 2 * keys + heads);
        let linear = |name: Key, rows, cols| Linear::new(w, name, Dims { rows, cols }, w.has(name.bias()));
        let mut parts = linear(IN, all, hidden).forward(x); // [tokens, all]
        if let Some(factors) = self.factors {
            let lengths = [inner, inner, keys, keys, heads];
            let row = factors.iter().zip(lengths).flat_map(|(f, len)| std::iter::repeat_n(*f, len));
            parts =
                parts * w.constant("factors of what comes in", Shape::vector(all), &row.collect::<Vec<_>>());
        }
        let taps = w.weight(CONV.weight(), Shape::matrix(mixed, self.width));
        let mut conv = parts.slice(inner, mixed).short_conv(taps, StateId(i));
        if w.has(CONV.bias()) {
            conv = conv + w.weight(CONV.bias(), Shape::vector(mixed));
        }
        let conv = conv.unary(Unary::Silu);
        let [values, b, c] =
            [(0, inner), (inner, keys), (inner + keys, keys)].map(|(at, len)| conv.slice(at, len));
        let vector = |recipe: Recipe| w.weight(recipe, Shape::vector(heads));
        let dt = (parts.slice(inner + mixed, heads) + vector(DT_BIAS.into())).unary(Unary::Softplus);
        let decay = (dt * vector(Recipe::by_file(A.into(), Recipe::from(A).negated_exp()))).unary(Unary::Exp);
        let rule = Recurrence { state: StateId(config.layers + i), ..self.rule };
        let space = c.recurrence([b, values, decay, dt], rule); // [tokens, inner]
        let each = (0..inner).map(|col| Some(col / value_dim)).collect();
        let y = space + values * w.weight(Recipe::from(SKIP).picked(each), Shape::vector(inner));
        let mut gated = parts.slice(0, inner).gated(Unary::Silu, y);
        if w.has(NORM.weight()) {
            gated = Norm::rms(w, NORM.weight(), inner, self.eps).forward_heads(gated, self.norm_groups);
        }
        linear(OUT, hidden, inner).forward(gated)
    }
}

struct Mamba2 {
    base: Transformer,
    mamba: Mamba,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let config = Config::without_heads(meta)?;
    let base = Transformer::with_config(meta, NormKind::Rms, FfnConfig::None, config)?;
    let base = Transformer { names: NAMES, tied: tied(meta, true)?, ..base };
    let mamba = Mamba::read(
        meta,
        config::epsilon(meta, Key::new("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"))?,
    )?;
    let base = Transformer { eps: mamba.eps, ..base };
    Ok(Box::new(Mamba2 { base, mamba }))
}

impl Decoder for Mamba2 {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        self.base.forward_with(w, |layer, i, x| self.mamba.forward(layer, &self.base.config, i, x))
    }
}
