//! A graph made ready for a GPU: each step becomes one command list over one arena, handed over in one submission.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metallic_core::{
    BackendError, DType, Graph, KvLayout, Program, ProgramMemory, RunStats, Schedule, SequenceSpan, Step,
    run_ahead_on_host,
};

use crate::backend::Shared;
use crate::command::{Command, Region};
use crate::encode::{ALIGN, Encoder, F32, Place, Planned, Work, bind};
use crate::error::GpuError;
use crate::gpu::Storage;
use crate::kernels::{Launch, Slot, Stage, TILE_TOKENS, sample};
use crate::kv::KvCache;
use crate::lower::aliases;
use crate::pipelines::HeldKernels;
use crate::pool::Allocation;
use crate::step::{StepFacts, StepTables};
use crate::weights::Weights;

/// Steps that are planned when a program is made, as tokens, results and tokens in sight: each takes kernels the others
/// do not. So every kernel of later steps is ready, or known not to compile.
const REHEARSED: [(usize, usize, usize); 8] = [
    (1, 1, 1),
    (1, 1, LONG),
    (2, 1, 2),
    (2, 2, 2),
    (4, 4, 4),
    (8, 8, 8),
    (TILED, 1, TILED),
    (TILED, TILED, TILED),
];
/// Tokens that fill tiles.
const TILED: usize = 2 * TILE_TOKENS;
/// Tokens in sight of which threadgroups take a part each.
const LONG: usize = 1 << 14;
/// Bytes of step tables at least.
const TABLES: usize = 1 << 16;

pub(crate) struct GpuProgram {
    shared: Arc<Shared>,
    graph: Graph,
    schedule: Schedule,
    aliases: Vec<bool>,
    kv: KvLayout,
    weights: Weights,
    cache: KvCache,
    /// Tables of the steps of one submission.
    tables: Vec<StepTables>,
    /// The tables on the device, then the tokens steps have chosen.
    inputs: Option<Allocation>,
    /// Intermediates, then scratch.
    arena: Option<Allocation>,
    /// What the device is given, while it has it.
    work: Work,
    outputs: Vec<Vec<f32>>,
    /// Bytes on their way to or from the device.
    staging: Vec<u8>,
}

impl GpuProgram {
    pub(crate) fn new(shared: Arc<Shared>, graph: Graph, kv: KvLayout) -> Result<GpuProgram, GpuError> {
        let weights = Weights::new(&shared.gpu, &shared.pool, &graph)?;
        let program = GpuProgram {
            schedule: Schedule::of(&graph),
            aliases: aliases(&graph),
            outputs: vec![Vec::new(); graph.outputs().len()],
            graph,
            kv,
            weights,
            cache: KvCache::new(kv),
            tables: Vec::new(),
            inputs: None,
            arena: None,
            work: Work::default(),
            staging: Vec::new(),
            shared,
        };
        program.rehearse()?;
        Ok(program)
    }

    fn rehearse(&self) -> Result<(), GpuError> {
        let mut held = HeldKernels::default();
        for (tokens, outputs, visible) in REHEARSED {
            let facts = StepFacts {
                tokens,
                outputs,
                tiles: tokens.div_ceil(TILE_TOKENS),
                visible_max: visible,
                longest: tokens,
                all_outputs: outputs == tokens,
                ..StepFacts::default()
            };
            self.encoder().plan(facts, &mut held)?;
            held.clear();
        }
        let logits = self.graph.outputs().first().map_or(0, |id| self.graph.node(*id).ty.shape.cols());
        if self.steps_ahead() > 1 && logits > 0 {
            held.take(&self.shared.pipelines, &self.argmax(1, logits)?.kernel)?;
        }
        Ok(())
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder {
            shared: &self.shared,
            graph: &self.graph,
            schedule: &self.schedule,
            aliases: &self.aliases,
            kv: self.kv,
            weights: &self.weights,
            cache: &self.cache,
        }
    }

    /// Runs the steps whose tables are filled in. Each but the first takes the tokens the one before has chosen.
    fn run_tables(&mut self, chosen: Option<&mut Vec<u32>>) -> Result<RunStats, GpuError> {
        let mut work = std::mem::take(&mut self.work);
        let stats = self.run_work(&mut work, chosen);
        work.clear();
        self.work = work;
        if matches!(stats, Err(GpuError::Timeout { .. })) {
            // What does not finish keeps what it uses: the driver holds it until the device is done, and later steps take
            // their own. Keys and values stay where they are: the device does its work in order.
            self.inputs = None;
            self.arena = None;
        }
        stats
    }

