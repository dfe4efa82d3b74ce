//! Graphs as objects of MPSGraph: one call for each node. What stands in a graph is decided in `crate::graph`.

use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2::{AnyThread, msg_send};
use objc2_foundation::{NSArray, NSDictionary, NSNumber, NSString};
use objc2_metal::MTLCommandBuffer;
use objc2_metal_performance_shaders::{MPSCommandBuffer, MPSDataType, MPSNDArray, MPSNDArrayDescriptor};
use objc2_metal_performance_shaders_graph::{
    MPSGraph, MPSGraphDevice, MPSGraphExecutable, MPSGraphShapedType, MPSGraphTensor, MPSGraphTensorData,
};

use super::buffer::Buffer;
use super::device::RawDevice;
use crate::cache::{Cache, CacheMetrics, CachedKey};
use crate::command::Dispatch;
use crate::driver::mps;
use crate::error::GpuError;
use crate::graph::{AttentionGraph, Element, Graph, Node, Pairwise, Tensor, Typed};

/// Graphs that are kept.
const GRAPHS: usize = 64;

fn data_type(element: Element) -> MPSDataType {
    match element {
        Element::F32 => MPSDataType::Float32,
        Element::F16 => MPSDataType::Float16,
        Element::U32 => MPSDataType::UInt32,
        Element::I32 => MPSDataType::Int32,
        Element::Bool => MPSDataType::Bool,
    }
}

fn numbers(numbers: &[usize]) -> Retained<NSArray<NSNumber>> {
    let numbers: Vec<_> = numbers.iter().map(|n| NSNumber::new_usize(*n)).collect();
    NSArray::from_retained_slice(&numbers)
}

/// A graph that was compiled.
pub(super) struct Compiled {
    raw: Retained<MPSGraphExecutable>,
    graph: Graph,
    /// Which argument of the launch each input is, in the order in which the executable takes them, and its type.
    inputs: Vec<(usize, Typed)>,
    output: (usize, Typed),
}

// SAFETY: an executable may be used from any thread, as its bindings say; the rest are numbers.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

/// The graphs of a device, compiled as they are asked for.
pub(super) struct Graphs {
    device: RawDevice,
    compiled: Cache<AttentionGraph, Compiled, GpuError>,
}

impl Graphs {
    pub(super) fn new(device: RawDevice) -> Graphs {
        Graphs { device, compiled: Cache::remembering(GRAPHS, |_| false) }
    }

    pub(super) fn metrics(&self) -> CacheMetrics {
        self.compiled.metrics()
    }

    pub(super) fn keys(&self) -> Vec<CachedKey<AttentionGraph>> {
        self.compiled.keys()
    }

    pub(super) fn compiled(&self, key: &AttentionGraph) -> Result<Arc<Compiled>, GpuError> {
        self.compiled.get_or_make(key, || compile(&self.device, key.graph()?))
    }

    /// A graph on the memory that a dispatch is bound to, as it lies.
    pub(super) fn bind(
        &self,
        dispatch: &Dispatch,
        key: &AttentionGraph,
        buffers: &[Arc<Buffer>],
    ) -> Result<BoundGraph, GpuError> {
        let compiled = self.compiled(key)?;
        mps::graph(dispatch, &compiled.graph)?;
        let view = |(argument, typed): &(usize, Typed)| -> Result<Retained<MPSGraphTensorData>, GpuError> {
            let bound = dispatch.bindings().nth(*argument).zip(buffers.get(*argument));
            let none = || GpuError::execution(dispatch.name(), "MPSGraph makes no view of its memory");
            let ((_, binding), buffer) = bound.ok_or_else(none)?;
            view(buffer, binding.region.offset(), typed).ok_or_else(none)
        };
        let inputs = compiled.inputs.iter().map(view).collect::<Result<Vec<_>, _>>()?;
        let results = NSArray::from_retained_slice(&[view(&compiled.output)?]);
        Ok(BoundGraph { inputs: NSArray::from_retained_slice(&inputs), results, compiled })
    }
}

