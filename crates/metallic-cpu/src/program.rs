//! A graph made ready for the CPU: operations in order over one arena.

use std::ops::Range;
use std::time::Instant;

use metallic_core::{
    BackendError, Blocks, CompileOptions, DType, Graph, KvRows, Needed, NodeId, Op, OpCost, Program,
    ProgramMemory, RunStats, Schedule, Sizes, StateId, StateLayout, Step, StepLimits, Tapped, Taps, Wanted,
};

use crate::exec::{Args, Input, Now, Out, Value, Work, decode, grow};
use crate::kept::Kept;
use crate::simd::{AlignedBytes, floats, words};
use crate::weights::PackedWeights;
use crate::{CpuOptions, Processor, failed, guarded, no_room};

pub(crate) struct CpuProgram {
    graph: Graph,
    schedule: Schedule,
    weights: PackedWeights,
    kept: Kept,
    /// Every value has a place of its own, and can be read.
    taps: bool,
    arena: AlignedBytes,
    work: Work,
    profile: bool,
    /// Part and layer of each node, while each is noted.
    labels: Option<Vec<(String, Option<u32>)>>,
    /// Which outputs need each node.
    needed: Vec<Needed>,
    /// The step under way: it is done when it is handed over.
    submitted: Option<RunStats>,
    /// Sizes of the last step, which say where its values lie in the arena, and what it wanted.
    sizes: Sizes,
    wanted: Wanted,
    /// Whether it chose tokens.
    chosen: bool,
    /// By output: its numbers, where the arena has them as halves.
    halves: Vec<Vec<f32>>,
}

impl Program for CpuProgram {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        self.kept.reserve_blocks(blocks)
    }

    fn reserved(&self) -> Blocks {
        self.kept.blocks
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.kept.reserve_slots(slots)
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.kept.copy_slot(from, to)
    }

    /// Rows are chosen from by all threads, and while they are warm.
    fn chooses(&self) -> bool {
        true
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        if self.submitted.is_some() {
            return Err(failed("a step is under way"));
        }
        let (blocks, slots) = (self.kept.blocks, self.kept.slots());
        let (vocab, adapters) = (self.graph.vocab(), self.graph.adapters());
        step.validate(&StepLimits { vocab, blocks, slots, fed_rows: 0, adapters })?;
        let start = Instant::now();
        let mut stats = RunStats::default();
        guarded(|| self.run_nodes(step, &mut stats))?;
        self.weights.check()?;
        stats.bytes_read += self.work.read;
        stats.bytes_written += self.work.written;
        stats.multiply_adds += self.work.multiplied;
        stats.time = start.elapsed();
        stats.host_time = stats.time;
        self.submitted = Some(stats);
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        self.submitted.take().ok_or_else(|| failed("no step is under way"))
    }

    fn output(&self, index: usize) -> &[f32] {
        match self.result(index) {
            Some((DType::F32, bytes)) => floats(bytes),
            Some((DType::F16 | DType::BF16, _)) => &self.halves[index],
            Some(_) | None => &[],
        }
    }

    fn ids(&self, index: usize) -> &[u32] {
        match self.result(index) {
            Some((DType::U32, bytes)) => words(bytes),
            Some(_) | None => &[],
        }
    }

    fn profile(&mut self, on: bool) {
        if on && self.labels.is_none() {
            let parts = (0..self.graph.nodes().len()).map(|index| self.graph.part(NodeId(index)));
            self.labels = Some(parts.zip(self.graph.layers()).collect());
        } else if !on {
            self.labels = None;
        }
    }

    fn memory(&self) -> ProgramMemory {
        ProgramMemory {
            weights: self.weights.bytes(),
            mapped: self.weights.mapped_bytes(),
            arena: self.arena.bytes().len() + self.work.bytes(),
            kv: self.kept.bytes(),
        }
    }

    fn taps(&mut self) -> Option<&mut dyn Taps> {
        self.taps.then_some(self as _)
    }
}

impl Taps for CpuProgram {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn value(&mut self, node: NodeId) -> Result<Option<Tapped>, BackendError> {
        let of = self.graph.nodes().get(node.0);
        let of = of.ok_or_else(|| failed(format!("node {} of {}", node.0, self.graph.nodes().len())))?;
        let unchosen = of.op == Op::Sample && !self.chosen;
        let computed = self.needed[node.0].for_step(self.wanted) && !of.op.is_source() && !unchosen;
        let range = self.schedule.range(node, self.sizes).filter(|range| computed && !range.is_empty());
        let Some(bytes) = range.and_then(|range| self.arena.bytes().get(range)) else { return Ok(None) };
        Ok(Some(match of.ty.dtype {
            DType::F32 => Tapped::Floats(floats(bytes).to_vec()),
            DType::U32 | DType::I32 => Tapped::Words(words(bytes).to_vec()),
            dtype => {
                let mut numbers = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
                decode(&self.work.team, dtype, bytes, &mut numbers)?;
                Tapped::Floats(numbers)
            }
        }))
    }

