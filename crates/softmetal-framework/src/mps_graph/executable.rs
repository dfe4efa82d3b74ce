//! `MPSGraphExecutable`, and what it runs on.

use std::sync::Arc;

use super::OBJECT;
use super::evaluate::evaluate;
use super::graph::{Node, Nodes, Op, ShapedType, Tensor, Type};
use crate::faults::{self, Fault};
use crate::foundation::{array, dictionary_objects, number_of, objects};
use crate::lock;
use crate::metal::{Work, encode_work};
use crate::mps::nd_array::NdArray;
use crate::mps::{MpsCommandBuffer, supports};
use crate::objc::{Id, Method, Strong, class, lend, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static DEVICE = c"MPSGraphDevice", &OBJECT, device_methods, device_makers);
class!(pub(crate) static TENSOR_DATA = c"MPSGraphTensorData", &OBJECT, data_methods, none);
class!(pub(crate) static EXECUTABLE = c"MPSGraphExecutable", &OBJECT, all, none);

struct GraphDevice(Strong);

fn device_makers() -> Vec<Method> {
    raw_methods! {
        c"deviceWithMTLDevice:"(_this, device: Id) -> Id {
            if !supports(device) {
                refuse(Rule::Device, format!("{} is none that MPS supports: it asserts that it is", device.describe()));
            }
            lend(Strong::retained(device).map(|device| Strong::new(&DEVICE, GraphDevice(device))))
        }
    }
}

fn device_methods() -> Vec<Method> {
    methods! { GraphDevice; c"metalDevice"(this) -> Id { this.0.clone().lend() } }
}

/// What an `MPSGraphTensorData` holds: an array, without a copy.
struct TensorData(Strong);

fn data_methods() -> Vec<Method> {
    let mut all = methods! { TensorData;
        c"shape"(this) -> Id {
            let shape = this.0.id().this::<NdArray>().form.shape.clone();
            array(shape.into_iter().map(number_of).collect()).lend()
        }
        c"dataType"(this) -> u32 { this.0.id().this::<NdArray>().form.data_type.number() }
        c"mpsndarray"(this) -> Id { this.0.clone().lend() }
    };
    all.extend(raw_methods! {
        c"initWithMPSNDArray:"(this, array: Id) -> Id {
            array.this::<NdArray>();
            let Some(array) = Strong::retained(array).filter(|_| !faults::strikes(Fault::Library)) else {
                this.release();
                return Id::NULL;
            };
            this.initialise(TensorData(array))
        }
    });
    all
}

struct Executable {
    device: Strong,
    nodes: Arc<Vec<Node>>,
    /// Placeholders, in the order in which their data is taken.
    feeds: Vec<(Strong, usize)>,
    targets: Vec<(Strong, usize)>,
}

/// `compileWithDevice:feeds:targetTensors:targetOperations:compilationDescriptor:`.
pub(super) fn compile(
    graph: &Arc<Nodes>,
    device: Id,
    feeds: Id,
    targets: Id,
    [operations, _]: [Id; 2],
) -> Id {
    let own = |tensor: Strong| {
        let held = tensor.id().this::<Tensor>();
        if !Arc::ptr_eq(&held.graph, graph) {
            refuse(Rule::WrongObject, format!("{} is of another graph", tensor.id().describe()));
        }
        (tensor, held.node)
    };
    if !operations.is_null() {
        refuse(Rule::Descriptor, "target operations: there are none here, only target tensors".to_owned());
    }
    let nodes = Arc::new(lock(graph).clone());
    let mut fed = Vec::new();
    for (tensor, shaped) in dictionary_objects(feeds) {
        let (tensor, node) = own(tensor);
        let (known, given) = (&nodes[node], &shaped.id().this::<ShapedType>().0);
        if !matches!(known.op, Op::Placeholder) || known.ty != *given {
            refuse(
                Rule::Descriptor,
                format!(
                    "{given:?} fed to {:?} {:?}: MPSGraph asserts a placeholder of its type",
                    known.op, known.ty
                ),
            );
        }
        fed.push((tensor, node));
    }
    // A dictionary has no order: what relies on the one it was made in is found out.
    fed.reverse();
    let targets: Vec<(Strong, usize)> = objects(targets).into_iter().map(own).collect();
    let is_fed = |node: usize| fed.iter().any(|(_, known)| *known == node);
    let missing =
        nodes.iter().enumerate().find(|(at, node)| matches!(node.op, Op::Placeholder) && !is_fed(*at));
    if let Some((at, node)) = missing {
        refuse(
            Rule::MissingBinding,
            format!("placeholder {at} {:?} has no feed: MPSGraph asserts one", node.ty),
        );
    }
    if faults::strikes(Fault::Library) {
        return Id::NULL;
    }
    let device = device.this::<GraphDevice>().0.clone();
    Strong::new(&EXECUTABLE, Executable { device, nodes, feeds: fed, targets }).lend()
}

