//! What a plan says, as data that people can look at: the same `plan` and `prepare` as those of a program, over memory that is not there.

use std::sync::Arc;

use metallic_core::plan::{
    ArgPlan, Holds, LaunchPlan, OpPlan, Outcome, PlanTotals, ProgramPlan, ProviderPlan,
};
use metallic_core::rewrite::Fused;
use metallic_core::{
    BackendError, Blocks, DType, Graph, NodeId, Op, Schedule, SequenceSpan, StateLayout, Step, StepLimits,
};

use crate::backend::Shared;
use crate::command::{Access, Command, CommandList, Dispatch, Region};
use crate::counts::Counts;
use crate::error::GpuError;
use crate::gpu::BufferId;
use crate::kernels::{Call, Gemm, Slot, Stage, StepTable, declared};
use crate::prepare::{Lowered, Planned, StepMemory, aliases};
use crate::program::CHOSEN;
use crate::provider::Selection;
use crate::states::{Imagined, States};
use crate::step::{StepCounts, StepShape, write_tables};
use crate::weights::DeviceWeights;

/// Buffers that are not there; those of weights and of states have smaller numbers.
const ARENA: BufferId = BufferId(u32::MAX);
const TABLES: BufferId = BufferId(u32::MAX - 1);
const CHOSEN_TOKENS: BufferId = BufferId(u32::MAX - 2);

/// What a program of the fused graph does for a step.
pub(crate) fn describe(
    shared: &Arc<Shared>,
    before: Graph,
    fused: Fused,
    kv: DType,
    step: &Step<'_>,
) -> Result<ProgramPlan, BackendError> {
    let layout = StateLayout::of(&fused.graph, kv)?;
    let imagined = reserved(step);
    validate(step, &fused.graph, &layout, imagined)?;
    let lowered = lowered(shared, fused.graph.clone(), layout);
    let described = lowered.and_then(|lowered| of_step(&lowered, step, imagined));
    let (ops, totals, weights) = described.map_err(|error| error.on(shared.kind()))?;
    let schedule = Schedule::of(&fused.graph);
    Ok(ProgramPlan { before, fused, schedule, ops, weights, totals: Some(totals) })
}

/// As much as the step names.
fn reserved(step: &Step<'_>) -> Imagined {
    let most = |ids: &mut dyn Iterator<Item = u32>| ids.max().map_or(0, |id| id as usize + 1);
    let blocks = |span: &SequenceSpan<'_>| most(&mut span.blocks.iter().chain(span.near).copied());
    Imagined {
        blocks: step.sequences.iter().map(blocks).max().unwrap_or(0),
        slots: most(&mut step.sequences.iter().map(|span| span.slot)),
    }
}

fn validate(
    step: &Step<'_>,
    graph: &Graph,
    layout: &StateLayout,
    imagined: Imagined,
) -> Result<(), BackendError> {
    let slots = layout.is_recurrent().then_some(imagined.slots);
    let (vocab, adapters) = (graph.vocab(), graph.adapters());
    let fed_rows = step.fed.iter().map(|fed| fed.row as usize + 1).max().unwrap_or(0);
    let blocks = Blocks::both(imagined.blocks);
    Ok(step.validate(&StepLimits { vocab, blocks, slots, fed_rows, adapters })?)
}

fn lowered(shared: &Arc<Shared>, graph: Graph, layout: StateLayout) -> Result<Lowered, GpuError> {
    Ok(Lowered {
        schedule: Schedule::of(&graph),
        taps: false,
        needed: graph.needed(),
        layers: graph.layers(),
        keeps_launches: false,
        aliases: aliases(&graph),
        weights: DeviceWeights::imagined(shared, &graph)?,
        states: States::new(layout),
        shared: shared.clone(),
        graph,
    })
}

type Described = (Vec<OpPlan>, PlanTotals, Vec<metallic_core::plan::WeightPlan>);