    /// All steps go in one submission; each operation in its own where their times are wanted.
    fn run_work(&mut self, work: &mut Work, chosen: Option<&mut Vec<u32>>) -> Result<RunStats, GpuError> {
        let before = self.shared.pool.allocations();
        let plan = |t: &StepTables| self.encoder().plan(t.facts(), &mut work.held);
        let steps: Vec<Planned> = self.tables.iter().map(plan).collect::<Result<_, _>>()?;
        let facts = self.tables.first().map_or_else(StepFacts::default, StepTables::facts);
        let scratch = steps.iter().map(|p| p.scratch).max().unwrap_or(0);
        let needed = self.encoder().value_bytes(facts.sizes()) + scratch;
        let arena = grow(&self.shared, &mut self.arena, "intermediates", needed)?;
        let starts = self.gather_tables();
        let ids = self.staging.len()..self.staging.len() + 4 * facts.tokens * self.tables.len();
        let inputs = grow(&self.shared, &mut self.inputs, "the step's tables", tables_len(ids.end))?;
        let picks = |step: usize| inputs.slice(ids.start + 4 * facts.tokens * step, 4 * facts.tokens);

        self.shared.gpu.write(inputs.buffer(), inputs.offset(), &self.staging)?;
        let mut stats = RunStats::default();
        let encoder = self.encoder();
        for (index, (planned, tables)) in steps.iter().zip(&self.tables).enumerate() {
            let at = inputs.slice(starts[index], tables.len())?;
            let tokens = if index == 0 { None } else { Some(picks(index - 1)?) };
            let place = Place { arena, tables: (tables, at), tokens };
            for node in &planned.nodes {
                encoder.encode(node, (planned.facts, place), work)?;
                if self.shared.options.profile {
                    let time = self.submit(work, &mut stats)?;
                    stats.add_time(self.graph.node(node.id).op.name(), time);
                }
            }
            if chosen.is_some() {
                let logits = self.graph.outputs().first().copied();
                let logits = logits.map_or(arena.slice(0, 0), |id| encoder.value(id, facts, arena))?;
                self.pick(logits, picks(index)?, facts.outputs, work)?;
            }
        }
        if !work.commands.is_empty() {
            self.submit(work, &mut stats)?;
        }
        (stats.cache_hits, stats.cache_misses) = (work.held.hits, work.held.misses);
        self.fetch(facts, arena)?;
        if let Some(chosen) = chosen {
            let all = inputs.slice(ids.start, ids.len())?;
            chosen.extend(
                self.read(all)?.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
            );
        }
        stats.allocations = self.shared.pool.allocations() - before;
        stats.arena_bytes = arena.len() as u64;
        Ok(stats)
    }

    /// Hands over the commands that have gathered and waits for them; the time they took on the device, where it tells,
    /// else until they were done.
    fn submit(&self, work: &mut Work, stats: &mut RunStats) -> Result<Duration, GpuError> {
        stats.dispatches += work.commands.len() as u64;
        for command in work.commands.commands() {
            let (read, written) = command.traffic();
            stats.bytes_read += read;
            stats.bytes_written += written;
        }
        let start = Instant::now();
        let mut submitted = self.shared.gpu.submit(&work.commands)?;
        stats.submissions += submitted.command_buffers();
        let told = submitted.wait(self.shared.options.timeout)?;
        stats.device_time += told.unwrap_or_default();
        work.commands.clear();
        Ok(told.unwrap_or_else(|| start.elapsed()))
    }

    /// Puts all tables one after another into `staging`; returns where each begins.
    fn gather_tables(&mut self) -> Vec<usize> {
        let mut starts = Vec::with_capacity(self.tables.len());
        self.staging.clear();
        for tables in &self.tables {
            starts.push(self.staging.len());
            tables.write_to(&mut self.staging);
            self.staging.resize(self.staging.len().next_multiple_of(ALIGN), 0);
        }
        starts
    }

    fn argmax(&self, rows: usize, cols: usize) -> Result<Launch, GpuError> {
        sample::argmax(DType::F32, (rows as u32, cols as u32), self.shared.gpu.limits())
    }

    /// Appends the choice of the best token of each row of logits.
    fn pick(&self, logits: Region, to: Region, rows: usize, work: &mut Work) -> Result<(), GpuError> {
        let launch = self.argmax(rows, logits.len() / F32 / rows.max(1))?;
        let kernel = work.held.take(&self.shared.pipelines, &launch.kernel)?;
        let stage = Stage::new(launch, [Slot::Input(0), Slot::Output]);
        let region = |slot| Ok(if slot == Slot::Input(0) { logits } else { to });
        let dispatch = bind((&stage, &kernel), "argmax", self.shared.gpu.limits(), region)?;
        work.commands.push(Command::Dispatch(dispatch));
        Ok(())
    }

    /// Bytes of the device, in `staging`.
    fn read(&mut self, region: Region) -> Result<&[u8], GpuError> {
        self.staging.resize(region.len(), 0);
        self.shared.gpu.read(region.buffer(), region.offset(), &mut self.staging)?;
        Ok(&self.staging)
    }

