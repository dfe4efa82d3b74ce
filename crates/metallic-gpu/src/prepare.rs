//! From plans to commands: kernels are made ready, every argument becomes a checked binding. Done once for a shape of step.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use metallic_core::plan::Outcome;
use metallic_core::{
    CacheUse, Dim, Graph, Needed, Node, NodeId, Op, OpCost, Schedule, TensorType, WeightUse,
};

use crate::backend::Shared;
use crate::command::{Access, Binding, Command, CommandList, Dispatch, Region};
use crate::counts::{Counts, LaunchCounts};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::{MAX_ARGS, Moved, Slot, Stage, Stages, StepTable};
use crate::pipelines::{HeldKernels, ReadyPipeline};
use crate::plan::{Site, choice, plan, projects};
use crate::provider::{Choice, Provider, Selection};
use crate::states::{Imagined, States};
use crate::step::StepShape;
use crate::tell;
use crate::weights::DeviceWeights;

/// Places in the arena and in the inputs begin at this many bytes.
pub(crate) const ALIGN: usize = 256;

const PLANS: usize = 64;

/// The launches of one operation with their kernels.
pub(crate) struct Ready {
    stages: Stages,
    kernels: Vec<Arc<ReadyPipeline>>,
    /// Who serves it, where there is a choice.
    pub(crate) chosen: Option<Selection>,
}

/// Makes the kernels of a plan ready: with the first provider that can, and again where the compiler left a kernel fewer threads
/// than the device has.
pub(crate) fn made(
    shared: &Shared,
    held: &mut HeldKernels,
    choice: Option<&Choice>,
    mut limits: Limits,
    plan: impl Fn(Option<Provider>, &Limits) -> Result<Stages, GpuError>,
) -> Result<Ready, GpuError> {
    loop {
        let mut attempt = |provider: Option<Provider>| -> Result<Ready, GpuError> {
            let stages = plan(provider, &limits)?;
            let take = |stage: &Stage| held.take(&shared.pipelines, &stage.launch.kernel);
            let kernels = stages.stages.iter().map(take).collect::<Result<_, _>>()?;
            stages
                .stages
                .iter()
                .filter_map(Stage::call)
                .try_for_each(|call| tell::prepared(&*shared.gpu, &call))?;
            Ok(Ready { stages, kernels, chosen: None })
        };
        let made = match choice {
            Some(choice) => {
                let providers = &shared.options.providers;
                let (made, chosen) =
                    providers.choose_telling(choice.clone(), |provider| attempt(Some(provider)))?;
                Ready { chosen: Some(chosen), ..made }
            }
            None => attempt(None)?,
        };
        match made.fewer_threads() {
            Some(most) if most < limits.max_threads => limits.max_threads = most,
            Some(_) | None => return Ok(made),
        }
    }
}

impl Ready {
    /// Threads the compiler left a kernel, where it is launched with more: one that takes many registers has fewer.
    fn fewer_threads(&self) -> Option<u32> {
        let threads = self.stages.stages.iter().map(|stage| stage.launch.threads.iter().product::<u32>());
        let allowed = self.kernels.iter().map(|kernel| kernel.pipeline.max_threads);
        threads.zip(allowed).filter(|(threads, allowed)| threads > allowed).map(|(_, allowed)| allowed).min()
    }

    /// Whether the operation that comes next is done with it.
    fn does_next(&self) -> bool {
        self.stages.stages.iter().flat_map(Stage::slots).any(|used| used.slot == Slot::NextOutput)
    }

    /// Everything that says how its kernels are launched.
    fn hash_launches(&self, hasher: &mut impl Hasher) {
        for Stage { launch, .. } in &self.stages.stages {
            (launch.kernel.function, launch.kernel.constants, launch.groups, launch.threads).hash(hasher);
            (launch.threadgroup_bytes, launch.params.as_bytes()).hash(hasher);
        }
    }