/// A tensor over bytes of a buffer, without a copy. MPS says that nil may come back.
fn view(buffer: &Buffer, offset: usize, typed: &Typed) -> Option<Retained<MPSGraphTensorData>> {
    // SAFETY: the tensor's bytes are inside the buffer (`mps::graph`, `check::binding`), densely packed, as the descriptor is told;
    // `Kept` holds the buffer until the GPU is done.
    unsafe {
        let descriptor = MPSNDArrayDescriptor::descriptorWithDataType_shape(
            data_type(typed.element),
            &numbers(&typed.shape),
        );
        // Else rows would be thought of as padded.
        descriptor.setPreferPackedRows(true);
        let array: Option<Retained<MPSNDArray>> = msg_send![
            MPSNDArray::alloc(), initWithBuffer: &*buffer.raw, offset: offset, descriptor: &*descriptor
        ];
        let array = array?;
        msg_send![MPSGraphTensorData::alloc(), initWithMPSNDArray: &*array]
    }
}

/// A graph on memory.
pub(super) struct BoundGraph {
    compiled: Arc<Compiled>,
    inputs: Retained<NSArray<MPSGraphTensorData>>,
    results: Retained<NSArray<MPSGraphTensorData>>,
}

impl BoundGraph {
    /// See [`Bound::encode`](super::mps::Bound::encode).
    pub(super) fn encode(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
    ) -> Retained<ProtocolObject<dyn MTLCommandBuffer>> {
        // SAFETY: inputs are in the executable's order and of its types (`compile`), results as well; no encoder is open. The
        // library may commit the command buffer and go on with another, which is then the root.
        unsafe {
            let wrapped = MPSCommandBuffer::commandBufferWithCommandBuffer(command_buffer);
            self.compiled.raw.encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor(
                &wrapped,
                &self.inputs,
                Some(&self.results),
                None,
            );
            wrapped.rootCommandBuffer()
        }
    }
}

/// Makes an executable of a graph.
fn compile(device: &RawDevice, graph: Graph) -> Result<Compiled, GpuError> {
    let failed = |what: &str| GpuError::compile("MPSGraph", what);
    // SAFETY: it makes an empty graph.
    let raw = unsafe { MPSGraph::new() };
    let mut tensors: Vec<Retained<MPSGraphTensor>> = Vec::new();
    for (_, node, typed) in graph.nodes() {
        let tensor = translate(&raw, &tensors, node, typed);
        tensors.push(tensor);
    }
    let of = |tensor: Tensor| &tensors[Graph::index(tensor)];
    let (output, argument, typed) = graph.output().ok_or_else(|| failed("a graph without a result"))?;
    let (keys, types): (Vec<&MPSGraphTensor>, Vec<Retained<MPSGraphShapedType>>) =
        graph.placeholders().map(|(tensor, _, typed)| (&**of(tensor), shaped(typed))).unzip();
    let feeds: Retained<NSDictionary<MPSGraphTensor, MPSGraphShapedType>> =
        NSDictionary::from_retained_objects(&keys, &types);
    let targets = NSArray::from_slice(&[&**of(output)]);
    // SAFETY: it makes a description of the device.
    let device = unsafe { MPSGraphDevice::deviceWithMTLDevice(device) };
    let none: Option<&NSArray<objc2_metal_performance_shaders_graph::MPSGraphOperation>> = None;
    let default: Option<&objc2_metal_performance_shaders_graph::MPSGraphCompilationDescriptor> = None;
    // SAFETY: all tensors are of this graph, and every placeholder has its type.
    let made: Option<Retained<MPSGraphExecutable>> = unsafe {
        msg_send![
            &raw,
            compileWithDevice: &*device,
            feeds: &*feeds,
            targetTensors: &*targets,
            targetOperations: none,
            compilationDescriptor: default
        ]
    };
    let made = made.ok_or_else(|| failed("no executable comes of it"))?;
    // SAFETY: it tells the placeholders in the order in which their data is taken.
    let order = unsafe { made.feedTensors() }.ok_or_else(|| failed("an executable that takes nothing"))?;
    let input = |fed: Retained<MPSGraphTensor>| {
        let found = graph.placeholders().find(|(tensor, ..)| **of(*tensor) == *fed);
        found.map(|(_, argument, typed)| (argument, typed.clone()))
    };
    let inputs: Option<Vec<(usize, Typed)>> = order.to_vec().into_iter().map(input).collect();
    let inputs = inputs.filter(|inputs| inputs.len() == keys.len());
    let inputs = inputs.ok_or_else(|| failed("an executable that takes other tensors than the graph has"))?;
    let output = (argument, typed.clone());
    Ok(Compiled { raw: made, inputs, output, graph })
}

