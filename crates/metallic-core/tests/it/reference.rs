//! The reference on tensors that few backends care about: rows without columns.

use metallic_core::reference::Reference;
use metallic_core::{
    Backend, Bytes, CompileOptions, DType, GraphBuilder, SequenceSpan, Shape, Step, TensorType, Var, Weight,
};

fn weight<'g>(g: &'g GraphBuilder, name: &str, shape: Shape) -> Var<'g> {
    let ty = TensorType::new(DType::F32, shape);
    let ones = vec![1f32; shape.elements(metallic_core::Sizes::default())];
    let data: Vec<u8> = ones.iter().flat_map(|x| x.to_le_bytes()).collect();
    g.weight(Weight { name: name.to_owned(), ty, data: Bytes::from(data) })
}

fn rows(g: &GraphBuilder, cols: usize) -> Var<'_> {
    weight(g, "rows", Shape::matrix(4, cols)).embed(g.tokens())
}

/// The first of two experts, for each token.
fn first(g: &GraphBuilder) -> Var<'_> {
    weight(g, "scores", Shape::matrix(4, 2)).embed(g.tokens()).top_k(1)
}

/// What comes of rows without columns, for two tokens.
fn run(build: impl for<'g> Fn(&'g GraphBuilder, Var<'g>) -> Var<'g>) -> Vec<f32> {
    let g = GraphBuilder::new();
    let nothing = weight(&g, "nothing", Shape::matrix(4, 0)).embed(g.tokens());
    let out = build(&g, nothing);
    let graph = g.finish(&[out]).unwrap();
    let mut program = Reference::new().compile(&graph, CompileOptions::default()).unwrap();
    let sequences = [SequenceSpan { tokens: 0..2, past: 0, blocks: &[0], near: &[], slot: 0 }];
    program.reserve_blocks(1).unwrap();
    program
        .run(&Step { tokens: &[3, 1], positions: &[0, 1], sequences: &sequences, ..Step::default() })
        .unwrap();
    program.output(0).to_vec()
}

#[test]
fn rows_without_columns_are_rows() {
    assert_eq!(run(|_, x| x.softmax()), []);
    assert_eq!(run(|g, x| x.linear(weight(g, "w", Shape::matrix(3, 0)))), [0.0; 6]);
    assert_eq!(
        run(|g, x| x.linear(weight(g, "w", Shape::matrix(3, 0))) + weight(g, "b", Shape::vector(3))),
        [1.0; 6]
    );
}

#[test]
fn experts_without_rows_or_columns_give_as_much() {
    assert_eq!(run(|g, x| x.expert_linear(weight(g, "w", Shape::stack(2, 3, 0)), first(g))), [0.0; 6]);
    assert_eq!(run(|g, _| rows(g, 5).expert_linear(weight(g, "w", Shape::stack(2, 0, 5)), first(g))), []);
}