    /// Bytes of scratch, each part at an aligned place.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.stages.scratch.iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
    }

    /// Appends the commands; `region` says what stands behind a slot that is no scratch.
    pub(crate) fn encode(
        &self,
        label: &'static str,
        limits: &Limits,
        scratch: Region,
        region: impl Fn(Slot) -> Result<Region, GpuError>,
        mut push: impl FnMut(Command, &Stage),
    ) -> Result<(), GpuError> {
        let mut at = 0;
        let mut parts = Vec::with_capacity(self.stages.scratch.len());
        for bytes in &self.stages.scratch {
            parts.push(scratch.slice(at, *bytes)?);
            at += bytes.next_multiple_of(ALIGN);
        }
        let missing = || GpuError::unsupported(label, "scratch that is not there");
        let of = |slot: Slot| match slot {
            Slot::Scratch(index) => parts.get(index).copied().ok_or_else(missing),
            slot => region(slot),
        };
        for (stage, kernel) in self.stages.stages.iter().zip(&self.kernels) {
            let launch = &stage.launch;
            launch.check(&kernel.limits(limits))?;
            let mut bindings: Vec<Binding> = Vec::with_capacity(MAX_ARGS);
            for (used, arg) in stage.slots().iter().zip(launch.kernel.args) {
                let region = of(used.slot)?;
                let region = region.slice(used.start, region.len().saturating_sub(used.start))?;
                let binding =
                    region.bind(if used.slot == Slot::Unused { Access::Unused } else { arg.access });
                bindings.push(match used.moved {
                    Moved::Bytes(bytes) => binding.touching(bytes),
                    // What a step looks at is counted when there is one; here it is all that could be.
                    Moved::Once | Moved::Seen { .. } => binding,
                });
            }
            let dispatch = Dispatch::new(label, kernel.pipeline.id, launch, &bindings)?;
            push(Command::of(dispatch, stage.call()), stage);
        }
        Ok(())
    }
}

pub(crate) struct Prepared {
    pub(crate) shape: StepShape,
    pub(crate) list: CommandList,
    pub(crate) counts: Counts,
    /// Of each command, where their times are wanted.
    pub(crate) launches: Vec<LaunchCounts>,
    /// Where each wanted output lies; `None` where it is not wanted.
    pub(crate) outputs: Vec<Option<Region>>,
    /// Where each node's value lies, by node, where it was asked for; `None` for what the step does not compute.
    pub(crate) taps: Vec<Option<Region>>,
    /// Who made what, where there was a choice and it was asked for.
    pub(crate) makers: Vec<(NodeId, Provider)>,
    /// As long as they stand here the cache lets none of them go.
    _kernels: Vec<Arc<ReadyPipeline>>,
}

/// Prepared plans by shape, the last used last. Few are in use at a time, so a list is searched.
#[derive(Default)]
pub(crate) struct Plans {
    plans: VecDeque<Arc<Prepared>>,
    /// What was asked for and was there, or was not, and what went; its entries and limit are known when it is asked.
    counts: CacheUse,
}

impl Plans {
    pub(crate) fn get(&mut self, shape: &StepShape) -> Option<Arc<Prepared>> {
        let found = self.plans.iter().rposition(|plan| plan.shape == *shape);
        let plan = found.and_then(|found| self.plans.remove(found));
        self.counts.hits += u64::from(plan.is_some());
        self.counts.misses += u64::from(plan.is_none());
        self.plans.extend(plan.clone());
        plan
    }

    /// What it holds and has done so far.
    pub(crate) fn usage(&self) -> CacheUse {
        CacheUse { name: "plans", entries: self.plans.len(), limit: Some(PLANS), ..self.counts }
    }

    /// The plan of a shape, where it is still kept; it counts as no use.
    pub(crate) fn find(&self, shape: &StepShape) -> Option<&Prepared> {
        self.plans.iter().rev().find(|plan| plan.shape == *shape).map(Arc::as_ref)
    }

    /// Keeps a plan; the one that was not used for longest goes where there are too many.
    pub(crate) fn put(&mut self, plan: Arc<Prepared>, making: Duration) {
        self.counts.making += making;
        if self.plans.len() == PLANS {
            self.counts.evictions += 1;
            self.plans.pop_front();
        }
        self.plans.push_back(plan);
    }

    /// Lets go of all: memory they name has moved.
    pub(crate) fn clear(&mut self) {
        self.counts.evictions += self.plans.len() as u64;
        self.plans.clear();
    }
}

