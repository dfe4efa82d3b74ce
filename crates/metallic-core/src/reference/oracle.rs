//! Single operations of a graph computed again, from what a device has made of their inputs, with what rounding explains.

use std::borrow::Cow;
use std::ops::Range;

use super::bound::{self, Computed, ProductInputs, Seen};
use super::eval::Args;
use super::state::Kept;
use super::value::{Value, failed};
use super::{carry_out, source};
use crate::{
    Attention, BackendError, Blocks, DType, Graph, KvRows, NodeId, Op, StateId, StateLayout, Step, Tapped,
    TensorType,
};

/// An input of an operation: what a device has made, what the step says, or a weight as plain numbers.
pub(super) struct Operand<'a> {
    value: Cow<'a, Value>,
    pub(super) ty: TensorType,
}

impl Operand<'_> {
    pub(super) fn floats(&self) -> &[f32] {
        self.value.floats()
    }

    pub(super) fn words(&self) -> &[u32] {
        self.value.words()
    }
}

/// What is known of a node.
#[derive(Debug)]
struct Known {
    value: Value,
    /// How far a device may be off, element by element; empty where it is exact. First with products of 32 bits, then with those that
    /// round as they are said to.
    bounds: [Vec<f32>; 2],
}

/// A result with how far a device may be off, element by element.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// By the formula, rounded to its type.
    pub value: Tapped,
    /// What 32-bit arithmetic, the types and the bounds of inputs explain; empty for indices, which are exact.
    pub tight: Vec<f32>,
    /// The same where products round their inputs as they are said to.
    pub loose: Vec<f32>,
}

/// Computes single operations of a graph by their formulas. Weights are decoded when they are read, so that a model need not fit into
/// memory as plain numbers.
#[derive(Debug)]
pub struct Oracle {
    graph: Graph,
    kept: Kept,
    known: Vec<Option<Known>>,
    products: ProductInputs,
    /// What numbers that are given were rounded by, relative to them.
    given: f32,
    threads: usize,
}

impl Oracle {
    /// For this graph, with keys and values stored as `kv`, on a device that rounds the inputs of products so.
    pub fn new(graph: &Graph, kv: DType, products: ProductInputs) -> Result<Oracle, BackendError> {
        Ok(Oracle {
            kept: Kept::new(StateLayout::of(graph, kv)?),
            known: graph.nodes().iter().map(|_| None).collect(),
            products,
            given: 0.0,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            graph: graph.clone(),
        })
    }

