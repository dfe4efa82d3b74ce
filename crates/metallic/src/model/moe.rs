//! Feed-forward layers of experts, as families define them and files spell them.

use metallic_core::{Shape, Unary};

use super::config::MAX_WIDTH;
use super::{Key, Meta, ModelError};
use crate::nn::{Dims, ExpertGroups, Experts, Ffn, Linear, Routing};
use crate::weights::{Recipe, WeightSource};

const COUNT: Key = Key::new("expert_count", "num_local_experts|num_experts|n_routed_experts");
const TOP: Key = Key::new("expert_used_count", "num_experts_per_tok");
const INNER: Key = Key::new("expert_feed_forward_length", "moe_intermediate_size");
const FFN: Key = Key::new("feed_forward_length", "intermediate_size");
const SCALE: Key = Key::new("expert_weights_scale", "routed_scaling_factor");
const NORMALISED: Key = Key::new("expert_weights_norm", "norm_topk_prob");
const GROUPS: Key = Key::new("expert_group_count", "n_group");
const KEPT: Key = Key::new("expert_group_used_count", "topk_group");

/// How the chosen experts are weighed, see [`Routing`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Weighing {
    Chosen,
    All,
    /// Whether as parts of their sum.
    Sigmoid(bool),
}

/// The tensors of experts. In Hugging Face folders `{}` stands for the number of one; without it they lie in a stack.
#[derive(Clone, Copy)]
pub(super) struct ExpertNames {
    pub(super) router: Key,
    pub(super) gate: Key,
    pub(super) up: Key,
    pub(super) down: Key,
    /// Gate and up of an expert in one matrix, in Hugging Face folders.
    pub(super) gate_up: Option<Key>,
    /// What the choice is helped by.
    pub(super) bias: Key,
    pub(super) shared_gate: Key,
    pub(super) shared_up: Key,
    pub(super) shared_down: Key,
    /// Gate and up of the shared expert in one matrix, in Hugging Face folders.
    pub(super) shared_gate_up: Option<Key>,
    pub(super) shared_router: Key,
}