/// A graph and what was made of it, which stays the same from step to step.
pub(crate) struct Lowered {
    pub(crate) shared: Arc<Shared>,
    pub(crate) graph: Graph,
    pub(crate) schedule: Schedule,
    /// Every value has a place of its own, and can be read.
    pub(crate) taps: bool,
    pub(crate) needed: Vec<Needed>,
    /// The layer of each node.
    pub(crate) layers: Vec<Option<u32>>,
    /// Whether plans keep what each launch belongs to, for its time.
    pub(crate) keeps_launches: bool,
    pub(crate) aliases: Vec<bool>,
    pub(crate) weights: DeviceWeights,
    pub(crate) states: States,
}

/// Where a step's memory lies.
#[derive(Clone, Copy)]
pub(crate) struct StepMemory {
    /// Intermediates, then scratch.
    pub(crate) arena: Region,
    pub(crate) tables: Region,
    /// Where chosen tokens go, and where the step before has put its own.
    pub(crate) chosen: [Region; 2],
    /// What is kept between steps, where nothing is reserved: for plans that nobody submits.
    pub(crate) imagined: Option<Imagined>,
}

/// The operations of a step with their kernels, and the memory they need.
pub(crate) struct Planned {
    pub(crate) nodes: Vec<(NodeId, Ready)>,
    pub(crate) kernels: HeldKernels,
    pub(crate) arena_bytes: usize,
}

impl Planned {
    /// A number for how steps of this shape are launched, whichever buffers they take.
    pub(crate) fn fingerprint(&self, shape: &StepShape) -> u64 {
        let mut hasher = DefaultHasher::new();
        StepShape { lane: 0, ..*shape }.hash(&mut hasher);
        self.nodes.iter().for_each(|(_, ready)| ready.hash_launches(&mut hasher));
        hasher.finish()
    }
}

impl Lowered {
    /// Picks the kernels of steps of a shape and makes them ready.
    pub(crate) fn plan(&self, shape: &StepShape) -> Result<Planned, GpuError> {
        self.plan_within(shape, &self.shared.limits())
    }

    /// The same for a device that allows this.
    pub(crate) fn plan_within(&self, shape: &StepShape, limits: &Limits) -> Result<Planned, GpuError> {
        let mut kernels = HeldKernels::default();
        let (mut nodes, mut scratch) = (Vec::new(), 0);
        let mut done = None;
        for id in (0..self.graph.nodes().len()).map(NodeId) {
            let node = self.graph.node(id);
            if node.op.is_source() || self.outcome(id, shape) != Outcome::Runs || done == Some(id) {
                continue;
            }
            let next = self.next(id, shape);
            let inputs = [Some(id), next].map(|id| id.map_or_else(Vec::new, |id| self.inputs(id)));
            let after = next.map(|id| self.site(id, &inputs[1], shape));
            let site = Site { next: after.as_ref(), ..self.site(id, &inputs[0], shape) };
            let plan = |provider, limits: &Limits| plan(&site, provider, limits);
            let ready = made(&self.shared, &mut kernels, choice(&site, limits).as_ref(), *limits, plan)?;
            scratch = scratch.max(ready.scratch_bytes());
            done = next.filter(|_| ready.does_next());
            nodes.push((id, ready));
        }
        Ok(Planned { nodes, kernels, arena_bytes: self.value_bytes(shape) + scratch })
    }

