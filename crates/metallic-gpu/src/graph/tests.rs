use super::*;

const GRAPH: AttentionGraph = AttentionGraph {
    tokens: 5,
    keys: 64,
    heads: 6,
    kv_heads: 2,
    head_dim: 16,
    value_dim: 8,
    halfs: true,
    window: u32::MAX,
    scale: 0,
    softcap: None,
    sinks: false,
    project: None,
};

fn count(graph: &Graph, which: impl Fn(&Node) -> bool) -> usize {
    graph.nodes().filter(|(_, node, _)| which(node)).count()
}

#[test]
fn attention_takes_its_arguments_as_they_lie_and_gives_rows_of_floats() {
    let graph = GRAPH.graph().unwrap();
    let given: Vec<_> = graph.placeholders().map(|(_, arg, t)| (arg, t.shape.clone(), t.element)).collect();
    assert_eq!(
        given,
        [
            (0, vec![5, 2, 3, 16], Element::F32),
            (1, vec![2, 64, 16], Element::F16),
            (2, vec![2, 64, 8], Element::F16),
            (3, vec![5, 2], Element::U32),
        ]
    );
    let (_, argument, typed) = graph.output().unwrap();
    assert_eq!((argument, typed.shape.as_slice(), typed.element), (5, &[5, 2, 3, 8][..], Element::F32));
    let halfs = |(_, node, typed): (Tensor, &Node, &Typed)| {
        matches!(node, Node::Product(_) | Node::Softmax(_)) && typed.element != Element::F32
    };
    assert!(!graph.nodes().any(halfs), "sums are of floats");
}

#[test]
fn a_projection_is_one_more_product_of_floats_in_the_same_graph() {
    for halfs in [true, false] {
        let graph = AttentionGraph { project: Some(ProjectGraph { rows: 7, halfs }), ..GRAPH };
        let graph = graph.graph().unwrap();
        let stored = if halfs { Element::F16 } else { Element::F32 };
        let given: Vec<_> =
            graph.placeholders().map(|(_, arg, t)| (arg, t.shape.clone(), t.element)).collect();
        assert_eq!(given.last(), Some(&(5, vec![7, 48], stored)));
        let (_, argument, typed) = graph.output().unwrap();
        assert_eq!((argument, typed.shape.as_slice(), typed.element), (6, &[5, 7][..], Element::F32));
        assert_eq!(count(&graph, |node| matches!(node, Node::Product(_))), 3);
    }
}

#[test]
fn what_is_not_asked_for_is_not_computed() {
    let plain = GRAPH.graph().unwrap();
    assert_eq!(count(&plain, |node| matches!(node, Node::Tanh(_) | Node::Concat(..))), 0);
    assert_eq!(count(&plain, |node| matches!(node, Node::Pairwise(Pairwise::NotLess | Pairwise::And, _))), 0);
    let all = AttentionGraph { window: 7, softcap: Some(30f32.to_bits()), sinks: true, ..GRAPH };
    let all = all.graph().unwrap();
    assert_eq!(count(&all, |node| matches!(node, Node::Tanh(_) | Node::Concat(..))), 2);
    assert_eq!(count(&all, |node| matches!(node, Node::Pairwise(Pairwise::NotLess | Pairwise::And, _))), 2);
    assert_eq!(all.placeholders().count(), 5);
}

#[test]
fn tensors_that_do_not_fit_are_refused_with_their_shapes() {
    let mut g = Graph::default();
    let a = g.placeholder(("a", 0), &[2, 3], Element::F32).unwrap();
    let b = g.placeholder(("b", 1), &[2, 3], Element::F16).unwrap();
    let c = g.placeholder(("c", 2), &[4, 1], Element::F32).unwrap();
    let refused = |made: Result<Tensor, GpuError>, parts: &[&str]| {
        let text = made.unwrap_err().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    refused(g.product([a, a]), &["product", "[2, 3]"]);
    refused(g.product([a, b]), &["F32", "F16"]);
    refused(g.pairwise(Pairwise::Add, [a, b]), &["Add", "F16"]);
    refused(g.pairwise(Pairwise::Add, [a, c]), &["[4, 1]"]);
    refused(g.pairwise(Pairwise::And, [a, a]), &["And"]);
    refused(g.reshape(a, &[4, 2]), &["[4, 2]"]);
    refused(g.transpose(a, &[0, 0]), &["[0, 0]"]);
    refused(g.broadcast(a, &[2, 4]), &["axes of 1"]);
    refused(g.slice(a, 1, 2, 2), &["2..+2", "axis 1"]);
    refused(g.concat([a, c], 1), &["axis 1"]);
    refused(g.select(a, [a, a]), &["F32"]);
    let huge = AttentionGraph { tokens: 1 << 14, keys: 1 << 16, ..GRAPH };
    refused(huge.graph().map(|_| a), &["2^31"]);
    assert_eq!(common_shape(&[3, 1], &[2, 1, 4]), Some(vec![2, 3, 4]));
}
