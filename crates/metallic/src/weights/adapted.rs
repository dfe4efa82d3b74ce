//! What adapters add to a matrix: computed beside it for each token as its request says, or added to its numbers.

use metallic_core::{DType, Dim, NodeId, Shape, TensorType, Var, Weight, quant};
use metallic_formats::Tensor;

use super::recipe::Fault;
use super::{Recipe, WeightSource, fit};
use crate::adapter::{Adapter, Delta, numbers};
use crate::model::{ModelError, Naming};
use crate::nn::Dims;

/// The adapters of a model, and what becomes of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Adapters<'f> {
    pub(crate) all: &'f [Adapter],
    /// They are added to the matrices, each as much as it was loaded with.
    pub(crate) merged: bool,
}

/// `b · (shares * (a · x))`: what adapters add to a product.
pub(crate) struct LowRank<'g> {
    /// `[ranks, k]`
    a: Var<'g>,
    /// `[n, ranks]`
    b: Var<'g>,
    /// `[tokens, ranks]`; absent where the shares are part of `b`.
    shares: Option<Var<'g>>,
}

impl<'g> LowRank<'g> {
    /// `[.., k]` gives `[.., n]`.
    pub(crate) fn forward(&self, x: Var<'g>) -> Var<'g> {
        let inner = x.linear(self.a);
        let shares = self.shares.map(|shares| match x.ty().shape.leading() {
            Dim::Outputs => shares.select_rows(x.graph().output_rows()),
            Dim::Tokens | Dim::Fixed(_) => shares,
        });
        shares.map_or(inner, |shares| inner * shares).linear(self.b)
    }
}

/// How GGUF files order the rows of a head that rotate together: side by side, where folders have them half a head apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SideBySide {
    pub(crate) head_dim: usize,
    /// Elements of a head that rotate.
    pub(crate) rotated: usize,
}

impl SideBySide {
    /// Which row of a matrix as the one kind of file has it stands at `row` of the other's.
    pub(crate) fn source(self, from: Naming, to: Naming, row: usize) -> usize {
        let (start, i, half) = (row / self.head_dim * self.head_dim, row % self.head_dim, self.rotated / 2);
        match (from, to) {
            (Naming::HuggingFace, Naming::Gguf) if i < self.rotated => start + i % 2 * half + i / 2,
            (Naming::Gguf, Naming::HuggingFace) if i < self.rotated => start + i % half * 2 + i / half,
            (Naming::Gguf | Naming::HuggingFace, _) => row,
        }
    }
}

/// One adapter's part in a matrix.
struct Change {
    adapter: usize,
    rank: usize,
    factor: f32,
    dtypes: [DType; 2],
    /// `[rank, k]`
    a: Vec<f32>,
    /// `[n, rank]`
    b: Vec<f32>,
}

