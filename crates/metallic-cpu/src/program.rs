//! A graph made ready for the CPU: operations in order over one arena.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use metallic_core::{
    BackendError, Graph, KvLayout, Node, NodeId, Op, Program, ProgramMemory, Project, Qkv, Rope, RunStats,
    Schedule, Sizes, Step, Unary,
};

use crate::attention::{self, Inputs};
use crate::cache::Cache;
use crate::ops::{self, Angles};
use crate::simd::{
    Accumulate, Activations, Gate, Isa, Matmul, PackedMatrix, QuantizedRows, SharedOut, Team, matmul,
    rms_norm, scale, softmax,
};
use crate::weights::Weights;
use crate::{CpuOptions, DEVICE, guarded, simd};

pub(crate) struct CpuProgram {
    graph: Graph,
    schedule: Schedule,
    weights: Weights,
    cache: Cache,
    arena: Vec<f32>,
    /// Sizes of the last run, which say where its values lie in the arena.
    sizes: Sizes,
    work: Work,
    profile: bool,
    /// Bytes of weights one run reads, gathered rows apart.
    weight_bytes: u64,
}

/// The team and the buffers that are kept between steps.
struct Work {
    team: Arc<Team>,
    isa: Isa,
    normed: Vec<f32>,
    gate: Vec<f32>,
    qkv: Vec<f32>,
    quantized: QuantizedRows,
    attention: attention::Scratch,
    angles: Angles,
    /// The frequencies `angles` was computed for in this step.
    angles_of: Option<(NodeId, f32)>,
}

/// A node's value and the values it reads, borrowed from the arena.
struct Io<'a> {
    out: &'a mut [f32],
    before: &'a [f32],
    after: &'a [f32],
    after_at: usize,
}

impl<'a> Io<'a> {
    fn new(arena: &'a mut [f32], out: Range<usize>) -> Io<'a> {
        let after_at = out.end;
        let (before, rest) = arena.split_at_mut(out.start);
        let (out, after) = rest.split_at_mut(out.end - out.start);
        Io { out, before, after, after_at }
    }
}

impl Program for CpuProgram {
    fn reserve_blocks(&mut self, blocks: usize) -> Result<(), BackendError> {
        self.cache.reserve(blocks)
    }

    fn reserved_blocks(&self) -> usize {
        self.cache.blocks()
    }

    fn run(&mut self, step: &Step<'_>) -> Result<RunStats, BackendError> {
        step.validate(self.graph.vocab(), self.cache.blocks())?;
        let start = Instant::now();
        let mut stats = RunStats::default();
        guarded(|| self.run_nodes(step, &mut stats))?;
        stats.bytes_read += self.weight_bytes;
        stats.time = start.elapsed();
        Ok(stats)
    }

    fn output(&self, index: usize) -> &[f32] {
        let node = self.graph.outputs().get(index);
        let range = node.and_then(|id| self.schedule.range(*id, self.sizes));
        range.and_then(|range| self.arena.get(range)).unwrap_or(&[])
    }

    fn memory(&self) -> ProgramMemory {
        ProgramMemory {
            weights: self.weights.bytes(),
            arena: [&self.arena, &self.work.normed, &self.work.gate, &self.work.qkv]
                .iter()
                .map(|values| values.capacity() * size_of::<f32>())
                .sum(),
            kv: self.cache.bytes(),
        }
    }
}

impl CpuProgram {
    pub(crate) fn new(
        graph: Graph,
        kv: KvLayout,
        team: Arc<Team>,
        isa: Isa,
        options: CpuOptions,
    ) -> Result<CpuProgram, BackendError> {
        let weights = Weights::new(&graph, &team, options.exact)?;
        let work = Work {
            team,
            isa,
            normed: Vec::new(),
            gate: Vec::new(),
            qkv: Vec::new(),
            quantized: QuantizedRows::new(),
            attention: attention::Scratch::default(),
            angles: Angles::default(),
            angles_of: None,
        };
        Ok(CpuProgram {
            schedule: Schedule::of(&graph),
            weight_bytes: weights.bytes() as u64,
            graph,
            weights,
            cache: Cache::new(kv)?,
            arena: Vec::new(),
            sizes: Sizes::default(),
            work,
            profile: options.profile,
        })
    }

