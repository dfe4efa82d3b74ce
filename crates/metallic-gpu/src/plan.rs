//! From operations to launches: pure functions of types, the step's shape and the device's limits. The match over [`Op`]
//! is exhaustive: a new operation breaks the build here.

mod products;

pub(crate) use products::projects;

use metallic_core::{DType, Dim, Op, Project, Sizes, StateLayout, TensorType, WeightUse};

use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::attention::AttentionSpec;
use crate::kernels::rope::KvRows;
use crate::kernels::{
    Moved, SOFTCAP, Slot, Stage, Stages, attention, attention_plain, attention_staged, binary_code, copy,
    count, elementwise, experts, gather, norm, recurrent, rope, sample, scalar_code, sdpa, softmax,
    unary_code,
};
use crate::provider::{Choice, OpKind, Provider};
use crate::step::StepShape;

/// An operation as it is to run: its operands' types as they lie in memory, and what comes with a step.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) op: &'a Op,
    pub(crate) inputs: &'a [TensorType],
    pub(crate) out: TensorType,
    /// Of the step; of an operation that is carried out alone, nothing.
    pub(crate) shape: &'a StepShape,
    pub(crate) states: Option<&'a StateLayout>,
    /// Its matrices are laid out for matrix units.
    pub(crate) cells: bool,
    /// The operation that comes next and alone takes its value, as its first input: a plan may do both.
    pub(crate) next: Option<&'a Site<'a>>,
}

/// What kernels an operation has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernels {
    /// One for each float type, or none at all.
    EveryFloat,
    /// The same, with vectors beside the rows that may be of another type.
    Mixed,
    /// The same, with sinks of `F32`.
    Sdpa,
    /// For activations of `F32` alone.
    Wide,
    /// The same: products, which a provider makes.
    Products,
    /// The same: attention over the cache, by a provider.
    Attention,
}

fn kernels_of(op: &Op) -> Kernels {
    match op {
        Op::Tokens
        | Op::Positions
        | Op::OutputRows
        | Op::Choices
        | Op::Adapters { .. }
        | Op::Weight(_)
        | Op::Embed(_)
        | Op::SelectRows
        | Op::Slice { .. }
        | Op::Gather
        | Op::Cast(_)
        | Op::Unary(_)
        | Op::Scalar { .. }
        | Op::Softcap(_)
        | Op::Gated(_)
        | Op::Softmax
        | Op::Combine
        | Op::Rope(_)
        | Op::Argmax
        | Op::TopK { .. }
        | Op::Sample => Kernels::EveryFloat,
        Op::Binary(_) | Op::RmsNorm { .. } | Op::LayerNorm { .. } => Kernels::Mixed,
        Op::Sdpa(_) => Kernels::Sdpa,
        Op::ExpertLinear | Op::KvWrite { .. } | Op::ShortConv { .. } | Op::Recurrence(_) => Kernels::Wide,
        Op::Linear | Op::Project(_) | Op::GatedProject { .. } | Op::Qkv(_) => Kernels::Products,
        Op::Attention(_) => Kernels::Attention,
    }
}

/// The operations for which there is a choice in a step like this.
pub(crate) fn choice(site: &Site<'_>, limits: &Limits) -> Option<Choice> {
    match kernels_of(site.op) {
        Kernels::Attention => Some(OpKind::Sdpa.into()),
        Kernels::Products => {
            let library = limits.library && site.suits_library(limits);
            // Tiles of weights in cells take halfs.
            let tiles = !site.cells || site.takes_halfs();
            let tensor = limits.tensor_ops && !site.cells && site.rounds();
            let there = [
                (Provider::MatmulLibrary, library),
                (Provider::MatmulTensor, tensor),
                (Provider::MatmulTiles, tiles),
            ];
            let without =
                there.into_iter().filter(|(_, there)| !there).map(|(provider, _)| provider).collect();
            let many = site.rows(site.out) > limits.tuning.vector_tokens as usize;
            many.then_some(Choice { op: OpKind::Matmul, without })
        }
        Kernels::EveryFloat | Kernels::Mixed | Kernels::Sdpa | Kernels::Wide => None,
    }
}

/// Whether activations are cast to `F32` before and from it after: no kernel takes them as they are.
fn widens(site: &Site<'_>) -> bool {
    match kernels_of(site.op) {
        Kernels::EveryFloat => false,
        Kernels::Mixed => site.mixes_types(),
        Kernels::Sdpa => site.inputs.get(3).is_some_and(|sinks| sinks.dtype != DType::F32),
        Kernels::Wide | Kernels::Products | Kernels::Attention => site.is_half(),
    }
}

