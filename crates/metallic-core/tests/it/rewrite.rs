//! A fused graph means what the graph it came from means.

use metallic_core::reference::Reference;
use metallic_core::rewrite::{self, fuse, with_activations};
use metallic_core::{
    Attention, Backend, CompileOptions, DType, Graph, GraphBuilder, NodeId, Op, Rope, RopePairs,
    SequenceSpan, Shape, StateId, Step, TensorType, Unary, Var, Weight,
};

const HIDDEN: usize = 12;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 6;
const FFN: usize = 20;
const VOCAB: usize = 16;

/// Deterministic numbers around zero.
fn numbers(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((seed * 7919 + i * 104_729) % 1009) as f32 / 1009.0 - 0.5).collect()
}

struct Weights<'g> {
    g: &'g GraphBuilder,
    next: std::cell::Cell<usize>,
    layer: std::cell::Cell<Option<usize>>,
}

impl<'g> Weights<'g> {
    fn tensor(&self, shape: Shape) -> Var<'g> {
        let seed = self.next.replace(self.next.get() + 1);
        let len = shape.elements(metallic_core::Sizes::default());
        let data: Vec<u8> = numbers(seed, len).iter().flat_map(|x| x.to_le_bytes()).collect();
        let ty = TensorType::new(DType::F32, shape);
        let name = self.layer.get().map_or(format!("w{seed}"), |layer| format!("blk.{layer}.w{seed}"));
        self.g.weight(Weight { name, ty, data: data.into() })
    }

    fn matrix(&self, rows: usize, cols: usize) -> Var<'g> {
        self.tensor(Shape::matrix(rows, cols))
    }

    fn vector(&self, len: usize) -> Var<'g> {
        self.tensor(Shape::vector(len))
    }
}

/// What tells decoders apart.
#[derive(Clone, Copy, Default)]
struct Kind {
    bias: bool,
    head_norm: bool,
    sinks: bool,
}

fn decoder(kind: Kind, layers: usize) -> Graph {
    let bias = kind.bias;
    let g = GraphBuilder::new();
    let w = Weights { g: &g, next: 0.into(), layer: None.into() };
    let mut x = w.matrix(VOCAB, HIDDEN).embed(g.tokens());
    let freqs = g.constant("freqs", &[1.0, 0.3, 0.1]);
    let rope = Rope { head_dim: HEAD_DIM, pairs: RopePairs::Halves, magnitude: 1.0 };
    let apply = |x, rows, cols| {
        let y = Var::linear(x, w.matrix(rows, cols));
        if bias { y + w.vector(rows) } else { y }
    };
    for layer in 0..layers {
        w.layer.set(Some(layer));
        let n = x.rms_norm(w.vector(HIDDEN), 1e-5);
        let head_norm = |x, heads| {
            if kind.head_norm { Var::rms_norm_groups(x, w.vector(HEAD_DIM), 1e-5, heads) } else { x }
        };
        let q = head_norm(apply(n, HEADS * HEAD_DIM, HIDDEN), HEADS).rope(rope, g.positions(), freqs);
        let k = head_norm(apply(n, KV_HEADS * HEAD_DIM, HIDDEN), KV_HEADS).rope(rope, g.positions(), freqs);
        let v = apply(n, KV_HEADS * HEAD_DIM, HIDDEN);
        let attention = Attention {
            state: StateId(layer),
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            value_dim: HEAD_DIM,
            scale: 0.4,
            window: Some(3),
            softcap: Some(5.0),
            sinks: kind.sinks,
        };
        let stored = k.kv_write(v, StateId(layer), KV_HEADS);
        let attended = q.attention(stored, attention, kind.sinks.then(|| w.vector(HEADS)));
        let h = x + apply(attended, HIDDEN, HEADS * HEAD_DIM);
        let n = h.rms_norm(w.vector(HIDDEN), 1e-5);
        let inner = apply(n, FFN, HIDDEN).unary(Unary::Silu) * apply(n, FFN, HIDDEN);
        x = h + apply(inner, HIDDEN, FFN);
    }
    w.layer.set(None);
    let last = x.select_rows(g.output_rows()).rms_norm(w.vector(HIDDEN), 1e-5);
    g.finish(&[last.linear(w.matrix(VOCAB, HIDDEN))]).unwrap()
}

