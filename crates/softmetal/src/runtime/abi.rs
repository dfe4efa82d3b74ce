//! The contract with compiled kernels, field for field as in `shim/msl_abi.h`.

use std::ffi::{c_char, c_int, c_void};

/// Must equal `MSL_ABI_VERSION`.
pub(crate) const VERSION: u32 = 6;
/// Buffer slots of a dispatch.
pub(crate) const MAX_BUFFERS: usize = 31;
/// Threadgroup memory slots of a dispatch.
pub(crate) const MAX_THREADGROUP_ARGS: usize = 31;
/// Texture slots of a dispatch.
pub(crate) const MAX_TEXTURES: usize = 128;
/// Sampler slots of a dispatch.
pub(crate) const MAX_SAMPLERS: usize = 16;
/// What a texture goes by where buffers go by their index.
pub(crate) fn texture_key(slot: u32) -> u32 {
    slot.saturating_add(MAX_BUFFERS as u32)
}

/// The slot of a texture that goes by this among buffers; nothing for a buffer.
pub(crate) fn texture_of(key: u32) -> Option<u32> {
    key.checked_sub(MAX_BUFFERS as u32)
}

/// `buffer 3` or `texture 0`.
pub(crate) fn name_of(key: u32) -> String {
    texture_of(key).map_or_else(|| format!("buffer {key}"), |slot| format!("texture {slot}"))
}

/// Lanes of a simdgroup.
pub(crate) const SIMD_WIDTH: usize = 32;

pub(crate) const SEM_BUFFER: i32 = 0x1000;
pub(crate) const SEM_OPTIONAL_BUFFER: i32 = 0x1800;
pub(crate) const SEM_THREADGROUP: i32 = 0x2000;

pub(crate) const SEM_TEXTURE: i32 = 0x3000;
pub(crate) const SEM_OPTIONAL_TEXTURE: i32 = 0x3800;
pub(crate) const SEM_SAMPLER: i32 = 0x4000;
pub(crate) const SEM_OPTIONAL_SAMPLER: i32 = 0x4800;

pub(crate) const PARAM_CONST: u32 = 1;
pub(crate) const PARAM_POINTER: u32 = 2;
pub(crate) const PARAM_REFERENCE: u32 = 4;

pub(crate) const MEM_DEVICE: i32 = 1;
pub(crate) const MEM_THREADGROUP: i32 = 2;
pub(crate) const MEM_TEXTURE: i32 = 4;

/// In place of flags: threads meet, and that is all.
pub(crate) const MEM_UNTOUCHED: i32 = -1;

pub(crate) const ACCESS_WRITE: u32 = 1;
pub(crate) const ACCESS_ATOMIC: u32 = 2;

pub(crate) const FAULT_NULL: u32 = 0;
/// Of address `a`, alignment `b`.
pub(crate) const FAULT_MISALIGNED: u32 = 1;
pub(crate) const FAULT_INDEX: u32 = 2;
pub(crate) const FAULT_SHIFT: u32 = 3;
pub(crate) const FAULT_DIVISION: u32 = 4;
pub(crate) const FAULT_VALUE: u32 = 5;

/// Runs a collective once over the lanes of a mask. Returns who asked for a lane that is not there: those lanes in the lower half,
/// what the first of them asked for in the upper.
pub(crate) type SimdFn = unsafe extern "C" fn(*mut *mut c_void, *mut *mut c_void, u32) -> u64;
/// The line of a call and, above so many bits, its column.
pub(crate) const LINE_BITS: u32 = 20;
/// The compiled body of a kernel.
pub(crate) type Entry = unsafe extern "C" fn(*const Ctx);

#[repr(C)]
pub(crate) struct Param {
    pub(crate) semantic: c_int,
    pub(crate) element_size: u32,
    pub(crate) alignment: u32,
    pub(crate) flags: u32,
    pub(crate) type_text: *const c_char,
    pub(crate) texture: u32,
}

#[repr(C, align(16))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Uint3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
    pad: u32,
}

impl From<[u32; 3]> for Uint3 {
    fn from([x, y, z]: [u32; 3]) -> Self {
        Self { x, y, z, pad: 0 }
    }
}

