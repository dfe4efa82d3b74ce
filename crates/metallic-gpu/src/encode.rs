//! From planned launches to commands: every argument of every kernel becomes a checked binding.

use metallic_core::{Graph, KvLayout, NodeId, Schedule, Sizes};

use crate::backend::Shared;
use crate::command::{Access, Binding, Command, CommandList, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::{MAX_ARGS, Slot, Stage, Stages, StepTable};
use crate::kv::KvCache;
use crate::lower::{Lowering, layer_of};
use crate::step::{StepFacts, StepTables};
use crate::weights::Weights;

/// Every intermediate is made of these.
pub(crate) const F32: usize = size_of::<f32>();
/// Places in the arena and in the inputs begin at this many bytes.
pub(crate) const ALIGN: usize = 256;

/// What stays the same from step to step.
pub(crate) struct Encoder<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) graph: &'a Graph,
    pub(crate) schedule: &'a Schedule,
    pub(crate) aliases: &'a [bool],
    pub(crate) kv: KvLayout,
    pub(crate) weights: &'a Weights,
    pub(crate) cache: &'a KvCache,
}

/// The launches of one step, and the scratch they need at most.
pub(crate) struct Planned {
    facts: StepFacts,
    nodes: Vec<(NodeId, Stages)>,
    pub(crate) scratch: usize,
}

/// Where a step's memory lies.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Intermediates, then scratch.
    pub(crate) arena: Region,
    /// The step's tables.
    pub(crate) tables: (&'a StepTables, Region),
    /// The step's tokens, where another step chooses them.
    pub(crate) tokens: Option<Region>,
}

impl Encoder<'_> {
    fn lowering(&self) -> Lowering<'_> {
        Lowering { graph: self.graph, aliases: self.aliases, kv: self.kv, shared: self.shared }
    }

    /// Picks the kernels of a step.
    pub(crate) fn plan(&self, facts: StepFacts) -> Result<Planned, GpuError> {
        let lowering = self.lowering();
        let mut planned = Planned { facts, nodes: Vec::with_capacity(self.graph.nodes().len()), scratch: 0 };
        for id in (0..self.graph.nodes().len()).map(NodeId) {
            if let Some(stages) = lowering.stages(id, facts)? {
                let needed = stages.scratch.iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum();
                planned.scratch = planned.scratch.max(needed);
                planned.nodes.push((id, stages));
            }
        }
        Ok(planned)
    }

    /// Compiles what a step needs.
    pub(crate) fn rehearse(&self, facts: StepFacts) -> Result<(), GpuError> {
        for stage in self.plan(facts)?.nodes.iter().flat_map(|(_, stages)| &stages.stages) {
            self.shared.pipelines.get(&stage.launch.kernel)?;
        }
        Ok(())
    }

    /// Bytes of intermediates; scratch begins after them.
    pub(crate) fn value_bytes(&self, sizes: Sizes) -> usize {
        (self.schedule.arena_len(sizes) * F32).next_multiple_of(ALIGN)
    }

    /// Appends a step's commands.
    pub(crate) fn encode(
        &self,
        planned: &Planned,
        place: Place<'_>,
        commands: &mut CommandList,
    ) -> Result<(), GpuError> {
        let sizes = planned.facts.sizes();
        let mut scratch = Vec::new();
        for (id, stages) in &planned.nodes {
            scratch.clear();
            let mut at = self.value_bytes(sizes);
            for bytes in &stages.scratch {
                scratch.push(place.arena.slice(at, *bytes)?);
                at += bytes.next_multiple_of(ALIGN);
            }
            for stage in &stages.stages {
                let dispatch = self.dispatch(*id, stage, (planned.facts, place), &scratch)?;
                commands.push(Command::Dispatch(dispatch));
            }
        }
        Ok(())
    }

    fn dispatch(
        &self,
        id: NodeId,
        stage: &Stage,
        (facts, place): (StepFacts, Place<'_>),
        scratch: &[Region],
    ) -> Result<Dispatch, GpuError> {
        let node = self.graph.node(id);
        let missing = |what: &str| GpuError::Unsupported {
            op: node.op.name(),
            reason: format!("`{}` asks for {what}", stage.launch.kernel.function),
        };
        let region = |slot: Slot| -> Result<Region, GpuError> {
            match slot {
                Slot::Input(index) => {
                    let input =
                        *node.inputs.get(index).ok_or_else(|| missing("an input that is not there"))?;
                    match self.weights.region(self.graph, &node.op, index, input) {
                        Some(region) => Ok(region),
                        None => self.value(input, facts, place.arena),
                    }
                }
                Slot::Output => self.value(id, facts, place.arena),
                Slot::Scratch(index) => {
                    scratch.get(index).copied().ok_or_else(|| missing("scratch that is not there"))
                }
                Slot::Step(StepTable::Tokens) if place.tokens.is_some() => {
                    place.tokens.ok_or_else(|| missing("tokens"))
                }
                Slot::Step(table) => place.tables.0.region(table, place.tables.1),
                Slot::Keys | Slot::Values => {
                    let layer = layer_of(&node.op).ok_or_else(|| missing("a cache"))?;
                    let [keys, values] = self.cache.layer(layer)?;
                    Ok(if slot == Slot::Keys { keys } else { values })
                }
                Slot::Unused => place.arena.slice(0, ALIGN),
            }
        };
        bind(self.shared, node.op.name(), stage, region)
    }

    /// Where a node's value lies.
    pub(crate) fn value(&self, id: NodeId, facts: StepFacts, arena: Region) -> Result<Region, GpuError> {
        if self.lowering().is_alias(id, facts) {
            return self.value(self.graph.node(id).inputs[0], facts, arena);
        }
        let range = self.schedule.range(id, facts.sizes()).unwrap_or(0..0);
        arena.slice(range.start * F32, range.len() * F32)
    }
}

/// A stage as a dispatch; `region` says what stands behind each slot.
pub(crate) fn bind(
    shared: &Shared,
    label: &'static str,
    stage: &Stage,
    region: impl Fn(Slot) -> Result<Region, GpuError>,
) -> Result<Dispatch, GpuError> {
    let launch = &stage.launch;
    let pipeline = shared.pipelines.get(&launch.kernel)?;
    launch.check(&Limits { max_threads: pipeline.max_threads(), ..*shared.gpu.limits() })?;
    let mut bindings: Vec<Binding> = Vec::with_capacity(MAX_ARGS);
    for ((slot, touched), arg) in stage.slots().iter().zip(launch.kernel.args) {
        let region = region(*slot)?;
        let binding = match (slot, arg.access) {
            (Slot::Unused, _) | (_, Access::Unused) => region.unused(),
            (_, Access::Read) => region.read(),
            (_, Access::Write) => region.write(),
            (_, Access::ReadWrite) => region.read_write(),
        };
        bindings.push(touched.map_or(binding, |bytes| binding.touching(bytes)));
    }
    Dispatch::new(label, pipeline.id(), launch, &bindings)
}
