//! The naive meaning of every operation: the executable specification other backends are measured against.

mod bound;
mod eval;
mod ops;
mod oracle;
mod state;
mod tensor;
mod value;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::op::{matrix_ops, plain_ops, source_ops};
use crate::tensor::TensorDevice;
use crate::{
    Backend, BackendError, Blocks, CompileOptions, DeviceInfo, Graph, KvRows, Needed, Node, NodeId, Op,
    OpCost, Program, ProgramMemory, RunStats, StateId, StateLayout, Step, StepLimits, Tapped, Taps, Wanted,
    rewrite,
};
pub use bound::ProductInputs;
use eval::{Args, evaluate, project};
use oracle::Operand;
pub use oracle::{Expected, Oracle};
use state::Kept;
use value::{Value, failed};

const DEVICE: &str = "reference";

/// A backend that follows the formulas literally, in `f32` values with `f64` sums.
#[derive(Debug)]
pub struct Reference {
    info: DeviceInfo,
    profile: bool,
}

impl Reference {
    /// The reference; it works on as many threads as the machine has.
    pub fn new() -> Reference {
        let units = std::thread::available_parallelism().map_or(1, usize::from);
        let name = "naive interpreter".to_owned();
        let info = DeviceInfo { kind: DEVICE, name, units, memory_bytes: None };
        Reference { info, profile: false }
    }

    /// The reference with a clock: programs fill [`RunStats::ops`].
    pub fn profiling() -> Reference {
        Reference { profile: true, ..Reference::new() }
    }
}

impl Default for Reference {
    fn default() -> Reference {
        Reference::new()
    }
}

impl Backend for Reference {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn compile(&self, graph: &Graph, options: CompileOptions) -> Result<Box<dyn Program>, BackendError> {
        let graph = rewrite::with_activations(graph, options.activations)?;
        let load = |w: &crate::Weight| {
            let value = Value::load(w.ty.dtype, &w.data);
            w.data.check()?;
            value.map_err(|error| failed(format!("`{}`: {error}", w.name)))
        };
        let weights = graph.weights().iter().map(load).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Interpreter {
            weights,
            kept: Kept::new(StateLayout::of(&graph, options.kv)?),
            threads: self.info.units,
            profile: self.profile,
            notes_each: false,
            layers: graph.layers(),
            taps: options.taps,
            values: vec![Value::Words(Vec::new()); graph.nodes().len()],
            needed: graph.needed(),
            submitted: None,
            wanted: Wanted::NONE,
            graph,
        }))
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        Arc::new(tensor::ReferenceTensors)
    }
}

struct Interpreter {
    graph: Graph,
    /// Every weight as plain numbers.
    weights: Vec<Value>,
    kept: Kept,
    threads: usize,
    profile: bool,
    /// Whether each node of a step is noted, with its layer, and those layers.
    notes_each: bool,
    layers: Vec<Option<u32>>,
    taps: bool,
    /// The value of each node after the last run.
    values: Vec<Value>,
    /// Which outputs need each node.
    needed: Vec<Needed>,
    /// The step under way: it is done when it is handed over.
    submitted: Option<RunStats>,
    /// What the last step wanted.
    wanted: Wanted,
}

impl Program for Interpreter {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        self.kept.reserve(blocks, 0);
        Ok(())
    }

    fn reserved(&self) -> Blocks {
        self.kept.blocks
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.kept.reserve(Blocks::default(), slots);
        Ok(())
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let reserved = self.kept.slots().unwrap_or(usize::MAX);
        if from.max(to) as usize >= reserved {
            return Err(failed(format!("recurrent state {} of {reserved}", from.max(to))));
        }
        self.kept.copy_slot(from, to);
        Ok(())
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
        for index in 0..self.graph.nodes().len() {
            let node = self.graph.nodes()[index].clone();
            if !step.computes(&node.op, self.needed[index]) {
                self.values[index] = source(node.op, step);
                continue;
            }
            let begun = Instant::now();
            self.values[index] = self.evaluate(&node, step)?.rounded(node.ty.dtype)?;
            stats.dispatches += 1;
            if self.profile || self.notes_each {
                let (op, time) = (node.op.name(), begun.elapsed());
                let (part, layer) = (self.graph.part(NodeId(index)), self.layers[index]);
                let cost = OpCost { op, part, layer, times: 1, time, ..OpCost::default() };
                if self.profile {
                    stats.add_op(&cost);
                }
                stats.each.extend(self.notes_each.then_some(cost));
            }
        }
        stats.time = start.elapsed();
        (stats.host_time, self.wanted) = (stats.time, step.wanted);
        self.submitted = Some(stats);
        Ok(())
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        self.submitted.take().ok_or_else(|| failed("no step is under way"))
    }

    fn output(&self, index: usize) -> &[f32] {
        self.result(index).map_or(&[], Value::floats)
    }

    fn ids(&self, index: usize) -> &[u32] {
        self.result(index).map_or(&[], Value::words)
    }

    fn profile(&mut self, on: bool) {
        self.notes_each = on;
    }

    fn memory(&self) -> ProgramMemory {
        let bytes = |tensors: &[Value]| tensors.iter().map(Value::bytes).sum();
        let (weights, arena) = (bytes(&self.weights), bytes(&self.values));
        ProgramMemory { weights, mapped: 0, arena, kv: self.kept.bytes() }
    }

    fn taps(&mut self) -> Option<&mut dyn Taps> {
        self.taps.then_some(self as _)
    }
}

