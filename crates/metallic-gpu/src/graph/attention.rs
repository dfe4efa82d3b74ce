//! Attention of one sequence as a graph, over keys and values that lie side by side.

use super::{Element, Graph, Pairwise, Tensor};
use crate::error::GpuError;

/// Attention of a step's tokens, all of one sequence: `softmax(cap(scale · q · kᵀ)) · v`, where token `i` sees the keys
/// before the `visible` of its row, as far back as the window goes. Arguments, in this order: `q: F32 [tokens, heads,
/// head_dim]`, `keys [kv_heads, keys, head_dim]`, `values [kv_heads, keys, value_dim]`, `rows: U32 [tokens, 2]` of which the
/// second number is what a token sees, `sinks: F32 [heads]`, and the result, `F32 [tokens, heads, value_dim]`. With a projection the
/// matrix comes before the result, which is `F32 [tokens, rows]` then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGraph {
    /// Query tokens.
    pub tokens: u32,
    /// Keys, those that nobody sees included.
    pub keys: u32,
    /// Query heads.
    pub heads: u32,
    /// Heads of keys and values, which neighbouring query heads share.
    pub kv_heads: u32,
    /// Elements of a key.
    pub head_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Whether keys and values are halfs; else they are floats. Either way sums are of floats.
    pub halfs: bool,
    /// How many keys back a token sees; `u32::MAX`: all.
    pub window: u32,
    /// Bits of the factor on scores.
    pub scale: u32,
    /// Bits of the number that scores are capped by.
    pub softcap: Option<u32>,
    /// Whether each head has one more score that takes its share and gives no value.
    pub sinks: bool,
    /// What is done with the result.
    pub project: Option<ProjectGraph>,
}

/// A product with a matrix `[rows, heads * value_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProjectGraph {
    /// Rows of the matrix: columns of the result.
    pub rows: u32,
    /// Whether its elements are halfs; else they are floats. Sums are of floats.
    pub halfs: bool,
}

/// Arguments of the launch that the graph stands for.
const ARGUMENTS: [(&str, usize); 5] = [("q", 0), ("keys", 1), ("values", 2), ("rows", 3), ("sinks", 4)];
const WEIGHTS: (&str, usize) = ("weights", 5);
/// Below every score, and still a number: what compares with infinities may be optimised away.
const LOWEST: f64 = -3e38;

impl AttentionGraph {
    /// What it means, in the library's operations.
    pub fn graph(&self) -> Result<Graph, GpuError> {
        let [tokens, keys, heads, kv_heads] =
            [self.tokens, self.keys, self.heads, self.kv_heads].map(|n| n as usize);
        let [dim, value_dim] = [self.head_dim, self.value_dim].map(|n| n as usize);
        let group = heads.checked_div(kv_heads).unwrap_or(0);
        let stored = if self.halfs { Element::F16 } else { Element::F32 };
        let [q, k, v, rows, sinks] = ARGUMENTS;
        let mut graph = Graph::default();
        let g = &mut graph;
        let q = g.placeholder(q, &[tokens, kv_heads, group, dim], Element::F32)?;
        let k = g.placeholder(k, &[kv_heads, keys, dim], stored)?;
        let v = g.placeholder(v, &[kv_heads, keys, value_dim], stored)?;
        let rows = g.placeholder(rows, &[tokens, 2], Element::U32)?;
        // Sums of halfs would lose what they add up: products are of floats.
        let [k, v] = [g.cast(k, Element::F32)?, g.cast(v, Element::F32)?];
        let q = g.transpose(q, &[1, 2, 0, 3])?; // [kv_heads, group, tokens, dim]
        let q = g.reshape(q, &[kv_heads, group * tokens, dim])?;
        let k = g.transpose(k, &[0, 2, 1])?;
        let scores = g.product([q, k])?;
        let scores = self.scaled(g, scores)?;
        let scores = g.reshape(scores, &[kv_heads, group, tokens, keys])?;
        let seen = self.seen(g, rows)?;
        let nothing = g.constant(LOWEST, Element::F32)?;
        let mut scores = g.select(seen, [scores, nothing])?;
        if self.sinks {
            let sinks = g.placeholder(sinks, &[kv_heads, group, 1, 1], Element::F32)?;
            let sinks = g.broadcast(sinks, &[kv_heads, group, tokens, 1])?;
            scores = g.concat([scores, sinks], 3)?;
        }
        let mut weights = g.softmax(scores)?;
        if self.sinks {
            weights = g.slice(weights, 3, 0, keys)?;
        }
        let weights = g.reshape(weights, &[kv_heads, group * tokens, keys])?;
        let out = g.product([weights, v])?;
        let out = g.reshape(out, &[kv_heads, group, tokens, value_dim])?;
        let out = g.transpose(out, &[2, 0, 1, 3])?;
        let Some(project) = self.project else {
            graph.output = Some((out, ARGUMENTS.len()));
            return Ok(graph);
        };
        let out = g.reshape(out, &[tokens, heads * value_dim])?;
        let out = project.applied(g, out, heads * value_dim)?;
        graph.output = Some((out, ARGUMENTS.len() + 1));
        Ok(graph)
    }

    fn scaled(&self, g: &mut Graph, scores: Tensor) -> Result<Tensor, GpuError> {
        let number = |bits: u32| f64::from(f32::from_bits(bits));
        let times = |g: &mut Graph, x: Tensor, factor: f64| {
            let factor = g.constant(factor, Element::F32)?;
            g.pairwise(Pairwise::Multiply, [x, factor])
        };
        let Some(cap) = self.softcap.map(number) else { return times(g, scores, number(self.scale)) };
        let scores = times(g, scores, number(self.scale) / cap)?;
        let scores = g.tanh(scores)?;
        times(g, scores, cap)
    }

    /// Which keys each token sees, `Bool [tokens, keys]`: computed from where it stands, so that no mask is kept.
    fn seen(&self, g: &mut Graph, rows: Tensor) -> Result<Tensor, GpuError> {
        let end = g.slice(rows, 1, 1, 1)?;
        let end = g.cast(end, Element::I32)?; // [tokens, 1]
        let key = g.coordinates(1, &[1, self.keys as usize])?;
        let before = g.pairwise(Pairwise::Less, [key, end])?;
        if self.window >= self.keys {
            return Ok(before);
        }
        let window = g.constant(f64::from(self.window), Element::I32)?;
        let begin = g.pairwise(Pairwise::Subtract, [end, window])?;
        let after = g.pairwise(Pairwise::NotLess, [key, begin])?;
        g.pairwise(Pairwise::And, [before, after])
    }
}

impl ProjectGraph {
    /// `x [tokens, cols]` by the matrix: `[tokens, rows]`.
    fn applied(self, g: &mut Graph, x: Tensor, cols: usize) -> Result<Tensor, GpuError> {
        let stored = if self.halfs { Element::F16 } else { Element::F32 };
        let weights = g.placeholder(WEIGHTS, &[self.rows as usize, cols], stored)?;
        let weights = g.cast(weights, Element::F32)?;
        let weights = g.transpose(weights, &[1, 0])?;
        g.product([x, weights])
    }
}
