//! Weights by recipe: typed from the file's own tensors, and nothing missing, misshapen or left unread.

mod adapted;
mod packed;
mod recipe;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use metallic_core::{Bytes, DType, Dim, GraphBuilder, NodeId, Shape, TensorType, Var, Weight};
use metallic_formats::Tensor;

use crate::model::{Key, ModelError, Naming};
pub(crate) use adapted::{Adapters, LowRank, SideBySide};
pub(crate) use packed::Packing;
pub use recipe::Recipe;
use recipe::{Fault, Used};

/// Tensors some files carry that hold nothing a model needs.
fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name.ends_with("attn_rot_embd")
}

/// What comes before the name of a tensor where a model of text is part of a larger one, and what stands for it alone.
const WRAPPERS: [(&str, &str); 2] = [("model.language_model.", "model."), ("language_model.", "")];
/// How the names of tensors begin that have to do with images and sounds, or guess tokens ahead.
const OTHERS: [&str; 9] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.visual.",
    "visual.",
    "model.audio_tower.",
    "audio_tower.",
    "mtp.",
];

/// The name of a tensor as a model of text alone has it; `None` for what such a model does not have.
pub(crate) fn plain_name(name: &str) -> Option<String> {
    if OTHERS.iter().any(|other| name.starts_with(other)) {
        return None;
    }
    let inner =
        WRAPPERS.iter().find_map(|(wrapper, plain)| Some(format!("{plain}{}", name.strip_prefix(wrapper)?)));
    Some(inner.unwrap_or_else(|| name.to_owned()))
}

/// The tensors of a file, and what became of them.
pub(crate) struct Ledger<'f> {
    naming: Naming,
    file: String,
    /// By the names families know them by.
    tensors: BTreeMap<String, &'f Tensor>,
    packing: Packing,
    adapters: Adapters<'f>,
    state: RefCell<State>,
}

/// A weight that a model took: how it is made, of which item.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// What comes before names, in this file and in GGUF files.
    pub(crate) prefix: String,
    pub(crate) gguf_prefix: String,
    pub(crate) recipe: Recipe,
}

#[derive(Default)]
struct State {
    parts: Vec<Part>,
    used: BTreeMap<String, Vec<Used>>,
    /// By adapter, what of it was taken.
    adapted: BTreeSet<(usize, String)>,
    /// What tokens take of adapters, by the bits of what spreads it over ranks.
    shares: HashMap<Vec<u32>, NodeId>,
    error: Option<ModelError>,
}

impl<'f> Ledger<'f> {
    pub(crate) fn new(naming: Naming, file: String, tensors: impl Iterator<Item = &'f Tensor>) -> Ledger<'f> {
        let tensors = tensors.filter_map(|t| Some((plain_name(&t.name)?, t))).collect();
        let (packing, adapters) = (Packing::Plain, Adapters::default());
        Ledger { naming, file, tensors, packing, adapters, state: RefCell::default() }
    }

    /// The same, where matrices are packed.
    pub(crate) fn packed(self, packing: Packing) -> Ledger<'f> {
        Ledger { packing, ..self }
    }