/// The launches of an operation whose result has elements, or an effect. `provider` is one of those [`choice`] leaves open.
pub(crate) fn plan(site: &Site<'_>, provider: Option<Provider>, limits: &Limits) -> Result<Stages, GpuError> {
    let bytewise = site.inputs.iter().any(|input| input.dtype.block_bytes() % 2 == 1);
    planned(site, provider, limits).map(|stages| stages.bytewise(bytewise))
}

fn planned(site: &Site<'_>, provider: Option<Provider>, limits: &Limits) -> Result<Stages, GpuError> {
    let dtype = site.out.dtype;
    let rows = (site.count(site.rows(site.out))?, site.count(site.out.shape.cols())?);
    let elements = || site.count(site.elements(site.out));
    let input_cols = |index: usize| site.count(site.inputs[index].shape.cols());
    let map = |launch| Ok(Stage::new(launch, [Slot::Input(0), Slot::Output]).into());
    let zip = |launch| Ok(Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Output]).into());
    if widens(site) {
        return widened(site, limits, |site| plan(site, provider, limits));
    }
    match *site.op {
        Op::Tokens | Op::Positions | Op::OutputRows | Op::Choices | Op::Adapters { .. } | Op::Weight(_) => {
            Ok(Stages::default())
        }
        Op::Embed(_) | Op::SelectRows => {
            let table = site.inputs[0];
            // A row of the result may have several of the table.
            let (cols, of) = (table.shape.cols(), site.count(site.rows(table))?);
            let (rows, cols) = (site.count(site.elements(site.out) / cols.max(1))?, site.count(cols)?);
            let single = site.inputs[1].shape.dims().len() == 1;
            let fed = site.shape.fed && matches!(site.op, Op::Embed(_)) && single;
            let spec = gather::Gathered { table: table.dtype, out: dtype, rows, cols, of, fed };
            gather::gather(&spec, limits)
        }
        Op::Slice { start, len } => {
            let columns = (site.count(start)?, site.count(len)?);
            let launch = gather::slice(dtype, (rows.0, input_cols(0)?), columns, limits)?;
            Ok(Stage::new(launch, [Slot::Input(0), Slot::Output]).touching(0, site.bytes(site.out)).into())
        }
        Op::Gather => gather::pick(dtype, (rows.0, input_cols(0)?), rows.1, limits),
        Op::Cast(_) => cast(site.inputs[0].dtype, dtype, site.elements(site.out), limits).and_then(map),
        Op::Unary(f) => map(elementwise::map(dtype, (unary_code(f), 0.0), elements()?, limits)?),
        Op::Scalar { op, value, reversed } => {
            map(elementwise::map(dtype, (scalar_code(op, reversed), value), elements()?, limits)?)
        }
        Op::Softcap(cap) => map(elementwise::map(dtype, (SOFTCAP, cap), elements()?, limits)?),
        Op::Binary(f) => {
            let period = site.count(site.elements(site.inputs[1]))?;
            zip(elementwise::zip(dtype, binary_code(f), (elements()?, period), limits)?)
        }
        Op::Gated(act) => zip(elementwise::zip(dtype, unary_code(act), (elements()?, elements()?), limits)?),
        Op::RmsNorm { eps, groups } => {
            let parts = site.count(groups)?;
            let shared = site.elements(site.inputs[1]) * groups == site.out.shape.cols();
            let spec = norm::NormSpec {
                dtype,
                vectors: site.inputs[1].dtype,
                rows: site.count(site.rows(site.out) * groups)?,
                cols: rows.1 / parts.max(1),
                parts: if shared { 1 } else { parts },
                eps,
            };
            zip(norm::rms_norm(&spec, limits)?)
        }
        Op::LayerNorm { eps } => {
            let vectors = site.inputs[1].dtype;
            let spec = norm::NormSpec { dtype, vectors, rows: rows.0, cols: rows.1, parts: 1, eps };
            let biased = site.inputs.len() > 2;
            let bias = if biased { Slot::Input(2) } else { Slot::Unused };
            let launch = norm::layer_norm(&spec, biased, limits)?;
            Ok(Stage::new(launch, [Slot::Input(0), Slot::Input(1), bias, Slot::Output]).into())
        }
        Op::Softmax => map(softmax::softmax(dtype, rows, limits)?),
        Op::Argmax => map(sample::argmax(site.inputs[0].dtype, site.input_rows()?, limits)?),
        Op::TopK { k } => {
            let k = site.count(k)?;
            let (rows, n) = site.input_rows()?;
            let launch = sample::top_k(site.inputs[0].dtype, (rows, n), k, limits)?;
            let slots = [Slot::Input(0), Slot::Scratch(0), Slot::Output];
            let mut stages: Stages = Stage::new(launch, slots).into();
            stages.scratch.push(sample::top_k_scratch(rows, k));
            Ok(stages)
        }
        Op::Sample => {
            let mut stages = sample::choose(site.input_rows()?, limits)?;
            if site.shape.edits {
                // Edited logits are written over; others may want them as they are.
                let (elements, bytes) = (site.elements(site.inputs[0]), site.bytes(site.inputs[0]));
                let own = stages.add_scratch(bytes);
                stages.replace(Slot::Input(0), own);
                let launch = cast(DType::F32, DType::F32, elements, limits)?;
                stages.stages.insert(0, Stage::new(launch, [Slot::Input(0), own]));
            }
            Ok(stages)
        }
        Op::Rope(spec) => rope::rope(dtype, &spec, rows, input_cols(2)?, limits),
        Op::Sdpa(spec) => sdpa::sdpa(&spec, site.inputs, limits),
        Op::Combine => zip(experts::combine(dtype, rows, input_cols(1)?, limits)?),
        Op::ExpertLinear => experts::expert_linear(&site.expert_linear()?, limits),
        Op::Linear if site.inputs[1].shape.dims().len() > 2 => batched(site, provider, limits),
        Op::Linear => site.products(&Project::PLAIN, None, provider, limits),
        Op::Project(spec) => site.products(&spec, None, provider, limits),
        Op::GatedProject { norm, act } => {
            let spec = Project { norm, parts: 2, ..Project::PLAIN };
            site.products(&spec, Some(act), provider, limits)
        }
        Op::Qkv(spec) => site.qkv(&spec, provider, limits),
        Op::KvWrite { state, .. } => {
            let rows = site.kv_rows(state)?;
            rope::kv_write(&rows, limits)
        }
        Op::Attention(attention) => {
            let states = site.states.ok_or_else(|| site.unsupported("no cache".to_owned()))?;
            let sinks = attention.sinks.then_some(Slot::Input(2));
            let spec = AttentionSpec { attention, shape: *site.shape, kv: states.dtype(), sinks };
            match provider {
                Some(Provider::SdpaPlain) => attention_plain::plan(&spec, limits),
                Some(Provider::SdpaMpsGraph) => attention_staged::plan(&spec, limits),
                Some(Provider::SdpaMpsGraphProject) => site.attention_projected(&spec, limits),
                _ => attention::plan(&spec, limits),
            }
        }
        Op::ShortConv { .. } => recurrent::short_conv(site.shape, (rows.1, input_cols(1)?), limits),
        Op::Recurrence(r) => recurrent::recurrence(&r, site.shape, limits),
    }
}

