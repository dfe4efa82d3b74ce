//! Falcon-H1: every layer mixes tokens by attention and by a state space side by side, with factors on nearly everything,
//! which GGUF files have multiplied into their weights.

use metallic_core::{StateId, Var};

use super::config::MAX_WIDTH;
use super::mamba::Mamba;
use super::transformer::{FFN, FfnConfig, Names, NormKind, Transformer};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Results};
use crate::nn::{Dims, Linear, scaled};
use crate::weights::WeightSource;

pub(super) const FAMILY: Family = Family { gguf: &["falcon-h1"], hf: &["falcon_h1"], read };

const NAMES: Names = Names {
    ffn_norm: Some(Key::new("ffn_norm", "pre_ff_layernorm")),
    gate: Key::new("ffn_gate", "feed_forward.gate_proj"),
    up: Key::new("ffn_up", "feed_forward.up_proj"),
    down: Key::new("ffn_down", "feed_forward.down_proj"),
    norm: Key::new("output_norm", "model.final_layernorm"),
    ..Names::LLAMA
};
const EMBED: Key = Key::new("", "embedding_multiplier");
const LOGITS: Key = Key::new("", "lm_head_multiplier");
const KEYS: Key = Key::new("", "key_multiplier");
const ATTENTION_IN: Key = Key::new("", "attention_in_multiplier");
const ATTENTION_OUT: Key = Key::new("", "attention_out_multiplier");
const SPACE_IN: Key = Key::new("", "ssm_in_multiplier");
const SPACE_OUT: Key = Key::new("", "ssm_out_multiplier");
const SPACE_PARTS: Key = Key::new("", "ssm_multipliers");
const MLP: Key = Key::new("", "mlp_multipliers");
const GROUPS: Key = Key::new("", "mamba_n_groups");
const NORM_FIRST: Key = Key::new("", "mamba_norm_before_gate");
const NORMED: Key = Key::new("", "mamba_rms_norm");

struct FalconH1 {
    base: Transformer,
    mamba: Mamba,
    ffn: usize,
    /// On what goes into attention and comes out of it.
    attention: [f32; 2],
    space: [f32; 2],
    /// On the gate, and on the result.
    mlp: [f32; 2],
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = meta.count(FFN, MAX_WIDTH)?;
    let base = Transformer { names: NAMES, ..Transformer::with_ffn(meta, NormKind::Rms, FfnConfig::None)? };
    let factor = |key| meta.get_or::<f32>(key, 1.0);
    let list = |key, len: usize| {
        let found = meta.get_or::<Vec<f32>>(key, vec![1.0; len])?;
        if found.len() == len {
            Ok(found)
        } else {
            Err(meta.bad(key, format!("{} numbers", found.len()), format!("{len}")))
        }
    };
    // Rotated, a key is still that many times as long.
    let scale = factor(KEYS)? / (base.config.head_dim as f32).sqrt();
    let base = Transformer {
        embed_scale: factor(EMBED)?,
        logit_scale: factor(LOGITS)?,
        attention_scale: Some(scale),
        ..base
    };
    if meta.get_or(NORMED, false)? && meta.get_or(NORM_FIRST, true)? {
        return Err(meta.bad(NORM_FIRST, true, "false: a norm before the gate is not supported"));
    }
    let parts = list(SPACE_PARTS, 5)?;
    let mut mamba = Mamba::read(meta, base.eps)?;
    mamba.factors = Some([0, 1, 2, 3, 4].map(|i| parts[i])).filter(|parts| *parts != [1.0; 5]);
    mamba.norm_groups = meta.get_or(GROUPS, mamba.norm_groups)?;
    let mlp = list(MLP, 2)?;
    Ok(Box::new(FalconH1 {
        attention: [factor(ATTENTION_IN)?, factor(ATTENTION_OUT)?],
        space: [factor(SPACE_IN)?, factor(SPACE_OUT)?],
        mlp: [mlp[0], mlp[1]],
        base,
        mamba,
        ffn,
    }))
}

impl FalconH1 {
    fn ffn<'g>(&self, w: &WeightSource<'_, 'g>, x: Var<'g>) -> Var<'g> {
        let (hidden, ffn) = (self.base.config.hidden, self.ffn);
        let linear = |name, rows, cols| Linear::new(w, name, Dims { rows, cols }, w.has(Key::bias(name)));
        let gate = scaled(linear(NAMES.gate, ffn, hidden).forward(x), self.mlp[0]);
        let inner = gate.gated(self.base.act, linear(NAMES.up, ffn, hidden).forward(x));
        scaled(linear(NAMES.down, hidden, ffn).forward(inner), self.mlp[1])
    }
}

impl Decoder for FalconH1 {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let config = &self.base.config;
        let mix = |layer: &WeightSource<'_, 'g>, i: usize, x: Var<'g>| {
            let mut attention = self.base.attention(w, layer, i);
            // The state space has the numbers before.
            attention.attention.state = StateId(2 * config.layers + i);
            let space = self.mamba.forward(layer, config, i, scaled(x, self.space[0]));
            let attended = attention.forward(scaled(x, self.attention[0]));
            scaled(space, self.space[1]) + scaled(attended, self.attention[1])
        };
        self.base.forward_layers(w, mix, |layer, _, x| Some(self.ffn(layer, x)))
    }
}
