//! What a graph keeps between steps, derived from its operations: keys and values, and recurrent states.

use crate::op::{matrix_ops, plain_ops, source_ops};
use crate::{Attention, BLOCK_TOKENS, DType, Graph, Node, Op, Qkv, Shape, StateId, TypeError};

/// The keys and values of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvState {
    /// Heads of a token.
    pub kv_heads: usize,
    /// Elements of a key's head.
    pub key_dim: usize,
    /// Elements of a value's head.
    pub value_dim: usize,
    /// How far back any reader looks; `None`: as far as there is.
    pub window: Option<usize>,
}

/// How many blocks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Of layers that look back as far as there is; of all layers, unless some look less far than others.
    pub far: usize,
    /// Of layers with a window, where others have none.
    pub near: usize,
}

impl Blocks {
    /// As many of either kind.
    pub fn both(count: usize) -> Blocks {
        Blocks { far: count, near: count }
    }

    /// Of each kind the larger number.
    #[must_use]
    pub fn max(self, other: Blocks) -> Blocks {
        Blocks { far: self.far.max(other.far), near: self.near.max(other.near) }
    }
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Keys and values of every token, in blocks.
    Kv(KvState),
    /// So many `F32` numbers for each sequence.
    Recurrent(usize),
}

impl State {
    /// The keys and values, where it is those.
    pub fn kv(&self) -> Option<&KvState> {
        if let State::Kv(kv) = self { Some(kv) } else { None }
    }

    fn recurrent(&self) -> usize {
        if let State::Recurrent(elements) = self { *elements } else { 0 }
    }

    fn describe(&self) -> String {
        match self {
            State::Kv(kv) => {
                format!("{} heads with keys of {} and values of {}", kv.kv_heads, kv.key_dim, kv.value_dim)
            }
            State::Recurrent(elements) => format!("{elements} numbers for a sequence"),
        }
    }
}

/// Everything a graph keeps. What is kept follows from the graph; how keys and values are stored is the caller's choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLayout {
    dtype: DType,
    states: Vec<Option<State>>,
}

impl StateLayout {
    /// What `graph` keeps, with keys and values stored as `dtype`: `F32`, `F16`, `BF16` or `Q8_0`.
    pub fn of(graph: &Graph, dtype: DType) -> Result<StateLayout, TypeError> {
        let mut layout = StateLayout { dtype, states: Vec::new() };
        let mut read = Vec::new();
        for node in graph.nodes() {
            let (Some(id), Some((state, reads))) = (node.op.state(), claim(graph, node)) else { continue };
            if layout.states.len() <= id.0 {
                layout.states.resize(id.0 + 1, None);
                read.resize(id.0 + 1, false);
            }
            let merged = merge((layout.states[id.0], read[id.0]), (state, reads));
            layout.states[id.0] = Some(merged.map_err(|found| TypeError::Parameter {
                op: node.op.name(),
                what: format!("{} where layer state {} has {found}", state.describe(), id.0),
            })?);
            read[id.0] |= reads;
        }
        for kv in layout.kv_states() {
            for dim in [kv.key_dim, kv.value_dim] {
                if !StateLayout::supports(dtype, dim) {
                    let what = format!("heads of {dim} in a cache of {dtype}");
                    return Err(TypeError::Parameter { op: "kv_write", what });
                }
            }
        }
        Ok(layout)
    }

    /// A layout of these states, by [`StateId`].
    pub fn new(dtype: DType, states: Vec<Option<State>>) -> StateLayout {
        StateLayout { dtype, states }
    }

