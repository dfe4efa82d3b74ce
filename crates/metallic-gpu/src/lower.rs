//! From operations to launches. The match over [`Op`] is exhaustive: a new operation breaks the build here.

use std::sync::Arc;

use metallic_core::{DType, Dim, Graph, KvLayout, Node, NodeId, Op, Project, Sizes};

use crate::backend::Shared;
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::attention::AttentionSpec;
use crate::kernels::project::{Part, Projection};
use crate::kernels::rope::RopeKv;
use crate::kernels::{
    Slot, Stage, Stages, StepTable, attention, attention_plain, elementwise, gather, matvec, norm, project,
    qkv, rope, softmax,
};
use crate::pipelines::{HeldKernels, ReadyPipeline};
use crate::provider::OpKind;
use crate::step::StepFacts;

/// What planning looks at besides the node itself.
pub(crate) struct Lowering<'a> {
    pub(crate) graph: &'a Graph,
    /// Row selections that may stand for what they select from, by node; see [`aliases`].
    pub(crate) aliases: &'a [bool],
    pub(crate) kv: KvLayout,
    pub(crate) shared: &'a Shared,
}

impl Lowering<'_> {
    /// How a node runs in a step like this; `None` where there is nothing to compute. `held` gets the kernel of each
    /// stage.
    pub(crate) fn stages(
        &self,
        id: NodeId,
        facts: StepFacts,
        held: &mut HeldKernels,
    ) -> Result<Option<Stages>, GpuError> {
        let mut limits = *self.shared.gpu.limits();
        let first = held.pipelines().len();
        loop {
            held.truncate(first);
            let Some(stages) = self.stages_within(id, facts, &limits, held)? else { return Ok(None) };
            // A choice has taken its kernels to see whether they compile.
            let taken = held.pipelines().len() - first;
            self.take(stages.stages.get(taken..).unwrap_or_default(), held)?;
            match fewer_threads(&stages.stages, &held.pipelines()[first..]) {
                Some(most) if most < limits.max_threads => limits.max_threads = most,
                _ => return Ok(Some(stages)),
            }
        }
    }

    fn take(&self, stages: &[Stage], held: &mut HeldKernels) -> Result<(), GpuError> {
        stages.iter().try_for_each(|stage| held.take(&self.shared.pipelines, &stage.launch.kernel).map(drop))
    }

    fn stages_within(
        &self,
        id: NodeId,
        facts: StepFacts,
        limits: &Limits,
        held: &mut HeldKernels,
    ) -> Result<Option<Stages>, GpuError> {
        let node = self.graph.node(id);
        let sizes = facts.sizes();
        let rows = node.ty.shape.rows(sizes);
        // A receipt has no rows, what it stands for has happened all the same.
        if rows == 0 && !node.op.has_effect() {
            return Ok(None);
        }
        let shape = (count(rows)?, count(node.ty.shape.cols())?);
        let elements = || count(node.ty.shape.elements(sizes));
        let input_cols = |index: usize| count(self.input(node, index).ty.shape.cols());
        let map = |launch| Stage::new(launch, [Slot::Input(0), Slot::Output]).into();
        let stages = match node.op {
            Op::Tokens | Op::Positions | Op::OutputRows | Op::Weight(_) => return Ok(None),
            Op::Embed => {
                let table = self.input(node, 0).ty.dtype;
                let ids = self.step_table(node, 1)?;
                let bytes = gather::gathered(table, shape)?;
                let launch = gather::embed(table, shape, limits)?;
                Stage::new(launch, [ids, Slot::Input(0), Slot::Output]).touching(1, bytes).into()
            }
            Op::SelectRows if self.is_alias(id, facts) => return Ok(None),
            Op::SelectRows => {
                let launch = gather::select_rows(shape, limits)?;
                let ids = self.step_table(node, 1)?;
                let bytes = node.ty.shape.elements(sizes) * 4;
                Stage::new(launch, [ids, Slot::Input(0), Slot::Output]).touching(1, bytes).into()
            }
            Op::Slice { start, len } => {
                let rows = (shape.0, input_cols(0)?);
                let launch = gather::slice(DType::F32, rows, (count(start)?, count(len)?), limits)?;
                let bytes = node.ty.shape.elements(sizes) * 4;
                Stage::new(launch, [Slot::Input(0), Slot::Output]).touching(0, bytes).into()
            }
            Op::Unary(f) => map(elementwise::unary(DType::F32, f, elements()?, limits)?),
            Op::Scale(by) => map(elementwise::scale(DType::F32, by, elements()?, limits)?),
            Op::Softcap(cap) => map(elementwise::softcap(DType::F32, cap, elements()?, limits)?),
            Op::Binary(f) => {
                let period = count(self.input(node, 1).ty.shape.elements(sizes))?;
                let launch = elementwise::binary(DType::F32, f, elements()?, period, limits)?;
                Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Output]).into()
            }
            Op::RmsNorm { eps } => {
                let launch = norm::rms_norm(DType::F32, shape, eps, limits)?;
                Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Output]).into()
            }
            Op::Softmax => map(softmax::softmax(DType::F32, shape, limits)?),
            Op::Linear => {
                let plain = Project { norm: None, parts: 1, bias: false, residual: false };
                self.products(&self.projection(node, &plain, shape.0)?, limits, held)?
            }
            Op::Project(spec) => self.products(&self.projection(node, &spec, shape.0)?, limits, held)?,
            Op::GatedProject { norm, act } => {
                let spec = Project { norm, parts: 2, bias: false, residual: false };
                let projection = Projection { gate: Some(act), ..self.projection(node, &spec, shape.0)? };
                self.products(&projection, limits, held)?
            }
            Op::Rope(rope) => rope::rope(&rope, shape, input_cols(2)?, limits)?,
            Op::KvWrite { .. } => rope::kv_write(&self.kv, count(facts.tokens)?, limits)?,
            Op::Qkv(spec) => {
                let projection = self.projection(node, &spec.project(), shape.0)?;
                let way = RopeKv {
                    rope: &spec.rope,
                    kv: &self.kv,
                    heads: count(spec.heads)?,
                    tokens: shape.0,
                    pairs: input_cols(spec.freqs())?,
                    freqs: Slot::Input(spec.freqs()),
                    norm: None,
                };
                self.vectors_or_tiles(
                    (shape.0, held),
                    || qkv::vectors(&projection, &way, limits),
                    || qkv::tiles(&projection, &way, limits),
                )?
            }
            Op::Attention(spec) => {
                let spec = AttentionSpec { attention: spec, facts, kv: self.kv.dtype, sinks: None };
                self.choose((OpKind::Sdpa, held), |provider| match provider {
                    "plain" => attention_plain::plan(&spec, limits),
                    _ => attention::plan(&spec, limits),
                })?
            }
        };
        Ok(Some(stages))
    }

    fn products(
        &self,
        projection: &Projection,
        limits: &Limits,
        held: &mut HeldKernels,
    ) -> Result<Stages, GpuError> {
        self.vectors_or_tiles(
            (projection.tokens, held),
            || project::plan_vectors(projection, limits),
            || project::plan_tiles(projection, limits),
        )
    }

    /// Few tokens go through the matrix–vector kernels, which fuse everything; for many there is a choice.
    fn vectors_or_tiles(
        &self,
        (tokens, held): (u32, &mut HeldKernels),
        vectors: impl Fn() -> Result<Stages, GpuError>,
        tiles: impl Fn() -> Result<Stages, GpuError>,
    ) -> Result<Stages, GpuError> {
        if tokens <= matvec::MAX_TOKENS {
            return vectors();
        }
        self.choose((OpKind::Matmul, held), |provider| match provider {
            "rows" => vectors(),
            _ => tiles(),
        })
    }

    /// Whether a node's value is that of its first input, untouched.
    pub(crate) fn is_alias(&self, id: NodeId, facts: StepFacts) -> bool {
        facts.all_outputs && self.aliases.get(id.0).copied().unwrap_or(false)
    }

    /// The first provider whose kernels compile; `held` gets them.
    fn choose(
        &self,
        (op, held): (OpKind, &mut HeldKernels),
        plan: impl Fn(&'static str) -> Result<Stages, GpuError>,
    ) -> Result<Stages, GpuError> {
        let first = held.pipelines().len();
        self.shared.providers.choose(op, |provider| {
            held.truncate(first);
            let stages = plan(provider)?;
            self.take(&stages.stages, held)?;
            Ok(stages)
        })
    }

    fn input(&self, node: &Node, index: usize) -> &Node {
        self.graph.node(node.inputs[index])
    }

    /// A source whose numbers the step brings.
    fn step_table(&self, node: &Node, index: usize) -> Result<Slot, GpuError> {
        match self.input(node, index).op {
            Op::Tokens => Ok(Slot::Step(StepTable::Tokens)),
            Op::Positions => Ok(Slot::Step(StepTable::Positions)),
            Op::OutputRows => Ok(Slot::Step(StepTable::Outputs)),
            other => Err(GpuError::Unsupported {
                op: node.op.name(),
                reason: format!("indices from `{}`; they must come with the step", other.name()),
            }),
        }
    }

    fn projection(&self, node: &Node, spec: &Project, tokens: u32) -> Result<Projection, GpuError> {
        let at = spec.inputs();
        let mut parts = [None; 3];
        if spec.parts > parts.len() {
            let reason = format!("{} matrices side by side; at most {}", spec.parts, parts.len());
            return Err(GpuError::Unsupported { op: node.op.name(), reason });
        }
        for (i, part) in parts.iter_mut().take(spec.parts).enumerate() {
            let weight = self.input(node, at.weights + i);
            if !matches!(weight.op, Op::Weight(_)) {
                let reason = format!("a matrix from `{}`; it must be a weight", weight.op.name());
                return Err(GpuError::Unsupported { op: node.op.name(), reason });
            }
            *part = Some(Part {
                dtype: weight.ty.dtype,
                rows: count(weight.ty.shape.rows(Sizes::default()))?,
                weight: Slot::Input(at.weights + i),
                bias: at.biases.map(|b| Slot::Input(b + i)),
            });
        }
        Ok(Projection {
            op: node.op.name(),
            tokens,
            cols: count(self.input(node, 0).ty.shape.cols())?,
            parts,
            x: Slot::Input(0),
            norm: spec.norm.zip(at.norm).map(|(eps, index)| (eps, Slot::Input(index))),
            residual: at.residual.map(Slot::Input),
            gate: None,
        })
    }
}

