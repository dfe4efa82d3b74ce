//! A plan as JSON; `docs/plans.md` says what its fields are.

use metallic_core::plan::{ArgPlan, Holds, LaunchPlan, Number, OpPlan, PlanTotals};
use metallic_core::{Graph, NodeId};
use serde_json::{Map, Value, json};

use super::{Plan, Shown, layers_of};

/// Of the format: what is added does not change it, what means something else does.
pub const VERSION: u32 = 1;

impl Plan {
    /// The plan as JSON: every layer, or the one that is asked for.
    pub fn json(&self, shown: Shown) -> Value {
        let in_sight = |op: &&OpPlan| shown.layer.is_none() || self.layer(op.node) == shown.layer;
        let ops: Vec<Value> = self.program.ops.iter().filter(in_sight).map(|op| self.op_json(op)).collect();
        let groups = self.layer_groups();
        json!({
            "version": VERSION,
            "model": self.model,
            "device": { "kind": self.device.kind, "name": self.device.name, "planned_as": self.planned_as },
            "step": {
                "tokens": self.step.tokens,
                "depth": self.step.depth,
                "chooses": self.step.chooses,
                "kv_type": self.kv.to_string(),
            },
            "graph": self.graph_json(),
            "rules": self.rules_json(),
            "layers": groups.iter().map(|group| json!({ "first": group.first, "like": group.like })).collect::<Vec<_>>(),
            "ops": ops,
            "weights": self.weights_json(),
            "totals": self.totals_json(),
        })
    }

    /// The nodes before fusion, each with the node it went into.
    fn graph_json(&self) -> Value {
        let (before, fused) = (&self.program.before, &self.program.fused);
        let layers = layers_of(before);
        let mut into: Vec<Option<usize>> = vec![None; before.nodes().len()];
        for (index, origin) in fused.origins.iter().enumerate() {
            origin.parts.iter().for_each(|part| into[part.0] = Some(index));
        }
        let node = |(index, into): (usize, &Option<usize>)| {
            let node = before.node(NodeId(index));
            json!({
                "node": index,
                "op": node.op.name(),
                "type": node.ty.to_string(),
                "inputs": node.inputs.iter().map(|id| id.0).collect::<Vec<_>>(),
                "weight": before.weight(NodeId(index)).map(|weight| &weight.name),
                "layer": layers[index],
                "into": into,
            })
        };
        json!({
            "before": into.iter().enumerate().map(node).collect::<Vec<_>>(),
            "nodes_after": fused.graph.nodes().len(),
            "outputs": fused.graph.outputs().iter().map(|id| id.0).collect::<Vec<_>>(),
        })
    }

    fn rules_json(&self) -> Value {
        let rule = |(rule, nodes): (&'static str, Vec<NodeId>)| {
            let ids: Vec<usize> = nodes.iter().map(|id| id.0).collect();
            json!({ "rule": rule, "times": ids.len(), "nodes": ids })
        };
        self.rules().into_iter().map(rule).collect()
    }

    fn op_json(&self, op: &OpPlan) -> Value {
        let graph = &self.program.fused.graph;
        let (node, origin) = (graph.node(op.node), &self.program.fused.origins[op.node.0]);
        let place = self.place(op).map(|place| {
            let until = self.program.schedule.last_use(op.node).map(|last| last.0);
            json!({ "offset": place.start, "bytes": place.len(), "from": op.node.0, "until": until })
        });
        let provider = op
            .provider
            .as_ref()
            .map(|provider| json!({ "kind": provider.kind, "name": provider.name, "why": provider.why }));
        json!({
            "node": op.node.0,
            "op": node.op.name(),
            "part": graph.part(op.node),
            "layer": self.layer(op.node),
            "dtype": node.ty.dtype.to_string(),
            "shape": node.ty.shape.to_string(),
            "outcome": op.outcome.name(),
            "rule": origin.rule,
            "parts": origin.parts.iter().map(|part| part.0).collect::<Vec<_>>(),
            "inputs": node.inputs.iter().map(|id| input_json(graph, *id)).collect::<Vec<_>>(),
            "place": place,
            "provider": provider,
            "launches": op.launches.iter().map(launch_json).collect::<Vec<_>>(),
        })
    }

    fn weights_json(&self) -> Value {
        let form = |(form, bytes): &(&'static str, usize)| json!({ "form": form, "bytes": bytes });
        let weights = self.program.weights.iter().map(|weight| {
            json!({ "name": weight.name, "forms": weight.forms.iter().map(form).collect::<Vec<_>>() })
        });
        weights.collect()
    }

    fn totals_json(&self) -> Value {
        let values = self.program.schedule.arena_bytes(self.sizes());
        let Some(totals) = self.program.totals else {
            return json!({ "planned": false, "bytes_of_intermediates": values });
        };
        let PlanTotals { dispatches, barriers, read, written, multiply_adds, .. } = totals;
        let by_op: Vec<Value> = self
            .by_op()
            .iter()
            .map(|sum| {
                json!({
                    "op": sum.op,
                    "dispatches": sum.dispatches,
                    "bytes": sum.bytes,
                    "multiply_adds": sum.multiply_adds,
                })
            })
            .collect();
        json!({
            "planned": true,
            "dispatches": dispatches,
            "barriers": barriers,
            "bytes_read": read,
            "bytes_written": written,
            "multiply_adds": multiply_adds,
            "bytes_of_arena": totals.arena_bytes,
            "bytes_of_scratch": totals.scratch_bytes,
            "bytes_of_intermediates": values,
            "bytes_of_tables": totals.table_bytes,
            "by_op": by_op,
        })
    }
}

fn input_json(graph: &Graph, id: NodeId) -> Value {
    let ty = graph.node(id).ty.to_string();
    match graph.weight(id) {
        Some(weight) => json!({ "weight": weight.name, "type": ty }),
        None => json!({ "node": id.0, "op": graph.node(id).op.name(), "type": ty }),
    }
}

fn launch_json(launch: &LaunchPlan) -> Value {
    let constants: Map<String, Value> =
        launch.constants.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let params: Map<String, Value> =
        launch.params.iter().map(|(name, value)| (name.clone(), number_json(*value))).collect();
    json!({
        "kernel": launch.kernel,
        "family": launch.family,
        "constants": constants,
        "params": params,
        "groups": launch.groups,
        "threads": launch.threads,
        "threadgroup_bytes": launch.threadgroup_bytes,
        "barrier_before": launch.barrier,
        "bytes_read": launch.read,
        "bytes_written": launch.written,
        "multiply_adds": launch.multiply_adds,
        "library": launch.library,
        "args": launch.args.iter().map(arg_json).collect::<Vec<_>>(),
    })
}

/// JSON has no infinities: those are text.
fn number_json(number: Number) -> Value {
    match number {
        Number::Whole(n) => json!(n),
        Number::Float(x) if x.is_finite() => json!(x),
        Number::Float(x) => json!(x.to_string()),
    }
}

fn arg_json(arg: &ArgPlan) -> Value {
    let (kind, which) = match &arg.holds {
        Holds::Node(id) => ("node", json!(id.0)),
        Holds::Weight(name) => ("weight", json!(name)),
        Holds::Scratch(index) => ("scratch", json!(index)),
        Holds::Table(name) => ("table", json!(name)),
        Holds::Chosen => ("chosen", Value::Null),
        Holds::State(part) => ("state", json!(part)),
        Holds::Nothing => ("nothing", Value::Null),
    };
    json!({
        "name": arg.name,
        "access": arg.access,
        "holds": kind,
        "which": which,
        "offset": arg.offset,
        "bytes": arg.bytes,
    })
}