    fn run_nodes(&mut self, step: &Step<'_>, stats: &mut RunStats) -> Result<(), BackendError> {
        let sizes = Sizes { tokens: step.tokens.len(), outputs: step.outputs.len() };
        self.sizes = sizes;
        let needed = self.schedule.arena_len(sizes);
        grow(&mut self.arena, needed)?;
        self.work.angles_of = None;
        for index in 0..self.graph.nodes().len() {
            let op = self.graph.nodes()[index].op;
            if op.is_source() {
                continue;
            }
            let start = self.profile.then(Instant::now);
            self.run_node(NodeId(index), step, sizes, stats)?;
            stats.dispatches += 1;
            if let Some(start) = start {
                stats.add_time(op.name(), start.elapsed());
            }
        }
        Ok(())
    }

    fn run_node(
        &mut self,
        id: NodeId,
        step: &Step<'_>,
        sizes: Sizes,
        stats: &mut RunStats,
    ) -> Result<(), BackendError> {
        let CpuProgram { graph, schedule, weights, cache, arena, work, .. } = self;
        let node = graph.node(id);
        let range = |id: NodeId| schedule.range(id, sizes).unwrap_or(0..0);
        let io = Io::new(arena, range(id));
        let input = |index: usize| -> &[f32] {
            let id = node.inputs[index];
            if let Some(vector) = weights.vector(graph, id) {
                return vector;
            }
            let Range { start, end } = range(id);
            // The schedule never lets a value overlap one that is read.
            if end <= io.before.len() {
                &io.before[start..end]
            } else {
                &io.after[start - io.after_at..end - io.after_at]
            }
        };
        let rows = |index: usize| -> &[u32] {
            match graph.node(node.inputs[index]).op {
                Op::Tokens => step.tokens,
                Op::Positions => step.positions,
                Op::OutputRows => step.outputs,
                _ => &[],
            }
        };
        let cols = node.ty.shape.cols();
        let in_cols = node.inputs.first().map_or(1, |id| graph.node(*id).ty.shape.cols());
        let isa = work.isa;
        let out = io.out;
        match node.op {
            Op::Tokens | Op::Positions | Op::OutputRows | Op::Weight(_) => {}
            Op::Embed => {
                let table = weights.table(graph, node.inputs[0])?;
                for (row, out) in rows(1).iter().zip(out.chunks_exact_mut(cols)) {
                    table.row(*row as usize, out)?;
                    stats.bytes_read += table.row_bytes() as u64;
                }
            }
            Op::SelectRows => {
                let x = input(0);
                for (row, out) in rows(1).iter().zip(out.chunks_exact_mut(cols)) {
                    out.copy_from_slice(&x[*row as usize * cols..][..cols]);
                }
            }
            Op::Slice { start, len } => {
                for (x, out) in input(0).chunks_exact(in_cols).zip(out.chunks_exact_mut(len.max(1))) {
                    out.copy_from_slice(&x[start..start + len]);
                }
            }
            Op::Unary(f) => ops::unary(isa, &work.team, f, input(0), out),
            Op::Binary(f) => ops::binary(isa, f, input(0), input(1), out),
            Op::Scale(by) => {
                out.copy_from_slice(input(0));
                scale(isa, by, out);
            }
            Op::Softcap(cap) => {
                out.iter_mut().zip(input(0)).for_each(|(out, x)| *out = cap * (x / cap).tanh());
            }
            Op::RmsNorm { eps } => norm(isa, &work.team, (input(0), input(1), eps), out),
            Op::Softmax => {
                out.copy_from_slice(input(0));
                work.team.for_chunks(out, cols.max(1), |_, row| softmax(isa, row));
            }
            Op::Linear => {
                let spec = Project { norm: None, parts: 1, bias: false, residual: false };
                work.project(&spec, &Parts { graph, weights, node, input: &input }, out)?;
            }
            Op::Project(spec) => work.project(&spec, &Parts { graph, weights, node, input: &input }, out)?,
            Op::GatedProject { norm, act } => {
                work.gated(norm, act, &Parts { graph, weights, node, input: &input }, out)?;
            }
            Op::Rope(rope) => {
                out.copy_from_slice(input(0));
                let pairs = work.turn(node.inputs[2], &rope, step.positions, input(2));
                let angles = &work.angles;
                work.team.for_chunks(out, cols, |token, row| angles.rotate(&rope, pairs, token, row));
            }
            Op::KvWrite { layer } => {
                let (k, v) = (input(0), input(1));
                cache.store((isa, &work.team), (layer, step), |token| {
                    let at = token * in_cols..(token + 1) * in_cols;
                    (&k[at.clone()], &v[at])
                });
                stats.bytes_written += kv_bytes(cache.layout(), step.tokens.len());
            }
            Op::Attention(a) => {
                let inputs = Inputs { isa, team: &work.team, cache, step, q: input(0) };
                attention::attend(&a, &inputs, &mut work.attention, out);
                let seen: usize =
                    step.sequences.iter().map(|s| s.kv_len().min(a.window.unwrap_or(usize::MAX))).sum();
                stats.bytes_read += kv_bytes(cache.layout(), seen);
            }
            Op::Qkv(spec) => {
                let parts = Parts { graph, weights, node, input: &input };
                work.qkv(&spec, &parts, (cache, step), out)?;
                stats.bytes_written += kv_bytes(cache.layout(), step.tokens.len());
            }
        }
        Ok(())
    }
}

/// Bytes of one layer's keys and values of `tokens` tokens.
fn kv_bytes(layout: &KvLayout, tokens: usize) -> u64 {
    (2 * layout.kv_heads * layout.row_bytes() * tokens) as u64
}

fn norm(isa: Isa, team: &Team, (x, w, eps): (&[f32], &[f32], f32), out: &mut [f32]) {
    let cols = w.len().max(1);
    team.for_chunks(out, cols, |row, out| rms_norm(isa, &x[row * cols..][..cols], w, eps, out));
}

/// Room for at least so many numbers, kept between steps.
fn grow(values: &mut Vec<f32>, needed: usize) -> Result<(), BackendError> {
    if let Some(more) = needed.checked_sub(values.len()) {
        values.try_reserve_exact(more).map_err(|_| BackendError::OutOfMemory {
            device: DEVICE,
            what: "intermediates",
            needed: needed * size_of::<f32>(),
        })?;
        values.resize(needed, 0.0);
    }
    Ok(())
}

/// A projection's node with access to what it reads.
struct Parts<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
    node: &'a Node,
    input: &'a dyn Fn(usize) -> &'a [f32],
}

