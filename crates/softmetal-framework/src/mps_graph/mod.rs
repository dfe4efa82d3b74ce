//! The part of MetalPerformanceShadersGraph that attention takes: graphs are built, held to the types that their operations
//! document, compiled and run on the host.

mod evaluate;
mod executable;
mod graph;
mod shapes;

use crate::foundation::NS_OBJECT;
use crate::objc::{Class, class, none};

class!(pub(crate) static OBJECT = c"MPSGraphObject", &NS_OBJECT, none, none);

/// Those that programs ask for by name.
pub(crate) static CLASSES: &[&Class] = &[
    &OBJECT,
    &executable::DEVICE,
    &executable::EXECUTABLE,
    &executable::TENSOR_DATA,
    &graph::GRAPH,
    &graph::SHAPED_TYPE,
    &graph::TENSOR,
];
