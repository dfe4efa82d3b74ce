//! gpt-oss: a sink for every head, windows on every other layer, and experts with biases and a gate that is held within
//! limits; experts may be in MXFP4.

use metallic_core::{Shape, Unary, Var};

use super::config::windows;
use super::moe::{ExpertNames, MoeConfig};
use super::transformer::{FfnConfig, Names, NormKind, Transformer};
use super::{Config, Decoder, Family, Key, Meta, ModelError, Naming, Results};
use crate::nn::{Clamped, Dims, Experts, Linear};
use crate::weights::{Recipe, WeightSource};

pub(super) const FAMILY: Family = Family { gguf: &["gpt-oss"], hf: &["gpt_oss"], read };

const NAMES: Names = Names {
    sinks: Some(Key::new("attn_sinks", "self_attn.sinks")),
    ffn_norm: Some(Key::new("post_attention_norm", "post_attention_layernorm")),
    ..Names::LLAMA
};
const ROUTER: Key = Key::new("ffn_gate_inp", "mlp.router");
const GATE: Key = Key::new("ffn_gate_exps", "");
const UP: Key = Key::new("ffn_up_exps", "");
const DOWN: Key = Key::new("ffn_down_exps", "");
/// Gates in even rows, ups in odd ones.
const GATE_UP: Stored = Stored {
    plain: Key::new("", "mlp.experts.gate_up_proj"),
    blocks: Key::new("", "mlp.experts.gate_up_proj_blocks"),
    scales: Key::new("", "mlp.experts.gate_up_proj_scales"),
    bias: Key::new("", "mlp.experts.gate_up_proj_bias"),
};
const DOWN_ROWS: Stored = Stored {
    plain: Key::new("", "mlp.experts.down_proj"),
    blocks: Key::new("", "mlp.experts.down_proj_blocks"),
    scales: Key::new("", "mlp.experts.down_proj_scales"),
    bias: Key::new("", "mlp.experts.down_proj_bias"),
};
const ALPHA: Key = Key::new("", "swiglu_alpha");
const LIMIT: Key = Key::new("", "swiglu_limit");

/// How Hugging Face folders hold the matrices of all experts.
#[derive(Clone, Copy)]
struct Stored {
    plain: Key,
    blocks: Key,
    scales: Key,
    bias: Key,
}

impl Stored {
    /// `[experts, rows, cols]`, from blocks or from `[experts, cols, rows]`.
    fn matrices(self, in_blocks: bool) -> Recipe {
        if in_blocks {
            return Recipe::mxfp4(self.blocks.into(), self.scales.into());
        }
        Recipe::from(self.plain).transposed()
    }
}

struct GptOss {
    base: Transformer,
    moe: MoeConfig,
    clamped: Clamped,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let mut base =
        Transformer { names: NAMES, ..Transformer::with_ffn(meta, NormKind::Rms, FfnConfig::None)? };
    base.set_windows(windows(meta, base.config.layers, |i| i % 2 == 0)?);
    if meta.naming() == Naming::HuggingFace {
        // Said for all four matrices.
        base.qkv_bias = Some(true);
        base.out_bias = Some(true);
    }
    let clamped = Clamped { alpha: meta.get_or(ALPHA, 1.702)?, limit: meta.get_or(LIMIT, 7.0)? };
    Ok(Box::new(GptOss { base, moe: MoeConfig::read(meta, &ExpertNames::QWEN)?, clamped }))
}

impl GptOss {
    fn experts<'g>(&self, w: &WeightSource<'_, 'g>) -> Experts<'g> {
        let (hidden, &MoeConfig { count, top, inner, .. }) = (self.base.config.hidden, &self.moe);
        let in_blocks = w.has(GATE_UP.blocks);
        let every_other = |from: usize| (0..inner).map(|row| Some(2 * row + from)).collect::<Vec<_>>();
        let half = |name: Key, from: usize| {
            let hf = GATE_UP.matrices(in_blocks).picked(every_other(from));
            let bias = Recipe::from(GATE_UP.bias).transposed().picked(every_other(from)).transposed();
            let matrices = w.weight(Recipe::by_file(name.weight(), hf), Shape::stack(count, inner, hidden));
            (matrices, w.weight(Recipe::by_file(name.bias(), bias), Shape::matrix(count, inner)))
        };
        let ((gate, gate_bias), (up, up_bias)) = (half(GATE, 0), half(UP, 1));
        let down = Recipe::by_file(DOWN.weight(), DOWN_ROWS.matrices(in_blocks));
        let down_bias = Recipe::by_file(DOWN.bias(), DOWN_ROWS.bias.into());
        let router = Linear::new(w, ROUTER, Dims { rows: count, cols: hidden }, true);
        let down = w.weight(down, Shape::stack(count, hidden, inner));
        Experts {
            biases: Some([gate_bias, up_bias, w.weight(down_bias, Shape::matrix(count, hidden))]),
            clamped: Some(self.clamped),
            ..Experts::new(router, [gate, up, down], Unary::Silu, top)
        }
    }
}

impl Decoder for GptOss {
    fn config(&self) -> &Config {
        &self.base.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let attention =
            |layer: &WeightSource<'_, 'g>, i, x: Var<'g>| self.base.attention(w, layer, i).forward(x);
        self.base.forward_layers(w, attention, |layer, _, x| Some(self.experts(layer).forward(x)))
    }
}