    /// Whether `dtype` can hold keys and values of this head size.
    pub fn supports(dtype: DType, head_dim: usize) -> bool {
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)
            && head_dim.is_multiple_of(dtype.block_len())
    }

    /// How keys and values are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What each [`StateId`] names; `None` where a number is not used.
    pub fn states(&self) -> &[Option<State>] {
        &self.states
    }

    /// The keys and values a [`StateId`] names.
    pub fn kv(&self, id: StateId) -> Option<&KvState> {
        self.states.get(id.0)?.as_ref()?.kv()
    }

    /// All keys and values.
    pub fn kv_states(&self) -> impl Iterator<Item = &KvState> {
        self.states.iter().flatten().filter_map(State::kv)
    }

    /// Bytes of a row of so many elements: a key or a value of one head. This and all sums below stop at `usize::MAX`, which is
    /// more than any device has, rather than begin again at zero.
    pub fn row_bytes(&self, elements: usize) -> usize {
        (elements / self.dtype.block_len()).saturating_mul(self.dtype.block_bytes())
    }

    /// Bytes of one token's keys and values in one layer.
    pub fn layer_token_bytes(&self, kv: &KvState) -> usize {
        let head = self.row_bytes(kv.key_dim).saturating_add(self.row_bytes(kv.value_dim));
        kv.kv_heads.saturating_mul(head)
    }

    /// Bytes of one token: keys and values of all layers.
    pub fn token_bytes(&self) -> usize {
        self.kv_states().map(|kv| self.layer_token_bytes(kv)).fold(0, usize::saturating_add)
    }

    /// Bytes of one block of [`BLOCK_TOKENS`] tokens, all layers.
    pub fn block_bytes(&self) -> usize {
        self.token_bytes().saturating_mul(BLOCK_TOKENS)
    }

    /// Whether some layers have a window and others none: then those with one have blocks of their own, which are let go one by
    /// one.
    pub fn is_mixed(&self) -> bool {
        let far = self.kv_states().filter(|kv| kv.window.is_none()).count();
        far > 0 && far < self.kv_states().count()
    }

    /// Whether keys and values lie in the blocks of layers with a window.
    pub fn is_near(&self, kv: &KvState) -> bool {
        kv.window.is_some() && self.is_mixed()
    }

    /// So many blocks where a program reserves them: without blocks of their own, layers with a window have those of all.
    pub fn settled(&self, blocks: Blocks) -> Blocks {
        if self.is_mixed() { blocks } else { Blocks::both(blocks.far) }
    }

    /// Bytes of so many blocks.
    pub fn bytes_of(&self, blocks: Blocks) -> usize {
        let of = |kv: &KvState| if self.is_near(kv) { blocks.near } else { blocks.far };
        let bytes =
            |kv: &KvState| self.layer_token_bytes(kv).saturating_mul(BLOCK_TOKENS).saturating_mul(of(kv));
        self.kv_states().map(bytes).fold(0, usize::saturating_add)
    }

    /// How far back any layer looks whose blocks are let go: all, where all have a window, or those that have one.
    pub fn near_window(&self) -> Option<usize> {
        let windows = self.kv_states().filter_map(|kv| kv.window).max();
        windows.filter(|_| self.window().is_some() || self.is_mixed())
    }

    /// Bytes of the recurrent states of one sequence.
    pub fn sequence_bytes(&self) -> usize {
        let bytes = |state: &State| state.recurrent().saturating_mul(size_of::<f32>());
        self.states.iter().flatten().map(bytes).fold(0, usize::saturating_add)
    }

    /// Whether a sequence keeps more than keys and values: then what was computed for its beginning cannot be found again
    /// in blocks alone.
    pub fn is_recurrent(&self) -> bool {
        self.sequence_bytes() > 0
    }

    /// How far back any layer looks, where all have a window: what lies before can be let go.
    pub fn window(&self) -> Option<usize> {
        self.kv_states().map(|kv| kv.window.unwrap_or(usize::MAX)).max().filter(|most| *most < usize::MAX)
    }
}

/// What a node says of the state it uses, and whether it limits how far back is looked.
fn claim(graph: &Graph, node: &Node) -> Option<(State, bool)> {
    let shape = |index: usize| node.inputs.get(index).map(|id| graph.node(*id).ty.shape);
    let cols = |index: usize| shape(index).map(|shape: Shape| shape.cols());
    let kv = |kv_heads: usize, key_dim: usize, value_dim: usize, window: Option<usize>| {
        State::Kv(KvState { kv_heads, key_dim, value_dim, window })
    };
    Some(match node.op {
        Op::KvWrite { kv_heads, .. } => {
            let heads = kv_heads.max(1);
            (kv(kv_heads, cols(0)? / heads, cols(1)? / heads, None), false)
        }
        Op::Qkv(Qkv { kv_heads, rope, .. }) => (kv(kv_heads, rope.head_dim, rope.head_dim, None), false),
        Op::Attention(Attention { kv_heads, head_dim, value_dim, window, .. }) => {
            (kv(kv_heads, head_dim, value_dim, window), true)
        }
        Op::ShortConv { .. } => (State::Recurrent(cols(0)? * (cols(1)?.max(1) - 1)), true),
        Op::Recurrence(r) => (State::Recurrent(r.elements()), true),
        source_ops!() | matrix_ops!() | plain_ops!() => return None,
    })
}

