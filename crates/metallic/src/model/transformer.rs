//! Decoders of attention and feed-forward layers, by what families differ in. A family's file reads its numbers and says
//! what is its own; one whose layers are more than attention brings its way to mix tokens.

use metallic_core::{Attention, RopePairs, Shape, Unary, Var};

use super::config::{MAX_WIDTH, activation, epsilon, tied};
use super::moe::MoeConfig;
use super::{Config, Decoder, Key, Meta, ModelError, Naming, Results, RopeConfig};
use crate::nn::{Dims, Ffn, Linear, Norm, Rotary, SelfAttention, scaled};
use crate::weights::{Recipe, SideBySide, WeightSource};

pub(super) const FFN: Key = Key::new("feed_forward_length", "intermediate_size|n_inner");
const RMS_EPSILON: Key = Key::new("attention.layer_norm_rms_epsilon", "rms_norm_eps|norm_eps");
const EPSILON: Key =
    Key::new("attention.layer_norm_epsilon", "layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps");
pub(super) const AHEAD: Key = Key::new("nextn_predict_layers", "num_nextn_predict_layers");
const ATTENTION_BIAS: Key = Key::new("", "attention_bias");
const MLP_BIAS: Key = Key::new("", "mlp_bias");

/// What files call the tensors of a decoder. A norm without a name is not there; a fused matrix with one is.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) embed: Key,
    pub(super) positions: Option<Key>,
    pub(super) layers: Key,
    pub(super) attn_norm: Option<Key>,
    pub(super) q: Key,
    pub(super) k: Key,
    pub(super) v: Key,
    pub(super) o: Key,
    /// Queries, keys and values in one matrix.
    pub(super) qkv: Option<Key>,
    pub(super) q_norm: Key,
    pub(super) k_norm: Key,
    /// One more score for each head.
    pub(super) sinks: Option<Key>,
    pub(super) attn_post_norm: Option<Key>,
    pub(super) ffn_norm: Option<Key>,
    pub(super) gate: Key,
    pub(super) up: Key,
    pub(super) down: Key,
    /// Gate and up in one matrix.
    pub(super) gate_up: Option<Key>,
    pub(super) ffn_post_norm: Option<Key>,
    pub(super) norm: Key,
    pub(super) head: Key,
}

impl Names {
    /// As Llama has them, and most others.
    pub(super) const LLAMA: Names = Names {
        embed: Key::new("token_embd", "model.embed_tokens"),
        positions: None,
        layers: Key::new("blk", "model.layers"),
        attn_norm: Some(Key::new("attn_norm", "input_layernorm")),
        q: Key::new("attn_q", "self_attn.q_proj"),
        k: Key::new("attn_k", "self_attn.k_proj"),
        v: Key::new("attn_v", "self_attn.v_proj"),
        o: Key::new("attn_output", "self_attn.o_proj"),
        qkv: None,
        q_norm: Key::new("attn_q_norm", "self_attn.q_norm"),
        k_norm: Key::new("attn_k_norm", "self_attn.k_norm"),
        sinks: None,
        attn_post_norm: None,
        ffn_norm: Some(Key::new("ffn_norm", "post_attention_layernorm")),
        gate: Key::new("ffn_gate", "mlp.gate_proj"),
        up: Key::new("ffn_up", "mlp.up_proj"),
        down: Key::new("ffn_down", "mlp.down_proj"),
        gate_up: None,
        ffn_post_norm: None,
        norm: Key::new("output_norm", "model.norm"),
        head: Key::new("output", "lm_head"),
    };

    /// With norms before and after attention, and before and after the feed-forward.
    pub(super) const FOUR_NORMS: Names = Names {
        attn_post_norm: Some(Key::new("post_attention_norm", "post_attention_layernorm")),
        ffn_norm: Some(Key::new("ffn_norm", "pre_feedforward_layernorm")),
        ffn_post_norm: Some(Key::new("post_ffw_norm", "post_feedforward_layernorm")),
        ..Names::LLAMA
    };
}

