//! Fusion: patterns of operations become single operations with a meaning of their own.
//!
//! Every fused operation has a formula in the reference like any other, so a rewritten graph is checked against the
//! graph it came from.

use crate::{Attention, Binary, DType, Graph, NodeId, Op, Project, Qkv, TypeError};

/// The same computation in fewer, larger operations; what nobody reads is dropped.
pub fn fuse(graph: &Graph) -> Result<Graph, TypeError> {
    Ok(trace(graph)?.graph)
}

/// A fused graph, and where each of its nodes comes from.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The fused graph.
    pub graph: Graph,
    /// One for each of its nodes.
    pub origins: Vec<Origin>,
}

/// Where a node of a fused graph comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The node of the graph before that has the same value.
    pub node: NodeId,
    /// The rule that made it; `None` where the node was taken over as it is.
    pub rule: Option<&'static str>,
    /// The nodes of the graph before that went into it, in their order, that one among them.
    pub parts: Vec<NodeId>,
}

/// [`fuse`], with where each node comes from.
pub fn trace(graph: &Graph) -> Result<Fused, TypeError> {
    let found = Finder::new(graph).run();
    let mut out = Graph { weights: graph.weights.clone(), ..Graph::default() };
    let mut origins = Vec::new();
    let mut map: Vec<Option<NodeId>> = vec![None; graph.nodes.len()];
    let live = reachable(graph, &found);
    for (index, node) in graph.nodes.iter().enumerate() {
        if !live[index] {
            continue;
        }
        let new = |id: &NodeId| map[id.0].unwrap_or(*id);
        let id = NodeId(index);
        let Some(Found { fusion, rule, parts }) = &found[index] else {
            origins.push(Origin { node: id, rule: None, parts: vec![id] });
            map[index] = Some(out.push(node.op, node.inputs.iter().map(new).collect())?);
            continue;
        };
        let parts = parts.clone();
        map[index] = Some(match fusion {
            Fusion::One { op, inputs } => {
                origins.push(Origin { node: id, rule: Some(rule), parts });
                out.push(*op, inputs.iter().map(new).collect())?
            }
            Fusion::SelfAttention { qkv, inputs } => {
                let parts = parts.into_iter().filter(|part| *part != id).collect();
                origins.push(Origin { node: node.inputs[0], rule: Some(rule), parts });
                let q = out.push(Op::Qkv(*qkv), inputs.iter().map(new).collect())?;
                // The rotated queries exist only after the write, so they are its receipt too.
                let sinks = node.inputs.get(2).map(new);
                origins.push(Origin { node: id, rule: None, parts: vec![id] });
                out.push(node.op, [q, q].into_iter().chain(sinks).collect())?
            }
        });
    }
    out.outputs = graph.outputs.iter().map(|id| map[id.0].unwrap_or(*id)).collect();
    Ok(Fused { graph: out, origins })
}

/// The same computation with the activations of tokens in another float type. Rows whose result was asked for are few and
/// decide which token is chosen: they are `F32`.
pub fn with_activations(graph: &Graph, dtype: DType) -> Result<Graph, TypeError> {
    Ok(retyped(graph, dtype)?.0)
}

/// [`with_activations`], with the node that has the value of each node before.
pub fn retyped(graph: &Graph, dtype: DType) -> Result<(Graph, Vec<NodeId>), TypeError> {
    if dtype == DType::F32 {
        return Ok((graph.clone(), (0..graph.nodes.len()).map(NodeId).collect()));
    }
    let mut out = Graph { weights: graph.weights.clone(), ..Graph::default() };
    let mut map = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let inputs = node.inputs.iter().map(|id| map[id.0]).collect();
        let id = match node.op {
            Op::Embed(_) => out.push(Op::Embed(dtype), inputs)?,
            Op::SelectRows => {
                let rows = out.push(Op::SelectRows, inputs)?;
                out.push(Op::Cast(DType::F32), vec![rows])?
            }
            Op::Adapters { .. } => {
                let shares = out.push(node.op, inputs)?;
                out.push(Op::Cast(dtype), vec![shares])?
            }
            op => out.push(op, inputs)?,
        };
        map.push(id);
    }
    out.outputs = graph.outputs.iter().map(|id| map[id.0]).collect();
    Ok((out, map))
}

