//! Graphs of tensors for a library of the device's maker: typed, checked as they are built, and plain data. What translates
//! one into the library's own objects decides nothing.

mod attention;

pub use attention::{AttentionGraph, ProjectGraph};

use crate::error::GpuError;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// Whole numbers from 0 on.
    U32,
    /// Whole numbers.
    I32,
    /// Yes or no.
    Bool,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::U32 | Element::I32 => 4,
            Element::F16 => 2,
            Element::Bool => 1,
        }
    }
}

/// Elements of a tensor must be fewer: so the library says of its arrays.
pub const MOST_ELEMENTS: usize = 1 << 31;

/// Shape and elements of a tensor. The last axis runs fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// What lies in it.
    pub element: Element,
}

impl Typed {
    /// Number of elements; as many as can be counted where they are more.
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |n, axis| n.saturating_mul(*axis))
    }

    /// Bytes, densely packed.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.element.bytes())
    }
}

/// A tensor of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor(usize);

/// What is done with two tensors, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairwise {
    /// `a + b`.
    Add,
    /// `a - b`.
    Subtract,
    /// `a * b`.
    Multiply,
    /// `a < b`.
    Less,
    /// `a >= b`.
    NotLess,
    /// Both.
    And,
}

/// Where a tensor comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// It is given, by the argument of this index of the launch that the graph stands for.
    Placeholder {
        /// What it is called.
        name: &'static str,
        /// The argument.
        argument: usize,
    },
    /// One number everywhere.
    Constant(f64),
    /// The same numbers as another type.
    Cast(Tensor),
    /// The same elements in the same order.
    Reshape(Tensor),
    /// Axis `i` is axis `order[i]` of the other.
    Transpose(Tensor, Vec<usize>),
    /// Axes of 1 become longer.
    Broadcast(Tensor),
    /// Elements `start ..` of an axis.
    Slice {
        /// Of this.
        of: Tensor,
        /// Which axis.
        axis: usize,
        /// The first element.
        start: usize,
    },
    /// One after the other along an axis.
    Concat([Tensor; 2], usize),
    /// Matrix products over the last two axes.
    Product([Tensor; 2]),
    /// Element by element; axes of 1, or that are not there, are as long as the other's.
    Pairwise(Pairwise, [Tensor; 2]),
    /// Hyperbolic tangent.
    Tanh(Tensor),
    /// The index of each element along an axis.
    Coordinates(usize),
    /// Elements of the first where the condition holds, else of the second.
    Select(Tensor, [Tensor; 2]),
    /// Softmax over the last axis.
    Softmax(Tensor),
}

/// Tensors in the order in which they can be computed, and the one that is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    nodes: Vec<(Node, Typed)>,
    output: Option<(Tensor, usize)>,
}

impl Graph {
    /// Each tensor with its type, those before that it is made of.
    pub fn nodes(&self) -> impl Iterator<Item = (Tensor, &Node, &Typed)> {
        self.nodes.iter().enumerate().map(|(index, (node, typed))| (Tensor(index), node, typed))
    }

    /// What is given: tensor, argument of the launch, type.
    pub fn placeholders(&self) -> impl Iterator<Item = (Tensor, usize, &Typed)> {
        self.nodes().filter_map(|(tensor, node, typed)| match node {
            Node::Placeholder { argument, .. } => Some((tensor, *argument, typed)),
            _ => None,
        })
    }

    /// What is wanted: tensor, argument of the launch that it is written to, type.
    pub fn output(&self) -> Option<(Tensor, usize, &Typed)> {
        self.output.and_then(|(tensor, argument)| Some((tensor, argument, &self.nodes.get(tensor.0)?.1)))
    }

    /// The place of a tensor among the nodes.
    pub fn index(tensor: Tensor) -> usize {
        tensor.0
    }

    fn typed(&self, tensor: Tensor) -> &Typed {
        &self.nodes[tensor.0].1
    }

    fn push(&mut self, node: Node, shape: Vec<usize>, element: Element) -> Result<Tensor, GpuError> {
        let typed = Typed { shape, element };
        if typed.elements() >= MOST_ELEMENTS {
            return Err(refused(format!(
                "a tensor of {:?}: fewer than 2^31 elements are needed",
                typed.shape
            )));
        }
        self.nodes.push((node, typed));
        Ok(Tensor(self.nodes.len() - 1))
    }

    fn placeholder(
        &mut self,
        (name, argument): (&'static str, usize),
        shape: &[usize],
        element: Element,
    ) -> Result<Tensor, GpuError> {
        self.push(Node::Placeholder { name, argument }, shape.to_vec(), element)
    }

    fn constant(&mut self, number: f64, element: Element) -> Result<Tensor, GpuError> {
        self.push(Node::Constant(number), vec![1], element)
    }

    fn cast(&mut self, of: Tensor, element: Element) -> Result<Tensor, GpuError> {
        if self.typed(of).element == element {
            return Ok(of);
        }
        let shape = self.typed(of).shape.clone();
        self.push(Node::Cast(of), shape, element)
    }

    fn reshape(&mut self, of: Tensor, shape: &[usize]) -> Result<Tensor, GpuError> {
        let Typed { shape: old, element } = self.typed(of).clone();
        if shape.iter().product::<usize>() != old.iter().product::<usize>() {
            return Err(refused(format!("{old:?} as {shape:?}: the elements are not as many")));
        }
        self.push(Node::Reshape(of), shape.to_vec(), element)
    }

    fn transpose(&mut self, of: Tensor, order: &[usize]) -> Result<Tensor, GpuError> {
        let Typed { shape, element } = self.typed(of).clone();
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..shape.len()) {
            return Err(refused(format!("axes {order:?} of {shape:?}: each is needed once")));
        }
        let turned = order.iter().map(|axis| shape[*axis]).collect();
        self.push(Node::Transpose(of, order.to_vec()), turned, element)
    }