/// The norm of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NormKind {
    Rms,
    /// Rms by `w + 1`, which GGUF files have added already.
    RmsPlusOne,
    Layer,
    /// Layer by `w + 1`, which GGUF files have added already.
    LayerPlusOne,
}

/// What queries and keys are normalised by before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum QueryNorm {
    None,
    /// Each head.
    Heads,
    /// All heads together.
    Rows,
}

/// What follows the mixing of tokens in a layer.
#[derive(Clone)]
pub(super) enum FfnConfig {
    Gated(usize),
    Plain(usize),
    /// Without a gate, and what comes inside squared.
    Squared(usize),
    Moe(MoeConfig),
    /// Nothing.
    None,
}

/// What differs from layer to layer.
#[derive(Clone)]
pub(super) struct LayerConfig {
    /// How far back it looks; `None`: as far as there is.
    pub(super) window: Option<usize>,
    /// `None` where it is not told positions.
    pub(super) rope: Option<RopeConfig>,
    pub(super) ffn: FfnConfig,
}

/// A decoder in numbers. Of biases and the head, `None` leaves it to the tensors of the file.
pub(super) struct Transformer {
    pub(super) config: Config,
    pub(super) names: Names,
    pub(super) norm: NormKind,
    pub(super) eps: f32,
    pub(super) act: Unary,
    pub(super) layers: Vec<LayerConfig>,
    /// Layers of the file behind those, which guess tokens ahead.
    pub(super) extra_layers: usize,
    pub(super) query_norm: QueryNorm,
    /// The matrix of queries has a gate for what each head gives, too.
    pub(super) gated_queries: bool,
    /// On `q · k`; `None` is one over the root of a head's elements.
    pub(super) attention_scale: Option<f32>,
    pub(super) attention_softcap: Option<f32>,
    pub(super) qkv_bias: Option<bool>,
    pub(super) out_bias: Option<bool>,
    pub(super) mlp_bias: Option<bool>,
    /// Hugging Face's matrices lie as `[in, out]`.
    pub(super) transposed: bool,
    /// Attention and feed-forward take the same normalised row, and are added together.
    pub(super) parallel: bool,
    pub(super) row_order: RowOrder,
    pub(super) embed_scale: f32,
    /// On what each half of a layer adds.
    pub(super) residual_scale: f32,
    pub(super) logit_scale: f32,
    pub(super) logit_softcap: Option<f32>,
    pub(super) tied: Option<bool>,
}

impl Transformer {
    /// What Llama and its siblings have in common: rotated attention, gated feed-forward, and the biases the file speaks of.
    pub(super) fn read(meta: &Meta<'_>, norm: NormKind) -> Result<Transformer, ModelError> {
        Transformer::with_ffn(meta, norm, gated(meta)?)
    }

    /// The same with another feed-forward.
    pub(super) fn with_ffn(
        meta: &Meta<'_>,
        norm: NormKind,
        ffn: FfnConfig,
    ) -> Result<Transformer, ModelError> {
        Transformer::with_config(meta, norm, ffn, Config::read(meta)?)
    }

    /// The same with other sizes.
    pub(super) fn with_config(
        meta: &Meta<'_>,
        norm: NormKind,
        ffn: FfnConfig,
        mut config: Config,
    ) -> Result<Transformer, ModelError> {
        let said = |key| Ok::<_, ModelError>(meta.opt(key)?.or(unsaid(meta)));
        let attention_bias = said(ATTENTION_BIAS)?;
        let key = match norm {
            NormKind::Rms | NormKind::RmsPlusOne => RMS_EPSILON,
            NormKind::Layer | NormKind::LayerPlusOne => EPSILON,
        };
        let rope = RopeConfig::read(meta, config.head_dim)?;
        config.context = rope.limit.map_or(config.context, |limit| config.context.min(limit));
        let extra_layers = meta.get_or(AHEAD, 0)?;
        Ok(Transformer {
            extra_layers,
            names: Names::LLAMA,
            norm,
            eps: epsilon(meta, key)?,
            act: activation(meta, Unary::Silu)?,
            layers: vec![LayerConfig { window: None, rope: Some(rope), ffn }; config.layers],
            query_norm: QueryNorm::None,
            gated_queries: false,
            attention_scale: None,
            attention_softcap: None,
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias: said(MLP_BIAS)?,
            transposed: false,
            parallel: false,
            row_order: RowOrder::Same,
            embed_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            tied: tied(meta, false)?,
            config,
        })
    }

