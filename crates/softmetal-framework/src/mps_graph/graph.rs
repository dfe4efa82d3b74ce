//! `MPSGraph` and its tensors: every operation infers the type of its result, and refuses operands as MPSGraph asserts.

use std::sync::{Arc, Mutex};

use super::OBJECT;
use super::executable;
use super::shapes::{broadcast, product};
use crate::foundation::{array, number_of, numbers};
use crate::lock;
use crate::mps::data_type::DataType;
use crate::objc::{Id, Method, Strong, class, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static GRAPH = c"MPSGraph", &OBJECT, all, none);
class!(pub(crate) static TENSOR = c"MPSGraphTensor", &OBJECT, tensor_methods, none);
class!(pub(crate) static SHAPED_TYPE = c"MPSGraphShapedType", &OBJECT, type_methods, none);

/// Shape and elements of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) shape: Vec<usize>,
    pub(crate) data_type: DataType,
}

impl Type {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What is done with two tensors, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairwise {
    Add,
    Subtract,
    Multiply,
    Divide,
    Less,
    GreaterOrEqual,
    And,
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Placeholder,
    Constant(f32),
    Cast,
    Reshape,
    Transpose(Vec<usize>),
    Broadcast,
    Slice { axis: usize, start: usize },
    Concat(usize),
    Product,
    Pairwise(Pairwise),
    Tanh,
    Coordinates(usize),
    Select,
    Softmax(usize),
}

/// An operation with its operands, and what comes of it.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) operands: Vec<usize>,
    pub(crate) ty: Type,
}

/// Operations in the order in which they were made.
pub(crate) type Nodes = Mutex<Vec<Node>>;

struct Graph(Arc<Nodes>);

/// What an `MPSGraphTensor` holds.
pub(crate) struct Tensor {
    pub(crate) graph: Arc<Nodes>,
    pub(crate) node: usize,
}

impl Tensor {
    pub(crate) fn ty(&self) -> Type {
        lock(&self.graph)[self.node].ty.clone()
    }
}

fn tensor_methods() -> Vec<Method> {
    methods! { Tensor;
        c"shape"(this) -> Id { shape_array(&this.ty().shape).lend() }
        c"dataType"(this) -> u32 { this.ty().data_type.number() }
    }
}

fn shape_array(shape: &[usize]) -> Strong {
    array(shape.iter().map(|axis| number_of(*axis)).collect())
}

/// What an `MPSGraphShapedType` holds.
pub(crate) struct ShapedType(pub(crate) Type);

fn type_methods() -> Vec<Method> {
    let mut all = methods! { ShapedType;
        c"shape"(this) -> Id { shape_array(&this.0.shape).lend() }
        c"dataType"(this) -> u32 { this.0.data_type.number() }
    };
    all.extend(raw_methods! {
        c"initWithShape:dataType:"(this, shape: Id, data_type: u32) -> Id {
            this.initialise(ShapedType(Type { shape: numbers(shape), data_type: DataType::of(data_type) }))
        }
    });
    all
}

impl Graph {
    /// A tensor of this graph.
    fn operand(&self, tensor: Id) -> (usize, Type) {
        let tensor = tensor.this::<Tensor>();
        if !Arc::ptr_eq(&tensor.graph, &self.0) {
            refuse(Rule::WrongObject, format!("{} is of another graph", tensor.id.describe()));
        }
        (tensor.node, tensor.ty())
    }

    fn add(&self, op: Op, operands: Vec<usize>, shape: Vec<usize>, data_type: DataType) -> Id {
        let mut nodes = lock(&self.0);
        nodes.push(Node { op, operands, ty: Type { shape, data_type } });
        let node = nodes.len() - 1;
        drop(nodes);
        Strong::new(&TENSOR, Tensor { graph: self.0.clone(), node }).lend()
    }

    /// An operation on one tensor that leaves its elements what they are.
    fn map(&self, op: Op, of: Id) -> Id {
        let (node, ty) = self.operand(of);
        if !ty.data_type.is_float() {
            refuse(Rule::Descriptor, format!("{op:?} of {ty:?}: MPSGraph asserts floats"));
        }
        self.add(op, vec![node], ty.shape, ty.data_type)
    }

    fn reshape(&self, of: Id, shape: Vec<usize>) -> Id {
        let (node, ty) = self.operand(of);
        if shape.iter().product::<usize>() != ty.elements() {
            refuse(Rule::Descriptor, format!("{ty:?} as {shape:?}: MPSGraph asserts as many elements"));
        }
        self.add(Op::Reshape, vec![node], shape, ty.data_type)
    }