impl<'g> WeightSource<'_, 'g> {
    /// The matrix of a product, and what adapters add to the product where they are not part of it.
    pub(crate) fn matrix(&self, recipe: Recipe, dims: Dims) -> (Var<'g>, Option<LowRank<'g>>) {
        let shape = Shape::matrix(dims.rows, dims.cols);
        let changes = self.changes(&recipe, dims);
        if changes.is_empty() {
            return (self.weight(recipe, shape), None);
        }
        if !self.ledger.adapters.merged {
            let w = self.weight(recipe.clone(), shape);
            return (w, Some(self.low_rank(&recipe, dims, &changes)));
        }
        let merged = self.make(&recipe, None).and_then(|made| {
            self.ledger.mark(made.used);
            let weight = fit(made.tensor, shape)?;
            self.merge(&weight, dims, &changes)
        });
        let w = self.graph.weight(merged.unwrap_or_else(|fault| {
            let name = self.refuse(fault, &shape.to_string());
            Weight { name, ty: TensorType::f32(shape), data: Vec::new().into() }
        }));
        (w, None)
    }

    /// What adapters add to a product whose matrix is that of another weight: a head that is the table of embeddings.
    pub(crate) fn beside(&self, recipe: &Recipe, dims: Dims) -> Option<LowRank<'g>> {
        let changes = self.changes(recipe, dims);
        (!changes.is_empty()).then(|| self.low_rank(recipe, dims, &changes))
    }

    /// What all adapters add to what this recipe makes.
    fn changes(&self, recipe: &Recipe, dims: Dims) -> Vec<Change> {
        let mut changes = Vec::new();
        for (index, adapter) in self.ledger.adapters.all.iter().enumerate() {
            let Some((target, delta, rows)) = self.found(adapter, recipe) else { continue };
            self.ledger.state.borrow_mut().adapted.insert((index, target.clone()));
            match change(index, delta, &rows, dims) {
                Ok(change) => changes.push(change),
                Err(needed) => {
                    let found = |half: &Tensor| format!("{} {:?}", half.dtype, half.shape);
                    let found = format!("A {} and B {}", found(&delta.a), found(&delta.b));
                    let error =
                        ModelError::AdapterShape { file: adapter.file.clone(), target, found, needed };
                    self.ledger.state.borrow_mut().error.get_or_insert(error);
                }
            }
        }
        changes
    }

    /// What an adapter adds to the tensor that this recipe is made of, and where its rows stand in what is made.
    fn found<'s>(&self, adapter: &'s Adapter, recipe: &Recipe) -> Option<(String, &'s Delta, Rows)> {
        match recipe {
            Recipe::Tensor { name, suffix: ".weight" } => {
                let prefixes = match adapter.naming {
                    Naming::Gguf => std::slice::from_ref(&self.gguf_prefix),
                    Naming::HuggingFace => &self.hf_prefixes,
                };
                let mut names = name
                    .spellings(adapter.naming)
                    .flat_map(|name| prefixes.iter().map(move |prefix| format!("{prefix}{name}")));
                let (delta, target) = names.find_map(|name| Some((adapter.deltas.get(&name)?, name)))?;
                let n = delta.b.shape.first().copied().unwrap_or(0);
                let source = |row| {
                    self.turned.map_or(row, |turned| turned.source(adapter.naming, self.ledger.naming, row))
                };
                Some((target, delta, (0..n).map(|row| Some(source(row))).collect()))
            }
            Recipe::ByFile { gguf, hf } => match adapter.naming {
                Naming::Gguf => self.found(adapter, gguf),
                Naming::HuggingFace => self.found(adapter, hf),
            },
            Recipe::Rows { of, rows } => {
                let (target, delta, of) = self.found(adapter, of)?;
                Some((target, delta, of.get(rows.clone()).unwrap_or_default().to_vec()))
            }
            Recipe::Picked { of, rows } => {
                let (target, delta, of) = self.found(adapter, of)?;
                let picked = rows.iter().map(|row| of.get((*row)?).copied().flatten()).collect();
                Some((target, delta, picked))
            }
            // The factors are of the matrix as it multiplies, however the file has it.
            Recipe::Transposed(of) => self.found(adapter, of),
            Recipe::Tensor { .. }
            | Recipe::PlusOne(_)
            | Recipe::NegatedExp(_)
            | Recipe::Mxfp4 { .. }
            | Recipe::Stacked { .. } => None,
        }
    }

    /// All changes side by side.
    fn low_rank(&self, recipe: &Recipe, dims: Dims, changes: &[Change]) -> LowRank<'g> {
        let merged = self.ledger.adapters.merged;
        let ranks: usize = changes.iter().map(|change| change.rank).sum();
        let a: Vec<f32> = changes.iter().flat_map(|change| change.a.iter().copied()).collect();
        let mut b = Vec::with_capacity(dims.rows * ranks);
        for row in 0..dims.rows {
            for change in changes {
                let factor = if merged { change.factor * self.scale(change) } else { 1.0 };
                b.extend(change.b[row * change.rank..][..change.rank].iter().map(|x| factor * x));
            }
        }
        let name = format!("adapters of {}{recipe:?}", self.gguf_prefix);
        let half = |which: usize, rows: usize, cols: usize, numbers: &[f32]| {
            let same = changes.iter().all(|change| change.dtypes[which] == changes[0].dtypes[which]);
            let dtype = changes[0].dtypes[which];
            let dtype = if same && dtype.is_float() && !merged { dtype } else { DType::F32 };
            let shape = Shape::matrix(rows, cols);
            let name = format!("{name}, {}", ["a", "b"][which]);
            self.graph.weight(Weight {
                name,
                ty: TensorType::new(dtype, shape),
                data: encoded(dtype, numbers).into(),
            })
        };
        let (a, b) = (half(0, ranks, dims.cols, &a), half(1, dims.rows, ranks, &b));
        LowRank { a, b, shares: (!merged).then(|| self.shares(changes)) }
    }

    fn scale(&self, change: &Change) -> f32 {
        self.ledger.adapters.all.get(change.adapter).map_or(0.0, |adapter| adapter.share.scale)
    }

    /// How much each token takes of each rank: `[tokens, ranks]`. Most matrices have the same.
    fn shares(&self, changes: &[Change]) -> Var<'g> {
        let count = self.ledger.adapters.all.len();
        let mut spread = Vec::new();
        for change in changes {
            let row = (0..count).map(|i| if i == change.adapter { change.factor } else { 0.0 });
            (0..change.rank).for_each(|_| spread.extend(row.clone()));
        }
        let bits: Vec<u32> = spread.iter().map(|x| x.to_bits()).collect();
        let known: Option<NodeId> = self.ledger.state.borrow().shares.get(&bits).copied();
        known.and_then(|id| self.graph.var(id)).unwrap_or_else(|| {
            let which = self.ledger.state.borrow().shares.len();
            let shape = Shape::matrix(spread.len() / count.max(1), count);
            let spread = self.constant(&format!("ranks of adapters, {which}"), shape, &spread);
            let shares = self.graph.adapters(count).linear(spread);
            self.ledger.state.borrow_mut().shares.insert(bits, shares.id());
            shares
        })
    }

    /// `W + Σ scale * factor * B · A`; of a quantised matrix as `F16`, which keeps what it adds.
    fn merge(&self, weight: &Weight, dims: Dims, changes: &[Change]) -> Result<Weight, Fault> {
        let mut sum = vec![0.0; dims.rows * dims.cols];
        quant::dequantize(weight.ty.dtype, &weight.data, &mut sum).map_err(|error| Fault::Unfit {
            name: weight.name.clone(),
            found: weight.ty.to_string(),
            needed: format!("numbers an adapter can be added to ({error})"),
        })?;
        for change in changes {
            let scale = change.factor * self.scale(change);
            let rows = sum.chunks_exact_mut(dims.cols.max(1)).zip(change.b.chunks_exact(change.rank.max(1)));
            for (row, factors) in rows {
                for (factor, a) in factors.iter().zip(change.a.chunks_exact(dims.cols.max(1))) {
                    row.iter_mut().zip(a).for_each(|(x, y)| *x += scale * factor * y);
                }
            }
        }
        let dtype = if weight.ty.dtype.is_float() { weight.ty.dtype } else { DType::F16 };
        let ty = TensorType::new(dtype, Shape::matrix(dims.rows, dims.cols));
        let name = format!("{} with adapters", weight.name);
        Ok(Weight { name, ty, data: encoded(dtype, &sum).into() })
    }
}