/// What stands in a node's place in the new graph; inputs are nodes of the old one.
enum Fusion {
    One { op: Op, inputs: Vec<NodeId> },
    SelfAttention { qkv: Qkv, inputs: Vec<NodeId> },
}

/// A fusion that was found.
struct Found {
    fusion: Fusion,
    rule: &'static str,
    /// The nodes it is made of, in their order.
    parts: Vec<NodeId>,
}

/// Nodes the outputs and effects need once the fusions stand in for their patterns.
fn reachable(graph: &Graph, found: &[Option<Found>]) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    let unread_effect =
        |id: &NodeId| graph.node(*id).op.has_effect() && !graph.nodes.iter().any(|n| n.inputs.contains(id));
    let effects = (0..graph.nodes.len()).map(NodeId).filter(unread_effect);
    let mut stack: Vec<NodeId> = graph.outputs.iter().copied().chain(effects).collect();
    while let Some(id) = stack.pop() {
        if !std::mem::replace(&mut live[id.0], true) {
            match found[id.0].as_ref().map(|found| &found.fusion) {
                Some(Fusion::One { inputs, .. }) => stack.extend(inputs),
                // Its sinks stay an input of the attention itself.
                Some(Fusion::SelfAttention { inputs, .. }) => {
                    stack.extend(inputs.iter().chain(graph.node(id).inputs.get(2)));
                }
                None => stack.extend(&graph.node(id).inputs),
            }
        }
    }
    live
}

/// `W · x` with an optional bias, seen from its last node.
struct Linear {
    x: NodeId,
    weight: NodeId,
    bias: Option<NodeId>,
}

struct Finder<'a> {
    graph: &'a Graph,
    uses: Vec<usize>,
    found: Vec<Option<Found>>,
    /// Nodes that are part of a fusion already.
    taken: Vec<bool>,
}

/// What a pattern that ends at a node becomes, and the other nodes it is made of.
type Pattern<'a> = fn(&Finder<'a>, NodeId) -> Option<(Fusion, Vec<NodeId>)>;

