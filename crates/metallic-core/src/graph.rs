//! A computation as data: nodes of operations, built through `Var` handles.

mod names;

use std::cell::RefCell;
use std::panic::Location;

use crate::typing::infer;
use crate::{
    Attention, Binary, Bytes, DType, Needed, Op, Recurrence, Rope, Sdpa, Shape, Sizes, StateId, TensorType,
    TypeError, Unary, WeightId,
};

/// Index of a node in its graph; inputs of a node have smaller indices than it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// One operation, its inputs and the type of its result.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// What it computes from.
    pub inputs: Vec<NodeId>,
    /// What comes out.
    pub ty: TensorType,
}

/// A tensor that does not change between steps.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its name in the file.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Its bytes, row-major.
    pub data: Bytes,
}

/// A mistake in a graph, with the line that made it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{site}: {error}")]
pub struct GraphError {
    /// The caller's line.
    pub site: &'static Location<'static>,
    /// What is wrong.
    pub error: TypeError,
}

/// A finished computation.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) weights: Vec<Weight>,
    pub(crate) outputs: Vec<NodeId>,
}

impl Graph {
    /// All nodes; every node comes after its inputs.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The weights, by [`WeightId`].
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The nodes whose values a program keeps for its caller.
    pub fn outputs(&self) -> &[NodeId] {
        &self.outputs
    }

    /// The part of this graph that ends with the last of these nodes, with them as its outputs; without what only comes after.
    /// Fails where there are more of them than a graph may have.
    pub fn up_to(&self, outputs: &[NodeId]) -> Result<Graph, TypeError> {
        let last = outputs.iter().max().map_or(0, |id| id.0 + 1).min(self.nodes.len());
        if outputs.len() > Needed::MOST || outputs.iter().any(|id| id.0 >= self.nodes.len()) {
            let what =
                format!("{} outputs, at most {}, of {} nodes", outputs.len(), Needed::MOST, self.nodes.len());
            return Err(TypeError::Parameter { op: "graph", what });
        }
        let (mut nodes, mut weights) = (self.nodes[..last].to_vec(), Vec::new());
        for node in &mut nodes {
            if let Op::Weight(id) = &mut node.op {
                weights.push(self.weights[id.0].clone());
                *id = WeightId(weights.len() - 1);
            }
        }
        Ok(Graph { nodes, weights, outputs: outputs.to_vec() })
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// The weight a node stands for, if it is one.
    pub fn weight(&self, id: NodeId) -> Option<&Weight> {
        match self.nodes[id.0].op {
            Op::Weight(weight) => self.weights.get(weight.0),
            _ => None,
        }
    }

    /// Ids a token may have: the rows of the first embedding table.
    pub fn vocab(&self) -> usize {
        let of_tokens = |n: &&Node| matches!(n.op, Op::Embed(_)) && self.node(n.inputs[1]).op == Op::Tokens;
        let table = self.nodes.iter().find(of_tokens);
        table.map_or(usize::MAX, |n| self.node(n.inputs[0]).ty.shape.rows(Sizes::default()))
    }

    /// Adapters of which a step has to say how much each token takes.
    pub fn adapters(&self) -> usize {
        let counts = self.nodes.iter().filter_map(|node| match node.op {
            Op::Adapters { count } => Some(count),
            _ => None,
        });
        counts.max().unwrap_or(0)
    }

    /// Which outputs need each node, by node; what changes a state is needed always.
    pub fn needed(&self) -> Vec<Needed> {
        let mut needed = vec![Needed::default(); self.nodes.len()];
        for (index, output) in self.outputs.iter().enumerate() {
            needed[output.0] = needed[output.0].and(Needed::by(index));
        }
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if node.op.has_effect() {
                needed[index] = Needed::EFFECT;
            }
            for input in &node.inputs {
                needed[input.0] = needed[input.0].and(needed[index]);
            }
        }
        needed
    }

