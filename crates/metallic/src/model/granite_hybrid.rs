//! Granite 4: most layers mix tokens by a state space, the others by attention that may be told no positions; experts and a
//! feed-forward that every token has, and Granite's factors.

use super::config::MAX_WIDTH;
use super::mamba::Mamba;
use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FfnConfig, Names, NormKind, Transformer};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming, Results, granite};
use crate::weights::WeightSource;

pub(super) const FAMILY: Family = Family { gguf: &["granitehybrid"], hf: &["granitemoehybrid"], read };

/// Without experts, the feed-forward of every token is the only one.
const NAMES: Names = Names {
    gate_up: Some(Key::new("", "shared_mlp.input_linear")),
    down: Key::new("ffn_down", "shared_mlp.output_linear"),
    ..Names::LLAMA
};
const EXPERTS: ExpertNames = ExpertNames {
    shared_gate_up: Some(Key::new("", "shared_mlp.input_linear")),
    shared_down: Key::new("ffn_down_shexp", "shared_mlp.output_linear"),
    ..granite::EXPERTS
};

const TYPES: Key = Key::new("", "layer_types|layers_block_type");
const KV_HEADS: Key = Key::new("attention.head_count_kv", "");
const POSITIONS: Key = Key::new("", "position_embedding_type");
const ROTATED: Key = Key::new("rope.scaling.finetuned", "");
const SHARED: Key = Key::new("expert_shared_feed_forward_length", "shared_intermediate_size");
const FFN: Key = Key::new("feed_forward_length", "shared_intermediate_size");

struct GraniteHybrid {
    base: Transformer,
    mamba: Mamba,
    /// Layers that mix by attention.
    attends: Vec<bool>,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let ffn = if MoeConfig::is_there(meta)? {
        let shared = meta.opt_count(SHARED, MAX_WIDTH)?;
        FfnConfig::Moe(MoeConfig { shared, ..MoeConfig::read(meta, &EXPERTS)? })
    } else {
        FfnConfig::Gated(meta.count(FFN, MAX_WIDTH)?)
    };
    let base = Transformer { names: NAMES, ..Transformer::with_ffn(meta, NormKind::Rms, ffn)? };
    let mut base = granite::scaled(meta, base)?;
    base.turn_rows(meta);
    let layers = base.config.layers;
    let (attends, rotates) = match meta.naming() {
        Naming::Gguf => {
            let heads = meta.per_layer::<usize>(KV_HEADS, layers)?.unwrap_or_else(|| vec![1; layers]);
            (heads.iter().map(|heads| *heads > 0).collect(), meta.get_or(ROTATED, true)?)
        }
        Naming::HuggingFace => {
            let types = meta.per_layer::<&str>(TYPES, layers)?.unwrap_or_else(|| vec!["mamba"; layers]);
            let attends = types.iter().map(|kind| matches!(*kind, "attention" | "full_attention")).collect();
            (attends, meta.opt(POSITIONS)? == Some("rope"))
        }
    };
    if !rotates {
        base.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    Ok(Box::new(GraniteHybrid { mamba: Mamba::read(meta, base.eps)?, base, attends }))
}

impl Decoder for GraniteHybrid {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let config = &self.base.config;
        self.base.forward_mixed(w, &self.attends, |layer, i, x| self.mamba.forward(layer, config, i, x))
    }
}