fn of_step(lowered: &Lowered, step: &Step<'_>, imagined: Imagined) -> Result<Described, GpuError> {
    let shape = StepShape::of(step, 0);
    let planned = lowered.plan(&shape)?;
    let memory = memory(&shape, &planned, imagined)?;
    let looked_at = write_tables(step, &shape, &mut Vec::new());
    let mut ops = ops(lowered, &shape, &planned);
    let (mut list, mut counts, mut launches) = (CommandList::new(), Counts::default(), Vec::new());
    lowered.encode(&shape, &planned, memory, |id, command, stage| {
        counts.add(&command, stage);
        launches.push((id, launch(lowered, id, &command, stage, &Costs { step: &looked_at, shape: &shape })));
        list.push(command);
    })?;
    let barriers: Vec<bool> = list.iter().map(|(barrier, _)| barrier).collect();
    for ((id, launch), barrier) in launches.into_iter().zip(&barriers) {
        if let Some(op) = ops.iter_mut().find(|op| op.node == id) {
            op.launches.push(LaunchPlan { barrier: *barrier, ..launch });
        }
    }
    let totals = PlanTotals {
        dispatches: counts.dispatches,
        barriers: barriers.iter().filter(|barrier| **barrier).count() as u64,
        read: counts.read(&looked_at),
        written: counts.written,
        multiply_adds: counts.multiply_adds(&looked_at, shape.visible),
        arena_bytes: planned.arena_bytes,
        scratch_bytes: planned.arena_bytes - lowered.value_bytes(&shape),
        table_bytes: shape.table_bytes(),
    };
    Ok((ops, totals, lowered.weights.plans(&lowered.graph)))
}

fn memory(shape: &StepShape, planned: &Planned, imagined: Imagined) -> Result<StepMemory, GpuError> {
    let chosen = Region::whole(CHOSEN_TOKENS, 2 * 4 * CHOSEN);
    Ok(StepMemory {
        // What is unused lies at its beginning.
        arena: Region::whole(ARENA, planned.arena_bytes.max(crate::prepare::ALIGN)),
        tables: Region::whole(TABLES, shape.table_bytes()),
        chosen: [chosen.slice(0, 4 * CHOSEN)?, chosen.slice(4 * CHOSEN, 4 * CHOSEN)?],
        imagined: Some(imagined),
    })
}

/// Every node that is no source, its launches still to come.
fn ops(lowered: &Lowered, shape: &StepShape, planned: &Planned) -> Vec<OpPlan> {
    let provider = |Selection { op, provider, why, .. }: &Selection| ProviderPlan {
        kind: op.name(),
        name: provider.name(),
        why: why.to_string(),
    };
    let of = |node: NodeId| {
        let ready = planned.nodes.iter().find(|(id, _)| *id == node);
        let provider = ready.and_then(|(_, ready)| ready.chosen.as_ref()).map(provider);
        let outcome = lowered.outcome(node, shape);
        debug_assert_eq!(ready.is_some(), outcome == Outcome::Runs);
        OpPlan { node, outcome, provider, launches: Vec::new() }
    };
    let ids = (0..lowered.graph.nodes().len()).map(NodeId);
    ids.filter(|id| !lowered.graph.node(*id).op.is_source()).map(of).collect()
}

/// What counts are taken in.
struct Costs<'a> {
    step: &'a StepCounts,
    shape: &'a StepShape,
}