impl<'a> Parts<'a> {
    fn matrix(&self, index: usize) -> Result<&'a PackedMatrix, BackendError> {
        self.weights.matrix(self.graph, self.node.inputs[index])
    }
}

/// One activation in the forms different weights want.
struct Rows<'a> {
    values: &'a [f32],
    cols: usize,
    quantized: &'a QuantizedRows,
}

impl<'a> Rows<'a> {
    fn matching(&self, w: &PackedMatrix) -> Activations<'a> {
        if w.is_quantized() {
            Activations::Q8(self.quantized)
        } else {
            Activations::F32 { values: self.values, cols: self.cols }
        }
    }
}

impl Work {
    /// Prepares the angles of this step for a table of frequencies; returns its pairs.
    fn turn(&mut self, freqs_of: NodeId, rope: &Rope, positions: &[u32], freqs: &[f32]) -> usize {
        if self.angles_of != Some((freqs_of, rope.magnitude)) {
            self.angles.set(positions, freqs, rope.magnitude);
            self.angles_of = Some((freqs_of, rope.magnitude));
        }
        freqs.len()
    }

    /// The activation of a projection, normalised where `norm` says so and quantised where a matrix wants it.
    fn rows<'a>(
        (normed, quantized): (&'a mut Vec<f32>, &'a mut QuantizedRows),
        (isa, team): (Isa, &Team),
        (x, norm_with): (&'a [f32], Option<(&[f32], f32)>),
        (cols, quantize): (usize, bool),
    ) -> Result<Rows<'a>, BackendError> {
        let values = match norm_with {
            Some((w, eps)) => {
                grow(normed, x.len())?;
                norm(isa, team, (x, w, eps), &mut normed[..x.len()]);
                &normed[..x.len()]
            }
            None => x,
        };
        if quantize {
            quantized.quantize(isa, team, values, cols);
        }
        Ok(Rows { values, cols, quantized })
    }

    fn project(&mut self, spec: &Project, parts: &Parts<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        match spec.parts {
            1 => self.project_parts::<1>(spec, parts, out),
            2 => self.project_parts::<2>(spec, parts, out),
            3 => self.project_parts::<3>(spec, parts, out),
            n => Err(BackendError::Unsupported {
                device: DEVICE,
                op: "project",
                reason: format!("{n} matrices side by side; at most 3"),
            }),
        }
    }

    /// All matrices of a projection in one fork.
    fn project_parts<const N: usize>(
        &mut self,
        spec: &Project,
        parts: &Parts<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let at = spec.inputs();
        let input = parts.input;
        let mut matrices = [parts.matrix(at.weights)?; N];
        for (i, matrix) in matrices.iter_mut().enumerate() {
            *matrix = parts.matrix(at.weights + i)?;
        }
        let norm_with = spec.norm.zip(at.norm).map(|(eps, w)| (input(w), eps));
        let quantize = matrices.iter().any(|m| m.is_quantized());
        let rows = Work::rows(
            (&mut self.normed, &mut self.quantized),
            (self.isa, &self.team),
            (input(0), norm_with),
            (matrices[0].cols(), quantize),
        )?;
        let residual = at.residual.map(input);
        let accumulate = match residual {
            Some(residual) if N == 1 => Accumulate::Residual(residual),
            _ => Accumulate::Replace,
        };
        let mut index = 0;
        let mut products = SharedOut::side_by_side(out, matrices.map(PackedMatrix::rows)).map(|out| {
            let w = matrices[index];
            let bias = at.biases.map(|b| input(b + index));
            index += 1;
            Matmul { weights: simd::Weights::Plain(w), x: rows.matching(w), bias, accumulate, out }
        });
        matmul(self.isa, &self.team, &mut products);
        if let Some(residual) = residual.filter(|_| N > 1) {
            simd::add(self.isa, residual, out);
        }
        Ok(())
    }

    /// The product, then its queries to `out` and its keys and values to the cache.
    fn qkv(
        &mut self,
        spec: &Qkv,
        parts: &Parts<'_>,
        (cache, step): (&mut Cache, &Step<'_>),
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let [q_cols, kv_cols, _] = spec.cols();
        let (tokens, cols) = (step.tokens.len(), q_cols + 2 * kv_cols);
        grow(&mut self.qkv, tokens * cols)?;
        let mut kept = std::mem::take(&mut self.qkv);
        let projected = self.project(&spec.project(), parts, &mut kept[..tokens * cols]);
        self.qkv = kept;
        projected?;
        let freqs = spec.freqs();
        let pairs = self.turn(parts.node.inputs[freqs], &spec.rope, step.positions, (parts.input)(freqs));
        let (angles, qkv) = (&self.angles, &self.qkv);
        self.team.for_chunks(out, q_cols, |token, row| {
            row.copy_from_slice(&qkv[token * cols..][..q_cols]);
            angles.rotate(&spec.rope, pairs, token, row);
        });
        let keys_len = tokens * kv_cols;
        grow(&mut self.normed, keys_len)?;
        let keys = &mut self.normed[..keys_len];
        self.team.for_chunks(keys, kv_cols, |token, row| {
            row.copy_from_slice(&qkv[token * cols + q_cols..][..kv_cols]);
            angles.rotate(&spec.rope, pairs, token, row);
        });
        let keys = &*keys;
        cache.store((self.isa, &self.team), (spec.layer, step), |token| {
            let v = &qkv[token * cols + q_cols + kv_cols..(token + 1) * cols];
            (&keys[token * kv_cols..][..kv_cols], v)
        });
        Ok(())
    }

    fn gated(
        &mut self,
        norm_eps: Option<f32>,
        act: Unary,
        parts: &Parts<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let first = 1 + usize::from(norm_eps.is_some());
        let (gate, up) = (parts.matrix(first)?, parts.matrix(first + 1)?);
        let input = parts.input;
        let rows = Work::rows(
            (&mut self.normed, &mut self.quantized),
            (self.isa, &self.team),
            (input(0), norm_eps.map(|eps| (input(1), eps))),
            (gate.cols(), gate.is_quantized() || up.is_quantized()),
        )?;
        let cols = gate.rows();
        let product =
            |weights, x, out| Matmul { weights, x, bias: None, accumulate: Accumulate::Replace, out };
        let fused = match act {
            Unary::Silu => Some(Gate::Silu),
            Unary::GeluTanh => Some(Gate::GeluTanh),
            Unary::Gelu | Unary::Relu | Unary::Sigmoid => None,
        };
        if let (Some(act), true) = (fused, gate.is_quantized() == up.is_quantized()) {
            let weights = simd::Weights::Gated { gate, up, act };
            let out = SharedOut::new(out, cols);
            matmul(self.isa, &self.team, &mut [product(weights, rows.matching(gate), out)]);
            return Ok(());
        }
        grow(&mut self.gate, out.len())?;
        let gates = &mut self.gate[..out.len()];
        let mut products = [
            product(simd::Weights::Plain(gate), rows.matching(gate), SharedOut::new(gates, cols)),
            product(simd::Weights::Plain(up), rows.matching(up), SharedOut::new(out, cols)),
        ];
        matmul(self.isa, &self.team, &mut products);
        ops::apply(self.isa, act, gates);
        out.iter_mut().zip(&*gates).for_each(|(out, gate)| *out *= gate);
        Ok(())
    }
}