    /// Lets all biases be as the file has them.
    pub(super) fn with_biases_of_the_file(self) -> Transformer {
        Transformer { qkv_bias: None, out_bias: None, mlp_bias: None, ..self }
    }

    /// Gives each layer its window.
    pub(super) fn set_windows(&mut self, windows: Vec<Option<usize>>) {
        for (layer, window) in self.layers.iter_mut().zip(windows) {
            layer.window = window;
        }
    }

    /// GGUF files of the family store the rows of queries and keys that rotate together side by side.
    pub(super) fn turn_rows(&mut self, meta: &Meta<'_>) {
        self.row_order = RowOrder::SideBySide;
        if meta.naming() == Naming::Gguf {
            self.set_pairs(RopePairs::Interleaved);
        }
    }

    /// Which elements of a head rotate together.
    pub(super) fn set_pairs(&mut self, pairs: RopePairs) {
        self.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()).for_each(|rope| rope.pairs = pairs);
    }

    /// Experts in every layer.
    pub(super) fn set_ffn(&mut self, ffn: &FfnConfig) {
        self.layers.iter_mut().for_each(|layer| layer.ffn = ffn.clone());
    }

    pub(super) fn norm<'g>(&self, w: &WeightSource<'_, 'g>, name: Key, cols: usize) -> Norm<'g> {
        match self.norm {
            NormKind::Rms => Norm::rms(w, name.weight(), cols, self.eps),
            NormKind::RmsPlusOne => Norm::rms(w, plus_one(name), cols, self.eps),
            NormKind::Layer => Norm::layer(w, name, cols, self.eps),
            NormKind::LayerPlusOne => {
                let b = Some(w.weight(name.bias(), Shape::vector(cols)));
                Norm::Layer { w: w.weight(plus_one(name), Shape::vector(cols)), b, eps: self.eps }
            }
        }
    }

    /// The rows of a matrix, which may be part of a fused one; `rows` of it counts where it is.
    fn linear<'g>(&self, w: &WeightSource<'_, 'g>, part: Part, cols: usize, bias: bool) -> Linear<'g> {
        let Part { name, fused, start, rows } = part;
        let dims = Dims { rows, cols };
        let whole = fused.unwrap_or(name);
        let mut matrix = whole.weight();
        if self.transposed {
            matrix = Recipe::by_file(matrix.clone(), matrix.transposed());
        }
        let of = |recipe: Recipe| if fused.is_some() { recipe.rows(start..start + rows) } else { recipe };
        Linear::made(w, dims, of(matrix), bias.then(|| of(whole.bias())))
    }

    /// The attention of layer `i`, whose tensors are `w` of all of the file's, `root`. Where the numbers do not say which
    /// biases there are, the tensors do.
    pub(super) fn attention<'g>(
        &self,
        root: &WeightSource<'_, 'g>,
        w: &WeightSource<'_, 'g>,
        i: usize,
    ) -> SelfAttention<'g> {
        let (names, layer) = (&self.names, &self.layers[i]);
        let Config { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let first = root.item(names.layers, 0);
        let there = |name: Key| first.has(name.bias()) || w.has(name.bias());
        let bias = |said: Option<bool>, name: Key| said.unwrap_or_else(|| there(name));
        let qkv_bias = bias(self.qkv_bias, names.qkv.unwrap_or(names.q));
        let part = |w, name, start, rows| {
            self.linear(w, Part { name, fused: names.qkv, start, rows }, hidden, qkv_bias)
        };
        let rotated =
            layer.rope.as_ref().filter(|_| self.row_order == RowOrder::SideBySide).map(|rope| rope.dims);
        let turned = &w.turned(rotated.map(|rotated| SideBySide { head_dim, rotated }));
        let norms = |cols: [usize; 2]| {
            Some([self.norm(w, names.q_norm, cols[0]), self.norm(w, names.k_norm, cols[1])])
        };
        let plain = self.config.attention(i);
        // Each head's query, then its gate.
        let half = |second: usize| {
            let rows = (0..q).map(|row| Some((row / head_dim * 2 + second) * head_dim + row % head_dim));
            Linear::made(w, Dims { rows: q, cols: hidden }, names.q.weight().picked(rows.collect()), None)
        };
        let (queries, gate) =
            if self.gated_queries { (half(0), Some(half(1))) } else { (part(turned, names.q, 0, q), None) };
        SelfAttention {
            q: queries,
            k: part(turned, names.k, q, kv),
            v: part(w, names.v, q + kv, kv),
            o: self.linear(w, Part::whole(names.o, hidden), q, bias(self.out_bias, names.o)),
            head_norms: if self.query_norm == QueryNorm::Heads { norms([head_dim; 2]) } else { None },
            row_norms: if self.query_norm == QueryNorm::Rows { norms([q, kv]) } else { None },
            rotary: layer.rope.as_ref().map(|rope| Rotary::new(root, rope, head_dim)),
            sinks: names.sinks.map(|name| {
                let recipe = Recipe::by_file(name.weight(), name.into());
                w.weight(recipe, Shape::vector(heads))
            }),
            gate,
            attention: Attention {
                window: layer.window,
                scale: self.attention_scale.unwrap_or(plain.scale),
                softcap: self.attention_softcap,
                ..plain
            },
        }
    }

    /// What follows the mixing of tokens in layer `i`, where anything does.
    fn ffn<'g>(&self, w: &WeightSource<'_, 'g>, i: usize) -> Option<Ffn<'g>> {
        let (names, hidden, act) = (&self.names, self.config.hidden, self.act);
        let bias = || self.mlp_bias.unwrap_or_else(|| w.has(names.down.bias()));
        let down = |ffn| self.linear(w, Part::whole(names.down, hidden), ffn, bias());
        let up = |ffn| self.linear(w, Part::whole(names.up, ffn), hidden, bias());
        Some(match &self.layers[i].ffn {
            FfnConfig::None => return None,
            FfnConfig::Moe(moe) => moe.ffn(w, hidden, act),
            FfnConfig::Plain(ffn) => Ffn::Plain { up: up(*ffn), down: down(*ffn), act },
            FfnConfig::Squared(ffn) => Ffn::Squared { up: up(*ffn), down: down(*ffn) },
            FfnConfig::Gated(ffn) => {
                let part = |name, start| {
                    self.linear(w, Part { name, fused: names.gate_up, start, rows: *ffn }, hidden, bias())
                };
                Ffn::Gated { gate: part(names.gate, 0), up: part(names.up, *ffn), down: down(*ffn), act }
            }
        })
    }

    /// The whole decoder, where `mix(w, i, x)` is what layer `i` does to mix tokens.
    pub(super) fn forward_with<'a, 'g>(
        &self,
        w: &WeightSource<'a, 'g>,
        mix: impl Fn(&WeightSource<'a, 'g>, usize, Var<'g>) -> Var<'g>,
    ) -> Results<'g> {
        self.forward_layers(w, mix, |w, i, x| Some(self.ffn(w, i)?.forward(x)))
    }

    /// The same, where only some layers mix otherwise, and the others by attention.
    pub(super) fn forward_mixed<'a, 'g>(
        &self,
        w: &WeightSource<'a, 'g>,
        attends: &[bool],
        mix: impl Fn(&WeightSource<'a, 'g>, usize, Var<'g>) -> Var<'g>,
    ) -> Results<'g> {
        self.forward_with(w, |layer, i, x| {
            if attends[i] { self.attention(w, layer, i).forward(x) } else { mix(layer, i, x) }
        })
    }

    /// The same, where `ffn(w, i, x)` is what it does to each token then, if anything.
    pub(super) fn forward_layers<'a, 'g>(
        &self,
        w: &WeightSource<'a, 'g>,
        mix: impl Fn(&WeightSource<'a, 'g>, usize, Var<'g>) -> Var<'g>,
        ffn: impl Fn(&WeightSource<'a, 'g>, usize, Var<'g>) -> Option<Var<'g>>,
    ) -> Results<'g> {
        let (names, &Config { layers, hidden, vocab, context, .. }) = (&self.names, &self.config);
        let embed = w.weight(names.embed.weight(), Shape::matrix(vocab, hidden));
        let mut x = scaled(embed.embed(w.graph().tokens()), self.embed_scale); // [tokens, hidden]
        if let Some(positions) = names.positions {
            let table = w.weight(positions.weight(), Shape::matrix(context, hidden));
            x = x + table.embed(w.graph().positions());
        }
        for i in 0..layers {
            let w = &w.item(names.layers, i);
            let norm = |name: Option<Key>, x| name.map_or(x, |name| self.norm(w, name, hidden).forward(x));
            let add = |x: Var<'g>, more| x + scaled(more, self.residual_scale);
            let normed = norm(names.attn_norm, x);
            let mixed = add(x, norm(names.attn_post_norm, mix(w, i, normed)));
            let input = if self.parallel { normed } else { norm(names.ffn_norm, mixed) };
            x = ffn(w, i, input).map_or(mixed, |more| add(mixed, norm(names.ffn_post_norm, more)));
        }
        (layers..layers + self.extra_layers).for_each(|i| w.skip_item(names.layers, i));
        let (norm, head) = (self.norm(w, names.norm, hidden), Linear::head(w, names.head, embed, self.tied));
        let logits = |x| {
            let logits = scaled(head.forward(x), self.logit_scale);
            self.logit_softcap.map_or(logits, |cap| logits.softcap(cap))
        };
        Results::new(x, |last| norm.forward(last), logits)
    }
}

