//! `MTLComputePipelineReflection`: what a kernel's arguments are, as softmetal reads them off the source.

use softmetal::{Argument, ArgumentKind, Kernel};

use super::library::data_type;
use crate::foundation::{NS_OBJECT, array, string};
use crate::objc::{Id, Method, Strong, class, methods, none};

class!(static REFLECTION = c"MTLComputePipelineReflection", &NS_OBJECT, all, none);
class!(static BINDING = c"MTLSoftBinding", &NS_OBJECT, binding, none);

/// `MTLBindingTypeBuffer` and `MTLBindingTypeThreadgroupMemory`.
const BUFFER: isize = 0;
const THREADGROUP: isize = 1;
/// `MTLDataTypeStruct`, for what is no number and no vector.
const STRUCT: usize = 1;

struct Reflection(Vec<Strong>);

struct Binding {
    kind: isize,
    index: usize,
    argument: Argument,
}

/// The reflection of a pipeline of a kernel.
pub(crate) fn new(kernel: &Kernel) -> Strong {
    let one = |argument: &Argument| {
        let (kind, index) = if let ArgumentKind::Buffer(index) = argument.kind {
            (BUFFER, index)
        } else if let ArgumentKind::Threadgroup(index) = argument.kind {
            (THREADGROUP, index)
        } else {
            return None;
        };
        Some(Strong::new(&BINDING, Binding { kind, index: index as usize, argument: argument.clone() }))
    };
    Strong::new(&REFLECTION, Reflection(kernel.arguments.iter().filter_map(one).collect()))
}

fn all() -> Vec<Method> {
    methods! { Reflection;
        c"bindings"(this) -> Id { array(this.0.clone()).lend() }
        c"arguments"(this) -> Id { array(this.0.clone()).lend() }
    }
}

fn binding() -> Vec<Method> {
    methods! { Binding;
        c"name"(this) -> Id { string(&this.argument.name).lend() }
        c"type"(this) -> isize { this.kind }
        // 0: it is read, 1: it is written too.
        c"access"(this) -> usize { usize::from(!this.argument.read_only) }
        c"index"(this) -> usize { this.index }
        // Which arguments the compiled code uses is not known.
        c"isUsed"(_) -> bool { true }
        c"isActive"(_) -> bool { true }
        c"isArgument"(_) -> bool { true }
        c"bufferAlignment"(this) -> usize { this.argument.alignment as usize }
        c"bufferDataSize"(this) -> usize { this.argument.element_size as usize }
        c"bufferDataType"(this) -> usize { data_type(&this.argument.type_text).unwrap_or(STRUCT) }
        c"bufferStructType"(_) -> Id { Id::NULL }
        c"bufferPointerType"(_) -> Id { Id::NULL }
        c"threadgroupMemoryAlignment"(this) -> usize { this.argument.alignment as usize }
        c"threadgroupMemoryDataSize"(this) -> usize { this.argument.element_size as usize }
    }
}