    /// The same, changed by adapters.
    pub(crate) fn adapted(self, adapters: Adapters<'f>) -> Ledger<'f> {
        Ledger { adapters, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.tensors.len()
    }

    pub(crate) fn source<'g>(&self, graph: &'g GraphBuilder) -> WeightSource<'_, 'g> {
        WeightSource {
            graph,
            ledger: self,
            prefix: String::new(),
            gguf_prefix: String::new(),
            hf_prefixes: vec![String::new()],
            turned: None,
        }
    }

    /// Every weight that was taken.
    pub(crate) fn parts(&self) -> Vec<Part> {
        self.state.borrow().parts.clone()
    }

    /// What a part is made into.
    pub(crate) fn make(&self, part: &Part) -> Result<Tensor, ModelError> {
        let builder = GraphBuilder::new();
        let source = WeightSource { prefix: part.prefix.clone(), ..self.source(&builder) };
        source.make(&part.recipe, None).map(|made| made.tensor).map_err(|fault| {
            let file = self.file.clone();
            match fault {
                Fault::Missing { name } => ModelError::Missing { file, name, needed: String::new() },
                Fault::Unfit { name, found, needed } => ModelError::Mismatch { file, name, found, needed },
            }
        })
    }

    fn mark(&self, used: Vec<Used>) {
        let state = &mut *self.state.borrow_mut();
        for part in used {
            state.used.entry(part.name.clone()).or_default().push(part);
        }
    }

    /// Nothing was missing or misshapen, and every row of every tensor was read.
    pub(crate) fn finish(self) -> Result<(), ModelError> {
        let State { used, error, adapted, .. } = self.state.into_inner();
        if let Some(error) = error {
            return Err(error);
        }
        for (index, adapter) in self.adapters.all.iter().enumerate() {
            adapter.same(&self.tensors)?;
            let mut left =
                adapter.deltas.keys().filter(|target| !adapted.contains(&(index, (*target).clone())));
            if let Some(target) = left.next() {
                let (file, target) = (adapter.file.clone(), target.clone());
                let needed =
                    "matrices of this model's layers, or its head; not embeddings or experts".to_owned();
                return Err(ModelError::AdapterTarget { file, target, others: left.count(), needed });
            }
        }
        let unread = |tensor: &&Tensor| match used.get(&tensor.name) {
            Some(parts) => {
                first_gap(parts).map(|rows| format!("{}[{}..{}]", tensor.name, rows.start, rows.end))
            }
            None => (!is_derived(&tensor.name)).then(|| tensor.name.clone()),
        };
        let mut unread = self.tensors.values().filter_map(unread);
        match unread.next() {
            None => Ok(()),
            Some(name) => Err(ModelError::Unread { file: self.file, name, others: unread.count() }),
        }
    }
}

/// The first rows that no part has.
fn first_gap(parts: &[Used]) -> Option<Range<usize>> {
    let rows = parts.iter().map(|part| part.of).max()?;
    if parts.iter().any(|part| part.rows == (0..part.of)) {
        return None;
    }
    let mut taken: Vec<&Range<usize>> = parts.iter().map(|part| &part.rows).collect();
    taken.sort_by_key(|rows| rows.start);
    let mut read = 0;
    for part in taken {
        if part.start > read {
            return Some(read..part.start);
        }
        read = read.max(part.end);
    }
    (read < rows).then_some(read..rows)
}

/// Where a model takes its weights from: the file, or a layer of it. What cannot be had is reported when the model is
/// built, by its name.
pub struct WeightSource<'a, 'g> {
    graph: &'g GraphBuilder,
    ledger: &'a Ledger<'a>,
    prefix: String,
    /// What the prefix is in GGUF files.
    gguf_prefix: String,
    /// What it may be in Hugging Face folders.
    hf_prefixes: Vec<String>,
    /// GGUF files have the rows of what is taken here in another order.
    turned: Option<SideBySide>,
}

impl<'a, 'g> WeightSource<'a, 'g> {
    /// The graph that weights become part of.
    pub fn graph(&self) -> &'g GraphBuilder {
        self.graph
    }

    /// Item `i` of a numbered group, as `blk.3` and `model.layers.3`: names asked of it stand behind that.
    #[must_use]
    pub fn item(&self, group: Key, i: usize) -> WeightSource<'a, 'g> {
        let mut prefixes =
            group.spellings(self.ledger.naming).map(|name| format!("{}{name}.{i}.", self.prefix)).peekable();
        let first = prefixes.peek().cloned().unwrap_or_default();
        let there = |prefix: &String| {
            let mut after = self.ledger.tensors.range(prefix.clone()..);
            after.next().is_some_and(|(name, _)| name.starts_with(prefix))
        };
        let gguf = group.spellings(Naming::Gguf).next().unwrap_or_default();
        let gguf_prefix = format!("{}{gguf}.{i}.", self.gguf_prefix);
        let spellings = || group.spellings(Naming::HuggingFace);
        let all = |prefix: &String| spellings().map(move |name| format!("{prefix}{name}.{i}.")).collect();
        let hf_prefixes = self.hf_prefixes.iter().flat_map(|prefix| -> Vec<String> { all(prefix) }).collect();
        let prefix = prefixes.find(there).unwrap_or(first);
        WeightSource { prefix, gguf_prefix, hf_prefixes, ..*self }
    }

    /// The same, for matrices whose rows GGUF files have in another order.
    pub(crate) fn turned(&self, turned: Option<SideBySide>) -> WeightSource<'a, 'g> {
        let (prefix, gguf_prefix) = (self.prefix.clone(), self.gguf_prefix.clone());
        WeightSource { prefix, gguf_prefix, hf_prefixes: self.hf_prefixes.clone(), turned, ..*self }
    }

