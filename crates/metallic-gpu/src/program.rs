//! A graph made ready for a GPU. The plan of a step's shape is made once; a step writes its tables and is submitted.

mod rehearsed;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use metallic_core::{
    BackendError, Blocks, CacheUse, CompileOptions, DType, Graph, KernelCount, PoolUse, Program,
    ProgramMemory, RunStats, Schedule, StateLayout, Step, StepLimits, Taps, Wanted,
};
use metallic_telemetry::SPANS;
use metallic_telemetry::tracing::debug_span;

use crate::backend::Shared;
use crate::command::Region;
use crate::error::GpuError;
use crate::gpu::{Storage, Submission};
use crate::kernels::sample;
use crate::pipelines::PipelineMetrics;
use crate::pool::Allocation;
use crate::prepare::{ALIGN, Lowered, Plans, Prepared, StepMemory, aliases};
use crate::states::States;
use crate::step::{StepCounts, StepShape, write_tables};
use crate::weights::DeviceWeights;

/// Steps of which one may be timed operation by operation: its list is recorded for that alone.
const TIMED_EVERY: u64 = 64;
/// Bytes of step tables at least.
const TABLES: usize = 1 << 16;
/// Rows from which tokens are chosen at most.
pub(crate) const CHOSEN: usize = 1024;

pub(crate) struct GpuProgram {
    pub(crate) lowered: Lowered,
    pub(crate) plans: Plans,
    /// Whether the next step tells what each of its operations took.
    notes_each: bool,
    /// What the plans may choose, as it was when they were made.
    tuned: u64,
    /// The tables of each step under way, in turns.
    lanes: Vec<Option<Allocation>>,
    next_lane: usize,
    /// Intermediates, then scratch. Steps run one after another, so one serves all.
    arena: Option<Allocation>,
    /// Tokens chosen by the steps of each lane.
    chosen: Option<Allocation>,
    pub(crate) under_way: VecDeque<UnderWay>,
    /// What the step last submitted is like, and what it looks at.
    last: Option<(StepShape, StepCounts)>,
    /// The plan of the step last finished, where its values can be read.
    pub(crate) finished: Option<Arc<Prepared>>,
    words: Vec<u32>,
    outputs: Vec<Vec<f32>>,
    ids: Vec<Vec<u32>>,
    /// Bytes on their way to or from the device.
    staging: Vec<u8>,
}

pub(crate) struct UnderWay {
    plan: Arc<Prepared>,
    counts: StepCounts,
    submission: Option<Box<dyn Submission>>,
    notes_each: bool,
    stats: RunStats,
    /// When it was handed over, and when handing over was done.
    begun: Instant,
    handed: Instant,
}

impl GpuProgram {
    pub(crate) fn new(
        shared: Arc<Shared>,
        graph: Graph,
        options: CompileOptions,
    ) -> Result<GpuProgram, GpuError> {
        let layout = StateLayout::of(&graph, options.kv)
            .map_err(|error| GpuError::unsupported("state", error.to_string()))?;
        let weights = DeviceWeights::new(&shared, &graph)?;
        shared.options.providers.tell(shared.gpu.notes());
        let lanes = shared.depth();
        let tuned = shared.options.tuned.version();
        let outputs = graph.outputs().len();
        let lowered = Lowered {
            schedule: if options.taps { Schedule::apart(&graph) } else { Schedule::of(&graph) },
            taps: options.taps,
            needed: graph.needed(),
            layers: graph.layers(),
            keeps_launches: shared.options.profile,
            aliases: aliases(&graph),
            graph,
            weights,
            states: States::new(layout),
            shared,
        };
        let program = GpuProgram {
            lowered,
            plans: Plans::default(),
            notes_each: false,
            tuned,
            lanes: (0..lanes).map(|_| None).collect(),
            next_lane: 0,
            arena: None,
            chosen: None,
            under_way: VecDeque::new(),
            last: None,
            finished: None,
            words: Vec::new(),
            outputs: vec![Vec::new(); outputs],
            ids: vec![Vec::new(); outputs],
            staging: Vec::new(),
        };
        program.rehearse()?;
        Ok(program)
    }

    fn limits(&self) -> StepLimits {
        let chooses = |step: &&UnderWay| step.plan.shape.choices > 0;
        let fed_rows = self.under_way.back().filter(chooses).map_or(0, |step| step.plan.shape.outputs);
        let (blocks, slots) = (self.lowered.states.blocks, self.lowered.states.slots());
        let (vocab, adapters) = (self.lowered.graph.vocab(), self.lowered.graph.adapters());
        StepLimits { vocab, blocks, slots, fed_rows, adapters }
    }