impl Taps for Interpreter {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn value(&mut self, node: NodeId) -> Result<Option<Tapped>, BackendError> {
        let (Some(value), Some(of)) = (self.values.get(node.0), self.graph.nodes().get(node.0)) else {
            return Err(failed(format!("node {} of {}", node.0, self.values.len())));
        };
        // What was not computed, and a receipt, has no numbers.
        let computed = !of.op.is_source() && value.bytes() > 0;
        Ok(computed.then(|| value.clone().tapped()))
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

impl Interpreter {
    fn result(&self, index: usize) -> Option<&Value> {
        let id = self.graph.outputs().get(index).filter(|_| self.wanted.has(index))?;
        Some(&self.values[id.0])
    }

    fn evaluate(&mut self, node: &Node, step: &Step<'_>) -> Result<Value, BackendError> {
        let value = |id: &NodeId| match self.graph.node(*id).op {
            Op::Weight(weight) => &self.weights[weight.0],
            _ => &self.values[id.0],
        };
        let args = Args {
            values: node.inputs.iter().map(value).collect(),
            types: node.inputs.iter().map(|id| self.graph.node(*id).ty).collect(),
            out: node.ty,
            sizes: step.sizes(),
            threads: self.threads,
        };
        carry_out(&node.op, &args, &mut self.kept, step)
    }
}

/// The result of an operation; one with an effect has it on what is kept.
fn carry_out(op: &Op, args: &Args<'_>, kept: &mut Kept, step: &Step<'_>) -> Result<Value, BackendError> {
    Ok(Value::Floats(match *op {
        Op::KvWrite { state, .. } => {
            kept.write(state, step, args.x(0), args.x(1))?;
            return Ok(Value::Words(Vec::new()));
        }
        Op::Attention(a) => kept.attention(&a, args.x(0), a.sinks.then(|| args.x(2)), step),
        Op::ShortConv { state } => kept.short_conv(state, args.x(0), args.x(1), step),
        Op::Recurrence(r) => kept.recurrence(&r, [0, 1, 2, 3, 4].map(|index| args.x(index)), step),
        Op::Qkv(spec) => {
            let [q_cols, k_cols, v_cols] = spec.cols();
            let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
            let rows = project(&spec.project(), args);
            // Normalised by the weight at `which` of the head norms, and rotated.
            let turned = |x: &[f32], which: usize, heads: usize, position: u32| {
                let mut x = match (spec.head_norm, spec.head_norms()) {
                    (Some(eps), Some(first)) => ops::rms_norm(x, args.x(first + which), eps, heads),
                    _ => x.to_vec(),
                };
                ops::rope(&spec.rope, &mut x, position, args.x(spec.freqs()));
                x
            };
            let positions = args.words(spec.positions());
            for (row, position) in rows.chunks(q_cols + k_cols + v_cols).zip(positions) {
                q.extend(turned(&row[..q_cols], 0, spec.heads, *position));
                k.extend(turned(&row[q_cols..q_cols + k_cols], 1, spec.kv_heads, *position));
                v.extend_from_slice(&row[q_cols + k_cols..]);
            }
            kept.write(spec.state, step, &k, &v)?;
            q
        }
        source_ops!() => Vec::new(),
        matrix_ops!() | plain_ops!() => return Ok(evaluate(op, args)),
    }))
}

/// What the step says in place of a source; nothing for others.
fn source(op: Op, step: &Step<'_>) -> Value {
    Value::Words(match op {
        Op::Tokens => step.tokens.to_vec(),
        Op::Positions => step.positions.to_vec(),
        Op::OutputRows => step.outputs.to_vec(),
        Op::Choices => step.choices.to_vec(),
        Op::Adapters { .. } => return Value::Floats(step.adapters.to_vec()),
        _ => Vec::new(),
    })
}
