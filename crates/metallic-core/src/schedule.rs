//! Where every intermediate lies: one arena, places reused once their last reader has run.
//!
//! Offsets are in bytes of one row of a symbolic axis, so one plan serves steps of every size: a node of `b` bytes a row at
//! offset `o` of the token region lies at bytes `o * tokens .. (o + b) * tokens`.

use std::ops::Range;

use crate::{Dim, Graph, NodeId, Sizes};

/// Rows of each region of the arena: its places grow with the tokens, with the outputs, or not at all.
fn rows(sizes: Sizes) -> [usize; 3] {
    [sizes.tokens, sizes.outputs, 1]
}

/// Rows take whole multiples of this, so that every place begins at one.
const ALIGN: usize = 16;

/// Where a value lies; `start` and `room` are bytes of a row, of which `bytes` are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    region: usize,
    start: usize,
    room: usize,
    bytes: usize,
}

/// The plan of a graph's memory.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// By node; sources and receipts have none.
    places: Vec<Option<Span>>,
    /// By node, the last one that reads it.
    last: Vec<usize>,
    /// Bytes of a row of each region.
    room: [usize; 3],
}

impl Schedule {
    /// Places every intermediate of `graph`, whose nodes run in their order.
    pub fn of(graph: &Graph) -> Schedule {
        Schedule::until(graph, last_uses(graph))
    }

    /// The same without reuse: every value is there when the step has run.
    pub fn apart(graph: &Graph) -> Schedule {
        Schedule::until(graph, vec![usize::MAX; graph.nodes().len()])
    }

    /// Each node's place is its own up to the node of this index.
    fn until(graph: &Graph, last: Vec<usize>) -> Schedule {
        let mut schedule = Schedule { places: vec![None; graph.nodes().len()], last, room: [0; 3] };
        let mut live: Vec<(usize, Span)> = Vec::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            // A node may not overwrite what it reads: places free up only after their last reader.
            live.retain(|(until, _)| *until >= index);
            let region = match node.ty.shape.leading() {
                Dim::Tokens => 0,
                Dim::Outputs => 1,
                Dim::Fixed(_) => 2,
            };
            let bytes = node.ty.bytes(Sizes { tokens: 1, outputs: 1 }).unwrap_or(0);
            if node.op.is_source() || bytes == 0 {
                continue;
            }
            let room = bytes.next_multiple_of(ALIGN);
            let start = first_fit(&live, region, room);
            let span = Span { region, start, room, bytes };
            schedule.room[region] = schedule.room[region].max(start + room);
            schedule.places[index] = Some(span);
            live.push((schedule.last[index], span));
        }
        schedule
    }

    /// Bytes of the arena in a step of these sizes.
    pub fn arena_bytes(&self, sizes: Sizes) -> usize {
        self.bytes_before(3, sizes)
    }

    fn bytes_before(&self, region: usize, sizes: Sizes) -> usize {
        self.room.iter().zip(rows(sizes)).take(region).map(|(room, rows)| room * rows).sum()
    }

    /// The last node that reads a node's value, which has its place from the node itself up to there; `None` where it is kept until the end of
    /// the step: it is an output.
    pub fn last_use(&self, node: NodeId) -> Option<NodeId> {
        self.last.get(node.0).copied().filter(|last| *last != usize::MAX).map(NodeId)
    }

    /// Where a node's value lies in the arena, in bytes; `None` for sources and receipts.
    pub fn range(&self, node: NodeId, sizes: Sizes) -> Option<Range<usize>> {
        let span = self.places.get(node.0).copied().flatten()?;
        let rows = rows(sizes)[span.region];
        let start = self.bytes_before(span.region, sizes) + span.start * rows;
        Some(start..start + span.bytes * rows)
    }
}

/// The last node that reads each node; outputs are read at the end of time.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last: Vec<usize> = (0..graph.nodes().len()).collect();
    for (index, node) in graph.nodes().iter().enumerate() {
        for input in &node.inputs {
            last[input.0] = index;
        }
    }
    for output in graph.outputs() {
        last[output.0] = usize::MAX;
    }
    last
}

/// The lowest offset where `room` bytes of a row are free among the live places of a region.
fn first_fit(live: &[(usize, Span)], region: usize, room: usize) -> usize {
    let mut taken: Vec<Span> = live.iter().map(|(_, p)| *p).filter(|p| p.region == region).collect();
    taken.sort_by_key(|p| p.start);
    let mut start = 0;
    for place in taken {
        if start + room <= place.start {
            break;
        }
        start = start.max(place.start + place.room);
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, Unary};

    /// `x → a → b → … ` with `x` read again at the end.
    fn chain(g: &GraphBuilder, links: usize) -> Graph {
        let table = g.weight(crate::Weight {
            name: "t".to_owned(),
            ty: crate::TensorType::f32(crate::Shape::matrix(4, 8)),
            data: vec![0; 128].into(),
        });
        let x = table.embed(g.tokens());
        let mut y = x;
        for _ in 0..links {
            y = y.unary(Unary::Silu);
        }
        g.finish(&[(x + y).select_rows(g.output_rows())]).unwrap()
    }

    #[test]
    fn a_long_chain_needs_three_places() {
        let graph = chain(&GraphBuilder::new(), 10);
        let schedule = Schedule::of(&graph);
        let sizes = Sizes { tokens: 5, outputs: 2 };
        assert_eq!(schedule.arena_bytes(sizes), 4 * (3 * 8 * 5 + 8 * 2));
    }

    #[test]
    fn values_that_are_kept_apart_have_a_place_each() {
        let graph = chain(&GraphBuilder::new(), 10);
        let sizes = Sizes { tokens: 5, outputs: 2 };
        // The table's rows, ten links and the sum; the selection.
        assert_eq!(Schedule::apart(&graph).arena_bytes(sizes), 4 * (12 * 8 * 5 + 8 * 2));
    }

    #[test]
    fn half_rows_take_half_the_bytes() {
        let graph = chain(&GraphBuilder::new(), 10);
        let half = crate::rewrite::with_activations(&graph, crate::DType::F16).unwrap();
        let (tokens, none) = (Sizes { tokens: 5, outputs: 0 }, Sizes::default());
        assert_eq!(Schedule::of(&half).arena_bytes(tokens), Schedule::of(&graph).arena_bytes(tokens) / 2);
        assert_eq!(Schedule::of(&half).arena_bytes(none), 0);
    }

    #[test]
    fn live_values_never_overlap() {
        let graph = chain(&GraphBuilder::new(), 4);
        let schedule = Schedule::of(&graph);
        let last = last_uses(&graph);
        let sizes = Sizes { tokens: 3, outputs: 1 };
        let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
        for &a in &nodes {
            for &b in nodes.iter().filter(|b| **b > a && last[a.0] >= b.0) {
                if let (Some(x), Some(y)) = (schedule.range(a, sizes), schedule.range(b, sizes)) {
                    assert!(x.end <= y.start || y.end <= x.start, "{a:?} {x:?} and {b:?} {y:?}");
                }
            }
        }
    }
}