impl Decoder for Transformer {
    fn config(&self) -> &Config {
        &self.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        self.forward_with(w, |layer, i, x| self.attention(w, layer, i).forward(x))
    }
}

/// How GGUF files order the rows of queries and keys, beside folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As folders do.
    Same,
    /// Those that rotate together side by side.
    SideBySide,
}

/// A matrix, or a part of a fused one that begins with row `start`.
#[derive(Clone, Copy)]
struct Part {
    name: Key,
    fused: Option<Key>,
    start: usize,
    rows: usize,
}

impl Part {
    fn whole(name: Key, rows: usize) -> Part {
        Part { name, fused: None, start: 0, rows }
    }
}

/// `w + 1`, which GGUF files have added already.
fn plus_one(name: Key) -> Recipe {
    Recipe::by_file(name.weight(), name.weight().plus_one())
}

/// A gated feed-forward of the file's size.
pub(super) fn gated(meta: &Meta<'_>) -> Result<FfnConfig, ModelError> {
    Ok(FfnConfig::Gated(meta.count(FFN, MAX_WIDTH)?))
}

/// Of a bias that is not spoken of: `config.json` means no, GGUF leaves it to the tensors.
pub(super) fn unsaid(meta: &Meta<'_>) -> Option<bool> {
    match meta.naming() {
        Naming::Gguf => None,
        Naming::HuggingFace => Some(false),
    }
}
