//! One table of cases for every operation.
//!
//! A case is a small graph around one operation. It begins with an embedding, so that activations differ from token to
//! token, or with fixed tensors where the operation has no place in a step.

mod attention;
mod chance;
mod choices;
mod kinds;
mod maker;
mod products;
mod rows;
mod states;

use metallic_core::{DType, Graph, GraphBuilder, Var, rewrite};

pub use chance::random;
pub use choices::packed;
pub use kinds::{KINDS, kind};
pub use maker::Maker;
pub(crate) use maker::{encode, shares, weights};

use crate::Tolerance;

/// What the order of a few hundred additions in `F32` may change, at values around 1.
const EXACT: f32 = 2e-4;

/// What products by matrix units may change beyond that: numbers go into them as two bfloats each, which have 16 bits of 24; or as halfs,
/// which have 11, where keys and values have less than 32 bits.
const UNITS: f32 = 3e-4;
const UNITS_OF_HALFS: f32 = 2e-3;

/// Rows of every embedding table.
pub const VOCAB: usize = 50;

/// Every type of activations.
pub const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// What a backend does with activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// It rounds them to 8 bits where weights are quantised.
    Rounded,
    /// It computes in `F32` throughout.
    Exact,
    /// It has matrix units that take bfloats and halfs, and computes in `F32` elsewhere.
    Units,
}

/// Where a case can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsAs {
    /// In a program, and alone.
    Anywhere,
    /// As a single operation on tensors only.
    Alone,
}

/// What comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Numbers well above the tolerance.
    Numbers,
    /// Zeros, or nothing, by the rules of the operation.
    Zeros,
}

/// One operation in one form.
pub struct Case {
    /// What it is.
    pub name: String,
    /// The computation; its output is compared.
    pub graph: Graph,
    /// The same with an output of `F32`, whatever type its activations get.
    pub widened: Graph,
    /// How keys and values are stored.
    pub kv: DType,
    /// Types of activations that can hold its numbers.
    pub activations: &'static [DType],
    /// Where it can run.
    pub place: RunsAs,
    /// What comes out.
    pub outcome: Outcome,
    rounded: f32,
    exact: f32,
    relative: f32,
}

impl Case {
    /// A case of these results, for a backend that rounds activations off by at most `tolerance` at values around 1.
    fn new(name: String, tolerance: f32, build: impl for<'g> Fn(&Maker<'g>) -> Var<'g>) -> Case {
        let made = |widen: bool| {
            let g = GraphBuilder::new();
            let out = build(&Maker::new(&g, &name));
            let out = if widen && out.ty().dtype.is_float() { out.cast(DType::F32) } else { out };
            g.finish(&[out]).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let (graph, widened) = (made(false), made(true));
        Case {
            name,
            graph,
            widened,
            kv: DType::F32,
            activations: FLOATS,
            place: RunsAs::Anywhere,
            outcome: Outcome::Numbers,
            rounded: tolerance,
            exact: tolerance.min(EXACT),
            relative: 0.0,
        }
    }

    fn kv(&mut self, kv: DType) -> &mut Case {
        self.kv = kv;
        self
    }

    /// What an exact backend may be off by, where that is more than sums are.
    fn exact(&mut self, exact: f32) -> &mut Case {
        self.exact = exact;
        self
    }

    /// Off by this share of a large result as well.
    fn relative(&mut self, relative: f32) -> &mut Case {
        self.relative = relative;
        self
    }

    /// Numbers that other types of activations cannot hold.
    fn only(&mut self, activations: &'static [DType]) -> &mut Case {
        self.activations = activations;
        self
    }

    fn alone(&mut self) -> &mut Case {
        self.place = RunsAs::Alone;
        self
    }

    fn zeros(&mut self) -> &mut Case {
        self.outcome = Outcome::Zeros;
        self
    }

    /// How far results may be off.
    pub fn tolerance(&self, exactness: Exactness) -> Tolerance {
        let absolute = match exactness {
            Exactness::Rounded => self.rounded,
            Exactness::Exact => self.exact,
            // What allows less has no product in it.
            Exactness::Units if self.exact < EXACT => self.exact,
            Exactness::Units if self.kv == DType::F32 => self.exact + UNITS,
            Exactness::Units => self.exact + UNITS_OF_HALFS,
        };
        Tolerance { absolute, relative: self.relative }
    }

    /// The computation as it is written, and as fusion makes it.
    pub fn forms(&self) -> Result<[Graph; 2], String> {
        Ok([self.graph.clone(), rewrite::fuse(&self.graph).map_err(|e| e.to_string())?])
    }
}

/// Cases, as they are written down.
#[derive(Default)]
struct Table(Vec<Case>);

impl Table {
    /// Adds a case, see [`Case::new`].
    fn case(
        &mut self,
        name: impl Into<String>,
        tolerance: f32,
        build: impl for<'g> Fn(&Maker<'g>) -> Var<'g>,
    ) -> &mut Case {
        self.0.push(Case::new(name.into(), tolerance, build));
        self.0.last_mut().expect("it was just added")
    }
}

/// Every operation in its forms.
pub fn all() -> Vec<Case> {
    let mut table = Table::default();
    for part in [
        rows::elements,
        rows::picked,
        rows::normed,
        rows::rotated,
        products::linear,
        products::experts,
        attention::kept,
        attention::projected,
        attention::qkv,
        attention::given,
        states::all,
        choices::all,
    ] {
        part(&mut table);
    }
    table.0
}

/// Attention over contexts that a device may split, for [`crate::graphs::check_long`].
pub fn long() -> Vec<Case> {
    let mut table = Table::default();
    attention::long(&mut table);
    table.0
}