/// `n` elements as another float type.
fn cast(from: DType, to: DType, n: usize, limits: &Limits) -> Result<crate::kernels::Launch, GpuError> {
    let axes = crate::kernels::axes::Axes::new("cast", &[n], [&[1], &[1]])?;
    copy::copy((from, to), &axes, limits)
}

/// An operation whose kernels know `F32` alone, with casts of its activations before and after.
fn widened(
    site: &Site<'_>,
    limits: &Limits,
    plan: impl Fn(&Site<'_>) -> Result<Stages, GpuError>,
) -> Result<Stages, GpuError> {
    let wide = |ty: TensorType| TensorType { dtype: DType::F32, ..ty };
    let narrow = |index: usize| {
        let ty = site.inputs[index];
        ty.dtype != DType::F32 && ty.dtype.is_float() && site.op.weight_use(index) == WeightUse::Vector
    };
    let types: Vec<TensorType> =
        site.inputs.iter().enumerate().map(|(i, ty)| if narrow(i) { wide(*ty) } else { *ty }).collect();
    let half = site.out.dtype.is_float() && site.out.dtype != DType::F32;
    let out = if half { wide(site.out) } else { site.out };
    let mut stages = plan(&Site { inputs: &types, out, ..*site })?;
    let mut casts = Vec::new();
    for (index, ty) in types.iter().enumerate().filter(|(index, _)| narrow(*index)) {
        let scratch = stages.add_scratch(site.bytes(*ty));
        stages.replace(Slot::Input(index), scratch);
        let launch = cast(site.inputs[index].dtype, DType::F32, site.elements(*ty), limits)?;
        casts.push(Stage::new(launch, [Slot::Input(index), scratch]));
    }
    stages.stages.splice(0..0, casts);
    if half && site.elements(out) > 0 {
        let scratch = stages.keep_output(site.bytes(out));
        let launch = cast(DType::F32, site.out.dtype, site.elements(out), limits)?;
        stages.stages.push(Stage::new(launch, [scratch, Slot::Output]));
    }
    Ok(stages)
}

/// A product for each of the outer axes.
fn batched(site: &Site<'_>, provider: Option<Provider>, limits: &Limits) -> Result<Stages, GpuError> {
    let [x, w] = [site.inputs[0], site.inputs[1]];
    let last_two = |ty: TensorType| {
        let dims = ty.shape.dims();
        let inner = dims.len().saturating_sub(2);
        let shape = metallic_core::Shape::new(&dims[inner..]).unwrap_or(ty.shape);
        TensorType { shape, ..ty }
    };
    let inner = [last_two(x), last_two(w)];
    let single = Site { inputs: &inner, out: last_two(site.out), ..*site };
    let each = [site.bytes(inner[0]), site.bytes(inner[1]), site.bytes(single.out)];
    let batches = site.bytes(site.out).checked_div(each[2]).unwrap_or(0);
    // Whether there is a choice is for each product to say.
    let provider = choice(&single, limits).and(provider);
    if provider == Some(Provider::MatmulMps) {
        return single.batched_by_mps(batches, limits);
    }
    let mut all = Stages::default();
    for batch in 0..batches {
        let mut stages = plan(&single, provider, limits)?;
        for used in stages.slot_uses() {
            let part = match used.slot {
                Slot::Input(0) => each[0],
                Slot::Input(_) => each[1],
                Slot::Output => each[2],
                _ => continue,
            };
            used.start = batch * part;
            // It moves the bytes of one product and not those up to the end of the tensors.
            if used.moved == Moved::Once {
                used.moved = Moved::Bytes(part);
            }
        }
        all.append(stages);
    }
    Ok(all)
}

impl Site<'_> {
    fn sizes(&self) -> Sizes {
        self.shape.sizes()
    }

    pub(crate) fn rows(&self, ty: TensorType) -> usize {
        ty.shape.rows(self.sizes())
    }

    pub(crate) fn elements(&self, ty: TensorType) -> usize {
        ty.shape.elements(self.sizes())
    }

    pub(crate) fn bytes(&self, ty: TensorType) -> usize {
        ty.bytes(self.sizes()).unwrap_or(0)
    }

    fn unsupported(&self, reason: String) -> GpuError {
        GpuError::unsupported(self.op.name(), reason)
    }

    fn count(&self, n: usize) -> Result<u32, GpuError> {
        count(self.op.name(), n)
    }

    /// Rows of the first input, and their length.
    fn input_rows(&self) -> Result<(u32, u32), GpuError> {
        let x = self.inputs[0];
        Ok((self.count(self.rows(x))?, self.count(x.shape.cols())?))
    }

    fn is_half(&self) -> bool {
        let half = |ty: &TensorType| matches!(ty.dtype, DType::F16 | DType::BF16);
        let activation =
            |(index, ty): (usize, &TensorType)| half(ty) && self.op.weight_use(index) == WeightUse::Vector;
        half(&self.out) || self.inputs.iter().enumerate().any(activation)
    }

    /// Whether vectors are of a type that is neither the rows' nor `F32`, or not the rows' where they must be.
    fn mixes_types(&self) -> bool {
        let own = self.inputs[0].dtype;
        let binary = matches!(self.op, Op::Binary(_));
        let [_, vectors @ ..] = self.inputs else { return false };
        let first = vectors.first().map_or(own, |ty| ty.dtype);
        vectors.iter().any(|ty| ty.dtype != first) || first != own && (binary || first != DType::F32)
    }

    fn expert_linear(&self) -> Result<experts::ExpertLinear, GpuError> {
        let [x, w, ids] = [self.inputs[0], self.inputs[1], self.inputs[2]];
        let &[Dim::Fixed(experts), Dim::Fixed(rows), Dim::Fixed(cols)] = w.shape.dims() else {
            return Err(self.unsupported(format!("matrices {w}; their axes must be three and fixed")));
        };
        // A row of one matrix's columns serves all of a token's choices.
        let sharing = if x.shape.cols() == cols { ids.shape.cols() } else { 1 };
        let (experts, rows, cols) = (self.count(experts)?, self.count(rows)?, self.count(cols)?);
        let (choices, sharing) = (self.count(self.elements(ids))?, self.count(sharing)?);
        Ok(experts::ExpertLinear { dtype: w.dtype, experts, rows, cols, choices, sharing })
    }

    fn kv_rows(&self, state: metallic_core::StateId) -> Result<KvRows, GpuError> {
        let states = self.states.ok_or_else(|| self.unsupported("no cache".to_owned()))?;
        let kv = states.kv(state).ok_or_else(|| self.unsupported(format!("no keys of state {}", state.0)))?;
        let (kv_heads, head_dim, value_dim) = (kv.kv_heads, kv.key_dim, kv.value_dim);
        let tokens = self.count(self.shape.tokens)?;
        Ok(KvRows { dtype: states.dtype(), kv_heads, head_dim, value_dim, tokens })
    }
}

#[cfg(test)]
mod tests;