    /// Appends a node after checking its types.
    pub(crate) fn push(&mut self, op: Op, inputs: Vec<NodeId>) -> Result<NodeId, TypeError> {
        let types: Vec<TensorType> = inputs.iter().map(|id| self.node(*id).ty).collect();
        let ty = match op {
            Op::Weight(WeightId(index)) if index < self.weights.len() => self.weights[index].ty,
            op => infer(&op, &types)?,
        };
        self.nodes.push(Node { op, inputs, ty });
        Ok(NodeId(self.nodes.len() - 1))
    }
}

#[derive(Default)]
struct Building {
    graph: Graph,
    error: Option<GraphError>,
}

/// Collects nodes. The first mistake is kept and reported by [`GraphBuilder::finish`].
#[derive(Default)]
pub struct GraphBuilder {
    building: RefCell<Building>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    #[track_caller]
    fn add<'g>(&'g self, op: Op, inputs: impl Iterator<Item = Var<'g>>) -> Var<'g> {
        let site = Location::caller();
        let inputs: Vec<NodeId> = inputs.map(Var::id).collect();
        let Building { graph, error } = &mut *self.building.borrow_mut();
        let id = graph.push(op, inputs.clone()).unwrap_or_else(|wrong| {
            error.get_or_insert(GraphError { site, error: wrong });
            // Building goes on with a stand-in; `finish` reports the mistake.
            let ty = inputs.first().map_or(TensorType::f32(Shape::vector(0)), |id| graph.node(*id).ty);
            graph.nodes.push(Node { op, inputs, ty });
            NodeId(graph.nodes.len() - 1)
        });
        Var { builder: self, id }
    }

    /// Finds an existing source node, or adds it.
    #[track_caller]
    fn source(&self, op: Op) -> Var<'_> {
        let found = self.building.borrow().graph.nodes.iter().position(|n| n.op == op);
        match found {
            Some(index) => Var { builder: self, id: NodeId(index) },
            None => self.add(op, std::iter::empty()),
        }
    }

    /// Token ids of the step: `U32 [tokens]`.
    #[track_caller]
    pub fn tokens(&self) -> Var<'_> {
        self.source(Op::Tokens)
    }

    /// Position of each token: `U32 [tokens]`.
    #[track_caller]
    pub fn positions(&self) -> Var<'_> {
        self.source(Op::Positions)
    }

    /// Rows whose result was asked for: `U32 [outputs]`.
    #[track_caller]
    pub fn output_rows(&self) -> Var<'_> {
        self.source(Op::OutputRows)
    }

    /// How tokens are chosen, packed: `U32 [outputs]`.
    #[track_caller]
    pub fn choices(&self) -> Var<'_> {
        self.source(Op::Choices)
    }

    /// How much of each of `count` adapters each token takes: `F32 [tokens, count]`.
    #[track_caller]
    pub fn adapters(&self, count: usize) -> Var<'_> {
        self.source(Op::Adapters { count })
    }

    /// The value of a node of this graph; `None` where there is no such node.
    pub fn var(&self, id: NodeId) -> Option<Var<'_>> {
        (id.0 < self.building.borrow().graph.nodes.len()).then_some(Var { builder: self, id })
    }

    /// A tensor that does not change between steps. The same name given again is the same weight.
    #[track_caller]
    pub fn weight(&self, weight: Weight) -> Var<'_> {
        let site = Location::caller();
        let known = self.building.borrow().graph.weights.iter().position(|w| w.name == weight.name);
        let id = known.unwrap_or_else(|| {
            let mut building = self.building.borrow_mut();
            let (found, needed) = (weight.data.len(), weight.ty.bytes(Sizes::default()));
            if needed != Some(found) {
                let what = format!("{found} bytes for `{}`, which is {}", weight.name, weight.ty);
                let error = TypeError::Parameter { op: "weight", what };
                building.error.get_or_insert(GraphError { site, error });
            }
            building.graph.weights.push(weight);
            building.graph.weights.len() - 1
        });
        self.source(Op::Weight(WeightId(id)))
    }

    /// A constant vector of numbers.
    #[track_caller]
    pub fn constant(&self, name: &str, values: &[f32]) -> Var<'_> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let ty = TensorType::new(DType::F32, Shape::vector(values.len()));
        self.weight(Weight { name: name.to_owned(), ty, data: data.into() })
    }

    /// The graph that computes `outputs`, or the first mistake made in building it.
    #[track_caller]
    pub fn finish(&self, outputs: &[Var<'_>]) -> Result<Graph, GraphError> {
        let mut building = self.building.take();
        if let Some(error) = building.error.take() {
            return Err(error);
        }
        if outputs.len() > Needed::MOST {
            let what = format!("{} outputs, at most {}", outputs.len(), Needed::MOST);
            let error = TypeError::Parameter { op: "graph", what };
            return Err(GraphError { site: Location::caller(), error });
        }
        building.graph.outputs = outputs.iter().map(|v| v.id).collect();
        Ok(building.graph)
    }
}

