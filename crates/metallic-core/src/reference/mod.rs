//! The naive meaning of every operation: the executable specification other backends are measured against.

mod cache;
mod ops;
mod tensor;

use std::sync::Arc;
use std::time::Instant;

use crate::quant::dequantize;
use crate::tensor::TensorDevice;
use crate::{
    Attention, Backend, BackendError, DeviceInfo, Graph, KvLayout, Node, NodeId, Op, Program, ProgramMemory,
    Project, RunStats, Sizes, Step, Unary,
};
use cache::Cache;

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

    /// The reference with a clock: programs fill [`RunStats::time_by_op`].
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

    fn compile(&self, graph: &Graph, kv: KvLayout) -> Result<Box<dyn Program>, BackendError> {
        kv.check(DEVICE, graph)?;
        let weights = graph.weights().iter().map(to_f32).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Interpreter {
            graph: graph.clone(),
            weights,
            cache: Cache::new(kv),
            threads: self.info.units,
            profile: self.profile,
            values: vec![Vec::new(); graph.nodes().len()],
        }))
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        Arc::new(tensor::ReferenceTensors)
    }
}

fn to_f32(weight: &crate::Weight) -> Result<Vec<f32>, BackendError> {
    let mut values = vec![0.0; weight.ty.shape.elements(Sizes::default())];
    dequantize(weight.ty.dtype, &weight.data, &mut values).map_err(|error| BackendError::Unsupported {
        device: DEVICE,
        op: "weight",
        reason: format!("`{}`: {error}", weight.name),
    })?;
    Ok(values)
}

struct Interpreter {
    graph: Graph,
    /// Every weight as plain numbers.
    weights: Vec<Vec<f32>>,
    cache: Cache,
    threads: usize,
    profile: bool,
    /// The value of each node after the last run.
    values: Vec<Vec<f32>>,
}

impl Program for Interpreter {
    fn reserve_blocks(&mut self, blocks: usize) -> Result<(), BackendError> {
        self.cache.reserve(blocks);
        Ok(())
    }

    fn reserved_blocks(&self) -> usize {
        self.cache.blocks()
    }

    fn run(&mut self, step: &Step<'_>) -> Result<RunStats, BackendError> {
        step.validate(self.graph.vocab(), self.cache.blocks())?;
        let start = Instant::now();
        let sizes = Sizes { tokens: step.tokens.len(), outputs: step.outputs.len() };
        let mut stats = RunStats::default();
        for index in 0..self.graph.nodes().len() {
            let node = self.graph.nodes()[index].clone();
            if node.op.is_source() {
                continue;
            }
            let begun = Instant::now();
            self.values[index] = self.evaluate(&node, step, sizes)?;
            stats.dispatches += 1;
            if self.profile {
                stats.add_time(node.op.name(), begun.elapsed());
            }
        }
        stats.time = start.elapsed();
        Ok(stats)
    }

    fn output(&self, index: usize) -> &[f32] {
        self.graph.outputs().get(index).map_or(&[], |id| self.value(*id))
    }

    fn memory(&self) -> ProgramMemory {
        let bytes = |tensors: &[Vec<f32>]| tensors.iter().map(|t| t.len() * 4).sum();
        ProgramMemory { weights: bytes(&self.weights), arena: bytes(&self.values), kv: self.cache.bytes() }
    }
}

impl Interpreter {
    fn value(&self, id: NodeId) -> &[f32] {
        match self.graph.node(id).op {
            Op::Weight(weight) => &self.weights[weight.0],
            _ => &self.values[id.0],
        }
    }

    fn cols(&self, id: NodeId) -> usize {
        self.graph.node(id).ty.shape.cols().max(1)
    }

    /// The rows a gathering node names.
    fn ids<'s>(&self, id: NodeId, step: &'s Step<'_>) -> &'s [u32] {
        match self.graph.node(id).op {
            Op::Tokens => step.tokens,
            Op::Positions => step.positions,
            Op::OutputRows => step.outputs,
            _ => &[],
        }
    }

    fn evaluate(&mut self, node: &Node, step: &Step<'_>, sizes: Sizes) -> Result<Vec<f32>, BackendError> {
        let input = |i: usize| self.value(node.inputs[i]);
        let by_row = |i: usize| input(i).chunks(self.cols(node.inputs[i]));
        let result = match node.op {
            Op::Tokens | Op::Positions | Op::OutputRows | Op::Weight(_) => Vec::new(),
            Op::Embed | Op::SelectRows => {
                let cols = node.ty.shape.cols();
                let rows = self.ids(node.inputs[1], step);
                rows.iter().flat_map(|r| &input(0)[*r as usize * cols..][..cols]).copied().collect()
            }
            Op::Slice { start, len } => by_row(0).flat_map(|row| &row[start..start + len]).copied().collect(),
            Op::Unary(f) => input(0).iter().map(|x| ops::unary(f, *x)).collect(),
            Op::Binary(f) => {
                let b = input(1).iter().cycle();
                input(0).iter().zip(b).map(|(a, b)| ops::binary(f, *a, *b)).collect()
            }
            Op::Scale(by) => input(0).iter().map(|x| x * by).collect(),
            Op::Softcap(cap) => input(0).iter().map(|x| softcap(f64::from(*x), cap) as f32).collect(),
            Op::RmsNorm { eps } => by_row(0).flat_map(|row| ops::rms_norm(row, input(1), eps)).collect(),
            Op::Softmax => by_row(0)
                .flat_map(|row| ops::softmax(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()))
                .map(|x| x as f32)
                .collect(),
            Op::Linear => self.linear(input(0), node.inputs[1]),
            Op::Rope(rope) => {
                let mut x = input(0).to_vec();
                let cols = self.cols(node.inputs[0]);
                for (row, position) in x.chunks_mut(cols).zip(step.positions) {
                    ops::rope(&rope, row, *position, input(2));
                }
                x
            }
            Op::KvWrite { layer } => {
                let (k, v) = (input(0).to_vec(), input(1).to_vec());
                self.cache.write(layer, step, &k, &v)?;
                Vec::new()
            }
            Op::Attention(attention) => self.attention(&attention, input(0), step),
            Op::Project(spec) => self.project(&spec, node),
            Op::GatedProject { norm, act } => self.gated(norm, act, node),
            Op::Qkv(spec) => {
                let qkv = self.project(&spec.project(), node);
                let [q_cols, k_cols, v_cols] = spec.cols();
                let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
                for (row, position) in qkv.chunks(q_cols + k_cols + v_cols).zip(step.positions) {
                    let mut row = row.to_vec();
                    ops::rope(&spec.rope, &mut row[..q_cols + k_cols], *position, input(spec.freqs()));
                    q.extend_from_slice(&row[..q_cols]);
                    k.extend_from_slice(&row[q_cols..q_cols + k_cols]);
                    v.extend_from_slice(&row[q_cols + k_cols..]);
                }
                self.cache.write(spec.layer, step, &k, &v)?;
                q
            }
        };
        debug_assert!(node.op.is_source() || result.len() == node.ty.shape.elements(sizes), "{node:?}");
        Ok(result)
    }

