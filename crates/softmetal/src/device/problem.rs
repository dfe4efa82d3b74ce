//! What a dispatch can ask for in vain.

use std::ops::Range;

use super::ConstantId;

/// Why a dispatch cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Problem {
    /// Nothing to run.
    #[error("{threads:?} threads in threadgroups of {threadgroup:?}: each axis needs at least one")]
    Empty { threads: [u32; 3], threadgroup: [u32; 3] },
    /// More threads than can be counted.
    #[error("{groups:?} threadgroups of {threadgroup:?} threads: an axis has at most 2^32 - 1 threads")]
    TooManyOnAxis { groups: [u32; 3], threadgroup: [u32; 3] },
    /// The threadgroup is too large.
    #[error("a threadgroup of {threadgroup:?} threads is more than the {most} this kernel can have")]
    TooManyThreads { threadgroup: [u32; 3], most: u32 },
    /// The grid is too large.
    #[error("{groups:?} threadgroups are more than 2^32 - 2")]
    TooManyThreadgroups { groups: [u32; 3] },
    /// A buffer index that no kernel can have.
    #[error("buffer index {index}: there are {} slots", crate::runtime::abi::MAX_BUFFERS)]
    NoSlot { index: u32 },
    /// The same of threadgroup memory.
    #[error("threadgroup argument {index}: there are {} slots", crate::runtime::abi::MAX_THREADGROUP_ARGS)]
    NoThreadgroupSlot { index: u32 },
    /// A texture index that no kernel can have.
    #[error("texture index {index}: there are {} slots", crate::runtime::abi::MAX_TEXTURES)]
    NoTextureSlot { index: u32 },
    /// A sampler index that no kernel can have.
    #[error("sampler index {index}: there are {} slots", crate::runtime::abi::MAX_SAMPLERS)]
    NoSamplerSlot { index: u32 },
    /// A sampler that Metal has not.
    #[error("sampler {index} repeats a texture, and has coordinates in texels: those clamp")]
    Sampler { index: u32 },
    /// A texture of another kind than the kernel takes.
    #[error("texture {index} is a {found}, but argument `{argument}` is a {needed}")]
    Texture { index: u32, argument: String, found: String, needed: String },
    /// A texture that can only be read, where the kernel may write.
    #[error("texture {index} lies in memory that can only be read, but argument `{argument}` may be written")]
    ReadOnlyTexture { index: u32, argument: String },
    /// An offset past the end.
    #[error("buffer {index} is bound at offset {offset}, but has only {len} bytes")]
    Offset { index: u32, offset: usize, len: usize },
    /// A part of a buffer that is not there.
    #[error("buffer {index} is bound to bytes {range:?} of a buffer of {len} bytes")]
    Range { index: u32, range: Range<usize>, len: usize },
    /// A buffer that can only be read, where the kernel may write.
    #[error("buffer {index} can only be read, but argument `{argument}` may be written")]
    ReadOnly { index: u32, argument: String },
    /// An address that is no place for the argument's type.
    #[error("buffer {index} is bound {off} bytes off the {needed}-byte alignment of argument `{argument}`")]
    Alignment { index: u32, argument: String, off: usize, needed: usize },
    /// An alias of nothing.
    #[error("buffer {index} is an alias of buffer {of}, which is not bound to memory of its own")]
    Alias { index: u32, of: u32 },
    /// A threadgroup argument without a length.
    #[error(
        "threadgroup argument {index} has no length: set one with `threadgroup_memory`, 0 if it is not used"
    )]
    NoThreadgroupMemory { index: u32 },
    /// More threadgroup memory than the device has.
    #[error("{bytes} bytes of threadgroup memory are more than the {most} of the device")]
    ThreadgroupMemory { bytes: u64, most: usize },
    /// A function constant that is not in the library.
    #[error("no function constant {id:?}; there are {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    NoConstant { id: ConstantId, known: Vec<String> },
    /// A function that is not in the library, or is not marked.
    #[error("no function `{name}` is marked [[visible]]; there are {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    NoFunction { name: String, known: Vec<String> },
    /// A value of the wrong size.
    #[error("function constant `{name}` has {needed} bytes, its value has {found}")]
    ConstantSize { name: String, found: usize, needed: usize },
    /// A plain kernel where only checked ones may run.
    #[error(
        "it is of the plain flavour, and this device runs only what is checked: compile it with `Flavour::Checked`"
    )]
    Unchecked,
    /// Nothing to go in step by.
    #[error("it is of the plain flavour, whose accesses nobody sees, so its lanes cannot go in lockstep")]
    Lockstep,
    /// No memory for a guarded copy.
    #[error("no memory for a copy of buffer {index}: {reason}")]
    Memory { index: u32, reason: String },
}
