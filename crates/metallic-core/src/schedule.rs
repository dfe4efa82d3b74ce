//! Where every intermediate lies: one arena, places reused once their last reader has run.
//!
//! Offsets are in columns of a symbolic axis, so one plan serves steps of every size: a node of `c` columns at
//! column `o` of the token region lies at elements `o * tokens .. (o + c) * tokens`.

use std::ops::Range;

use crate::{Dim, Graph, NodeId, Sizes};

/// A part of the arena whose places grow with one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    Tokens,
    Outputs,
    Fixed,
}

const REGIONS: [Region; 3] = [Region::Tokens, Region::Outputs, Region::Fixed];

impl Region {
    fn factor(self, sizes: Sizes) -> usize {
        match self {
            Region::Tokens => sizes.tokens,
            Region::Outputs => sizes.outputs,
            Region::Fixed => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    region: Region,
    start: usize,
    cols: usize,
}

/// The plan of a graph's memory.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// By node; sources and receipts have none.
    places: Vec<Option<Place>>,
    /// Columns of each region, by the order of [`REGIONS`].
    cols: [usize; 3],
}

impl Schedule {
    /// Places every intermediate of `graph`, whose nodes run in their order.
    pub fn of(graph: &Graph) -> Schedule {
        let last_use = last_uses(graph);
        let mut schedule = Schedule { places: vec![None; graph.nodes().len()], cols: [0; 3] };
        let mut live: Vec<(usize, Place)> = Vec::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            // A node may not overwrite what it reads: places free up only after their last reader.
            live.retain(|(until, _)| *until >= index);
            let (region, cols) = match node.ty.shape.leading() {
                Dim::Tokens => (Region::Tokens, cols_per_row(graph, index)),
                Dim::Outputs => (Region::Outputs, cols_per_row(graph, index)),
                Dim::Fixed(_) => (Region::Fixed, node.ty.shape.elements(Sizes::default())),
            };
            if node.op.is_source() || cols == 0 {
                continue;
            }
            let start = first_fit(&live, region, cols);
            let place = Place { region, start, cols };
            schedule.cols[region as usize] = schedule.cols[region as usize].max(start + cols);
            schedule.places[index] = Some(place);
            live.push((last_use[index], place));
        }
        schedule
    }

    /// Elements of the arena in a step of these sizes.
    pub fn arena_len(&self, sizes: Sizes) -> usize {
        REGIONS.iter().map(|r| self.cols[*r as usize] * r.factor(sizes)).sum()
    }

    /// Where a node's value lies in the arena, in elements; `None` for sources and receipts.
    pub fn range(&self, node: NodeId, sizes: Sizes) -> Option<Range<usize>> {
        let place = self.places.get(node.0).copied().flatten()?;
        let before = REGIONS.iter().take_while(|r| **r != place.region);
        let base: usize = before.map(|r| self.cols[*r as usize] * r.factor(sizes)).sum();
        let factor = place.region.factor(sizes);
        Some(base + place.start * factor..base + (place.start + place.cols) * factor)
    }
}

/// Elements of one step of the leading axis.
fn cols_per_row(graph: &Graph, index: usize) -> usize {
    let inner = &graph.nodes()[index].ty.shape.dims()[1..];
    inner.iter().map(|d| Sizes::default().of(*d)).product()
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

/// The lowest column where `cols` columns are free among the live places of a region.
fn first_fit(live: &[(usize, Place)], region: Region, cols: usize) -> usize {
    let mut taken: Vec<Place> = live.iter().map(|(_, p)| *p).filter(|p| p.region == region).collect();
    taken.sort_by_key(|p| p.start);
    let mut start = 0;
    for place in taken {
        if start + cols <= place.start {
            break;
        }
        start = start.max(place.start + place.cols);
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
        assert_eq!(schedule.arena_len(sizes), 3 * 8 * 5 + 8 * 2);
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
