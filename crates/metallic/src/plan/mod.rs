//! What a device would do for a step of a model, for people: the graph before and after fusion, and every launch with all that
//! decides it. As text, as JSON and, of one layer, as a picture. Nothing runs for it, and no weight is read.

mod json;
mod layers;
mod svg;
mod table;
mod text;

use metallic_core::plan::{OpPlan, Outcome, ProgramPlan};
use metallic_core::sample::{Choice, Choices};
use metallic_core::{
    BLOCK_TOKENS, Backend, BackendError, CompileOptions, DType, DeviceInfo, Dim, Graph, NodeId, Op,
    SequenceSpan, StateLayout, Step, Wanted,
};

pub use json::VERSION;
pub use layers::LayerGroup;
pub use text::OpSum;

use crate::model::{CHOSEN, LOGITS, Model, ModelError};

/// A step as plans are made for: tokens of one sequence, the result of the last of them wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSpec {
    /// Tokens of the step.
    pub tokens: usize,
    /// Tokens in the cache before them.
    pub depth: usize,
    /// The device chooses the next token; else logits come back.
    pub chooses: bool,
}

impl StepSpec {
    /// The step as the engine would hand it to a device: a GPU chooses tokens itself.
    pub fn on(backend: &dyn Backend, tokens: usize, depth: usize) -> StepSpec {
        StepSpec { tokens, depth, chooses: !matches!(backend.info().kind, "cpu" | "reference") }
    }

    /// Shows `f` the step, whose tokens are arbitrary ones.
    pub fn with<R>(
        &self,
        states: &StateLayout,
        adapters: usize,
        f: impl FnOnce(&Step<'_>) -> Result<R, BackendError>,
    ) -> Result<R, BackendError> {
        let refused = |reason: String| BackendError::Failed { device: "plan", reason };
        let StepSpec { tokens, depth, chooses } = *self;
        let end = depth.checked_add(tokens).filter(|end| u32::try_from(*end).is_ok());
        let end =
            end.ok_or_else(|| refused(format!("{tokens} tokens after {depth}, which is more than 2³²")))?;
        let blocks: Vec<u32> = (0..end.div_ceil(BLOCK_TOKENS) as u32).collect();
        let (ids, positions) = (vec![0; tokens], (depth as u32..end as u32).collect::<Vec<u32>>());
        let mut choices = Choices::default();
        choices.push(&Choice::greedy(), &[]).map_err(|error| refused(error.to_string()))?;
        let near: &[u32] = if states.is_mixed() { &blocks } else { &[] };
        let span = SequenceSpan { tokens: 0..tokens, past: depth, blocks: &blocks, near, slot: 0 };
        f(&Step {
            tokens: &ids,
            positions: &positions,
            sequences: &[span],
            outputs: &[(tokens as u32).saturating_sub(1)],
            choices: if chooses { choices.words() } else { &[] },
            adapters: &vec![0.0; tokens * adapters],
            wanted: Wanted::only(if chooses { CHOSEN } else { LOGITS }),
            ..Step::default()
        })
    }
}

/// A layer that a model has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer} is not there, the model has {count} layers, from 0 on")]
pub struct NoLayer {
    /// The layer that was asked for.
    pub layer: u32,
    /// How many there are.
    pub count: usize,
}

/// What a device would do for a step of a model.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model, as people know it.
    pub model: String,
    /// The device that planned.
    pub device: DeviceInfo,
    /// The device it planned for, where that is another one.
    pub planned_as: Option<String>,
    /// The step.
    pub step: StepSpec,
    /// How keys and values are stored.
    pub kv: DType,
    /// What the device says.
    pub program: ProgramPlan,
    /// The layer of each node of the fused graph.
    layers: Vec<Option<u32>>,
}

/// What is shown of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// This layer alone.
    pub layer: Option<u32>,
    /// Every layer, also those that are like another.
    pub all: bool,
}

impl Plan {
    /// Plans a step of a model on a device.
    pub fn of(model: &Model, backend: &dyn Backend, kv: DType, step: StepSpec) -> Result<Plan, ModelError> {
        let states = model.states(kv)?;
        let graph = model.graph();
        let program = step
            .with(&states, graph.adapters(), |step| backend.describe(graph, CompileOptions::kv(kv), step))?;
        let layers = layers_of(&program.fused.graph);
        let name = model.path().display().to_string();
        let device = backend.info().clone();
        Ok(Plan { model: name, device, planned_as: None, step, kv, program, layers })
    }

    /// The same, told to be for another device than the one that planned.
    #[must_use]
    pub fn planned_as(self, name: impl Into<String>) -> Plan {
        Plan { planned_as: Some(name.into()), ..self }
    }

    /// The layer of a node of the fused graph; `None` outside of layers.
    pub fn layer(&self, node: NodeId) -> Option<u32> {
        self.layers.get(node.0).copied().flatten()
    }

    /// How many layers there are.
    pub fn layer_count(&self) -> usize {
        self.layers.iter().flatten().max().map_or(0, |last| *last as usize + 1)
    }

    /// The operations of a layer, or outside of all, in order.
    pub fn ops(&self, layer: Option<u32>) -> impl Iterator<Item = &OpPlan> {
        self.program.ops.iter().filter(move |op| self.layer(op.node) == layer)
    }

    /// Checks that a layer is there.
    pub fn check_layer(&self, layer: u32) -> Result<(), NoLayer> {
        let count = self.layer_count();
        if (layer as usize) < count { Ok(()) } else { Err(NoLayer { layer, count }) }
    }

    /// Where the value of an operation lies in the arena, where it is computed and lies there.
    fn place(&self, op: &OpPlan) -> Option<std::ops::Range<usize>> {
        let graph = &self.program.fused.graph;
        // A GPU keeps chosen tokens apart: the next step takes them.
        let kept_apart = self.program.totals.is_some()
            && graph.node(op.node).op == Op::Sample
            && graph.outputs().contains(&op.node);
        if op.outcome != Outcome::Runs || kept_apart {
            return None;
        }
        self.program.schedule.range(op.node, self.sizes())
    }

    fn sizes(&self) -> metallic_core::Sizes {
        metallic_core::Sizes { tokens: self.step.tokens, outputs: 1 }
    }
}

/// The layer of each node; rows whose result was asked for come after all layers.
fn layers_of(graph: &Graph) -> Vec<Option<u32>> {
    let mut layers = graph.layers();
    for (layer, node) in layers.iter_mut().zip(graph.nodes()) {
        if node.ty.shape.leading() == Dim::Outputs {
            *layer = None;
        }
    }
    layers
}
