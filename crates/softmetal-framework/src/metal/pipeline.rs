//! `MTLComputePipelineState`.

use softmetal::Pipeline;

use super::archive;
use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::labels;
use super::library::Function;
use super::reflection;
use crate::faults::{self, Fault};
use crate::foundation::{Domain, NS_OBJECT, error, objects};
use crate::objc::{Id, Method, MtlSize, OutObject, Strong, This, class, lend, methods, none};
use crate::problem::{Rule, refuse};

class!(pub(crate) static PIPELINE = c"MTLSoftComputePipelineState", &NS_OBJECT, all, none);

descriptor!(pub(crate) static DESCRIPTOR = c"MTLComputePipelineDescriptor", [],
    c"label" c"setLabel:" object;
    c"computeFunction" c"setComputeFunction:" object;
    c"threadGroupSizeIsMultipleOfThreadExecutionWidth" c"setThreadGroupSizeIsMultipleOfThreadExecutionWidth:" bool;
    c"maxTotalThreadsPerThreadgroup" c"setMaxTotalThreadsPerThreadgroup:" usize;
    c"supportIndirectCommandBuffers" c"setSupportIndirectCommandBuffers:" bool;
    c"binaryArchives" c"setBinaryArchives:" object;
    c"maxCallStackDepth" c"setMaxCallStackDepth:" usize;
    c"shaderValidation" c"setShaderValidation:" isize;
);

/// `MTLPipelineOptionBindingInfo`.
const BINDING_INFO: usize = 1;
/// `MTLPipelineOptionFailOnBinaryArchiveMiss`.
const FAIL_ON_MISS: usize = 4;
/// `MTLLibraryErrorInternal`, as pipelines that cannot be made report.
const INTERNAL: isize = 2;

/// What an `MTLComputePipelineState` holds.
pub(crate) struct State {
    pub(crate) device: This<Device>,
    pub(crate) pipeline: Pipeline,
    pub(crate) max_threads: usize,
    /// Threadgroups must be whole simdgroups.
    pub(crate) whole_simdgroups: bool,
    indirect: bool,
    /// Parameters that a function constant could have left out, and has not: they must be bound.
    wanted: Vec<String>,
}

impl State {
    /// Whether an argument may stay unbound.
    pub(crate) fn leaves_out(&self, argument: &softmetal::Argument) -> bool {
        argument.optional && !self.wanted.contains(&argument.name)
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { State;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"maxTotalThreadsPerThreadgroup"(this) -> usize { this.max_threads }
        c"threadExecutionWidth"(this) -> usize { this.device.profile.simd_width }
        // softmetal counts it as the kernel runs.
        c"staticThreadgroupMemoryLength"(_) -> usize { 0 }
        c"supportIndirectCommandBuffers"(this) -> bool { this.indirect }
        c"requiredThreadsPerThreadgroup"(_) -> MtlSize { MtlSize::default() }
        c"shaderValidation"(_) -> isize { 0 }
    };
    all.extend(labels());
    all
}

/// `newComputePipelineStateWithFunction:error:`.
pub(crate) fn of_function(device: &This<Device>, function: Id, out: OutObject) -> Option<Strong> {
    if function.is_null() {
        refuse(Rule::Descriptor, "a pipeline of no function: Metal asserts that there is one".to_owned());
    }
    make(device, function, None, out)
}

/// `newComputePipelineStateWithDescriptor:options:reflection:error:`.
pub(crate) fn described(
    device: &This<Device>,
    descriptor: Id,
    options: usize,
    reflection: OutObject,
    out: OutObject,
) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    let Some(function) = properties.object(c"computeFunction") else {
        refuse(
            Rule::Descriptor,
            "a pipeline descriptor without a function: Metal asserts that there is one".to_owned(),
        );
        return None;
    };
    let archives = properties.object(c"binaryArchives").map(|list| objects(list.id())).unwrap_or_default();
    if options & FAIL_ON_MISS != 0 {
        let key = &function.id().this::<Function>().key;
        if !archives.iter().any(|held| archive::has(held.id(), key)) {
            out.put(error(Domain::Library, INTERNAL, "the pipeline is in none of the binary archives"));
            return None;
        }
    }
    let made = make(device, function.id(), Some(&properties), out)?;
    if options & BINDING_INFO != 0 {
        reflection.put(reflection::new(made.id().this::<State>().pipeline.kernel()));
    }
    Some(made)
}

/// `newComputePipelineStateWithFunction:options:reflection:error:`.
pub(crate) fn reflected(
    device: &This<Device>,
    function: Id,
    options: usize,
    reflection: OutObject,
    out: OutObject,
) -> Option<Strong> {
    let made = of_function(device, function, out)?;
    if options & BINDING_INFO != 0 {
        reflection.put(reflection::new(made.id().this::<State>().pipeline.kernel()));
    }
    Some(made)
}

fn make(
    device: &This<Device>,
    function: Id,
    properties: Option<&Properties>,
    out: OutObject,
) -> Option<Strong> {
    let function = function.this::<Function>();
    if function.device.id != device.id {
        refuse(
            Rule::Device,
            format!(
                "a pipeline on {} of a function of {}",
                device.id.describe(),
                function.device.id.describe()
            ),
        );
    }
    if faults::strikes(Fault::Compile) {
        out.put(error(Domain::Library, INTERNAL, "a failure on request"));
        return None;
    }
    let number = |name| properties.map_or(0, |properties| properties.number(name));
    let own = function.pipeline.kernel().max_threads.map_or(usize::MAX, |most| most as usize);
    let asked = Some(number(c"maxTotalThreadsPerThreadgroup")).filter(|most| *most > 0).unwrap_or(usize::MAX);
    if asked < usize::MAX && asked > device.profile.max_threads {
        out.put(error(Domain::Library, INTERNAL, format!("{asked} threads are more than the device has")));
        return None;
    }
    let state = State {
        device: device.again(),
        pipeline: function.pipeline.clone(),
        max_threads: own.min(asked).min(device.profile.max_threads),
        whole_simdgroups: number(c"threadGroupSizeIsMultipleOfThreadExecutionWidth") != 0,
        indirect: number(c"supportIndirectCommandBuffers") != 0,
        wanted: function.wanted.clone(),
    };
    let made = Strong::new(&PIPELINE, state);
    let label = properties.and_then(|properties| properties.object(c"label"));
    made.id().set_label(label.map(|label| crate::foundation::text(label.id())));
    Some(made)
}
