//! What the names of weights say of the nodes that take them.

use super::{Graph, NodeId};
use crate::op::{Op, WeightUse};

impl Graph {
    /// The weights a node takes, by the name of the first matrix or table without the number of its layer: `ffn_down` for
    /// `blk.3.ffn_down.weight`; empty where it takes none.
    pub fn part(&self, id: NodeId) -> String {
        let node = self.node(id);
        let matrices = node
            .inputs
            .iter()
            .enumerate()
            .filter(|(index, _)| node.op.weight_use(*index) != WeightUse::Vector);
        let weight = matrices.into_iter().find_map(|(_, input)| self.weight(*input));
        weight.map(|weight| without_layer(&weight.name)).unwrap_or_default()
    }

    /// The layer of each node: that of the weights it takes, else that of the node before it which has one and feeds it. `None` outside of
    /// layers, which is where a weight without a number is taken.
    pub fn layers(&self) -> Vec<Option<u32>> {
        let mut layers: Vec<Option<u32>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let numbered = |id: &NodeId| self.weight(*id).map(|weight| layer(&weight.name));
            let own = match node.op {
                Op::Weight(id) => layer(&self.weights[id.0].name),
                // All layers may share its frequencies.
                Op::Rope(_) => layers[node.inputs[0].0],
                _ => match node.inputs.iter().find_map(numbered) {
                    Some(layer) => layer,
                    None => node.inputs.iter().filter_map(|id| layers[id.0]).max(),
                },
            };
            layers.push(own);
        }
        layers
    }
}

/// The number of the layer in a weight's name.
fn layer(name: &str) -> Option<u32> {
    name.split('.').find_map(|part| part.parse().ok())
}

/// A weight's name without its layer, and without what all names end with.
fn without_layer(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let first = parts.iter().position(is_number).map_or(0, |number| number + 1);
    let kept = parts[first..].iter().filter(|part| !is_number(part) && **part != "weight");
    kept.copied().collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, GraphBuilder, Shape, TensorType, Weight};

    #[test]
    fn a_part_is_named_by_its_weights_and_not_by_its_layer() {
        for (name, part) in [
            ("blk.17.ffn_down.weight", "ffn_down"),
            ("model.layers.3.mlp.down_proj.weight", "mlp.down_proj"),
            ("model.layers.3.mlp.experts.5.w1.weight", "mlp.experts.w1"),
            ("token_embd.weight", "token_embd"),
            ("lm_head.weight", "lm_head"),
            ("", ""),
        ] {
            assert_eq!(without_layer(name), part);
        }
        let g = GraphBuilder::new();
        let ty = TensorType::f32(Shape::matrix(2, 2));
        let data: Bytes = vec![0; 16].into();
        let table = g.weight(Weight { name: "blk.0.table.weight".to_owned(), ty, data });
        let normed = table.embed(g.tokens()).rms_norm(g.constant("blk.0.norm.weight", &[1.0, 1.0]), 1e-5);
        let graph = g.finish(&[normed]).unwrap();
        let embedded = graph.node(normed.id()).inputs[0];
        assert_eq!(
            (&*graph.part(embedded), &*graph.part(normed.id())),
            ("table", ""),
            "vectors do not count"
        );
    }
}
