//! A compiled source and what it says about its kernels.

use serde::Serialize;

/// Compiled kernels, loaded into this process.
#[derive(Debug)]
pub struct Library {
    pub(crate) name: String,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) constants: Vec<FunctionConstant>,
}

/// A kernel and the table of its arguments.
#[derive(Debug, Clone, Serialize)]
pub struct Kernel {
    /// The host name.
    pub name: String,
    /// In the order of the source.
    pub arguments: Vec<Argument>,
    /// `[[max_total_threads_per_threadgroup]]`, if given.
    pub max_threads: Option<u32>,
}

/// One parameter of a kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Argument {
    /// The parameter's name, empty if it has none.
    pub name: String,
    /// Its type as the source spells it.
    pub type_text: String,
    /// Where its value comes from.
    pub kind: ArgumentKind,
    /// Bytes of one element (pointer) or of the value; 0 for `void`.
    pub element_size: u32,
    /// Alignment of one element.
    pub alignment: u32,
    /// A pointer, rather than a reference or a value.
    pub pointer: bool,
    /// The kernel cannot write through it.
    pub read_only: bool,
    /// May stay unbound: a function constant switches it off.
    pub optional: bool,
}

/// Where an argument's value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentKind {
    /// `[[buffer(n)]]`.
    Buffer(u32),
    /// `[[threadgroup(n)]]`.
    Threadgroup(u32),
    /// A position or size that the dispatch supplies.
    BuiltIn(BuiltIn),
}

/// The values a dispatch supplies to each thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are those of the Metal Shading Language specification
pub enum BuiltIn {
    ThreadPositionInGrid = 1,
    ThreadgroupPositionInGrid,
    ThreadPositionInThreadgroup,
    ThreadIndexInThreadgroup,
    ThreadIndexInSimdgroup,
    SimdgroupIndexInThreadgroup,
    ThreadsPerThreadgroup,
    ThreadgroupsPerGrid,
    ThreadsPerGrid,
    SimdgroupsPerThreadgroup,
    ThreadsPerSimdgroup,
    ThreadIndexInQuadgroup,
    QuadgroupIndexInThreadgroup,
    DispatchThreadsPerThreadgroup,
    QuadgroupsPerThreadgroup,
    GridOrigin,
    GridSize,
}

/// A constant that the host sets before a dispatch.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionConstant {
    /// Its name in the source.
    pub name: String,
    /// `[[function_constant(index)]]`.
    pub index: u32,
    /// Bytes of its value.
    pub size: u32,
    /// Its type as the source spells it.
    pub type_text: String,
}