    /// A weight of this shape. Matrices may be of any weight type, vectors only of floats.
    pub fn weight(&self, recipe: impl Into<Recipe>, shape: Shape) -> Var<'g> {
        let recipe = recipe.into();
        let weight = self.make(&recipe, None).and_then(|made| {
            self.ledger.mark(made.used);
            if self.ledger.naming == Naming::HuggingFace {
                let (prefix, gguf_prefix) = (self.prefix.clone(), self.gguf_prefix.clone());
                self.ledger.state.borrow_mut().parts.push(Part { prefix, gguf_prefix, recipe });
            }
            fit(made.tensor, shape)
        });
        self.graph.weight(weight.unwrap_or_else(|fault| {
            let name = self.refuse(fault, &shape.to_string());
            Weight { name, ty: TensorType::f32(shape), data: Bytes::from(Vec::new()) }
        }))
    }

    /// A constant of this shape.
    pub fn constant(&self, name: &str, shape: Shape, values: &[f32]) -> Var<'g> {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let name = format!("{name} {shape}");
        self.graph.weight(Weight { name, ty: TensorType::f32(shape), data: data.into() })
    }

    /// Whether the file has what this is made of.
    pub fn has(&self, recipe: impl Into<Recipe>) -> bool {
        self.make(&recipe.into(), None).is_ok()
    }

    /// Lets the file have this without using it.
    pub fn skip(&self, recipe: impl Into<Recipe>) {
        if let Ok(made) = self.make(&recipe.into(), None) {
            self.ledger.mark(made.used);
        }
    }

    /// Lets the file have item `i` of a numbered group without using it.
    pub fn skip_item(&self, group: Key, i: usize) {
        let prefix = self.item(group, i).prefix;
        let items = self.ledger.tensors.range(prefix.clone()..);
        let items = items.take_while(|(name, _)| name.starts_with(&prefix));
        self.ledger.mark(items.map(|(_, tensor)| Used::all(tensor)).collect());
    }

    /// The numbers of a small `F32` vector, all above 0, where the file has it.
    pub fn numbers(&self, recipe: impl Into<Recipe>, len: usize) -> Option<Vec<f32>> {
        let made = self.make(&recipe.into(), None).ok()?;
        self.ledger.mark(made.used);
        let numbers = positive(&made.tensor, len);
        numbers.map_err(|fault| self.refuse(fault, "")).ok()
    }

    /// Keeps what is wrong for the end, and tells what it is wrong with.
    fn refuse(&self, fault: Fault, shape: &str) -> String {
        let file = self.ledger.file.clone();
        let (name, error) = match fault {
            Fault::Missing { name } => {
                (name.clone(), ModelError::Missing { file, name, needed: shape.to_owned() })
            }
            Fault::Unfit { name, found, needed } => {
                (name.clone(), ModelError::Mismatch { file, name, found, needed })
            }
        };
        self.ledger.state.borrow_mut().error.get_or_insert(error);
        name
    }
}

/// The numbers of an `F32` vector of this length, where all are above 0.
fn positive(tensor: &Tensor, len: usize) -> Result<Vec<f32>, Fault> {
    if tensor.dtype != DType::F32 || tensor.shape != [len] {
        return Err(Fault::unfit(tensor, format!("F32 [{len}]")));
    }
    let numbers = recipe::floats(tensor)?;
    match numbers.iter().position(|x| !(x.is_finite() && *x > 0.0)) {
        Some(bad) => Err(Fault::unfit(tensor, format!("positive numbers, and not {}", numbers[bad]))),
        None => Ok(numbers),
    }
}

/// The tensor as a weight, where it has this shape; axes of one element do not count.
fn fit(tensor: Tensor, shape: Shape) -> Result<Weight, Fault> {
    let long = |dim: &Dim| *dim != Dim::Fixed(1);
    let dims = tensor.shape.iter().map(|n| Dim::Fixed(*n)).filter(long);
    let same = dims.eq(shape.dims().iter().copied().filter(long));
    let floats_only = shape.dims().len() < 2;
    if !same || !(tensor.dtype.is_float() || (tensor.dtype.is_quantized() && !floats_only)) {
        let kind = if floats_only { "F32, F16 or BF16" } else { "floats or a quantised type" };
        return Err(Fault::unfit(&tensor, format!("{kind} {shape}")));
    }
    Ok(Weight { name: tensor.name, ty: TensorType::new(tensor.dtype, shape), data: tensor.data })
}
