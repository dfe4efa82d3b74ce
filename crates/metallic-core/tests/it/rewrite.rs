//! A fused graph means what the graph it came from means.

use metallic_core::reference::Reference;
use metallic_core::rewrite::fuse;
use metallic_core::{
    Attention, Backend, DType, Graph, GraphBuilder, KvLayout, Op, Rope, RopePairs, SequenceSpan, Shape, Step,
    TensorType, Unary, Var, Weight,
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
}

impl<'g> Weights<'g> {
    fn tensor(&self, shape: Shape) -> Var<'g> {
        let seed = self.next.replace(self.next.get() + 1);
        let len = shape.elements(metallic_core::Sizes::default());
        let data: Vec<u8> = numbers(seed, len).iter().flat_map(|x| x.to_le_bytes()).collect();
        let ty = TensorType::new(DType::F32, shape);
        self.g.weight(Weight { name: format!("w{seed}"), ty, data: data.into() })
    }

    fn matrix(&self, rows: usize, cols: usize) -> Var<'g> {
        self.tensor(Shape::matrix(rows, cols))
    }

    fn vector(&self, len: usize) -> Var<'g> {
        self.tensor(Shape::vector(len))
    }
}

fn decoder(bias: bool, layers: usize) -> Graph {
    let g = GraphBuilder::new();
    let w = Weights { g: &g, next: 0.into() };
    let mut x = w.matrix(VOCAB, HIDDEN).embed(g.tokens());
    let freqs = g.constant("freqs", &[1.0, 0.3, 0.1]);
    let rope = Rope { head_dim: HEAD_DIM, pairs: RopePairs::Halves, magnitude: 1.0 };
    let apply = |x, rows, cols| {
        let y = Var::linear(x, w.matrix(rows, cols));
        if bias { y + w.vector(rows) } else { y }
    };
    for layer in 0..layers {
        let n = x.rms_norm(w.vector(HIDDEN), 1e-5);
        let q = apply(n, HEADS * HEAD_DIM, HIDDEN).rope(rope, g.positions(), freqs);
        let k = apply(n, KV_HEADS * HEAD_DIM, HIDDEN).rope(rope, g.positions(), freqs);
        let v = apply(n, KV_HEADS * HEAD_DIM, HIDDEN);
        let attention = Attention {
            layer,
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            scale: 0.4,
            window: Some(3),
            softcap: Some(5.0),
        };
        let attended = q.attention(k.kv_write(v, layer), attention);
        let h = x + apply(attended, HIDDEN, HEADS * HEAD_DIM);
        let n = h.rms_norm(w.vector(HIDDEN), 1e-5);
        let inner = apply(n, FFN, HIDDEN).unary(Unary::Silu) * apply(n, FFN, HIDDEN);
        x = h + apply(inner, HIDDEN, FFN);
    }
    let last = x.select_rows(g.output_rows()).rms_norm(w.vector(HIDDEN), 1e-5);
    g.finish(&[last.linear(w.matrix(VOCAB, HIDDEN))]).unwrap()
}

fn run(graph: &Graph, layers: usize) -> Vec<f32> {
    let kv = KvLayout { layers, kv_heads: KV_HEADS, head_dim: HEAD_DIM, dtype: DType::F32 };
    let mut program = Reference::new().compile(graph, kv).unwrap();
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
            SequenceSpan { tokens: a, past: past[0], blocks: &[2] },
            SequenceSpan { tokens: b, past: past[1], blocks: &[0] },
        ];
        let step = Step { tokens: &tokens, positions: &positions, sequences: &sequences, outputs: &outputs };
        program.run(&step).unwrap();
        all.extend_from_slice(program.output(0));
    }
    all
}

#[test]
fn fusing_a_decoder_does_not_change_its_results() {
    for bias in [false, true] {
        let graph = decoder(bias, 2);
        let fused = fuse(&graph).unwrap();
        let (plain, after) = (run(&graph, 2), run(&fused, 2));
        assert!(plain.iter().any(|x| x.abs() > 0.01) && plain.iter().all(|x| x.is_finite()));
        for (a, b) in plain.iter().zip(&after) {
            assert!((a - b).abs() < 1e-5, "{a} became {b}");
        }
    }
}

#[test]
fn a_decoder_layer_becomes_five_operations_and_three_stand_outside() {
    let computed = |layers| {
        let fused = fuse(&decoder(false, layers)).unwrap();
        fused.nodes().iter().filter(|n| !n.op.is_source()).count()
    };
    // Outside: embed, row selection, norm + head.
    assert_eq!(computed(1), 5 + 3);
    assert_eq!(computed(3), 15 + 3);
}

#[test]
fn a_value_with_another_reader_is_not_swallowed() {
    let g = GraphBuilder::new();
    let w = Weights { g: &g, next: 0.into() };
    let x = w.matrix(VOCAB, HIDDEN).embed(g.tokens());
    let n = x.rms_norm(w.vector(HIDDEN), 1e-5);
    let y = n.linear(w.matrix(HIDDEN, HIDDEN));
    let graph = g.finish(&[x + y, n]).unwrap();
    let fused = fuse(&graph).unwrap();
    assert!(fused.nodes().iter().any(|n| matches!(n.op, Op::RmsNorm { .. })));
    assert_eq!(fused.outputs().len(), 2);
}