    /// The plan of a step, made where there is none yet.
    fn plan(&mut self, shape: &StepShape, stats: &mut RunStats) -> Result<Arc<Prepared>, GpuError> {
        let tuned = self.lowered.shared.options.tuned.version();
        if self.tuned != tuned {
            self.plans.clear();
            self.tuned = tuned;
        }
        if let Some(plan) = self.plans.get(shape) {
            stats.plan_hits = 1;
            return Ok(plan);
        }
        stats.plan_misses = 1;
        let _span = debug_span!(target: SPANS, "plan").entered();
        let start = Instant::now();
        let planned = self.lowered.plan(shape)?;
        self.lowered.shared.options.tuned.planned(planned.fingerprint(shape));
        (stats.cache_hits, stats.cache_misses) = (planned.kernels.hits, planned.kernels.misses);
        let memory = self.memory(shape, planned.arena_bytes)?;
        let plan = Arc::new(self.lowered.prepare(shape, planned, memory)?);
        self.plans.put(plan.clone(), start.elapsed());
        Ok(plan)
    }

    /// Memory for steps of this shape. Plans name memory, so they go where any of it has to grow, or could not.
    fn memory(&mut self, shape: &StepShape, arena: usize) -> Result<StepMemory, GpuError> {
        let lanes = self.lanes.len();
        let mut grow = |memory: &mut Option<Allocation>, what, needed| {
            grow(&self.lowered.shared, &mut self.plans, memory, what, needed)
        };
        let arena = grow(&mut self.arena, "intermediates", arena)?;
        let chosen = grow(&mut self.chosen, "chosen tokens", 4 * CHOSEN * lanes)?;
        // Tables grow by doubling, so that a block more each few steps does not mean a buffer more; all lanes together, so
        // that the next one's need moves nothing.
        let needed = shape.table_bytes().next_power_of_two().max(TABLES);
        for lane in &mut self.lanes {
            grow(lane, "the step's tables", needed)?;
        }
        let tables = self.tables(shape.lane)?;
        let part = |lane: usize| chosen.slice(4 * CHOSEN * lane, 4 * CHOSEN);
        let before = (shape.lane + lanes - 1) % lanes;
        Ok(StepMemory { arena, tables, chosen: [part(shape.lane)?, part(before)?], imagined: None })
    }

    fn tables(&self, lane: usize) -> Result<Region, GpuError> {
        let none = || GpuError::unsupported("step", "no tables for it");
        Ok(self.lanes.get(lane).and_then(Option::as_ref).ok_or_else(none)?.region())
    }

    fn submit_step(&mut self, step: &Step<'_>) -> Result<(), GpuError> {
        let begun = Instant::now();
        let before = self.lowered.shared.pool.allocations();
        let refused = |reason: &str| Err(GpuError::unsupported("step", reason));
        if self.under_way.len() == self.lanes.len() {
            return refused("as many steps are under way as may be; finish one first");
        }
        // Everything but chosen tokens lies in the arena, which the next step writes over.
        if self.under_way.back().is_some_and(|last| !self.only_chosen(last.plan.shape.wanted)) {
            return refused("the step under way has results that must be read first");
        }
        if !step.choices.is_empty() {
            sample::check_choices(step.choices, step.outputs.len())?;
            if step.outputs.len() > CHOSEN {
                return refused("tokens are chosen from at most 1024 rows");
            }
        }
        let mut stats = RunStats::default();
        let shape = StepShape::of(step, self.next_lane);
        let plan = self.plan(&shape, &mut stats)?;
        let counts = write_tables(step, &shape, &mut self.words);
        self.staging.clear();
        self.words.iter().for_each(|word| self.staging.extend_from_slice(&word.to_ne_bytes()));
        let tables = self.tables(shape.lane)?;
        self.lowered.shared.gpu.write(tables.buffer(), tables.offset(), &self.staging)?;
        let submission = self.hand_over(&plan, &counts, &mut stats)?;
        self.last = Some((shape, counts));
        stats.allocations = self.lowered.shared.pool.allocations() - before;
        stats.arena_bytes = self.arena.as_ref().map_or(0, |arena| arena.region().len() as u64);
        self.next_lane = (self.next_lane + 1) % self.lanes.len();
        let handed = Instant::now();
        stats.host_time = handed - begun;
        let notes_each = self.notes_each;
        self.under_way.push_back(UnderWay { plan, counts, submission, notes_each, stats, begun, handed });
        Ok(())
    }