impl<'a> Finder<'a> {
    fn new(graph: &'a Graph) -> Finder<'a> {
        let mut uses = vec![0; graph.nodes.len()];
        for id in graph.nodes.iter().flat_map(|n| &n.inputs).chain(&graph.outputs) {
            uses[id.0] += 1;
        }
        let found = graph.nodes.iter().map(|_| None).collect();
        Finder { graph, uses, found, taken: vec![false; graph.nodes.len()] }
    }

    /// Large patterns first: they take their parts away from the small ones.
    fn run(mut self) -> Vec<Option<Found>> {
        let ids = || (0..self.graph.nodes.len()).map(NodeId);
        let (forwards, backwards) = (ids(), ids().rev());
        let patterns: [(&str, Pattern<'a>); 3] = [
            ("self_attention", Finder::self_attention),
            ("gated", Finder::gated),
            ("residual", Finder::residual),
        ];
        for (rule, pattern) in patterns {
            forwards.clone().for_each(|id| self.take(rule, pattern, id));
        }
        backwards.for_each(|id| self.take("projection", Finder::projection, id));
        self.found
    }

    /// Fuses the pattern that ends at `id`, where all of it is there and free.
    fn take(&mut self, rule: &'static str, pattern: Pattern<'a>, id: NodeId) {
        let Some((fusion, mut parts)) = pattern(self, id) else { return };
        parts.push(id);
        if parts.iter().any(|part| self.taken[part.0]) {
            return;
        }
        for part in &parts {
            self.taken[part.0] = true;
        }
        parts.sort_unstable();
        parts.dedup();
        self.found[id.0] = Some(Found { fusion, rule, parts });
    }

    fn op(&self, id: NodeId) -> &Op {
        &self.graph.node(id).op
    }

    fn input(&self, id: NodeId, index: usize) -> NodeId {
        self.graph.node(id).inputs[index]
    }

    fn once(&self, id: NodeId) -> bool {
        self.uses[id.0] == 1
    }

    fn is_weight(&self, id: NodeId) -> bool {
        matches!(self.op(id), Op::Weight(_))
    }

    /// One matrix for all rows.
    fn is_matrix(&self, id: NodeId) -> bool {
        self.is_weight(id) && self.graph.node(id).ty.shape.dims().len() == 2
    }

    /// A linear that ends at `id`; `parts` collects its nodes.
    fn linear(&self, id: NodeId, parts: &mut Vec<NodeId>) -> Option<Linear> {
        let biased = *self.op(id) == Op::Binary(Binary::Add)
            && self.once(self.input(id, 0))
            && self.is_weight(self.input(id, 1));
        let product = if biased { self.input(id, 0) } else { id };
        if *self.op(product) != Op::Linear || !self.is_matrix(self.input(product, 1)) {
            return None;
        }
        parts.extend([id, product]);
        let bias = biased.then(|| self.input(id, 1));
        Some(Linear { x: self.input(product, 0), weight: self.input(product, 1), bias })
    }

    /// `(x, epsilon, weight)` where `id` is a norm read by exactly `readers` nodes.
    fn norm(&self, id: NodeId, readers: usize) -> Option<(NodeId, f32, NodeId)> {
        match self.op(id) {
            Op::RmsNorm { eps, groups: 1 } if self.uses[id.0] == readers => {
                Some((self.input(id, 0), *eps, self.input(id, 1)))
            }
            _ => None,
        }
    }

    /// A projection by these linears, which all read the same node.
    fn project(&self, linears: &[Linear], parts: &mut Vec<NodeId>) -> Option<(Project, Vec<NodeId>)> {
        let x = linears.first()?.x;
        let bias = linears.first()?.bias.is_some();
        if linears.iter().any(|l| l.x != x || l.bias.is_some() != bias) {
            return None;
        }
        let norm = self.norm(x, linears.len());
        let mut inputs = match norm {
            Some((inner, _, w)) => {
                parts.push(x);
                vec![inner, w]
            }
            None => vec![x],
        };
        inputs.extend(linears.iter().map(|l| l.weight));
        inputs.extend(linears.iter().filter_map(|l| l.bias));
        let norm = norm.map(|(_, eps, _)| eps);
        Some((Project { norm, parts: linears.len(), bias, residual: false }, inputs))
    }

    /// `attention(rope(Wq·x), write(rope(Wk·x), Wv·x))`
    fn self_attention(&self, id: NodeId) -> Option<(Fusion, Vec<NodeId>)> {
        let Op::Attention(attention) = *self.op(id) else { return None };
        let (q, write) = (self.input(id, 0), self.input(id, 1));
        let Attention { state, heads, kv_heads, head_dim, value_dim, .. } = attention;
        if *self.op(write) != (Op::KvWrite { state, kv_heads }) || !self.once(write) || head_dim != value_dim
        {
            return None;
        }
        let (k, v) = (self.input(write, 0), self.input(write, 1));
        let (Op::Rope(rope), Op::Rope(rope_k)) = (self.op(q), self.op(k)) else { return None };
        let (positions, freqs) = (self.input(q, 1), self.input(q, 2));
        let same_rope = rope == rope_k && positions == self.input(k, 1) && freqs == self.input(k, 2);
        if !same_rope || rope.head_dim != head_dim || ![q, k, v].iter().all(|n| self.once(*n)) {
            return None;
        }
        let mut parts = vec![q, k, write];
        let (mut from_q, mut from_k) = (self.input(q, 0), self.input(k, 0));
        // Epsilon and weight of a norm of each head.
        let normed = |id: NodeId, heads: usize| match self.op(id) {
            Op::RmsNorm { eps, groups } if *groups == heads && self.once(id) => {
                let w = self.input(id, 1);
                (self.graph.node(w).ty.shape.cols() == head_dim).then_some((*eps, w))
            }
            _ => None,
        };
        let norms =
            normed(from_q, heads).zip(normed(from_k, kv_heads)).filter(|(of_q, of_k)| of_q.0 == of_k.0);
        if norms.is_some() {
            parts.extend([from_q, from_k]);
            (from_q, from_k) = (self.input(from_q, 0), self.input(from_k, 0));
        }
        if ![from_q, from_k].iter().all(|n| self.once(*n)) {
            return None;
        }
        let linears =
            [self.linear(from_q, &mut parts)?, self.linear(from_k, &mut parts)?, self.linear(v, &mut parts)?];
        let (Project { norm, bias, .. }, mut inputs) = self.project(&linears, &mut parts)?;
        inputs.extend(norms.iter().flat_map(|(of_q, of_k)| [of_q.1, of_k.1]));
        inputs.extend([positions, freqs]);
        let head_norm = norms.map(|((eps, _), _)| eps);
        let qkv = Qkv { norm, bias, head_norm, rope: *rope, state, heads, kv_heads };
        Some((Fusion::SelfAttention { qkv, inputs }, parts))
    }

    /// `act(G·x) * (U·x)`
    fn gated(&self, id: NodeId) -> Option<(Fusion, Vec<NodeId>)> {
        if *self.op(id) != Op::Binary(Binary::Mul) {
            return None;
        }
        let (gate, up) = (self.input(id, 0), self.input(id, 1));
        let Op::Unary(act) = *self.op(gate) else { return None };
        let inner = self.input(gate, 0);
        if ![gate, up, inner].iter().all(|n| self.once(*n)) {
            return None;
        }
        let mut parts = vec![gate];
        let linears = [self.linear(inner, &mut parts)?, self.linear(up, &mut parts)?];
        let (project, inputs) = self.project(&linears, &mut parts)?;
        let op = Op::GatedProject { norm: project.norm, act };
        (!project.bias).then_some((Fusion::One { op, inputs }, parts))
    }

    /// `r + W·x`, either way round.
    fn residual(&self, id: NodeId) -> Option<(Fusion, Vec<NodeId>)> {
        if *self.op(id) != Op::Binary(Binary::Add) {
            return None;
        }
        let (a, b) = (self.input(id, 0), self.input(id, 1));
        for (linear, residual) in [(b, a), (a, b)] {
            let mut parts = Vec::new();
            if !self.once(linear) || self.graph.node(residual).ty != self.graph.node(id).ty {
                continue;
            }
            let Some(linear) = self.linear(linear, &mut parts) else { continue };
            let (project, mut inputs) = self.project(&[linear], &mut parts)?;
            // A norm of the residual itself may be fused; the residual stays an input of its own.
            inputs.push(residual);
            let op = Op::Project(Project { residual: true, ..project });
            return Some((Fusion::One { op, inputs }, parts));
        }
        None
    }

    /// `W · norm(x) + b`, where at least one of norm and bias is there.
    fn projection(&self, id: NodeId) -> Option<(Fusion, Vec<NodeId>)> {
        let mut parts = Vec::new();
        let linear = self.linear(id, &mut parts)?;
        let (project, inputs) = self.project(&[linear], &mut parts)?;
        parts.retain(|p| *p != id);
        let worth = project.norm.is_some() || project.bias;
        worth.then_some((Fusion::One { op: Op::Project(project), inputs }, parts))
    }
}