impl Executable {
    /// Data of tensors, held to their types.
    fn arrays(&self, data: Id, tensors: &[(Strong, usize)], what: &str) -> Vec<Strong> {
        let given = objects(data);
        if given.len() != tensors.len() {
            let (found, needed) = (given.len(), tensors.len());
            refuse(
                Rule::MissingBinding,
                format!("{found} {what} for {needed} tensors: MPSGraph asserts as many"),
            );
        }
        let arrays: Vec<Strong> = given.iter().map(|data| data.id().this::<TensorData>().0.clone()).collect();
        for (held, (_, node)) in arrays.iter().zip(tensors) {
            let own = held.id().this::<NdArray>();
            let found = Type { shape: own.form.shape.clone(), data_type: own.form.data_type };
            let needed = &self.nodes[*node].ty;
            if found != *needed {
                refuse(
                    Rule::Descriptor,
                    format!("{what} of {found:?} for {needed:?}: MPSGraph asserts equal types"),
                );
            }
            if own.place.buffer.device.id != self.device.id() {
                refuse(
                    Rule::Device,
                    format!("{} is of another device than the executable", held.id().describe()),
                );
            }
        }
        arrays
    }

    fn encode(&self, buffer: Id, inputs: Id, results: Id) -> Id {
        let buffer = buffer.this::<MpsCommandBuffer>();
        if results.is_null() {
            refuse(
                Rule::MissingBinding,
                "a graph without results: here it writes into those it is given".to_owned(),
            );
        }
        let inputs = self.arrays(inputs, &self.feeds, "inputs");
        let outputs = self.arrays(results, &self.targets, "results");
        let elements = |arrays: &[Strong], tensors: &[(Strong, usize)]| -> Vec<_> {
            let nodes = tensors.iter().map(|(_, node)| *node);
            nodes.zip(arrays.iter().map(|held| held.id().this::<NdArray>().elements())).collect()
        };
        let (read, written) = (elements(&inputs, &self.feeds), elements(&outputs, &self.targets));
        let nodes = self.nodes.clone();
        buffer.may_commit();
        encode_work(buffer.root(), "MPSGraphExecutable", |retained| Work {
            name: "MPSGraphExecutable".to_owned(),
            uses: inputs
                .iter()
                .map(|held| held.id().this::<NdArray>().place.used(retained, false))
                .chain(outputs.iter().map(|held| held.id().this::<NdArray>().place.used(retained, true)))
                .collect(),
            run: Box::new(move || {
                let fed = read.iter().map(|(node, from)| Ok((*node, from.read()?)));
                let fed = fed.collect::<Result<Vec<_>, String>>()?;
                for (node, to) in &written {
                    to.write(&evaluate(&nodes, &fed, *node)?)?;
                }
                Ok(())
            }),
        });
        lend(Strong::retained(results))
    }
}

fn all() -> Vec<Method> {
    methods! { Executable;
        c"feedTensors"(this) -> Id { array(this.feeds.iter().map(|(tensor, _)| tensor.clone()).collect()).lend() }
        c"targetTensors"(this) -> Id { array(this.targets.iter().map(|(tensor, _)| tensor.clone()).collect()).lend() }
        c"encodeToCommandBuffer:inputsArray:resultsArray:executionDescriptor:"(
            this, buffer: Id, inputs: Id, results: Id, _descriptor: Id
        ) -> Id {
            this.encode(buffer, inputs, results)
        }
    }
}
