//! From planned launches to commands: every argument of every kernel becomes a checked binding.

use metallic_core::{Graph, KvLayout, NodeId, Schedule, Sizes};

use crate::backend::Shared;
use crate::command::{Access, Binding, Command, CommandList, Dispatch, Region};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::{MAX_ARGS, Slot, Stage, Stages, StepTable};
use crate::kv::KvCache;
use crate::lower::Lowering;
use crate::pipelines::{HeldKernels, ReadyPipeline};
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
    pub(crate) facts: StepFacts,
    pub(crate) nodes: Vec<PlannedNode>,
    pub(crate) scratch: usize,
}

/// The launches of one node.
pub(crate) struct PlannedNode {
    pub(crate) id: NodeId,
    stages: Stages,
    /// Where their kernels begin among those that are held.
    first: usize,
}

/// Commands for the device, and the kernels they run.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) commands: CommandList,
    pub(crate) held: HeldKernels,
}

impl Work {
    /// Lets go of everything and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.commands.clear();
        self.held.clear();
    }
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

    /// Picks the kernels of a step and makes them ready.
    pub(crate) fn plan(&self, facts: StepFacts, held: &mut HeldKernels) -> Result<Planned, GpuError> {
        let lowering = self.lowering();
        let mut planned = Planned { facts, nodes: Vec::with_capacity(self.graph.nodes().len()), scratch: 0 };
        for id in (0..self.graph.nodes().len()).map(NodeId) {
            let first = held.pipelines().len();
            if let Some(stages) = lowering.stages(id, facts, held)? {
                let needed = stages.scratch.iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum();
                planned.scratch = planned.scratch.max(needed);
                planned.nodes.push(PlannedNode { id, stages, first });
            }
        }
        Ok(planned)
    }

    /// Bytes of intermediates; scratch begins after them.
    pub(crate) fn value_bytes(&self, sizes: Sizes) -> usize {
        (self.schedule.arena_len(sizes) * F32).next_multiple_of(ALIGN)
    }

    /// Appends a node's commands.
    pub(crate) fn encode(
        &self,
        planned: &PlannedNode,
        (facts, place): (StepFacts, Place<'_>),
        work: &mut Work,
    ) -> Result<(), GpuError> {
        let PlannedNode { id, stages, first } = planned;
        let mut scratch = Vec::new();
        let mut at = self.value_bytes(facts.sizes());
        for bytes in &stages.scratch {
            scratch.push(place.arena.slice(at, *bytes)?);
            at += bytes.next_multiple_of(ALIGN);
        }
        for (stage, kernel) in stages.stages.iter().zip(&work.held.pipelines()[*first..]) {
            let dispatch = self.dispatch(*id, (stage, kernel), (facts, place), &scratch)?;
            work.commands.push(Command::Dispatch(dispatch));
        }
        Ok(())
    }

    fn dispatch(
        &self,
        id: NodeId,
        (stage, kernel): (&Stage, &ReadyPipeline),
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
                    let layer = node.op.layer().ok_or_else(|| missing("a cache"))?;
                    let [keys, values] = self.cache.layer(layer)?;
                    Ok(if slot == Slot::Keys { keys } else { values })
                }
                Slot::Unused => place.arena.slice(0, ALIGN),
            }
        };
        bind((stage, kernel), node.op.name(), self.shared.gpu.limits(), region)
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
    (stage, kernel): (&Stage, &ReadyPipeline),
    label: &'static str,
    limits: &Limits,
    region: impl Fn(Slot) -> Result<Region, GpuError>,
) -> Result<Dispatch, GpuError> {
    let launch = &stage.launch;
    launch.check(&kernel.limits(limits))?;
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
    Dispatch::new(label, kernel.id(), launch, &bindings)
}