/// What one GPU thread sees.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ctx {
    pub(crate) buffers: *const *mut c_void,
    pub(crate) tgmem: *const *mut c_void,
    pub(crate) zero: *mut c_void,
    pub(crate) thread_in_grid: Uint3,
    pub(crate) threadgroup_in_grid: Uint3,
    pub(crate) thread_in_threadgroup: Uint3,
    pub(crate) threads_per_threadgroup: Uint3,
    pub(crate) threadgroups_per_grid: Uint3,
    pub(crate) threads_per_grid: Uint3,
    pub(crate) dispatch_threads_per_threadgroup: Uint3,
    pub(crate) index_in_threadgroup: u32,
    pub(crate) lane: u32,
    pub(crate) simdgroup: u32,
    pub(crate) simdgroups: u32,
}

#[repr(C)]
pub(crate) struct Kernel {
    pub(crate) name: *const c_char,
    pub(crate) entry: Entry,
    pub(crate) params: *const Param,
    pub(crate) param_count: u32,
    pub(crate) max_threads: u32,
    pub(crate) texts: *const c_char,
    pub(crate) next: *const Kernel,
}

#[repr(C)]
pub(crate) struct FunctionConstant {
    pub(crate) name: *const c_char,
    pub(crate) index: c_int,
    pub(crate) size: u32,
    pub(crate) value: unsafe extern "C" fn() -> *mut c_void,
    pub(crate) defined: unsafe extern "C" fn() -> *mut bool,
    pub(crate) type_text: *const c_char,
    pub(crate) next: *const FunctionConstant,
}

/// A function that can be put into a table.
#[repr(C)]
pub(crate) struct Function {
    pub(crate) name: *const c_char,
    pub(crate) address: *const c_void,
    pub(crate) next: *const Function,
}

/// What the undefined-behaviour instrumentation found.
#[repr(C)]
pub(crate) struct Fault {
    pub(crate) kind: u32,
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) file: *const c_char,
    pub(crate) type_text: *const c_char,
    pub(crate) a: u64,
    pub(crate) b: u64,
}

/// Where a thread stands in its threadgroup, and the seed of the dispatch.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Scope {
    pub(crate) lane: u32,
    pub(crate) simdgroup: u32,
    pub(crate) seed: u32,
}

/// An argument of a message.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogValue {
    pub(crate) kind: u32,
    pub(crate) count: u32,
    /// Floats as doubles.
    pub(crate) bits: [u64; 4],
}
pub(crate) const LOG_SIGNED: u32 = 0;
pub(crate) const LOG_FLOAT: u32 = 2;

pub(crate) const TEXTURE_READ: u32 = 0;
pub(crate) const TEXTURE_WRITE: u32 = 1;
pub(crate) const TEXTURE_GATHER: u32 = 3;
/// The sampler is the one of a slot.
pub(crate) const SAMPLER_BOUND: u32 = 1 << 31;

/// One use of a texture.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Texel {
    pub(crate) handle: u32,
    pub(crate) op: u32,
    pub(crate) kind: u32,
    pub(crate) component: u32,
    pub(crate) at: [u32; 3],
    pub(crate) layer: u32,
    pub(crate) level: u32,
    pub(crate) sampler: u32,
    pub(crate) offset: [i32; 3],
    pub(crate) value: [u32; 4],
}

/// The table a kernel library calls the runtime through.
#[repr(C)]
pub(crate) struct Runtime {
    pub(crate) version: u32,
    pub(crate) barrier: extern "C" fn(c_int, *const c_char, c_int, *const c_void),
    pub(crate) simdgroup_barrier: extern "C" fn(c_int, *const c_char, c_int, *const c_void),
    pub(crate) simd: extern "C" fn(SimdFn, *mut c_void, *mut c_void, *const c_char, c_int, *const c_void),
    pub(crate) lane: extern "C" fn() -> u32,
    pub(crate) threadgroup_variable: extern "C" fn(*const c_void, usize, usize) -> *mut c_void,
    pub(crate) fence: extern "C" fn(c_int, c_int, c_int),
    pub(crate) scope: extern "C" fn(*mut Scope),
    pub(crate) collective: extern "C" fn(u32, *const c_char, c_int, *const c_void),
    pub(crate) assertion: extern "C" fn(*const c_char, *const c_char, c_int),
    pub(crate) log: extern "C" fn(c_int, *const c_char, *const LogValue, u32),
    pub(crate) texture: extern "C" fn(*mut Texel, *const c_void),
    pub(crate) texture_extent: extern "C" fn(u32, u32) -> u32,
    pub(crate) access: extern "C" fn(*const c_void, usize, u32, *const c_void),
    pub(crate) fault: extern "C" fn(*const Fault, *const c_void),
}