    fn site<'a>(&'a self, id: NodeId, inputs: &'a [TensorType], shape: &'a StepShape) -> Site<'a> {
        let node = self.graph.node(id);
        let (states, cells) = (Some(&self.states.layout), self.weights.in_cells(id));
        Site { op: &node.op, inputs, out: node.ty, shape, states, cells, next: None }
    }

    fn inputs(&self, id: NodeId) -> Vec<TensorType> {
        let node = self.graph.node(id);
        (0..node.inputs.len()).map(|index| self.stored(node, index)).collect()
    }

    /// The projection that comes right after attention and alone takes its value: a plan may do both at once, as nothing
    /// else happens between them.
    pub(crate) fn next(&self, id: NodeId, shape: &StepShape) -> Option<NodeId> {
        let nodes = self.graph.nodes();
        // Where every value is to be read, attention's is one of them.
        let attends =
            matches!(nodes[id.0].op, Op::Attention(_)) && !self.graph.outputs().contains(&id) && !self.taps;
        let after = nodes.iter().enumerate().skip(id.0 + 1).filter(|(_, node)| !node.op.is_source());
        let (index, node) = after.clone().next().filter(|_| attends)?;
        let alone = node.inputs.first() == Some(&id)
            && nodes.iter().flat_map(|node| &node.inputs).filter(|input| **input == id).count() == 1;
        let next = NodeId(index);
        let runs = self.needed[index].for_step(shape.wanted) && !self.is_alias(next, shape);
        (alone && runs && projects(&node.op).is_some()).then_some(next)
    }

    /// What becomes of a node that is no source.
    pub(crate) fn outcome(&self, id: NodeId, shape: &StepShape) -> Outcome {
        let node = self.graph.node(id);
        let unchosen = node.op == Op::Sample && shape.choices == 0;
        if !self.needed[id.0].for_step(shape.wanted) || unchosen {
            return Outcome::Unwanted;
        }
        // A receipt has no rows, what it stands for has happened all the same.
        if node.ty.shape.elements(shape.sizes()) == 0 && !node.op.has_effect() {
            return Outcome::Empty;
        }
        if self.is_alias(id, shape) { Outcome::InPlace } else { Outcome::Runs }
    }

    /// The type of a node's input as it lies in memory: vectors among the weights are numbers.
    fn stored(&self, node: &Node, index: usize) -> TensorType {
        let input = self.graph.node(node.inputs[index]);
        match (input.op, node.op.weight_use(index)) {
            (Op::Weight(_), WeightUse::Vector) => TensorType::f32(input.ty.shape),
            _ => input.ty,
        }
    }

    /// Bytes of intermediates; scratch begins after them.
    pub(crate) fn value_bytes(&self, shape: &StepShape) -> usize {
        self.schedule.arena_bytes(shape.sizes()).next_multiple_of(ALIGN)
    }

    /// Binds every launch of a plan to memory.
    pub(crate) fn prepare(
        &self,
        shape: &StepShape,
        planned: Planned,
        memory: StepMemory,
    ) -> Result<Prepared, GpuError> {
        let (mut list, mut launches) = (CommandList::new(), Vec::new());
        let mut counts = Counts::default();
        self.encode(shape, &planned, memory, |id, command, stage| {
            counts.add(&command, stage);
            if self.keeps_launches {
                let (part, kernel) = (self.graph.part(id), stage.launch.kernel.function);
                let layer = self.layers.get(id.0).copied().flatten();
                let op = self.graph.node(id).op.name();
                let kind = OpCost { op, part, layer, kernel, ..OpCost::default() };
                let mut counts = Counts::default();
                counts.add(&command, stage);
                launches.push(LaunchCounts { kind, counts });
            }
            list.push(command);
        })?;
        let output = |(index, id): (usize, &NodeId)| {
            let unchosen = self.graph.node(*id).op == Op::Sample && shape.choices == 0;
            (shape.wanted.has(index) && !unchosen).then(|| self.value(*id, shape, memory)).transpose()
        };
        let outputs = self.graph.outputs().iter().enumerate().map(output).collect::<Result<_, _>>()?;
        let taps = self.tapped(shape, planned.nodes.iter().map(|(id, _)| *id), memory)?;
        let made =
            planned.nodes.iter().filter_map(|(id, ready)| Some((*id, ready.chosen.as_ref()?.provider)));
        let makers = made.filter(|_| self.taps).collect();
        Ok(Prepared {
            shape: *shape,
            list,
            counts,
            launches,
            outputs,
            taps,
            makers,
            _kernels: planned.kernels.pipelines,
        })
    }

    /// Where the values of these nodes, and of those that are the same, lie; by node, none where nobody asks.
    fn tapped(
        &self,
        shape: &StepShape,
        computed: impl Iterator<Item = NodeId>,
        memory: StepMemory,
    ) -> Result<Vec<Option<Region>>, GpuError> {
        let mut taps = vec![None; if self.taps { self.graph.nodes().len() } else { 0 }];
        let aliases = (0..taps.len()).map(NodeId).filter(|id| self.is_alias(*id, shape));
        for id in computed.chain(aliases).filter(|_| self.taps) {
            taps[id.0] = Some(self.value(id, shape, memory)?);
        }
        Ok(taps)
    }

    /// Every launch of a plan as a command, in order, with the node it belongs to.
    pub(crate) fn encode(
        &self,
        shape: &StepShape,
        planned: &Planned,
        memory: StepMemory,
        mut each: impl FnMut(NodeId, Command, &Stage),
    ) -> Result<(), GpuError> {
        let start = self.value_bytes(shape);
        let scratch = memory.arena.slice(start, planned.arena_bytes - start)?;
        for (id, ready) in &planned.nodes {
            let label = self.graph.node(*id).op.name();
            let region = |slot| self.region(*id, slot, shape, memory);
            let push = |command: Command, stage: &Stage| each(*id, command, stage);
            ready.encode(label, self.shared.gpu.limits(), scratch, region, push)?;
        }
        Ok(())
    }

    fn region(
        &self,
        id: NodeId,
        slot: Slot,
        shape: &StepShape,
        memory: StepMemory,
    ) -> Result<Region, GpuError> {
        let node = self.graph.node(id);
        let missing = |what: &str| GpuError::unsupported(node.op.name(), format!("{what} is not there"));
        let state = |part: usize| {
            node.op
                .state()
                .ok_or_else(|| missing("a state"))
                .and_then(|state| self.states.region(state, part, memory.imagined))
        };
        match slot {
            Slot::Input(index) => {
                let input = *node.inputs.get(index).ok_or_else(|| missing("an input"))?;
                let weight = self.weights.region(&self.graph, id, index);
                weight.map_or_else(|| self.value(input, shape, memory), Ok)
            }
            Slot::Output => self.value(id, shape, memory),
            Slot::NextInput(_) | Slot::NextOutput => {
                let next = self.next(id, shape).ok_or_else(|| missing("what comes next"))?;
                let own = if let Slot::NextInput(index) = slot { Slot::Input(index) } else { Slot::Output };
                self.region(next, own, shape, memory)
            }
            Slot::Scratch(_) => Err(missing("scratch")),
            Slot::Step(StepTable::Blocks) if shape.near > 0 && self.is_near(node) => {
                shape.region(StepTable::Near, memory.tables)
            }
            Slot::Step(table) => shape.region(table, memory.tables),
            Slot::Fed => Ok(memory.chosen[1]),
            Slot::Keys | Slot::Recurrent => state(0),
            Slot::Values => state(1),
            Slot::Unused => memory.arena.slice(0, ALIGN),
        }
    }

    fn value(&self, id: NodeId, shape: &StepShape, memory: StepMemory) -> Result<Region, GpuError> {
        let table = |table| shape.region(table, memory.tables);
        match self.graph.node(id).op {
            Op::Tokens => table(StepTable::Tokens),
            Op::Positions => table(StepTable::Positions),
            Op::OutputRows => table(StepTable::Outputs),
            Op::Choices => table(StepTable::Choices),
            Op::Adapters { .. } => table(StepTable::Adapters),
            // Chosen tokens outlive the step: the next one takes them while the host has not read them yet.
            Op::Sample if self.graph.outputs().contains(&id) => memory.chosen[0].slice(0, 4 * shape.outputs),
            _ if self.is_alias(id, shape) => self.value(self.graph.node(id).inputs[0], shape, memory),
            _ => {
                let range = self.schedule.range(id, shape.sizes()).unwrap_or(0..0);
                memory.arena.slice(range.start, range.len())
            }
        }
    }

    /// Whether a node's keys and values lie in the blocks of layers with a window.
    pub(crate) fn is_near(&self, node: &Node) -> bool {
        let layout = &self.states.layout;
        node.op.state().and_then(|state| layout.kv(state)).is_some_and(|kv| layout.is_near(kv))
    }

    /// Whether a node's value is that of its first input, untouched.
    fn is_alias(&self, id: NodeId, shape: &StepShape) -> bool {
        shape.all_outputs && self.aliases.get(id.0).copied().unwrap_or(false)
    }
}

/// Selections of rows that need not be carried out in a step that wants all of them, by node: nothing after them is
/// written among the per-token values, so what they select from stays as it is.
pub(crate) fn aliases(graph: &Graph) -> Vec<bool> {
    let per_token = |n: &Node| !n.op.is_source() && n.ty.shape.leading() == Dim::Tokens;
    let last = graph.nodes().iter().rposition(per_token);
    let free = |(index, n): (usize, &Node)| n.op == Op::SelectRows && last.is_none_or(|last| index > last);
    graph.nodes().iter().enumerate().map(free).collect()
}
