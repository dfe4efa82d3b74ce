//! How the graph that a program carries out came from the model's.

use metallic_core::rewrite::{self, Fused, Origin};
use metallic_core::{BackendError, CompileOptions, Graph, NodeId, Op};

use super::DiffError;

/// A model's graph, the same with its activations typed, and what a program makes of that.
#[derive(Debug)]
pub(crate) struct Lineage {
    /// Activations typed, nothing fused: operations are computed again by this.
    pub(crate) typed: Graph,
    /// What is carried out, with where each node comes from in `typed`.
    pub(crate) carried: Fused,
    /// The node of the model's graph with the same value, by node of what is carried out.
    pub(crate) of_model: Vec<Option<NodeId>>,
    /// The layer, by node of `typed`.
    layers: Vec<Option<u32>>,
}

impl Lineage {
    /// `fused`: whether the backend fuses.
    pub(crate) fn new(graph: &Graph, options: CompileOptions, fused: bool) -> Result<Lineage, DiffError> {
        let (typed, map) = rewrite::retyped(graph, options.activations).map_err(BackendError::from)?;
        let carried = if fused {
            rewrite::trace(&typed).map_err(BackendError::from)?
        } else {
            let origin = |id: usize| Origin { node: NodeId(id), rule: None, parts: vec![NodeId(id)] };
            Fused { origins: (0..typed.nodes().len()).map(origin).collect(), graph: typed.clone() }
        };
        let mut before = vec![None; typed.nodes().len()];
        map.iter().enumerate().for_each(|(model, typed)| before[typed.0] = Some(NodeId(model)));
        let of_model = carried.origins.iter().map(|origin| before[origin.node.0]).collect();
        Ok(Lineage { layers: typed.layers(), typed, carried, of_model })
    }

    /// That of a program which carries out `graph`.
    pub(crate) fn of_program(
        model: &Graph,
        options: CompileOptions,
        graph: &Graph,
    ) -> Result<Lineage, DiffError> {
        for fused in [true, false] {
            let lineage = Lineage::new(model, options, fused)?;
            if same_ops(&lineage.carried.graph, graph) {
                return Ok(lineage);
            }
        }
        Err(DiffError::Program { nodes: graph.nodes().len() })
    }

    /// Whether anything is fused.
    pub(crate) fn is_fused(&self) -> bool {
        self.carried.origins.iter().any(|origin| origin.rule.is_some())
    }

    pub(crate) fn layer(&self, typed: NodeId) -> Option<u32> {
        self.layers[typed.0]
    }

    /// The names of the weights that a node of what is carried out takes.
    pub(crate) fn tensors(&self, node: NodeId) -> Vec<String> {
        let graph = &self.carried.graph;
        let weights = graph.node(node).inputs.iter().filter_map(|id| graph.weight(*id));
        weights.map(|weight| weight.name.clone()).collect()
    }
}

/// Whether two graphs have the same operations on the same inputs.
fn same_ops(a: &Graph, b: &Graph) -> bool {
    let same = |a: &metallic_core::Node, b: &metallic_core::Node| a.op == b.op && a.inputs == b.inputs;
    a.nodes().len() == b.nodes().len() && a.nodes().iter().zip(b.nodes()).all(|(a, b)| same(a, b))
}

/// Checks that two models compute the same operations, whatever their weights are.
pub(crate) fn check_alike(a: &Graph, b: &Graph) -> Result<(), DiffError> {
    let words = |graph: &Graph, id: usize| match graph.nodes().get(id) {
        Some(node) => format!("`{}` {}", node.op.name(), node.ty.shape),
        None => "nothing".to_owned(),
    };
    for id in 0..a.nodes().len().max(b.nodes().len()) {
        let alike = a.nodes().get(id).zip(b.nodes().get(id)).is_some_and(|(a, b)| {
            let ops = matches!((a.op, b.op), (Op::Weight(_), Op::Weight(_))) || a.op == b.op;
            ops && a.inputs == b.inputs && a.ty.shape == b.ty.shape
        });
        if !alike {
            return Err(DiffError::Models { node: id, a: words(a, id), b: words(b, id) });
        }
    }
    Ok(())
}