    /// Brings the results to the host.
    fn fetch(&mut self, facts: StepFacts, arena: Region) -> Result<(), GpuError> {
        for index in 0..self.outputs.len() {
            let region = self.encoder().value(self.graph.outputs()[index], facts, arena)?;
            let mut output = std::mem::take(&mut self.outputs[index]);
            output.clear();
            let bytes = self.read(region)?.chunks_exact(F32);
            output.extend(bytes.map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])));
            self.outputs[index] = output;
        }
        Ok(())
    }

    /// The tables of one step alone.
    fn fill(&mut self, step: &Step<'_>) {
        self.tables.resize(1, StepTables::default());
        self.tables[0].fill(step);
    }

    /// The tables of a step and of those that follow it.
    fn fill_ahead(&mut self, step: &Step<'_>, steps: usize) {
        self.tables.resize(steps, StepTables::default());
        for (ahead, tables) in self.tables.iter_mut().enumerate() {
            step.ahead(ahead, |step| tables.fill(step));
        }
    }

    /// Whether steps can be chained: each sequence brings one token and wants its result, and there is room for all.
    fn can_chain(&self, step: &Step<'_>, steps: usize) -> bool {
        let one = |s: &SequenceSpan<'_>| s.tokens.len() == 1;
        let all = (0..).zip(step.outputs).all(|(index, row)| index == *row);
        let fits = |last: &Step<'_>| last.validate(self.graph.vocab(), self.cache.blocks()).is_ok();
        step.sequences.iter().all(one)
            && all
            && step.outputs.len() == step.tokens.len()
            && self.graph.outputs().len() == 1
            && step.ahead(steps - 1, fits)
    }

    fn timed(
        &mut self,
        run: impl FnOnce(&mut GpuProgram) -> Result<RunStats, GpuError>,
    ) -> Result<RunStats, BackendError> {
        let start = Instant::now();
        let mut stats = run(self).map_err(|e| e.on(self.shared.kind()))?;
        stats.time = start.elapsed();
        Ok(stats)
    }
}

/// Memory of at least this size; what was there is lost where it has to grow.
fn grow(
    shared: &Shared,
    memory: &mut Option<Allocation>,
    what: &'static str,
    needed: usize,
) -> Result<Region, GpuError> {
    if let Some(found) = memory.as_ref().filter(|a| a.region().len() >= needed) {
        return Ok(found.region());
    }
    // The old one goes first: nothing in it outlives a step.
    *memory = None;
    let new = shared.pool.allocate(what, needed.max(ALIGN), Storage::Shared)?;
    let region = new.region();
    *memory = Some(new);
    Ok(region)
}

/// Tables grow by doubling, so that a block more each few steps does not mean a buffer more.
fn tables_len(needed: usize) -> usize {
    needed.next_power_of_two().max(TABLES)
}

impl Program for GpuProgram {
    fn reserve_blocks(&mut self, blocks: usize) -> Result<(), BackendError> {
        let Shared { gpu, pool, options, .. } = &*self.shared;
        self.cache.reserve((gpu, pool), blocks, options.timeout).map_err(|e| e.on(self.shared.kind()))
    }

    fn reserved_blocks(&self) -> usize {
        self.cache.blocks()
    }

    fn run(&mut self, step: &Step<'_>) -> Result<RunStats, BackendError> {
        step.validate(self.graph.vocab(), self.cache.blocks())?;
        self.fill(step);
        self.timed(|program| program.run_tables(None))
    }

    fn steps_ahead(&self) -> usize {
        // Times are wanted operation by operation, so steps go one by one.
        if self.shared.options.profile { 1 } else { self.shared.options.steps_ahead.max(1) }
    }

    fn run_ahead(
        &mut self,
        step: &Step<'_>,
        steps: usize,
        chosen: &mut Vec<u32>,
    ) -> Result<RunStats, BackendError> {
        step.validate(self.graph.vocab(), self.cache.blocks())?;
        if steps == 0 || self.shared.options.profile || !self.can_chain(step, steps) {
            return run_ahead_on_host(self, step, steps, chosen);
        }
        self.fill_ahead(step, steps);
        self.timed(|program| program.run_tables(Some(chosen)))
    }

    fn output(&self, index: usize) -> &[f32] {
        self.outputs.get(index).map_or(&[], Vec::as_slice)
    }

    fn memory(&self) -> ProgramMemory {
        let len = |a: &Option<Allocation>| a.as_ref().map_or(0, |a| a.region().len());
        ProgramMemory {
            weights: self.weights.bytes(),
            arena: len(&self.arena) + len(&self.inputs),
            kv: self.cache.bytes(),
        }
    }
}