    /// Whether nothing is wanted but what [`StepMemory::chosen`] holds.
    fn only_chosen(&self, wanted: Wanted) -> bool {
        let outputs = self.lowered.graph.outputs().iter().enumerate();
        outputs
            .filter(|(index, _)| wanted.has(*index))
            .all(|(_, id)| self.lowered.graph.node(*id).op == metallic_core::Op::Sample)
    }

    /// Gives the device a plan's commands.
    fn hand_over(
        &self,
        plan: &Prepared,
        counts: &StepCounts,
        stats: &mut RunStats,
    ) -> Result<Option<Box<dyn Submission>>, GpuError> {
        stats.dispatches = plan.counts.dispatches;
        stats.bytes_read = plan.counts.read(counts);
        stats.bytes_written = plan.counts.written;
        stats.multiply_adds = plan.counts.multiply_adds(counts, plan.shape.visible);
        if plan.list.is_empty() {
            return Ok(None);
        }
        let Shared { gpu, options, .. } = &*self.lowered.shared;
        let timed = options.profile || self.notes_each;
        let submission = if timed { gpu.submit_timed(&plan.list) } else { gpu.submit(&plan.list) }?;
        stats.submissions = submission.command_buffers();
        Ok(Some(submission))
    }

    fn finish_step(&mut self) -> Result<RunStats, GpuError> {
        let Some(step) = self.under_way.pop_front() else {
            return Err(GpuError::unsupported("step", "no step is under way"));
        };
        let finished = self.finish_one(step);
        if finished.is_err() {
            // What is still under way keeps what it uses: the driver holds it until the device is done, and later steps take
            // their own. Keys and values stay where they are: the device does its work in order.
            self.under_way.clear();
            self.finished = None;
            (self.arena, self.chosen) = (None, None);
            self.lanes.fill_with(|| None);
            self.plans.clear();
        }
        finished
    }

    fn finish_one(&mut self, mut step: UnderWay) -> Result<RunStats, GpuError> {
        let mut stats = step.stats;
        // What the caller did while the device had the step.
        stats.overlap = step.handed.elapsed();
        if let Some(submission) = &mut step.submission {
            stats.device_time += submission.wait(self.lowered.shared.options.timeout)?.unwrap_or_default();
            let profile = self.lowered.shared.options.profile;
            let times = if profile || step.notes_each { submission.times()? } else { Vec::new() };
            for (launch, time) in step.plan.launches.iter().zip(times) {
                let cost = launch.cost(&step.counts, step.plan.shape.visible, time);
                if profile {
                    stats.add_op(&cost);
                }
                stats.each.extend(step.notes_each.then_some(cost));
            }
        }
        let waited = Instant::now();
        self.lowered.weights.check()?;
        self.fetch(&step.plan)?;
        self.finished = self.lowered.taps.then_some(step.plan);
        stats.time = step.begun.elapsed();
        stats.host_time += waited.elapsed();
        Ok(stats)
    }

    fn fetch(&mut self, plan: &Prepared) -> Result<(), GpuError> {
        let word = |b: &[u8]| [b[0], b[1], b[2], b[3]];
        for (index, region) in plan.outputs.iter().enumerate() {
            self.outputs[index].clear();
            self.ids[index].clear();
            let Some(region) = region else { continue };
            self.staging.resize(region.len(), 0);
            self.lowered.shared.gpu.read(region.buffer(), region.offset(), &mut self.staging)?;
            let words = self.staging.chunks_exact(4);
            match self.lowered.graph.node(self.lowered.graph.outputs()[index]).ty.dtype {
                DType::U32 | DType::I32 => self.ids[index].extend(words.map(|b| u32::from_ne_bytes(word(b)))),
                DType::F32 => self.outputs[index].extend(words.map(|b| f32::from_ne_bytes(word(b)))),
                dtype => {
                    let mut numbers = vec![0.0; region.len() / dtype.block_bytes()];
                    metallic_core::quant::dequantize(dtype, &self.staging, &mut numbers)
                        .map_err(|e| GpuError::unsupported("output", e.to_string()))?;
                    self.outputs[index] = numbers;
                }
            }
        }
        Ok(())
    }

