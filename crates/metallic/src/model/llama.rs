//! Llama and its siblings (SmolLM2, Mistral, Qwen2): pre-norm decoder layers with rotary attention and a gated feed-forward.
//! What tells the siblings apart (biases, windows, tied output, rotation) is in the config.

use metallic_core::Var;

use super::Config;
use crate::nn::{Dims, Linear, Mlp, RmsNorm, Rotary, SelfAttention};
use crate::weights::Weights;

struct Layer<'g> {
    attn_norm: RmsNorm<'g>,
    attn: SelfAttention<'g>,
    mlp_norm: RmsNorm<'g>,
    mlp: Mlp<'g>,
}

impl<'g> Layer<'g> {
    fn of(&self, x: Var<'g>) -> Var<'g> {
        let h = x + self.attn.of(self.attn_norm.of(x));
        h + self.mlp.of(self.mlp_norm.of(h))
    }
}

/// Logits `[outputs, vocab]` of the rows that were asked for.
pub(super) fn logits<'g>(w: &Weights<'g, '_>, c: &Config) -> Var<'g> {
    let rotary = Rotary::new(w, c);
    let embed = w.matrix(None, "embed", c.vocab, c.hidden);
    let layer = |i| Layer {
        attn_norm: RmsNorm::new(w, Some(i), "attn_norm", c),
        attn: SelfAttention::new(w, i, c, rotary),
        mlp_norm: RmsNorm::new(w, Some(i), "mlp_norm", c),
        mlp: Mlp::new(w, i, c),
    };
    let norm = RmsNorm::new(w, None, "norm", c);
    let tied = c.tied.unwrap_or(!w.has("head"));
    let head = if tied {
        w.skip("head");
        Linear::tied(embed)
    } else {
        Linear::new(w, None, "head", Dims { rows: c.vocab, cols: c.hidden }, false)
    };

    let mut x = embed.embed(w.graph().tokens()); // [tokens, hidden]
    for i in 0..c.layers {
        x = layer(i).of(x);
    }
    head.of(norm.of(x.select_rows(w.graph().output_rows())))
}