    /// `x · Wᵀ`, rows of `W` spread over threads.
    fn linear(&self, x: &[f32], weight: NodeId) -> Vec<f32> {
        let k = self.cols(weight);
        let w = self.value(weight);
        let (rows, n) = (x.len() / k, w.len() / k);
        let part = n.div_ceil(self.threads).max(1);
        let columns: Vec<Vec<f32>> = std::thread::scope(|scope| {
            let workers: Vec<_> = w
                .chunks(part * k)
                .map(|w| {
                    scope.spawn(move || {
                        let one = |x: &[f32]| w.chunks(k).map(|w| ops::dot(x, w) as f32).collect::<Vec<_>>();
                        x.chunks(k).flat_map(one).collect::<Vec<f32>>()
                    })
                })
                .collect();
            workers.into_iter().map(|w| w.join().unwrap_or_default()).collect()
        });
        let mut y = Vec::with_capacity(rows * n);
        for row in 0..rows {
            for column in &columns {
                let width = column.len() / rows;
                y.extend_from_slice(&column[row * width..][..width]);
            }
        }
        y
    }

    /// The first input, normalised where `norm` says so.
    fn normed(&self, norm: Option<f32>, node: &Node) -> Vec<f32> {
        let x = self.value(node.inputs[0]);
        match norm {
            Some(eps) => {
                let w = self.value(node.inputs[1]);
                x.chunks(self.cols(node.inputs[0])).flat_map(|row| ops::rms_norm(row, w, eps)).collect()
            }
            None => x.to_vec(),
        }
    }

    fn project(&self, spec: &Project, node: &Node) -> Vec<f32> {
        let at = spec.inputs();
        let x = self.normed(spec.norm, node);
        let rows = x.len() / self.cols(node.inputs[0]);
        let parts: Vec<Vec<f32>> =
            (0..spec.parts).map(|p| self.linear(&x, node.inputs[at.weights + p])).collect();
        let mut y = Vec::new();
        for row in 0..rows {
            for (p, part) in parts.iter().enumerate() {
                let width = part.len() / rows;
                let bias = at.biases.map(|b| self.value(node.inputs[b + p]));
                y.extend((0..width).map(|i| part[row * width + i] + bias.map_or(0.0, |b| b[i])));
            }
        }
        if let Some(residual) = at.residual {
            for (y, r) in y.iter_mut().zip(self.value(node.inputs[residual])) {
                *y += r;
            }
        }
        y
    }

    fn gated(&self, norm: Option<f32>, act: Unary, node: &Node) -> Vec<f32> {
        let x = self.normed(norm, node);
        let at = 1 + usize::from(norm.is_some());
        let gate = self.linear(&x, node.inputs[at]);
        let up = self.linear(&x, node.inputs[at + 1]);
        gate.iter().zip(&up).map(|(g, u)| ops::unary(act, *g) * u).collect()
    }

    fn attention(&self, a: &Attention, q: &[f32], step: &Step<'_>) -> Vec<f32> {
        let group = a.heads / a.kv_heads;
        let mut out = Vec::with_capacity(q.len());
        for span in step.sequences {
            for (i, token) in span.tokens.clone().enumerate() {
                let last = span.past + i;
                let first = a.window.map_or(0, |w| (last + 1).saturating_sub(w));
                for head in 0..a.heads {
                    let q = &q[(token * a.heads + head) * a.head_dim..][..a.head_dim];
                    let row =
                        |j: usize, value: bool| self.cache.row(a.layer, span.blocks, j, head / group, value);
                    let scores: Vec<f64> = (first..=last)
                        .map(|j| ops::dot(q, row(j, false)) * f64::from(a.scale))
                        .map(|s| a.softcap.map_or(s, |cap| softcap(s, cap)))
                        .collect();
                    let mut sum = vec![0f64; a.head_dim];
                    for (p, j) in ops::softmax(&scores).iter().zip(first..) {
                        for (sum, v) in sum.iter_mut().zip(row(j, true)) {
                            *sum += p * f64::from(*v);
                        }
                    }
                    out.extend(sum.iter().map(|x| *x as f32));
                }
            }
        }
        out
    }
}

fn softcap(x: f64, cap: f32) -> f64 {
    let cap = f64::from(cap);
    cap * (x / cap).tanh()
}