    /// Numbers that are given were rounded to this type on their way.
    #[must_use]
    pub fn given_as(mut self, dtype: DType) -> Oracle {
        self.given = if dtype == DType::F32 { 0.0 } else { bound::unit(dtype) };
        self
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What it keeps between steps.
    pub fn layout(&self) -> &StateLayout {
        self.kept.layout()
    }

    /// Begins a step: forgets what was given for the one before, and makes room for its sequences. What is kept stays.
    pub fn begin(&mut self, step: &Step<'_>) {
        let slots = step.sequences.iter().map(|span| span.slot as usize + 1).max().unwrap_or(0);
        self.kept.reserve(Blocks::both(blocks_of(step)), slots);
        self.take_sources(step);
    }

    /// Begins a step of which one operation is of interest, with no more than `state` between steps: what was kept is let go.
    pub fn begin_with(&mut self, step: &Step<'_>, state: Option<StateId>) {
        self.kept.reserve_only(state, blocks_of(step));
        self.take_sources(step);
    }

    fn take_sources(&mut self, step: &Step<'_>) {
        for (known, node) in self.known.iter_mut().zip(self.graph.nodes()) {
            let said = node.op.is_source() && !matches!(node.op, Op::Weight(_));
            *known = said.then(|| Known { value: source(node.op, step), bounds: Default::default() });
        }
    }

    /// Says what a device has made of a node.
    pub fn give(&mut self, node: NodeId, value: Tapped) -> Result<(), BackendError> {
        let nodes = self.known.len();
        let place =
            self.known.get_mut(node.0).ok_or_else(|| failed(format!("node {} of {nodes}", node.0)))?;
        let rounded = |x: &f32| self.given * x.abs();
        let bounds: Vec<f32> =
            if self.given > 0.0 { value.floats().iter().map(rounded).collect() } else { Vec::new() };
        *place = Some(Known { value: value.into(), bounds: [bounds.clone(), bounds] });
        Ok(())
    }

    /// Says what a device has in its cache.
    pub fn give_kept(
        &mut self,
        state: StateId,
        table: &[u32],
        positions: Range<usize>,
        rows: &KvRows,
    ) -> Result<(), BackendError> {
        self.kept.put(state, table, positions, rows)
    }

    /// What is kept of a layer.
    pub fn kept(
        &self,
        state: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<KvRows, BackendError> {
        self.kept.rows(state, table, positions)
    }

    /// The inputs of a node; an error that names one of which nothing is known.
    fn operands(&self, node: NodeId) -> Result<Vec<Operand<'_>>, BackendError> {
        let operand = |id: &NodeId| {
            let source = self.graph.node(*id);
            if let Some(weight) = self.graph.weight(*id) {
                let value = Value::load(weight.ty.dtype, &weight.data);
                weight.data.check()?;
                let value = value.map_err(|error| failed(format!("`{}`: {error}", weight.name)))?;
                return Ok(Operand { value: Cow::Owned(value), ty: source.ty });
            }
            // A receipt is known by the write it stands for.
            let unknown =
                || failed(format!("nothing is known of node {} (`{}`), an input", id.0, source.op.name()));
            let known = self.known[id.0].as_ref().ok_or_else(unknown)?;
            Ok(Operand { value: Cow::Borrowed(&known.value), ty: source.ty })
        };
        self.graph.node(node).inputs.iter().map(operand).collect()
    }

    /// Computes a node by its formula from what is known, and knows it from then on, with its bounds. A write is made to what is kept;
    /// its bounds are those of the keys, then those of the values.
    pub fn follow(&mut self, node: NodeId, step: &Step<'_>) -> Result<Expected, BackendError> {
        // Operands borrow from what is known, the operation changes what is kept.
        let nothing = Kept::new(StateLayout::new(DType::F32, Vec::new()));
        let mut kept = std::mem::replace(&mut self.kept, nothing);
        let done = self.expected(node, &mut kept, step);
        self.kept = kept;
        let expected = done?;
        self.known[node.0] = Some(Known {
            value: expected.value.clone().into(),
            bounds: [expected.tight.clone(), expected.loose.clone()],
        });
        Ok(expected)
    }

    fn expected(&self, id: NodeId, kept: &mut Kept, step: &Step<'_>) -> Result<Expected, BackendError> {
        let operands = self.operands(id)?;
        let node = self.graph.node(id);
        let args = Args {
            values: operands.iter().map(|operand| &*operand.value).collect(),
            types: operands.iter().map(|operand| operand.ty).collect(),
            out: node.ty,
            sizes: step.sizes(),
            threads: self.threads,
        };
        let value = carry_out(&node.op, &args, kept, step)?.rounded(node.ty.dtype)?.tapped();
        let by = |which: usize, products: ProductInputs| -> Result<Vec<f32>, BackendError> {
            let of = |id: &NodeId| self.known[id.0].as_ref().map_or(&[][..], |known| &known.bounds[which]);
            let bounds = node.inputs.iter().map(of).collect();
            let computed = Computed {
                op: node.op,
                out: node.ty,
                sizes: step.sizes(),
                operands: &operands,
                bounds,
                value: &value,
            };
            match node.op {
                Op::Attention(a) => attention(&a, &computed, products, kept, step),
                Op::KvWrite { .. } => Ok(written(&computed, kept.layout().dtype())),
                _ => Ok(computed.bound(products)),
            }
        };
        let by = |which: usize, products: ProductInputs| {
            let mut bounds = by(which, products)?;
            // What is compared with it was rounded on its way as well.
            let keys = operands.first().map_or(&[][..], Operand::floats).iter();
            let written = keys.chain(operands.get(1).map_or(&[][..], Operand::floats));
            let rounded: Vec<f32> = match node.op {
                Op::KvWrite { .. } => written.map(|x| self.given * x.abs()).collect(),
                _ => value.floats().iter().map(|x| self.given * x.abs()).collect(),
            };
            bounds.iter_mut().zip(rounded).for_each(|(bound, more)| *bound += 2.0 * more);
            Ok::<_, BackendError>(bounds)
        };
        let tight = by(0, ProductInputs::Exact)?;
        let loose = if self.products == ProductInputs::Exact { tight.clone() } else { by(1, self.products)? };
        Ok(Expected { value, tight, loose })
    }
}

/// Blocks that the tables of a step name.
fn blocks_of(step: &Step<'_>) -> usize {
    let tables = step.sequences.iter().flat_map(|span| span.blocks.iter().chain(span.near));
    tables.map(|block| *block as usize + 1).max().unwrap_or(0)
}

/// What attention may be off, sequence by sequence, over what it sees.
fn attention(
    a: &Attention,
    computed: &Computed<'_>,
    products: ProductInputs,
    kept: &Kept,
    step: &Step<'_>,
) -> Result<Vec<f32>, BackendError> {
    let near = kept.layout().kv(a.state).is_some_and(|kv| kept.layout().is_near(kv));
    let cols = a.heads * a.head_dim;
    let mut bounds = Vec::new();
    for span in step.sequences {
        let rows = kept.rows(a.state, span.table(near), 0..span.kv_len())?;
        let part = |of: &[f32]| -> Vec<f32> {
            of.get(span.tokens.start * cols..span.tokens.end * cols).unwrap_or(&[]).to_vec()
        };
        let (q, off) = (part(computed.operands[0].floats()), part(computed.bounds[0]));
        let seen = Seen { q: &q, bounds: &off, tokens: span.tokens.len(), past: span.past };
        bounds.extend(bound::attention(a, &seen, &rows, products == ProductInputs::Halves));
    }
    let y = computed.value.floats();
    let stored = 2.0 * bound::unit(computed.out.dtype);
    bounds.iter_mut().zip(y).for_each(|(bound, y)| *bound += stored * y.abs() + f32::MIN_POSITIVE);
    Ok(bounds)
}

/// Of keys, then of values: what they may be off, and a step of the type they are stored as.
fn written(computed: &Computed<'_>, dtype: DType) -> Vec<f32> {
    let of = |index: usize| {
        let x = computed.operands[index].floats();
        let off = computed.bounds[index];
        let bound = move |(at, step): (usize, f32)| step + off.get(at).copied().unwrap_or(0.0);
        bound::stored(dtype, x).into_iter().enumerate().map(bound).collect::<Vec<f32>>()
    };
    [of(0), of(1)].concat()
}
