//! Which layers are alike.

use metallic_core::plan::{LaunchPlan, OpPlan};

use super::Plan;

/// Layers whose operations and launches are the same but for where things lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// The first of them, which is shown for all.
    pub first: u32,
    /// The others.
    pub like: Vec<u32>,
}

impl Plan {
    /// Groups of layers that are alike, in the order of their first ones.
    pub fn layer_groups(&self) -> Vec<LayerGroup> {
        let mut groups: Vec<(String, LayerGroup)> = Vec::new();
        for layer in (0..self.layer_count()).filter_map(|layer| u32::try_from(layer).ok()) {
            let signature: String = self.ops(Some(layer)).map(|op| self.signature(op)).collect();
            match groups.iter_mut().find(|(known, _)| *known == signature) {
                Some((_, group)) => group.like.push(layer),
                None => groups.push((signature, LayerGroup { first: layer, like: Vec::new() })),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// The layer that stands for most others.
    pub fn usual_layer(&self) -> Option<u32> {
        let groups = self.layer_groups();
        groups.iter().rev().max_by_key(|group| group.like.len()).map(|group| group.first)
    }

    /// Everything that makes an operation what it is, without where its values lie.
    fn signature(&self, op: &OpPlan) -> String {
        let graph = &self.program.fused.graph;
        let node = graph.node(op.node);
        let inputs: Vec<String> = node.inputs.iter().map(|id| graph.node(*id).ty.to_string()).collect();
        let launch = |launch: &LaunchPlan| {
            let LaunchPlan { kernel, constants, params, groups, threads, threadgroup_bytes, .. } = launch;
            let cost = (launch.read, launch.written, launch.multiply_adds, launch.barrier);
            format!("{kernel} {constants:?} {params:?} {groups:?} {threads:?} {threadgroup_bytes} {cost:?};")
        };
        let launches: String = op.launches.iter().map(launch).collect();
        let (part, rule) = (graph.part(op.node), self.program.fused.origins[op.node.0].rule);
        let head = format!("{} {} {inputs:?} {part} {rule:?}", node.op.name(), node.ty);
        format!("{head} {:?} {:?} {launches}\n", op.outcome, op.provider)
    }
}