/// Where each row of a matrix stands in the half that makes it; `None` is a row of zeros.
type Rows = Vec<Option<usize>>;

/// The numbers of a change, its rows in the order of the model's; or what would fit.
fn change(adapter: usize, delta: &Delta, rows: &Rows, dims: Dims) -> Result<Change, String> {
    let rank = delta.rank();
    let cols = delta.a.shape.get(1).copied().unwrap_or(0);
    if cols != dims.cols || rows.len() != dims.rows {
        return Err(format!("A [{rank}, {}] and B [{}, {rank}]", dims.cols, delta.b.shape[0].max(dims.rows)));
    }
    let of = |half: &Tensor| numbers(half).ok_or_else(|| "floats or a quantised type".to_owned());
    let (a, halves) = (of(&delta.a)?, of(&delta.b)?);
    let mut b = vec![0.0; dims.rows * rank];
    for (to, from) in b.chunks_exact_mut(rank.max(1)).zip(rows) {
        let Some(from) = from else { continue };
        to.copy_from_slice(halves.get(from * rank..(from + 1) * rank).ok_or("more rows")?);
    }
    let dtypes = [delta.a.dtype, delta.b.dtype];
    Ok(Change { adapter, rank, factor: delta.factor, dtypes, a, b })
}

fn encoded(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let mut data = vec![0; dtype.bytes_for(numbers.len()).unwrap_or(0)];
    match quant::quantize(dtype, numbers, &mut data) {
        Ok(()) => data,
        // The graph refuses what has too few bytes.
        Err(_) => Vec::new(),
    }
}