    fn transpose(&self, of: Id, order: Vec<usize>) -> Id {
        let (node, ty) = self.operand(of);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..ty.shape.len()) {
            refuse(Rule::Descriptor, format!("axes {order:?} of {ty:?}: MPSGraph asserts a permutation"));
        }
        let shape = order.iter().map(|axis| ty.shape[*axis]).collect();
        self.add(Op::Transpose(order), vec![node], shape, ty.data_type)
    }

    fn broadcast(&self, of: Id, shape: Vec<usize>) -> Id {
        let (node, ty) = self.operand(of);
        if broadcast(&ty.shape, &shape, "broadcastTensor") != shape {
            refuse(Rule::Descriptor, format!("{ty:?} to {shape:?}: MPSGraph asserts that it is broadcast"));
        }
        self.add(Op::Broadcast, vec![node], shape, ty.data_type)
    }

    fn slice(&self, of: Id, axis: usize, start: isize, len: isize) -> Id {
        let (node, Type { mut shape, data_type }) = self.operand(of);
        let all = shape.get(axis).copied().unwrap_or(0).cast_signed();
        let begin = if start < 0 { start + all } else { start };
        if begin < 0 || len <= 0 || begin + len > all {
            refuse(
                Rule::Range,
                format!("{len} from {start} on of axis {axis} of {shape:?}: MPSGraph asserts less"),
            );
        }
        shape[axis] = len.unsigned_abs();
        self.add(Op::Slice { axis, start: begin.unsigned_abs() }, vec![node], shape, data_type)
    }

    fn concat(&self, parts: [Id; 2], axis: isize) -> Id {
        let [(a, first), (b, second)] = parts.map(|part| self.operand(part));
        let axis = if axis < 0 { axis + first.shape.len().cast_signed() } else { axis }.unsigned_abs();
        let others = |shape: &[usize]| {
            let mut others = shape.to_vec();
            if axis < others.len() {
                others.remove(axis);
            }
            others
        };
        if others(&first.shape) != others(&second.shape)
            || axis >= first.shape.len()
            || first.data_type != second.data_type
        {
            refuse(
                Rule::Descriptor,
                format!("{first:?} and {second:?} along {axis}: MPSGraph asserts that they fit"),
            );
        }
        let mut shape = first.shape;
        shape[axis] += second.shape[axis];
        self.add(Op::Concat(axis), vec![a, b], shape, first.data_type)
    }

    fn product(&self, factors: [Id; 2]) -> Id {
        let [(a, first), (b, second)] = factors.map(|factor| self.operand(factor));
        if first.data_type != second.data_type || !first.data_type.is_float() {
            refuse(
                Rule::Descriptor,
                format!("the product of {first:?} and {second:?}: MPSGraph asserts equal floats"),
            );
        }
        let shape = product(&first.shape, &second.shape);
        self.add(Op::Product, vec![a, b], shape, first.data_type)
    }

    fn pairwise(&self, op: Pairwise, operands: [Id; 2]) -> Id {
        let [(a, first), (b, second)] = operands.map(|operand| self.operand(operand));
        let logical = op == Pairwise::And;
        if first.data_type != second.data_type || logical != (first.data_type == DataType::Bool) {
            refuse(
                Rule::Descriptor,
                format!("{op:?} of {first:?} and {second:?}: MPSGraph asserts equal types"),
            );
        }
        let shape = broadcast(&first.shape, &second.shape, &format!("{op:?}"));
        let data_type = match op {
            Pairwise::Add | Pairwise::Subtract | Pairwise::Multiply | Pairwise::Divide => first.data_type,
            Pairwise::Less | Pairwise::GreaterOrEqual | Pairwise::And => DataType::Bool,
        };
        self.add(Op::Pairwise(op), vec![a, b], shape, data_type)
    }

    fn select(&self, operands: [Id; 3]) -> Id {
        let [(condition, asked), (a, first), (b, second)] = operands.map(|operand| self.operand(operand));
        if asked.data_type != DataType::Bool || first.data_type != second.data_type {
            let types = [&asked, &first, &second];
            refuse(
                Rule::Descriptor,
                format!("select of {types:?}: MPSGraph asserts a Bool, and two equal types"),
            );
        }
        let shape = broadcast(&asked.shape, &broadcast(&first.shape, &second.shape, "select"), "select");
        self.add(Op::Select, vec![condition, a, b], shape, first.data_type)
    }

    fn softmax(&self, of: Id, axis: isize) -> Id {
        let rank = self.operand(of).1.shape.len().cast_signed();
        let axis = if axis < 0 { axis + rank } else { axis };
        if !(0..rank).contains(&axis) {
            refuse(
                Rule::Range,
                format!("softmax over axis {axis} of {rank}: MPSGraph asserts that it is there"),
            );
        }
        self.map(Op::Softmax(axis.unsigned_abs()), of)
    }
}