fn launch(lowered: &Lowered, id: NodeId, command: &Command, stage: &Stage, costs: &Costs<'_>) -> LaunchPlan {
    let launch = &stage.launch;
    let kernel = &launch.kernel;
    let mut counts = Counts::default();
    counts.add(command, stage);
    let constant = |(index, value): (usize, u32)| {
        let name = kernel.family.constant(index).map_or_else(|| index.to_string(), str::to_owned);
        (name, value)
    };
    let bindings = command.dispatch().into_iter().flat_map(Dispatch::bindings);
    let args = bindings.zip(stage.slots()).zip(kernel.args).map(|(((_, binding), used), arg)| ArgPlan {
        name: arg.name,
        access: access(binding.access),
        holds: holds(lowered, id, used.slot, costs.shape),
        offset: binding.region.offset(),
        bytes: binding.region.len(),
    });
    LaunchPlan {
        kernel: kernel.function,
        family: kernel.family.name,
        constants: kernel.constants.values().map(constant).collect(),
        params: launch.params.fields(),
        groups: launch.groups,
        threads: launch.threads,
        threadgroup_bytes: launch.threadgroup_bytes.saturating_add(declared::bytes(kernel.function)),
        args: args.collect(),
        read: counts.read(costs.step),
        written: counts.written,
        multiply_adds: counts.multiply_adds(costs.step, costs.shape.visible),
        barrier: false,
        library: stage.call().map(|call| library(&call)),
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "reads",
        Access::Write => "writes",
        Access::ReadWrite => "updates",
        Access::Unused => "unused",
    }
}

fn library(call: &Call) -> String {
    match call {
        Call::Product(Gemm { m, n, k, dtype, batches, .. }) => {
            let times = if *batches > 1 { format!("{batches} times ") } else { String::new() };
            format!("{times}[{m}, {k}] · [{n}, {k}]ᵀ of {dtype}")
        }
        Call::Graph(_) => "a graph of attention".to_owned(),
    }
}

fn holds(lowered: &Lowered, id: NodeId, slot: Slot, shape: &StepShape) -> Holds {
    let node = lowered.graph.node(id);
    match slot {
        Slot::Input(index) => match node.inputs.get(index) {
            Some(input) => value(lowered, *input),
            None => Holds::Nothing,
        },
        Slot::Output if node.op == Op::Sample && lowered.graph.outputs().contains(&id) => Holds::Chosen,
        Slot::Output => Holds::Node(id),
        // What a plan does along with the operation, see `Slot`.
        Slot::NextInput(_) | Slot::NextOutput => {
            let own = if let Slot::NextInput(index) = slot { Slot::Input(index) } else { Slot::Output };
            lowered.next(id, shape).map_or(Holds::Nothing, |next| holds(lowered, next, own, shape))
        }
        Slot::Scratch(index) => Holds::Scratch(index),
        Slot::Step(StepTable::Blocks) if shape.near > 0 && lowered.is_near(node) => Holds::Table("near"),
        Slot::Step(table) => Holds::Table(table_name(table)),
        Slot::Fed => Holds::Chosen,
        Slot::Keys => Holds::State("keys"),
        Slot::Values => Holds::State("values"),
        Slot::Recurrent => Holds::State("recurrent"),
        Slot::Unused => Holds::Nothing,
    }
}

/// What an input of a node is.
fn value(lowered: &Lowered, input: NodeId) -> Holds {
    let op = &lowered.graph.node(input).op;
    if matches!(op, Op::Adapters { .. }) {
        return Holds::Table(table_name(StepTable::Adapters));
    }
    if let Some((_, table)) = GIVEN.iter().find(|(given, _)| given == op) {
        return Holds::Table(table_name(*table));
    }
    let weight = lowered.graph.weight(input);
    weight.map_or(Holds::Node(input), |weight| Holds::Weight(weight.name.clone()))
}

/// What a step gives, adapters apart.
const GIVEN: [(Op, StepTable); 4] = [
    (Op::Tokens, StepTable::Tokens),
    (Op::Positions, StepTable::Positions),
    (Op::OutputRows, StepTable::Outputs),
    (Op::Choices, StepTable::Choices),
];

fn table_name(table: StepTable) -> &'static str {
    match table {
        StepTable::Tokens => "tokens",
        StepTable::Positions => "positions",
        StepTable::Outputs => "outputs",
        StepTable::Choices => "choices",
        StepTable::Adapters => "adapters",
        StepTable::Rows => "rows",
        StepTable::Tiles => "tiles",
        StepTable::Sequences => "sequences",
        StepTable::Blocks => "blocks",
        StepTable::Near => "near",
    }
}