    fn broadcast(&mut self, of: Tensor, shape: &[usize]) -> Result<Tensor, GpuError> {
        let Typed { shape: old, element } = self.typed(of).clone();
        if common_shape(&old, shape).as_deref() != Some(shape) {
            return Err(refused(format!("{old:?} as {shape:?}: only axes of 1 become longer")));
        }
        self.push(Node::Broadcast(of), shape.to_vec(), element)
    }

    fn slice(&mut self, of: Tensor, axis: usize, start: usize, len: usize) -> Result<Tensor, GpuError> {
        let Typed { mut shape, element } = self.typed(of).clone();
        let all = shape.get(axis).copied().unwrap_or(0);
        if start.checked_add(len).is_none_or(|end| end > all) || len == 0 {
            return Err(refused(format!("elements {start}..+{len} of axis {axis} of {shape:?}")));
        }
        shape[axis] = len;
        self.push(Node::Slice { of, axis, start }, shape, element)
    }

    fn concat(&mut self, parts: [Tensor; 2], axis: usize) -> Result<Tensor, GpuError> {
        let [a, b] = parts.map(|part| self.typed(part).clone());
        let alike = a.shape.len() == b.shape.len()
            && axis < a.shape.len()
            && (0..a.shape.len()).all(|other| other == axis || a.shape[other] == b.shape[other]);
        if !alike || a.element != b.element {
            return Err(refused(format!("{a:?} and {b:?} along axis {axis}")));
        }
        let mut shape = a.shape;
        shape[axis] += b.shape[axis];
        self.push(Node::Concat(parts, axis), shape, a.element)
    }

    fn product(&mut self, factors: [Tensor; 2]) -> Result<Tensor, GpuError> {
        let [a, b] = factors.map(|factor| self.typed(factor).clone());
        let shape = match (a.shape.as_slice(), b.shape.as_slice()) {
            ([outer @ .., m, k], [others @ .., also_k, n]) if k == also_k => {
                common_shape(outer, others).map(|outer| [outer, vec![*m, *n]].concat())
            }
            _ => None,
        };
        match shape.filter(|_| a.element == b.element) {
            Some(shape) => self.push(Node::Product(factors), shape, a.element),
            None => Err(refused(format!("the product of {a:?} and {b:?}"))),
        }
    }

    fn pairwise(&mut self, op: Pairwise, operands: [Tensor; 2]) -> Result<Tensor, GpuError> {
        let [a, b] = operands.map(|operand| self.typed(operand).clone());
        let logical = op == Pairwise::And;
        let shape = common_shape(&a.shape, &b.shape)
            .filter(|_| a.element == b.element && logical == (a.element == Element::Bool));
        let element = match op {
            Pairwise::Add | Pairwise::Subtract | Pairwise::Multiply => a.element,
            Pairwise::Less | Pairwise::NotLess | Pairwise::And => Element::Bool,
        };
        match shape {
            Some(shape) => self.push(Node::Pairwise(op, operands), shape, element),
            None => Err(refused(format!("{op:?} of {a:?} and {b:?}"))),
        }
    }

    fn tanh(&mut self, of: Tensor) -> Result<Tensor, GpuError> {
        let Typed { shape, element } = self.typed(of).clone();
        self.push(Node::Tanh(of), shape, element)
    }

    fn coordinates(&mut self, axis: usize, shape: &[usize]) -> Result<Tensor, GpuError> {
        self.push(Node::Coordinates(axis), shape.to_vec(), Element::I32)
    }

    fn select(&mut self, condition: Tensor, choices: [Tensor; 2]) -> Result<Tensor, GpuError> {
        let [a, b] = choices.map(|choice| self.typed(choice).clone());
        let condition_type = self.typed(condition).clone();
        let shape = common_shape(&a.shape, &b.shape)
            .and_then(|shape| common_shape(&shape, &condition_type.shape))
            .filter(|_| a.element == b.element && condition_type.element == Element::Bool);
        match shape {
            Some(shape) => self.push(Node::Select(condition, choices), shape, a.element),
            None => Err(refused(format!("{a:?} or {b:?} by {condition_type:?}"))),
        }
    }

    fn softmax(&mut self, of: Tensor) -> Result<Tensor, GpuError> {
        let Typed { shape, element } = self.typed(of).clone();
        self.push(Node::Softmax(of), shape, element)
    }
}

/// The shape that both are as long as, where axes of 1 are as long as the other's; `None` where they cannot be.
fn common_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let axis = |shape: &[usize], at: usize| (at + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    let both = |at: usize| match (axis(a, at), axis(b, at)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    };
    (0..rank).map(both).collect()
}

fn refused(reason: String) -> GpuError {
    GpuError::unsupported("graph", reason)
}

#[cfg(test)]
mod tests;
