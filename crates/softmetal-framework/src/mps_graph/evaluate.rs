//! What operations mean, on the host: in `f32`, rounded to the type of each result.

use super::graph::{Node, Op, Pairwise};
use super::shapes::{index, places, source};
use crate::mps::dot;

/// The values of all nodes that `target` needs; `fed` has those of placeholders.
pub(crate) fn evaluate(nodes: &[Node], fed: &[(usize, Vec<f32>)], target: usize) -> Result<Vec<f32>, String> {
    let needed = needed(nodes, target);
    let mut values: Vec<Vec<f32>> = vec![Vec::new(); nodes.len()];
    for at in 0..=target {
        if !needed[at] {
            continue;
        }
        let node = &nodes[at];
        values[at] = if matches!(node.op, Op::Placeholder) {
            let found = fed.iter().find(|(known, _)| *known == at);
            found.ok_or_else(|| format!("placeholder {at} is not fed"))?.1.clone()
        } else {
            let operands: Vec<(&[f32], &[usize])> = node
                .operands
                .iter()
                .map(|operand| (values[*operand].as_slice(), nodes[*operand].ty.shape.as_slice()))
                .collect();
            let made = result(node, &operands);
            made.into_iter().map(|x| node.ty.data_type.rounded(x)).collect()
        };
    }
    Ok(std::mem::take(&mut values[target]))
}

/// Which nodes a result is made of. Operands come before what is made of them.
fn needed(nodes: &[Node], target: usize) -> Vec<bool> {
    let mut needed = vec![false; nodes.len()];
    needed[target] = true;
    for at in (0..=target).rev() {
        if needed[at] {
            nodes[at].operands.iter().for_each(|operand| needed[*operand] = true);
        }
    }
    needed
}

type Operand<'v> = (&'v [f32], &'v [usize]);

fn result(node: &Node, operands: &[Operand<'_>]) -> Vec<f32> {
    let (shape, elements) = (node.ty.shape.as_slice(), node.ty.elements());
    let at = |operand: usize, index: usize| {
        let (values, of) = operands[operand];
        values[source(index, shape, of)]
    };
    match &node.op {
        Op::Placeholder => Vec::new(),
        Op::Constant(number) => vec![*number; elements],
        Op::Cast | Op::Reshape => operands[0].0.to_vec(),
        Op::Broadcast => (0..elements).map(|index| at(0, index)).collect(),
        Op::Tanh => operands[0].0.iter().map(|x| x.tanh()).collect(),
        Op::Coordinates(axis) => (0..elements).map(|index| places(index, shape)[*axis] as f32).collect(),
        Op::Transpose(order) => {
            let (values, of) = operands[0];
            let from = |to: usize| {
                let mut own = vec![0; of.len()];
                places(to, shape).into_iter().zip(order).for_each(|(place, axis)| own[*axis] = place);
                values[index(&own, of)]
            };
            (0..elements).map(from).collect()
        }
        Op::Slice { axis, start } => {
            let (values, of) = operands[0];
            let from = |to: usize| {
                let mut own = places(to, shape);
                own[*axis] += start;
                values[index(&own, of)]
            };
            (0..elements).map(from).collect()
        }
        Op::Concat(axis) => {
            let from = |to: usize| {
                let mut own = places(to, shape);
                let first = operands[0].1[*axis];
                let part = usize::from(own[*axis] >= first);
                own[*axis] -= part * first;
                operands[part].0[index(&own, operands[part].1)]
            };
            (0..elements).map(from).collect()
        }
        Op::Pairwise(op) => (0..elements).map(|index| pairwise(*op, at(0, index), at(1, index))).collect(),
        Op::Select => {
            (0..elements).map(|index| if at(0, index) == 0.0 { at(2, index) } else { at(1, index) }).collect()
        }
        Op::Softmax(axis) => softmax(operands[0], *axis),
        Op::Product => product(shape, operands[0], operands[1]),
    }
}

fn pairwise(op: Pairwise, a: f32, b: f32) -> f32 {
    let truth = |yes: bool| f32::from(u8::from(yes));
    match op {
        Pairwise::Add => a + b,
        Pairwise::Subtract => a - b,
        Pairwise::Multiply => a * b,
        Pairwise::Divide => a / b,
        Pairwise::Less => truth(a < b),
        Pairwise::GreaterOrEqual => truth(a >= b),
        Pairwise::And => truth(a != 0.0 && b != 0.0),
    }
}

fn softmax((values, shape): Operand<'_>, axis: usize) -> Vec<f32> {
    let inner: usize = shape[axis + 1..].iter().product();
    let len = shape[axis];
    let mut out = values.to_vec();
    for start in (0..values.len()).filter(|index| (index / inner).is_multiple_of(len)) {
        let own = |step: usize| start + step * inner;
        let top = (0..len).map(|step| values[own(step)]).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = (0..len).map(|step| (values[own(step)] - top).exp()).sum();
        (0..len).for_each(|step| out[own(step)] = (values[own(step)] - top).exp() / sum);
    }
    out
}

fn product(shape: &[usize], (a, a_shape): Operand<'_>, (b, b_shape): Operand<'_>) -> Vec<f32> {
    let (&[.., m, k], &[.., n]) = (a_shape, b_shape) else { return Vec::new() };
    let outer = &shape[..shape.len() - 2];
    let matrices: usize = outer.iter().product();
    let mut out = Vec::with_capacity(matrices * m * n);
    for matrix in 0..matrices {
        let part = |of: &[usize]| source(matrix, outer, &of[..of.len() - 2]);
        let a = &a[part(a_shape) * m * k..][..m * k];
        let b = &b[part(b_shape) * k * n..][..k * n];
        // Column by column, so that a sum goes along memory.
        let columns: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
        for row in a.chunks_exact(k) {
            out.extend(columns.chunks_exact(k).map(|column| dot(row, column)));
        }
    }
    out
}