/// Threads the compiler left a kernel, where it is launched with more: one that takes many registers has fewer.
fn fewer_threads(stages: &[Stage], kernels: &[Arc<ReadyPipeline>]) -> Option<u32> {
    let threads = stages.iter().map(|stage| stage.launch.threads.iter().product::<u32>());
    let allowed = kernels.iter().map(|kernel| kernel.max_threads());
    threads.zip(allowed).filter(|(threads, allowed)| threads > allowed).map(|(_, allowed)| allowed).min()
}

/// A size as kernels count.
fn count(n: usize) -> Result<u32, GpuError> {
    u32::try_from(n).map_err(|_| GpuError::Unsupported {
        op: "shape",
        reason: format!("{n} elements; kernels count to {}", u32::MAX),
    })
}

/// Selections of rows that need not be carried out in a step that wants all of them, by node: nothing after them is
/// written among the per-token values, so what they select from stays as it is.
pub(crate) fn aliases(graph: &Graph) -> Vec<bool> {
    let per_token = |n: &Node| !n.op.is_source() && n.ty.shape.leading() == Dim::Tokens;
    let last = graph.nodes().iter().rposition(per_token);
    let free = |(index, n): (usize, &Node)| n.op == Op::SelectRows && last.is_none_or(|last| index > last);
    graph.nodes().iter().enumerate().map(free).collect()
}