    /// Makes room among the states. Plans name their memory, so they go where any of it has moved.
    fn reserve(
        &mut self,
        reserve: impl FnOnce(&mut States, &Shared) -> Result<bool, GpuError>,
    ) -> Result<(), BackendError> {
        let moved = reserve(&mut self.lowered.states, &self.lowered.shared);
        // What fails half-way has moved the rest.
        if !matches!(moved, Ok(false)) {
            self.plans.clear();
        }
        moved.map(drop).map_err(|e| e.on(self.lowered.shared.kind()))
    }
}

/// Memory of at least this size; what was there is lost where it has to grow, and so are the plans that name it.
fn grow(
    shared: &Shared,
    plans: &mut Plans,
    memory: &mut Option<Allocation>,
    what: &'static str,
    needed: usize,
) -> Result<Region, GpuError> {
    if let Some(found) = memory.as_ref().filter(|a| a.region().len() >= needed) {
        return Ok(found.region());
    }
    plans.clear();
    // The old one goes first: nothing in it outlives a step.
    *memory = None;
    let new = shared.pool.allocate(what, needed.max(ALIGN), Storage::Shared)?;
    let region = new.region();
    *memory = Some(new);
    Ok(region)
}

impl Program for GpuProgram {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        self.reserve(|states, shared| states.reserve_blocks(shared, blocks))
    }

    fn reserved(&self) -> Blocks {
        self.lowered.states.blocks
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.reserve(|states, shared| states.reserve_slots(shared, slots))
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let Lowered { states, shared, .. } = &mut self.lowered;
        states.copy_slot(shared, from, to).map_err(|e| e.on(shared.kind()))
    }

    fn step_tokens(&self) -> usize {
        let Lowered { shared, states, .. } = &self.lowered;
        let limits = shared.gpu.limits();
        // A library has weights laid out anew for each step, and tiles fill many cores. What is exact goes by few tokens at a time.
        let many = limits.library || limits.matrix_units.is_some();
        if many && states.layout.dtype() != DType::F32 { 2048 } else { 512 }
    }

    fn depth(&self) -> usize {
        self.lanes.len()
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        step.validate(&self.limits())?;
        self.submit_step(step).map_err(|e| e.on(self.lowered.shared.kind()))
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        self.finish_step().map_err(|e| e.on(self.lowered.shared.kind()))
    }

    fn output(&self, index: usize) -> &[f32] {
        self.outputs.get(index).map_or(&[], Vec::as_slice)
    }

    fn ids(&self, index: usize) -> &[u32] {
        self.ids.get(index).map_or(&[], Vec::as_slice)
    }

    fn taps(&mut self) -> Option<&mut dyn Taps> {
        self.lowered.taps.then_some(self as _)
    }

    fn kernels(&self) -> Vec<KernelCount> {
        let planned = self.last.as_ref().and_then(|(shape, counts)| Some((self.plans.find(shape)?, counts)));
        planned.map_or_else(Vec::new, |(plan, counts)| plan.counts.kernels.in_step(counts))
    }

    fn profile(&mut self, on: bool) {
        self.notes_each = on;
        if on && !self.lowered.keeps_launches {
            self.lowered.keeps_launches = true;
            // Those that were made do not know what their launches belong to.
            self.plans.clear();
        }
    }

    fn profile_every(&self) -> u64 {
        TIMED_EVERY
    }

    fn caches(&self) -> Vec<CacheUse> {
        let PipelineMetrics { libraries, pipelines, library } = self.lowered.shared.pipelines.metrics();
        let named = [
            ("libraries", libraries),
            ("pipelines", pipelines),
            ("products", library.products),
            ("graphs", library.graphs),
        ];
        let there = named.into_iter().filter(|(_, metrics)| metrics.capacity > 0);
        there.map(|(name, metrics)| metrics.usage(name)).chain([self.plans.usage()]).collect()
    }

    fn pools(&self) -> Vec<PoolUse> {
        vec![self.lowered.shared.pool.stats().usage("device")]
    }

    fn memory(&self) -> ProgramMemory {
        let len = |a: &Option<Allocation>| a.as_ref().map_or(0, |a| a.region().len());
        let tables: usize = self.lanes.iter().map(len).sum();
        ProgramMemory {
            weights: self.lowered.weights.bytes(),
            mapped: self.lowered.weights.mapped_bytes(),
            arena: len(&self.arena) + len(&self.chosen) + tables,
            kv: self.lowered.states.bytes(),
        }
    }
}