fn shaped(typed: &Typed) -> Retained<MPSGraphShapedType> {
    // SAFETY: a shape and a type of elements that MPS knows.
    unsafe {
        MPSGraphShapedType::initWithShape_dataType(
            MPSGraphShapedType::alloc(),
            Some(&numbers(&typed.shape)),
            data_type(typed.element),
        )
    }
}

/// One node, as the library's operation of the same meaning.
fn translate(
    graph: &MPSGraph,
    tensors: &[Retained<MPSGraphTensor>],
    node: &Node,
    typed: &Typed,
) -> Retained<MPSGraphTensor> {
    let of = |tensor: &Tensor| &*tensors[Graph::index(*tensor)];
    let (shape, element) = (numbers(&typed.shape), data_type(typed.element));
    // SAFETY: every tensor is of this graph; shapes and types were checked when the node was made (`crate::graph`), by the rules of
    // the operations here.
    unsafe {
        match node {
            Node::Placeholder { name, .. } => graph.placeholderWithShape_dataType_name(
                Some(&shape),
                element,
                Some(&NSString::from_str(name)),
            ),
            Node::Constant(number) => graph.constantWithScalar_shape_dataType(*number, &shape, element),
            Node::Cast(x) => graph.castTensor_toType_name(of(x), element, None),
            Node::Reshape(x) => graph.reshapeTensor_withShape_name(of(x), &shape, None),
            Node::Transpose(x, order) => graph.transposeTensor_permutation_name(of(x), &numbers(order), None),
            Node::Broadcast(x) => graph.broadcastTensor_toShape_name(of(x), &shape, None),
            Node::Slice { of: x, axis, start } => {
                let (start, len) = (start.cast_signed(), typed.shape[*axis].cast_signed());
                graph.sliceTensor_dimension_start_length_name(of(x), *axis, start, len, None)
            }
            Node::Concat([a, b], axis) => {
                graph.concatTensor_withTensor_dimension_name(of(a), of(b), axis.cast_signed(), None)
            }
            Node::Product([a, b]) => {
                graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name(of(a), of(b), None)
            }
            Node::Pairwise(op, [a, b]) => pairwise(graph, *op, of(a), of(b)),
            Node::Tanh(x) => graph.tanhWithTensor_name(of(x), None),
            Node::Coordinates(axis) => {
                let found = graph.coordinateAlongAxis_withShape_name(axis.cast_signed(), &shape, None);
                // Which type they have nobody says.
                graph.castTensor_toType_name(&found, element, None)
            }
            Node::Select(condition, [a, b]) => graph
                .selectWithPredicateTensor_truePredicateTensor_falsePredicateTensor_name(
                    of(condition),
                    of(a),
                    of(b),
                    None,
                ),
            Node::Softmax(x) => {
                let last = typed.shape.len().cast_signed() - 1;
                graph.softMaxWithTensor_axis_name(of(x), last, None)
            }
        }
    }
}

/// # Safety
/// As in [`translate`]: both tensors are of the graph and fit each other.
unsafe fn pairwise(
    graph: &MPSGraph,
    op: Pairwise,
    a: &MPSGraphTensor,
    b: &MPSGraphTensor,
) -> Retained<MPSGraphTensor> {
    // SAFETY: see above.
    unsafe {
        match op {
            Pairwise::Add => graph.additionWithPrimaryTensor_secondaryTensor_name(a, b, None),
            Pairwise::Subtract => graph.subtractionWithPrimaryTensor_secondaryTensor_name(a, b, None),
            Pairwise::Multiply => graph.multiplicationWithPrimaryTensor_secondaryTensor_name(a, b, None),
            Pairwise::Less => graph.lessThanWithPrimaryTensor_secondaryTensor_name(a, b, None),
            Pairwise::NotLess => graph.greaterThanOrEqualToWithPrimaryTensor_secondaryTensor_name(a, b, None),
            Pairwise::And => graph.logicalANDWithPrimaryTensor_secondaryTensor_name(a, b, None),
        }
    }
}
