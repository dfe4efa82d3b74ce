//! Which kernels make products: of few tokens, of many, by tiles, by tensor operations or by a library.

use metallic_core::{DType, Dim, Op, Project, Qkv, WeightUse};

use super::Site;
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::attention::AttentionSpec;
use crate::kernels::project::{Part, Projection};
use crate::kernels::rope::{HeadNorm, RopeKv};
use crate::kernels::{
    Slot, Stages, attention_staged, cell_matmul, cell_matvec, cell_qkv, cell_rows, cells, library, project,
    qkv, tensor_matmul,
};
use crate::provider::Provider;

/// The part of a device's memory that the products of a library may take for themselves: one of so many.
pub(super) const LIBRARY_PART: u64 = 32;

/// Tokens that are staged exactly with matrices of F16; more go as halfs where that may be.
const EXACT_TOKENS: u32 = 4;

/// What an operation projects by, where it is a product with one matrix, and nothing is done before it.
pub(crate) fn projects(op: &Op) -> Option<Project> {
    let plain = (*op == Op::Linear).then_some(Project::PLAIN);
    let project = if let Op::Project(project) = op { Some(*project) } else { plain };
    project.filter(|project| project.parts == 1 && project.norm.is_none())
}

impl Site<'_> {
    pub(super) fn products(
        &self,
        spec: &Project,
        gate: Option<metallic_core::Unary>,
        provider: Option<Provider>,
        limits: &Limits,
    ) -> Result<Stages, GpuError> {
        let projection = Projection { gate, ..self.projection(spec)? };
        self.may_round(provider)?;
        match provider {
            Some(Provider::MatmulLibrary) => return library::plan(&projection, self.cells, limits),
            Some(Provider::MatmulMps) => return self.by_mps(&projection, 1, limits),
            Some(Provider::MatmulTensor) => return self.by_tensors(&projection, limits),
            _ => {}
        }
        match (self.cells, self.by_tiles(projection.tokens, provider, limits)) {
            (true, true) => cell_matmul::plan(&projection, limits),
            (true, false) if self.by_eight(&projection, limits) => cell_rows::plan(&projection, limits),
            (true, false) => cell_matvec::plan_vectors(&projection, limits),
            (false, true) => project::plan_tiles(&projection, limits),
            (false, false) => project::plan_vectors(&projection, limits),
        }
    }

    pub(super) fn qkv(
        &self,
        spec: &Qkv,
        provider: Option<Provider>,
        limits: &Limits,
    ) -> Result<Stages, GpuError> {
        let projection = self.projection(&spec.project())?;
        let way = RopeKv {
            rope: &spec.rope,
            kv: self.kv_rows(spec.state)?,
            heads: self.count(spec.heads)?,
            pairs: self.count(self.inputs[spec.freqs()].shape.cols())?,
            positions: Slot::Input(spec.positions()),
            freqs: Slot::Input(spec.freqs()),
            norm: spec.head_norm.zip(spec.head_norms()).map(|(eps, first)| HeadNorm {
                eps,
                q: Slot::Input(first),
                k: Slot::Input(first + 1),
            }),
        };
        self.may_round(provider)?;
        let products = match provider {
            Some(Provider::MatmulLibrary) => Some(library::plan(&projection, self.cells, limits)?),
            Some(Provider::MatmulMps) => Some(self.by_mps(&projection, 1, limits)?),
            Some(Provider::MatmulTensor) => Some(self.by_tensors(&projection, limits)?),
            _ => None,
        };
        if let Some(products) = products {
            return qkv::after(products, &projection, &way, limits);
        }
        match (self.cells, self.by_tiles(projection.tokens, provider, limits)) {
            (true, true) => qkv::after(cell_matmul::plan(&projection, limits)?, &projection, &way, limits),
            (true, false) if self.by_eight(&projection, limits) => {
                cell_qkv::plan_rows(&projection, &way, limits)
            }
            (true, false) => cell_qkv::plan(&projection, &way, limits),
            (false, true) => qkv::tiles(&projection, &way, limits),
            (false, false) => qkv::vectors(&projection, &way, limits),
        }
    }

    /// Whether activations may be rounded to halfs: not where keys and values are kept as they are computed, and not where matrices
    /// are of bfloats, which halfs do not hold.
    pub(super) fn takes_halfs(&self) -> bool {
        self.rounds() && !self.matrices().any(|dtype| dtype == DType::BF16)
    }

    /// Whether keys and values are kept less exactly than they are computed: then so may be what they are computed from.
    pub(super) fn rounds(&self) -> bool {
        self.states.is_some_and(|states| states.dtype() != DType::F32)
    }

    /// Refuses a provider whose products would round more than they may.
    fn may_round(&self, provider: Option<Provider>) -> Result<(), GpuError> {
        let reason = match provider {
            Some(Provider::MatmulLibrary | Provider::MatmulTensor) if !self.rounds() => {
                "activations of 16 bits; only a cache of less than 32 bits allows that"
            }
            Some(Provider::MatmulTiles) if self.cells && !self.takes_halfs() => {
                "tiles of halfs, for bfloats or beside a cache of F32"
            }
            _ => return Ok(()),
        };
        Err(self.unsupported(reason.to_owned()))
    }

    /// Types of its matrices.
    fn matrices(&self) -> impl Iterator<Item = DType> {
        let types = self.inputs.iter().enumerate();
        types.filter(|(index, _)| self.op.weight_use(*index) == WeightUse::Matrix).map(|(_, ty)| ty.dtype)
    }

    /// Whether a library's product does well here: it has weights laid out anew each time, which many tokens make good, and takes
    /// memory for them and for the products.
    pub(super) fn suits_library(&self, limits: &Limits) -> bool {
        let fits = |budget: u64| self.library_bytes() as u64 <= budget / LIBRARY_PART;
        self.rows(self.out) >= limits.tuning.library_tokens as usize
            && self.rounds()
            && library::takes(self.matrices())
            && limits.budget.is_none_or(fits)
    }

    /// Bytes of weights as a library takes them, and of products.
    fn library_bytes(&self) -> usize {
        let types = self.inputs.iter().enumerate();
        let matrices = types.filter(|(index, _)| self.op.weight_use(*index) == WeightUse::Matrix);
        let each = matrices.map(|(_, ty)| {
            let (elements, cols) = (self.elements(*ty), ty.shape.cols().max(1));
            let products = (elements / cols).saturating_mul(self.rows(self.out)).saturating_mul(4);
            elements.saturating_mul(2).saturating_add(products)
        });
        each.fold(0, usize::saturating_add)
    }

    /// Attention, and the projection that comes next, as one graph of MPSGraph.
    pub(super) fn attention_projected(
        &self,
        spec: &AttentionSpec,
        limits: &Limits,
    ) -> Result<Stages, GpuError> {
        let next = self.next.and_then(|next| Some((next, projects(next.op)?)));
        let Some((next, project)) = next else {
            return Err(self.unsupported(
                "one graph with the projection after it: its value goes elsewhere, or not into a projection alone"
                    .to_owned(),
            ));
        };
        if next.is_half() || next.cells {
            let form = if next.cells { "matrices for other matrix units" } else { "activations of 16 bits" };
            return Err(self.unsupported(format!("one graph with a projection of {form}")));
        }
        let needed = next.library_bytes() as u64;
        if let Some(most) = limits.budget.map(|budget| budget / LIBRARY_PART).filter(|most| needed > *most) {
            let reason =
                format!("{needed} bytes of weights and products by MPSGraph: at most {most} are taken");
            return Err(self.unsupported(reason));
        }
        let bytewise = next.matrices().any(|dtype| dtype.block_bytes() % 2 == 1);
        let stages = attention_staged::plan_projected(spec, &next.projection(&project)?, limits)?;
        Ok(stages.bytewise(bytewise))
    }

    /// A product for each of the outer axes, by MPS at once.
    pub(super) fn batched_by_mps(&self, batches: usize, limits: &Limits) -> Result<Stages, GpuError> {
        self.by_mps(&self.projection(&Project::PLAIN)?, self.count(batches)?, limits)
    }

    /// The products by MPS, for which matrices are laid out anew in each step, where they fit.
    fn by_mps(&self, projection: &Projection, batches: u32, limits: &Limits) -> Result<Stages, GpuError> {
        if self.cells {
            return Err(self.unsupported("matrices that are laid out for other matrix units".to_owned()));
        }
        let needed = (self.library_bytes() as u64).saturating_mul(batches.into());
        if let Some(most) = limits.budget.map(|budget| budget / LIBRARY_PART).filter(|most| needed > *most) {
            let reason = format!("{needed} bytes of weights and products by MPS: at most {most} are taken");
            return Err(self.unsupported(reason));
        }
        library::plan_mps(projection, batches, limits)
    }

    /// The products by tensor operations, which take activations as halfs and matrices as they lie in their files.
    fn by_tensors(&self, projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
        if self.cells {
            return Err(self.unsupported("matrices that are laid out for other matrix units".to_owned()));
        }
        tensor_matmul::plan(projection, limits)
    }

    /// Few tokens go through the matrix–vector kernels, which fuse everything; for many there is a choice, but tiles of weights in
    /// cells take halfs.
    fn by_tiles(&self, tokens: u32, provider: Option<Provider>, limits: &Limits) -> bool {
        match provider {
            None if self.cells && !self.takes_halfs() => false,
            Some(Provider::MatmulRows) => false,
            Some(Provider::MatmulTiles | Provider::MatmulTensor) => true,
            Some(
                Provider::MatmulLibrary
                | Provider::MatmulMps
                | Provider::SdpaFlash
                | Provider::SdpaPlain
                | Provider::SdpaMpsGraph
                | Provider::SdpaMpsGraphProject,
            )
            | None => {
                // Tiles of cells round vectors to halfs, which the kernels of few tokens do not.
                let fewest = if self.cells { cell_matvec::MAX_TOKENS } else { 0 };
                tokens > limits.tuning.vector_tokens.max(fewest)
            }
        }
    }

    /// Whether a few tokens of a step have their vectors laid out before: more than threadgroups stage themselves.
    fn by_eight(&self, projection: &Projection, limits: &Limits) -> bool {
        let tokens = projection.tokens;
        let many = if self.of_bytes() {
            self.rounds()
                && tokens > 1
                && tokens.saturating_mul(projection.cols) > limits.tuning.staged_numbers
        } else {
            tokens > EXACT_TOKENS && self.takes_halfs()
        };
        many && tokens <= cell_matvec::MAX_TOKENS
    }

    /// Whether products with all matrices take numbers of two bytes, which round less than halfs.
    fn of_bytes(&self) -> bool {
        self.matrices().all(cells::takes_bytes)
    }

    fn projection(&self, spec: &Project) -> Result<Projection, GpuError> {
        let at = spec.inputs();
        let mut parts = [None; project::MAX_PARTS];
        if spec.parts > parts.len() {
            let reason = format!("{} matrices side by side; at most {}", spec.parts, parts.len());
            return Err(self.unsupported(reason));
        }
        for (i, part) in parts.iter_mut().take(spec.parts).enumerate() {
            let weight = self.inputs[at.weights + i];
            let Dim::Fixed(rows) = weight.shape.leading() else {
                return Err(self.unsupported(format!("a matrix {weight}; its rows must be fixed")));
            };
            *part = Some(Part {
                dtype: weight.dtype,
                rows: self.count(rows)?,
                weight: Slot::Input(at.weights + i),
                bias: at.biases.map(|b| Slot::Input(b + i)),
            });
        }
        let (tokens, cols) = self.input_rows()?;
        let (op, x, residual) = (self.op.name(), Slot::Input(0), at.residual.map(Slot::Input));
        let norm = spec.norm.zip(at.norm).map(|(eps, index)| (eps, Slot::Input(index)));
        Ok(Projection { op, tokens, cols, parts, x, norm, residual, gate: None, fine: !self.rounds() })
    }
}