/// A value in a graph that is being built: a small handle.
#[derive(Clone, Copy)]
#[must_use]
pub struct Var<'g> {
    builder: &'g GraphBuilder,
    id: NodeId,
}

impl<'g> Var<'g> {
    /// The node it stands for.
    pub fn id(self) -> NodeId {
        self.id
    }

    /// Its type.
    pub fn ty(self) -> TensorType {
        self.builder.building.borrow().graph.node(self.id).ty
    }

    /// The graph it belongs to.
    pub fn graph(self) -> &'g GraphBuilder {
        self.builder
    }

    /// Any operation on this and further inputs, such as a form that has no method of its own.
    #[track_caller]
    pub fn then(self, op: Op, more: impl IntoIterator<Item = Var<'g>>) -> Var<'g> {
        self.builder.add(op, [self].into_iter().chain(more))
    }

    /// A token chosen from each row of these logits, as the step says.
    #[track_caller]
    pub fn sample(self) -> Var<'g> {
        self.then(Op::Sample, [self.builder.choices()])
    }
}

/// Methods of [`Var`] that append one operation: what they take, the operation, its further inputs.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $op:expr, $more:expr;)*) => {
        impl<'g> Var<'g> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(self, $($arg: $ty),*) -> Var<'g> {
                self.then($op, $more)
            }
        )*}
    };
}