fn all() -> Vec<Method> {
    let mut all = made();
    all.extend(moved());
    all.extend(computed());
    all.extend(raw_methods! { c"init"(this) -> Id { this.initialise(Graph(Arc::default())) } });
    all
}

/// Placeholders, constants, and executables.
fn made() -> Vec<Method> {
    methods! { Graph;
        c"placeholderWithShape:dataType:name:"(this, shape: Id, data_type: u32, _name: Id) -> Id {
            this.add(Op::Placeholder, Vec::new(), numbers(shape), DataType::of(data_type))
        }
        c"constantWithScalar:shape:dataType:"(this, number: f64, shape: Id, data_type: u32) -> Id {
            let data_type = DataType::of(data_type);
            let number = data_type.rounded(number as f32);
            this.add(Op::Constant(number), Vec::new(), numbers(shape), data_type)
        }
        c"coordinateAlongAxis:withShape:name:"(this, axis: isize, shape: Id, _name: Id) -> Id {
            let shape = numbers(shape);
            let axis = if axis < 0 { axis + shape.len().cast_signed() } else { axis };
            this.add(Op::Coordinates(axis.unsigned_abs()), Vec::new(), shape, DataType::I32)
        }
        c"compileWithDevice:feeds:targetTensors:targetOperations:compilationDescriptor:"(
            this, device: Id, feeds: Id, targets: Id, operations: Id, descriptor: Id
        ) -> Id {
            executable::compile(&this.0, device, feeds, targets, [operations, descriptor])
        }
    }
}

fn moved() -> Vec<Method> {
    methods! { Graph;
        c"castTensor:toType:name:"(this, of: Id, data_type: u32, _name: Id) -> Id {
            let (node, ty) = this.operand(of);
            this.add(Op::Cast, vec![node], ty.shape, DataType::of(data_type))
        }
        c"reshapeTensor:withShape:name:"(this, of: Id, shape: Id, _name: Id) -> Id {
            this.reshape(of, numbers(shape))
        }
        c"transposeTensor:permutation:name:"(this, of: Id, order: Id, _name: Id) -> Id {
            this.transpose(of, numbers(order))
        }
        c"broadcastTensor:toShape:name:"(this, of: Id, shape: Id, _name: Id) -> Id {
            this.broadcast(of, numbers(shape))
        }
        c"sliceTensor:dimension:start:length:name:"(
            this, of: Id, axis: usize, start: isize, length: isize, _name: Id
        ) -> Id {
            this.slice(of, axis, start, length)
        }
        c"concatTensor:withTensor:dimension:name:"(this, a: Id, b: Id, axis: isize, _name: Id) -> Id {
            this.concat([a, b], axis)
        }
    }
}

fn computed() -> Vec<Method> {
    methods! { Graph;
        c"matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.product([a, b])
        }
        c"additionWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::Add, [a, b])
        }
        c"subtractionWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::Subtract, [a, b])
        }
        c"multiplicationWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::Multiply, [a, b])
        }
        c"divisionWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::Divide, [a, b])
        }
        c"lessThanWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::Less, [a, b])
        }
        c"greaterThanOrEqualToWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::GreaterOrEqual, [a, b])
        }
        c"logicalANDWithPrimaryTensor:secondaryTensor:name:"(this, a: Id, b: Id, _name: Id) -> Id {
            this.pairwise(Pairwise::And, [a, b])
        }
        c"tanhWithTensor:name:"(this, of: Id, _name: Id) -> Id { this.map(Op::Tanh, of) }
        c"selectWithPredicateTensor:truePredicateTensor:falsePredicateTensor:name:"(
            this, condition: Id, a: Id, b: Id, _name: Id
        ) -> Id {
            this.select([condition, a, b])
        }
        c"softMaxWithTensor:axis:name:"(this, of: Id, axis: isize, _name: Id) -> Id { this.softmax(of, axis) }
    }
}