fn run(graph: &Graph, options: CompileOptions) -> Vec<f32> {
    let mut program = Reference::new().compile(graph, options).unwrap();
    program.reserve_blocks(3).unwrap();
    let mut all = Vec::new();
    // Two sequences in one step, then one more token of each.
    for (tokens, positions, spans, past) in [
        (vec![1, 2, 3, 4, 5, 6, 7], vec![0, 1, 2, 3, 4, 0, 1], [0..5, 5..7], [0, 0]),
        (vec![8, 9], vec![5, 2], [0..1, 1..2], [5, 2]),
    ] {
        let [a, b] = spans;
        let outputs = [a.end as u32 - 1, b.end as u32 - 1];
        let sequences = [
            SequenceSpan { tokens: a, past: past[0], blocks: &[2], near: &[], slot: 0 },
            SequenceSpan { tokens: b, past: past[1], blocks: &[0], near: &[], slot: 1 },
        ];
        let (tokens, positions) = (&tokens, &positions);
        let step = Step { tokens, positions, sequences: &sequences, outputs: &outputs, ..Step::default() };
        program.run(&step).unwrap();
        all.extend_from_slice(program.output(0));
    }
    all
}

const KINDS: [Kind; 4] = [
    Kind { bias: false, head_norm: false, sinks: false },
    Kind { bias: true, head_norm: false, sinks: false },
    Kind { bias: false, head_norm: true, sinks: true },
    Kind { bias: true, head_norm: true, sinks: false },
];

#[test]
fn fusing_a_decoder_does_not_change_its_results() {
    for kind in KINDS {
        let graph = decoder(kind, 2);
        let fused = fuse(&graph).unwrap();
        let options = CompileOptions::kv(DType::F32);
        let (plain, after) = (run(&graph, options), run(&fused, options));
        assert!(plain.iter().any(|x| x.abs() > 0.01) && plain.iter().all(|x| x.is_finite()));
        for (a, b) in plain.iter().zip(&after) {
            assert!((a - b).abs() < 1e-5, "{a} became {b}");
        }
    }
}

#[test]
fn half_activations_round_and_stay_near() {
    let graph = decoder(KINDS[3], 2);
    let exact = run(&graph, CompileOptions::kv(DType::F32));
    for (activations, near) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let half = with_activations(&graph, activations).unwrap();
        assert!(half.nodes().iter().filter(|n| n.ty.dtype == activations).count() > 20);
        let found = run(&graph, CompileOptions { activations, ..CompileOptions::kv(DType::F32) });
        assert_eq!(found, run(&half, CompileOptions::kv(DType::F32)));
        assert_ne!(found, exact);
        assert!(found.iter().zip(&exact).all(|(a, b)| (a - b).abs() < near), "{activations}");
    }
}

#[test]
fn a_decoder_layer_becomes_five_operations_and_three_stand_outside() {
    let computed = |kind, layers| {
        let fused = fuse(&decoder(kind, layers)).unwrap();
        fused.nodes().iter().filter(|n| !n.op.is_source()).count()
    };
    for kind in [Kind::default(), KINDS[2]] {
        // Outside: embed, row selection, norm + head.
        assert_eq!(computed(kind, 1), 5 + 3);
        assert_eq!(computed(kind, 3), 15 + 3);
    }
}

#[test]
fn a_value_with_another_reader_is_not_swallowed() {
    let g = GraphBuilder::new();
    let w = Weights { g: &g, next: 0.into(), layer: None.into() };
    let x = w.matrix(VOCAB, HIDDEN).embed(g.tokens());
    let n = x.rms_norm(w.vector(HIDDEN), 1e-5);
    let y = n.linear(w.matrix(HIDDEN, HIDDEN));
    let graph = g.finish(&[x + y, n]).unwrap();
    let fused = fuse(&graph).unwrap();
    assert!(fused.nodes().iter().any(|n| matches!(n.op, Op::RmsNorm { .. })));
    assert_eq!(fused.outputs().len(), 2);
}

#[test]
fn every_node_of_a_fused_graph_says_where_it_comes_from() {
    let graph = decoder(Kind::default(), 2);
    let fused = rewrite::trace(&graph).unwrap();
    assert_eq!(fused.origins.len(), fused.graph.nodes().len());
    for (node, origin) in fused.graph.nodes().iter().zip(&fused.origins) {
        assert_eq!(node.ty, graph.node(origin.node).ty, "{} has the value of a node before", node.op.name());
        assert!(origin.parts.contains(&origin.node) && origin.parts.is_sorted());
        assert_eq!(origin.rule.is_some(), origin.parts.len() > 1);
    }
    let mut parts: Vec<NodeId> = fused.origins.iter().flat_map(|origin| origin.parts.clone()).collect();
    parts.sort_unstable();
    let all: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
    assert_eq!(parts, all, "every node went into one");
    let layers = fused.graph.layers();
    let of = |rule| {
        let from = fused.origins.iter().zip(&layers).filter(move |(origin, _)| origin.rule == Some(rule));
        from.map(|(_, layer)| *layer).collect::<Vec<_>>()
    };
    assert_eq!(of("self_attention"), [Some(0), Some(1)]);
    assert_eq!(of("gated"), [Some(0), Some(1)]);
    assert_eq!(of("residual"), [Some(0), Some(0), Some(1), Some(1)]);
    assert_eq!(of("projection"), [None], "the head");
}