impl ExpertNames {
    /// As Qwen, DeepSeek and GLM have them.
    pub(super) const QWEN: ExpertNames = ExpertNames {
        router: Key::new("ffn_gate_inp", "mlp.gate"),
        gate: Key::new("ffn_gate_exps", "mlp.experts.{}.gate_proj|mlp.switch_mlp.gate_proj"),
        up: Key::new("ffn_up_exps", "mlp.experts.{}.up_proj|mlp.switch_mlp.up_proj"),
        down: Key::new("ffn_down_exps", "mlp.experts.{}.down_proj|mlp.switch_mlp.down_proj"),
        gate_up: None,
        bias: Key::new("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        shared_gate: Key::new("ffn_gate_shexp", "mlp.shared_expert.gate_proj|mlp.shared_experts.gate_proj"),
        shared_up: Key::new("ffn_up_shexp", "mlp.shared_expert.up_proj|mlp.shared_experts.up_proj"),
        shared_down: Key::new("ffn_down_shexp", "mlp.shared_expert.down_proj|mlp.shared_experts.down_proj"),
        shared_gate_up: None,
        shared_router: Key::new("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    };
}

/// Experts in numbers.
#[derive(Clone)]
pub(super) struct MoeConfig {
    pub(super) names: &'static ExpertNames,
    pub(super) count: usize,
    pub(super) top: usize,
    pub(super) inner: usize,
    pub(super) weighing: Weighing,
    pub(super) scale: f32,
    /// Elements inside the expert that every token has, where there is one.
    pub(super) shared: Option<usize>,
    /// Groups, and how many of them a token takes experts from.
    pub(super) groups: Option<(usize, usize)>,
}

impl MoeConfig {
    /// Whether the file speaks of experts.
    pub(super) fn is_there(meta: &Meta<'_>) -> Result<bool, ModelError> {
        Ok(meta.opt::<usize>(COUNT)?.is_some_and(|count| count > 0))
    }

    /// The numbers under their usual keys.
    pub(super) fn read(meta: &Meta<'_>, names: &'static ExpertNames) -> Result<MoeConfig, ModelError> {
        let count = meta.count(COUNT, MAX_WIDTH)?;
        let inner = if meta.has(INNER) { INNER } else { FFN };
        Ok(MoeConfig {
            names,
            count,
            top: meta.count(TOP, count)?,
            inner: meta.count(inner, MAX_WIDTH)?,
            weighing: Weighing::Chosen,
            scale: meta.get_or(SCALE, 1.0)?,
            shared: None,
            groups: None,
        })
    }

    /// Chosen from some groups of experts, where the file has several; after how they are weighed is known.
    pub(super) fn grouped(self, meta: &Meta<'_>) -> Result<MoeConfig, ModelError> {
        let count = meta.get_or(GROUPS, 1)?;
        if count <= 1 {
            return Ok(self);
        }
        let best = self.group_best();
        let size = self.count / count;
        if !self.count.is_multiple_of(count) || size < best {
            let needed =
                format!("a divisor of the {} experts that leaves groups of {best} or more", self.count);
            return Err(meta.bad(GROUPS, count, needed));
        }
        let kept = meta.count(KEPT, count)?;
        if kept * size < self.top {
            let needed = format!("more: a token has {} experts, and a group {size}", self.top);
            return Err(meta.bad(KEPT, kept, needed));
        }
        Ok(MoeConfig { groups: Some((count, kept)), ..self })
    }

    /// How many of a group's best scores it is taken by.
    fn group_best(&self) -> usize {
        match self.weighing {
            Weighing::Sigmoid(_) => 2,
            Weighing::Chosen | Weighing::All => 1,
        }
    }

    /// Softmax over all scores, of which the chosen are made the whole where the file says so.
    pub(super) fn softmax(self, meta: &Meta<'_>, unsaid: bool) -> Result<MoeConfig, ModelError> {
        let weighing = if meta.get_or(NORMALISED, unsaid)? { Weighing::Chosen } else { Weighing::All };
        Ok(MoeConfig { weighing, ..self })
    }

    /// Sigmoids of the scores.
    pub(super) fn sigmoid(self, meta: &Meta<'_>) -> Result<MoeConfig, ModelError> {
        Ok(MoeConfig { weighing: Weighing::Sigmoid(meta.get_or(NORMALISED, true)?), ..self })
    }

    pub(super) fn ffn<'g>(&self, w: &WeightSource<'_, 'g>, hidden: usize, act: Unary) -> Ffn<'g> {
        let MoeConfig { names, count, top, inner, .. } = *self;
        let linear = |name, rows, cols| Linear::new(w, name, Dims { rows, cols }, false);
        let half = |name: Key, start| {
            let alone = name.weight().stacked(count);
            let recipe = match names.gate_up {
                None => alone,
                Some(both) => Recipe::by_file(alone, both.weight().rows(start..start + inner)),
            };
            w.weight(recipe, Shape::stack(count, inner, hidden))
        };
        let routing = match self.weighing {
            Weighing::Chosen => Routing::Chosen,
            Weighing::All => Routing::All,
            Weighing::Sigmoid(normalised) => Routing::Sigmoid {
                bias: w.has(names.bias).then(|| w.weight(names.bias, Shape::vector(count))),
                parts: normalised.then(|| w.constant("ones", Shape::matrix(top, top), &vec![1.0; top * top])),
            },
        };
        let down = w.weight(names.down.weight().stacked(count), Shape::stack(count, hidden, inner));
        let matrices = [half(names.gate, 0), half(names.up, inner), down];
        let plain = Experts::new(linear(names.router, count, hidden), matrices, act, top);
        let grouped = |(groups, kept): (usize, usize)| {
            ExpertGroups::new(w, groups, count / groups, kept, self.group_best())
        };
        let experts = Experts { routing, scale: self.scale, groups: self.groups.map(grouped), ..plain };
        let Some(shared) = self.shared else { return Ffn::Moe(experts) };
        let half = |name: Key, start| {
            let recipe = match names.shared_gate_up {
                None => name.weight(),
                Some(both) => Recipe::by_file(name.weight(), both.weight().rows(start..start + shared)),
            };
            Linear::made(w, Dims { rows: shared, cols: hidden }, recipe, None)
        };
        Ffn::Shared {
            experts,
            shared: Box::new(Ffn::Gated {
                gate: half(names.shared_gate, 0),
                up: half(names.shared_up, shared),
                down: linear(names.shared_down, hidden, shared),
                act,
            }),
            gate: w.has(names.shared_router.weight()).then(|| linear(names.shared_router, 1, hidden)),
        }
    }
}
