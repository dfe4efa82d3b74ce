//! What a backend may rely on: steps within their contract, and a cache of the shape the graph asks for.

use metallic_core::reference::Reference;
use metallic_core::{
    Attention, Backend, BackendError, DType, Graph, GraphBuilder, KvLayout, SequenceSpan, Shape, Step,
    StepError, TensorType, Weight,
};

const KV: KvLayout = KvLayout { layers: 1, kv_heads: 2, head_dim: 4, dtype: DType::F32 };

#[test]
fn a_past_beyond_all_bounds_is_refused() {
    for past in [usize::MAX, usize::MAX - 1, usize::MAX / 2] {
        let sequences = [SequenceSpan { tokens: 0..2, past, blocks: &[0] }];
        let step = Step { tokens: &[0, 0], positions: &[0, 1], sequences: &sequences, outputs: &[] };
        let found = step.validate(1, 1);
        assert!(matches!(found, Err(StepError::Blocks { blocks: 1, .. })), "{past}: {found:?}");
    }
}

/// Attention on `kv_heads` heads of `head_dim`, over the cache of `layer`.
fn graph(layer: usize, kv_heads: usize, head_dim: usize) -> Graph {
    let g = GraphBuilder::new();
    let cols = kv_heads * head_dim;
    let ty = TensorType::f32(Shape::matrix(3, cols));
    let x = g.weight(Weight { name: "x".to_owned(), ty, data: vec![0; 12 * cols].into() }).embed(g.tokens());
    let attention =
        Attention { layer, heads: kv_heads, kv_heads, head_dim, scale: 1.0, window: None, softcap: None };
    g.finish(&[x.attention(x.kv_write(x, layer), attention)]).unwrap()
}

#[test]
fn a_cache_of_another_shape_is_refused_when_the_program_is_made() {
    let compile = |graph: Graph| Reference::new().compile(&graph, KV).map(|_| ());
    assert_eq!(compile(graph(0, 2, 4)), Ok(()));
    // The last has rows of the right length, cut into other heads.
    for (layer, kv_heads, head_dim) in [(1, 2, 4), (0, 3, 4), (0, 2, 8), (0, 4, 2)] {
        let found = compile(graph(layer, kv_heads, head_dim));
        let Err(BackendError::Unsupported { reason, .. }) = found else { panic!("{found:?}") };
        assert!(reason.contains("a cache of 1 layers with 2 heads of 4"), "{reason}");
    }
}