    fn kept(
        &mut self,
        state: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<KvRows, BackendError> {
        self.kept.rows(state, table, positions)
    }
}

impl CpuProgram {
    pub(crate) fn new(
        graph: Graph,
        compile: CompileOptions,
        work: Work,
        options: CpuOptions,
    ) -> Result<CpuProgram, BackendError> {
        Ok(CpuProgram {
            schedule: if compile.taps { Schedule::apart(&graph) } else { Schedule::of(&graph) },
            weights: PackedWeights::new(
                &graph,
                Processor { isa: work.isa, team: &work.team },
                options.exact,
            )?,
            kept: Kept::new(StateLayout::of(&graph, compile.kv)?)?,
            taps: compile.taps,
            arena: AlignedBytes::default(),
            work,
            profile: options.profile,
            labels: None,
            needed: graph.needed(),
            submitted: None,
            sizes: Sizes::default(),
            wanted: Wanted::NONE,
            chosen: false,
            halves: vec![Vec::new(); graph.outputs().len()],
            graph,
        })
    }

    /// Type and bytes of an output that the last step wanted.
    fn result(&self, index: usize) -> Option<(DType, &[u8])> {
        let id = self.graph.outputs().get(index).filter(|_| self.wanted.has(index))?;
        if self.graph.node(*id).op == Op::Sample && !self.chosen {
            return None;
        }
        let range = self.schedule.range(*id, self.sizes)?;
        Some((self.graph.node(*id).ty.dtype, self.arena.bytes().get(range)?))
    }

    fn run_nodes(&mut self, step: &Step<'_>, stats: &mut RunStats) -> Result<(), BackendError> {
        self.sizes = step.sizes();
        // Results count once all of them are there.
        self.wanted = Wanted::NONE;
        let needed = self.schedule.arena_bytes(self.sizes);
        self.arena.grow(needed).map_err(|_| no_room("intermediates", needed))?;
        stats.arena_bytes = needed as u64;
        self.work.begin();
        for index in 0..self.graph.nodes().len() {
            let op = self.graph.nodes()[index].op;
            if !step.computes(&op, self.needed[index]) {
                continue;
            }
            let timed = self.profile || self.labels.is_some();
            let start = timed.then(|| (Instant::now(), self.work.bytes_moved(), self.work.multiplied));
            self.run_node(NodeId(index), step)?;
            stats.dispatches += 1;
            if let Some((start, bytes, multiplied)) = start {
                let cost = OpCost {
                    op: op.name(),
                    times: 1,
                    time: start.elapsed(),
                    bytes: self.work.bytes_moved() - bytes,
                    multiply_adds: self.work.multiplied - multiplied,
                    ..OpCost::default()
                };
                self.note(NodeId(index), &cost, stats);
            }
        }
        (self.wanted, self.chosen) = (step.wanted, !step.choices.is_empty());
        self.decode_outputs()
    }

    /// Adds what a node cost to its kind, and to the list of all, as far as either is wanted.
    fn note(&self, id: NodeId, cost: &OpCost, stats: &mut RunStats) {
        if self.profile {
            stats.add_op(&OpCost { part: self.graph.part(id), ..cost.clone() });
        }
        if let Some((part, layer)) = self.labels.as_ref().and_then(|labels| labels.get(id.0)) {
            stats.each.push(OpCost { part: part.clone(), layer: *layer, ..cost.clone() });
        }
    }

    fn run_node(&mut self, id: NodeId, step: &Step<'_>) -> Result<(), BackendError> {
        let CpuProgram { graph, schedule, weights, kept, arena, work, sizes, .. } = self;
        let node = graph.node(id);
        let range = |id: NodeId| schedule.range(id, *sizes).unwrap_or(0..0);
        // What lies around the place of the result may be read while it is written: the schedule lets nothing overlap that
        // is read.
        let place = range(id);
        let (before, rest) = arena.bytes_mut().split_at_mut(place.start);
        let (out, after) = rest.split_at_mut(place.len());
        let (before, after) = (&*before, &*after);
        let around = |Range { start, end }: Range<usize>| {
            if end <= before.len() { &before[start..end] } else { &after[start - place.end..end - place.end] }
        };
        let mut args = Args::new(&node.ty, *sizes);
        for (index, input) in node.inputs.iter().enumerate() {
            let (source, used) = (graph.node(*input), node.op.weight_use(index));
            let value = match source.op {
                Op::Tokens => Value::Words(step.tokens),
                Op::Positions => Value::Words(step.positions),
                Op::OutputRows => Value::Words(step.outputs),
                Op::Choices => Value::Words(step.choices),
                Op::Adapters { .. } => Value::Floats(step.adapters),
                Op::Weight(weight) => weights.value(weight, used),
                op => {
                    debug_assert!(!op.is_source());
                    Value::operand(source.ty.dtype, around(range(*input)), used)
                }
            };
            if let (Op::Weight(_), Value::Floats(vector)) = (source.op, value) {
                work.read += size_of_val(vector) as u64;
            }
            args.push(Input { value, ty: &source.ty, node: Some(*input) })?;
        }
        work.run(&node.op, args, Out::stored(node.ty.dtype, out), Some(Now { step, kept }))
    }

    /// Outputs are read as numbers, also those that were stored as halves.
    fn decode_outputs(&mut self) -> Result<(), BackendError> {
        for (index, id) in self.graph.outputs().iter().enumerate().filter(|(i, _)| self.wanted.has(*i)) {
            let (dtype, range) = (self.graph.node(*id).ty.dtype, self.schedule.range(*id, self.sizes));
            let (DType::F16 | DType::BF16, Some(range)) = (dtype, range) else { continue };
            let numbers = &mut self.halves[index];
            let len = range.len() / dtype.block_bytes();
            grow(numbers, len)?;
            numbers.truncate(len);
            decode(&self.work.team, dtype, &self.arena.bytes()[range], numbers)?;
        }
        Ok(())
    }
}