methods! {
    /// Rows of this table: `[v, d]` with `ids [n]` gives `[n, d]`.
    embed(ids: Var<'g>) = Op::Embed(DType::F32), [ids];
    /// The rows named by `rows`.
    select_rows(rows: Var<'g>) = Op::SelectRows, [rows];
    /// Columns `start .. start + len`.
    slice(start: usize, len: usize) = Op::Slice { start, len }, [];
    /// A function of each element.
    unary(f: Unary) = Op::Unary(f), [];
    /// Of each row the elements at the row's own indices.
    gather(ids: Var<'g>) = Op::Gather, [ids];
    /// The same numbers as another float type.
    cast(dtype: DType) = Op::Cast(dtype), [];
    /// `x * factor`
    scale(factor: f32) = Op::Scalar { op: Binary::Mul, value: factor, reversed: false }, [];
    /// `f(x, value)`
    scalar(op: Binary, value: f32) = Op::Scalar { op, value, reversed: false }, [];
    /// `cap * tanh(x / cap)`
    softcap(cap: f32) = Op::Softcap(cap), [];
    /// `act(x) * up`
    gated(act: Unary, up: Var<'g>) = Op::Gated(act), [up];
    /// Softmax over each row.
    softmax() = Op::Softmax, [];
    /// `x / sqrt(mean(x²) + eps) * w`
    rms_norm(w: Var<'g>, eps: f32) = Op::RmsNorm { eps, groups: 1 }, [w];
    /// [`Var::rms_norm`] over each of `groups` equal parts of a row.
    rms_norm_groups(w: Var<'g>, eps: f32, groups: usize) = Op::RmsNorm { eps, groups }, [w];
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + b`
    layer_norm(w: Var<'g>, b: Option<Var<'g>>, eps: f32) = Op::LayerNorm { eps }, [w].into_iter().chain(b);
    /// `x · Wᵀ`
    linear(w: Var<'g>) = Op::Linear, [w];
    /// `x · W_eᵀ` with the matrices of `w [experts, n, k]` that `ids` names.
    expert_linear(w: Var<'g>, ids: Var<'g>) = Op::ExpertLinear, [w, ids];
    /// The parts of each row summed with these weights.
    combine(weights: Var<'g>) = Op::Combine, [weights];
    /// Rotary position embedding.
    rope(rope: Rope, positions: Var<'g>, freqs: Var<'g>) = Op::Rope(rope), [positions, freqs];
    /// Stores keys (this) and `values` of so many heads.
    kv_write(values: Var<'g>, state: StateId, kv_heads: usize) = Op::KvWrite { state, kv_heads }, [values];
    /// Attention of these queries over what is kept, after `receipt`'s write.
    attention(receipt: Var<'g>, attention: Attention, sinks: Option<Var<'g>>)
        = Op::Attention(attention), [receipt].into_iter().chain(sinks);
    /// Attention of these queries over keys and values that are given.
    sdpa(keys: Var<'g>, values: Var<'g>, sdpa: Sdpa) = Op::Sdpa(sdpa), [keys, values];
    /// A convolution along the sequence with `w [d, width]`.
    short_conv(w: Var<'g>, state: StateId) = Op::ShortConv { state }, [w];
    /// What the queries (this) read of a recurrent state that keys, values, decay and `beta` (`more`, in this order) write.
    recurrence(more: [Var<'g>; 4], recurrence: Recurrence) = Op::Recurrence(recurrence), more;
    /// The index of the largest number of each row.
    argmax() = Op::Argmax, [];
    /// The indices of the `k` largest numbers of each row.
    top_k(k: usize) = Op::TopK { k }, [];
}

macro_rules! operators {
    ($($operator:ident $method:ident;)*) => {$(
        impl<'g> std::ops::$operator for Var<'g> {
            type Output = Var<'g>;

            #[track_caller]
            fn $method(self, other: Var<'g>) -> Var<'g> {
                self.then(Op::Binary(Binary::$operator), [other])
            }
        }
    )*};
}

operators! { Add add; Sub sub; Mul mul; Div div; }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dim;

    #[test]
    fn the_first_mistake_is_reported_with_its_line() {
        let g = GraphBuilder::new();
        let x = g.constant("x", &[1.0, 2.0]);
        let w = g.constant("w", &[1.0, 2.0, 3.0]);
        let line = line!() + 1;
        let bad = x.rms_norm(w, 1e-5);
        let error = g.finish(&[bad + w]).unwrap_err();
        assert_eq!(error.site.line(), line);
        assert!(error.to_string().contains("F32 [3]"), "{error}");
        assert!(error.to_string().contains("[2]"), "{error}");
    }

    #[test]
    fn a_graph_up_to_some_nodes_has_what_comes_before_them() {
        let g = GraphBuilder::new();
        let unused = g.constant("later", &[5.0]);
        let x = g.constant("x", &[1.0, 2.0]) + g.constant("y", &[1.0, 2.0]);
        let after = x * g.constant("z", &[3.0, 4.0]);
        let graph = g.finish(&[after, unused]).unwrap();
        let part = graph.up_to(&[x.id()]).unwrap();
        let names: Vec<&str> = part.weights().iter().map(|w| w.name.as_str()).collect();
        assert_eq!((names, part.outputs()), (vec!["later", "x", "y"], &[x.id()][..]));
        assert_eq!(part.weight(part.node(x.id()).inputs[1]).unwrap().name, "y");
        assert!(graph.up_to(&[NodeId(99)]).is_err());
        assert!(graph.up_to(&vec![x.id(); 40]).unwrap_err().to_string().contains("at most 31"));
    }

    #[test]
    fn the_same_weight_is_one_node() {
        let g = GraphBuilder::new();
        let a = g.constant("w", &[1.0]);
        let b = g.constant("w", &[1.0]);
        assert_eq!(a.id(), b.id());
        assert_eq!(g.tokens().id(), g.tokens().id());
        assert_eq!(g.tokens().ty().shape.leading(), Dim::Tokens);
    }
}