/// Both together, or what stands there where they do not fit.
fn merge((known, was_read): (Option<State>, bool), (state, reads): (State, bool)) -> Result<State, String> {
    let Some(known) = known else { return Ok(state) };
    match (known, state) {
        (State::Kv(a), State::Kv(b)) if KvState { window: b.window, ..a } == b => {
            let window = match (was_read, reads) {
                (true, true) => a.window.zip(b.window).map(|(a, b)| a.max(b)),
                (true, false) => a.window,
                (false, _) => b.window,
            };
            Ok(State::Kv(KvState { window, ..a }))
        }
        // A recurrent state has one owner: two would each take the other's for its own.
        _ => Err(known.describe()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, TensorType, Var, Weight};

    fn rows<'g>(g: &'g GraphBuilder, name: &str, cols: usize) -> Var<'g> {
        let ty = TensorType::f32(Shape::matrix(4, cols));
        let table = g.weight(Weight { name: name.to_owned(), ty, data: vec![0; 16 * cols].into() });
        table.embed(g.tokens())
    }

    fn look(window: Option<usize>, value_dim: usize) -> Attention {
        let state = StateId(1);
        let scale = 1.0;
        Attention {
            state,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            value_dim,
            scale,
            window,
            softcap: None,
            sinks: false,
        }
    }

    fn graph(windows: &[Option<usize>], value_dim: usize) -> Graph {
        let g = GraphBuilder::new();
        let stored = rows(&g, "k", 16).kv_write(rows(&g, "v", 2 * 6), StateId(1), 2);
        let outputs: Vec<Var<'_>> =
            windows.iter().map(|w| rows(&g, "q", 32).attention(stored, look(*w, value_dim), None)).collect();
        g.finish(&outputs).unwrap()
    }

    #[test]
    fn keys_values_and_windows_follow_from_the_graph() {
        let layout = StateLayout::of(&graph(&[Some(5), Some(9)], 6), DType::F16).unwrap();
        let kv = KvState { kv_heads: 2, key_dim: 8, value_dim: 6, window: Some(9) };
        assert_eq!((layout.kv(StateId(0)), layout.kv(StateId(1))), (None, Some(&kv)));
        assert_eq!((layout.token_bytes(), layout.window()), (2 * (8 + 6) * 2, Some(9)));
        let layout = StateLayout::of(&graph(&[Some(5), None], 6), DType::F32).unwrap();
        assert_eq!(layout.window(), None);
        assert!(!layout.is_recurrent());
    }

    #[test]
    fn layers_with_a_window_have_blocks_of_their_own_only_beside_others() {
        let kv = |window| KvState { kv_heads: 1, key_dim: 8, value_dim: 8, window };
        let layout = |windows: &[Option<usize>]| {
            StateLayout::new(DType::F32, windows.iter().map(|w| Some(State::Kv(kv(*w)))).collect())
        };
        let (far, near) = (kv(None), kv(Some(9)));
        let blocks = Blocks { far: 3, near: 5 };
        let one = BLOCK_TOKENS * 16 * size_of::<f32>();
        for (windows, mixed, window, bytes) in [
            (&[None, None][..], false, None, 6),
            (&[Some(9), Some(4)], false, Some(9), 6),
            (&[Some(9), None, Some(4)], true, Some(9), 13),
        ] {
            let layout = layout(windows);
            assert_eq!((layout.is_mixed(), layout.near_window()), (mixed, window), "{windows:?}");
            assert_eq!((layout.is_near(&near), layout.is_near(&far)), (mixed, false), "{windows:?}");
            assert_eq!(layout.settled(blocks), if mixed { blocks } else { Blocks::both(3) }, "{windows:?}");
            assert_eq!(layout.bytes_of(blocks), bytes * one, "{windows:?}");
        }
    }

    #[test]
    fn more_than_can_be_counted_is_the_most_and_not_nothing() {
        let kv = KvState { kv_heads: 1 << 31, key_dim: 1 << 31, value_dim: 1 << 31, window: None };
        let states = vec![Some(State::Kv(kv)), Some(State::Recurrent(1 << 62))];
        let layout = StateLayout::new(DType::F32, states);
        assert_eq!((layout.token_bytes(), layout.block_bytes()), (usize::MAX, usize::MAX));
        assert_eq!((layout.bytes_of(Blocks::both(3)), layout.sequence_bytes()), (usize::MAX, usize::MAX));
        assert!(layout.is_recurrent());
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let error = StateLayout::of(&graph(&[None], 8), DType::F32).unwrap_err().to_string();
        assert!(error.contains("values of 8") && error.contains("values of 6"), "{error}");
        let error = StateLayout::of(&graph(&[None], 6), DType::Q8_0).unwrap_err().to_string();
        assert!(error.contains("Q8_0") && error.contains("heads of 8"), "{error}");
    }

    #[test]
    fn a_recurrent_state_has_one_owner() {
        let g = GraphBuilder::new();
        let ty = TensorType::f32(Shape::matrix(16, 4));
        let w = g.weight(Weight { name: "w".to_owned(), ty, data: vec![0; 256].into() });
        let once = rows(&g, "x", 16).short_conv(w, StateId(0));
        let layout = StateLayout::of(&g.finish(&[once]).unwrap(), DType::F16).unwrap();
        assert_eq!((layout.sequence_bytes(), layout.token_bytes()), (16 * 3 * 4, 0));
        let g = GraphBuilder::new();
        let w = g.weight(Weight { name: "w".to_owned(), ty, data: vec![0; 256].into() });
        let twice = rows(&g, "x", 16).short_conv(w, StateId(0)).short_conv(w, StateId(0));
        assert!(StateLayout::of(&g.finish(&[twice]).unwrap(), DType::F16).is_err());
    }
}
