//! What a backend would do for a step of a graph, as data that people can look at. Counted, never measured.

use crate::rewrite::{Fused, Origin};
use crate::{BackendError, CompileOptions, Graph, NodeId, Schedule, Step, rewrite};

/// What a backend would do for a step of a graph. Weights are not brought anywhere for it: their types tell.
#[derive(Clone, Debug)]
pub struct ProgramPlan {
    /// The graph before fusion, its activations typed as they run.
    pub before: Graph,
    /// The graph that runs, and where its nodes come from.
    pub fused: Fused,
    /// Where its intermediates lie.
    pub schedule: Schedule,
    /// What becomes of each node that is no source, in order.
    pub ops: Vec<OpPlan>,
    /// What weights become on the device, in the order of the graph; what no node reads is not there.
    pub weights: Vec<WeightPlan>,
    /// What the launches come to; `None` where the device plans none.
    pub totals: Option<PlanTotals>,
}

/// What the launches of a step come to, as a run of it would count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanTotals {
    /// Launches.
    pub dispatches: u64,
    /// Launches before which everything else must be done.
    pub barriers: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Multiplications with additions.
    pub multiply_adds: u64,
    /// Bytes of intermediates and, behind them, scratch.
    pub arena_bytes: usize,
    /// The scratch among them, which operations share.
    pub scratch_bytes: usize,
    /// Bytes of the tables that say what the step is.
    pub table_bytes: usize,
}

/// What becomes of a node in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is computed.
    Runs,
    /// It is its first input, untouched: nothing is copied.
    InPlace,
    /// Nobody wants its result in this step.
    Unwanted,
    /// It has no elements in this step.
    Empty,
}

impl Outcome {
    /// A word for tables.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Runs => "runs",
            Outcome::InPlace => "in place",
            Outcome::Unwanted => "not wanted",
            Outcome::Empty => "empty",
        }
    }
}

/// A node as it is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct OpPlan {
    /// The node of the fused graph.
    pub node: NodeId,
    /// What becomes of it.
    pub outcome: Outcome,
    /// Who serves it and why, where there is a choice.
    pub provider: Option<ProviderPlan>,
    /// Its launches in order; empty where the device plans none.
    pub launches: Vec<LaunchPlan>,
}

/// Who serves an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderPlan {
    /// For which kind of operation there is a choice: `matmul`.
    pub kind: &'static str,
    /// Who serves: `tiles`.
    pub name: &'static str,
    /// Why, in words.
    pub why: String,
}

/// A kernel as it is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchPlan {
    /// The function.
    pub kernel: &'static str,
    /// The file it stands in, without its ending.
    pub family: &'static str,
    /// Its function constants by name.
    pub constants: Vec<(String, u32)>,
    /// The numbers of the launch by name.
    pub params: Vec<(String, Number)>,
    /// Threadgroups.
    pub groups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
    /// Bytes of threadgroup memory, those that the kernel declares itself among them.
    pub threadgroup_bytes: u32,
    /// What stands behind its arguments.
    pub args: Vec<ArgPlan>,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Multiplications with additions; 0 where the bytes are all that takes time.
    pub multiply_adds: u64,
    /// Everything before it must be done first.
    pub barrier: bool,
    /// What a library of the device's maker does in its place.
    pub library: Option<String>,
}

/// A number of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the types say what they are")]
pub enum Number {
    Whole(u32),
    Float(f32),
}

/// An argument of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgPlan {
    /// Its name in the kernel.
    pub name: &'static str,
    /// What is done with it: `reads`, `writes`, `updates`, `unused`.
    pub access: &'static str,
    /// What stands there.
    pub holds: Holds,
    /// Where it begins in what holds it: the arena, the tables, the weight, the state.
    pub offset: usize,
    /// Bytes it may touch.
    pub bytes: usize,
}

/// What stands behind an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The value of a node, in the arena.
    Node(NodeId),
    /// A weight, by its name.
    Weight(String),
    /// Memory of the operation alone, in the arena, by number.
    Scratch(usize),
    /// A table of the step: `rows`.
    Table(&'static str),
    /// Tokens that are chosen, by this step or by the one before: they lie apart.
    Chosen,
    /// What is kept between steps: `keys`, `values`, `recurrent`.
    State(&'static str),
    /// Nothing: the kernel's constants leave it out.
    Nothing,
}

/// What a weight becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPlan {
    /// Its name in the file.
    pub name: String,
    /// The forms its readers want, in words, with the bytes of each.
    pub forms: Vec<(&'static str, usize)>,
}

impl ProgramPlan {
    /// The plan of a device that fuses, or does not, and plans no launches: graph and places alone.
    pub fn unplanned(
        graph: &Graph,
        options: CompileOptions,
        fuse: bool,
        step: &Step<'_>,
    ) -> Result<ProgramPlan, BackendError> {
        let before = rewrite::with_activations(graph, options.activations)?;
        let fused = if fuse { rewrite::trace(&before)? } else { Fused::unfused(&before) };
        let needed = fused.graph.needed();
        let outcome = |id: NodeId| {
            let runs = step.computes(&fused.graph.node(id).op, needed[id.0]);
            if runs { Outcome::Runs } else { Outcome::Unwanted }
        };
        let plan = |node| OpPlan { node, outcome: outcome(node), provider: None, launches: Vec::new() };
        let ids = (0..fused.graph.nodes().len()).map(NodeId);
        let ops = ids.filter(|id| !fused.graph.node(*id).op.is_source()).map(plan).collect();
        let schedule = Schedule::of(&fused.graph);
        Ok(ProgramPlan { before, fused, schedule, ops, weights: Vec::new(), totals: None })
    }
}

impl Fused {
    /// A graph as it is, every node from itself.
    pub fn unfused(graph: &Graph) -> Fused {
        let own = |node| Origin { node, rule: None, parts: vec![node] };
        Fused { graph: graph.clone(), origins: (0..graph.nodes().len()).map(NodeId).map(own).collect() }
    }

    /// Nodes of the graph before that nobody reads any longer, given how many it had.
    pub fn dropped(&self, nodes: usize) -> Vec<NodeId> {
        let mut kept = vec![false; nodes];
        for part in self.origins.iter().flat_map(|origin| &origin.parts) {
            kept[part.0] = true;
        }
        (0..nodes).map(NodeId).filter(|id| !kept[id.0]).collect()
    }
}
