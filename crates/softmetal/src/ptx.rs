//! Metal source to PTX, the assembly of NVIDIA GPUs.
//!
//! The same source, the same standard library, another target of clang: no CUDA toolkit, no libdevice. Function constants are
//! baked in, as Metal does when it specialises a pipeline.
//!
//! # Launch
//!
//! | Metal | CUDA |
//! | --- | --- |
//! | threads per threadgroup | block dimensions |
//! | threadgroups per grid | grid dimensions (all blocks are full: a ragged `dispatchThreads` is for the host to split) |
//! | simd-group | warp; threads per threadgroup must be a multiple of 32 if the kernel uses simd-group functions |
//! | `setBuffer`, `setBytes` at index n | device pointer (8 bytes) as parameter n; a null pointer for an index that is not used |
//! | `setThreadgroupMemoryLength` | a part of the dynamic shared memory, at an offset |
//! | `threadgroup` variables | static shared memory, [`PtxKernel::static_shared`] bytes |
//!
//! Every entry has the parameters
//!
//! ```text
//! (u64 buffer 0, …, u64 buffer N-1, [u32; 8] offsets of the threadgroup arguments, by value)
//! ```
//!
//! where N is [`PtxKernel::buffers`]. [`PtxKernel::shared_memory`] computes the offsets and the size of the dynamic shared memory.
//! Arguments by value and by reference (`constant T&`) are device pointers as well; with [`PtxOptions::by_value`], the first
//! parameter is what buffer 0 holds instead of its address, where the kernel takes it as `constant T&`:
//! [`PtxKernel::by_value`] bytes.
//!
//! # Matrices
//!
//! An 8x8 `simdgroup_matrix` product is one `mma.sync.m16n8k8` for half and bfloat, and three of tf32 for float (the error stays
//! near that of float arithmetic); below sm_80, or with [`PtxOptions::exact`], it is done by shuffles in float.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    cache::Key,
    compiler::{Compiler, Source},
    diagnostic::Diagnostic,
    error::{Error, Result},
    rewrite::{KernelEntry, PTX_LIMIT, Parameter, Semantic, Target, ptx_symbol},
    shim,
};

/// How many threadgroup arguments a kernel can have: the length of the last parameter of every entry.
pub const THREADGROUP_ARGUMENTS: usize = 8;

/// What the PTX is for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own.
pub struct PtxOptions {
    /// Value of each function constant, by name, as C++ writes it. Those missing count as undefined.
    pub constants: BTreeMap<String, String>,
    /// Compute capability times ten: 80 runs on Ampere and everything after it.
    pub sm: u32,
    /// Simd-group functions assert that all 32 lanes take part, instead of asking which do: faster, but a lane that is missing
    /// stops the kernel for good.
    pub full_simdgroups: bool,
    /// Matrix products in float arithmetic instead of tensor cores.
    pub exact: bool,
    /// Kernels may be launched before the one before them is done, from compute capability 9.0 on: each lets the next one begin and
    /// waits for what came before it, at its beginning; in a source that calls `softmetal_wait_for_earlier()`, every kernel must call
    /// it before it reads or writes what others do. The host says at the launch that it may begin early.
    pub early: bool,
    /// Buffer 0 is a parameter itself where the kernel takes it as `constant T&`: nothing has to be loaded for it, and the host
    /// needs no memory of the GPU for it.
    pub by_value: bool,
}

impl Default for PtxOptions {
    fn default() -> Self {
        Self {
            constants: BTreeMap::new(),
            sm: 80,
            full_simdgroups: false,
            exact: false,
            early: false,
            by_value: false,
        }
    }
}

/// PTX and how to launch what is in it.
#[derive(Debug, Clone, Serialize)]
pub struct PtxModule {
    /// The PTX, ready for `cuModuleLoadData` (add the final zero byte) or `ptxas`.
    pub text: String,
    /// The entries, in source order.
    pub kernels: Vec<PtxKernel>,
    /// What the rewriter found odd.
    pub warnings: Vec<Diagnostic>,
}

/// One entry of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PtxKernel {
    /// The name that Metal's host code uses.
    pub name: String,
    /// The name in the PTX.
    pub entry: String,
    /// Number of buffers that the entry takes: the highest index plus one. All are device pointers, but for the first where it is
    /// taken by value.
    pub buffers: u32,
    /// Bytes of buffer 0 that the entry takes as they are; 0 where it takes an address.
    pub by_value: u32,
    /// Bytes of shared memory that the entry's own `threadgroup` variables take.
    pub static_shared: u32,
    /// The parameters as the source declares them.
    pub parameters: Vec<Parameter>,
}

/// Where threadgroup arguments lie in the dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SharedMemory {
    /// The last parameter of the entry.
    pub offsets: [u32; THREADGROUP_ARGUMENTS],
    /// Bytes of dynamic shared memory to launch with.
    pub bytes: u32,
}

impl PtxKernel {
    /// Indices of the buffers that the kernel declares. Pointers at other indices below [`Self::buffers`] are not read.
    pub fn buffer_indices(&self) -> Vec<u32> {
        let indices = self.parameters.iter().filter_map(|parameter| match &parameter.semantic {
            Semantic::Buffer { index, .. } => index.parse().ok(),
            _ => None,
        });
        indices.collect()
    }

    /// Lays threadgroup arguments out one after the other, each aligned to 16 bytes; `lengths[n]` is the length of
    /// `[[threadgroup(n)]]`, as in Metal's `setThreadgroupMemoryLength`.
    pub fn shared_memory(&self, lengths: &[u32]) -> Result<SharedMemory> {
        let (name, count) = (&self.name, lengths.len());
        if count > THREADGROUP_ARGUMENTS {
            return Err(Error::refused(format!(
                "kernel `{name}` is launched with {count} threadgroup arguments, PTX entries have {THREADGROUP_ARGUMENTS}"
            )));
        }
        let mut memory = SharedMemory { offsets: [0; THREADGROUP_ARGUMENTS], bytes: 0 };
        for (offset, length) in memory.offsets.iter_mut().zip(lengths) {
            *offset = memory.bytes;
            let end = length.checked_next_multiple_of(16).and_then(|length| memory.bytes.checked_add(length));
            let overflow = || Error::refused(format!("the threadgroup memory of kernel `{name}` overflows"));
            memory.bytes = end.ok_or_else(overflow)?;
        }
        Ok(memory)
    }
}

/// Names what makes PTX of a source beside its options and the clang: the standard library, the rewriter, the flags. The same on every
/// machine for the same version of this crate, another one where any of these has changed.
pub fn fingerprint() -> String {
    let mut key = Key::new();
    key.add(&shim::fingerprint()).add(env!("SOFTMETAL_REWRITER")).add(env!("SOFTMETAL_PTX"));
    key.hex()
}

/// Compiles a source for NVIDIA GPUs.
///
/// The compiler's flavour is ignored; its include folders, definitions and selection of kernels hold.
pub fn ptx(compiler: &Compiler, source: &Source, options: &PtxOptions) -> Result<PtxModule> {
    let mut compiler =
        compiler.clone().flavour(crate::Flavour::Plain).define(format!("MSL_PTX_SM={}", options.sm));
    if options.full_simdgroups {
        compiler = compiler.define("MSL_PTX_FULL_MASK=1");
    }
    if options.exact {
        compiler = compiler.define("MSL_PTX_EXACT=1");
    }
    if options.by_value {
        compiler = compiler.define("MSL_PTX_BY_VALUE=1");
    }
    if options.early && options.sm >= EARLY {
        compiler = compiler.define("MSL_PTX_EARLY=1");
    }
    let preprocessed = compiler.preprocess(source, &["-D__NVPTX__=1".to_owned()])?;
    let says = |word: &str| compiler.text(source, &preprocessed).user_says(word);
    // A source that asks which lane has which element of a matrix must be shown Apple's layout.
    let (shows_layout, waits) = (says("thread_elements"), says("softmetal_wait_for_earlier"));
    if shows_layout {
        compiler = compiler.define("MSL_APPLE_LAYOUT=1");
    }
    if waits {
        compiler = compiler.define("MSL_PTX_WAITS=1");
    }
    let target = Target::Ptx { constants: options.constants.clone() };
    let rewritten = compiler.rewrite(source, &target)?;
    for name in options.constants.keys() {
        if !rewritten.constants.iter().any(|constant| constant.name == *name) {
            return Err(Error::refused(format!(
                "no function constant `{name}` in {}",
                source.name.display()
            )));
        }
    }
    for kernel in &rewritten.kernels {
        check_indices(kernel)?;
    }
    let text = with_limits(&compiler.clang(flags(options.sm), rewritten.text.as_bytes())?);
    let kernels =
        rewritten.kernels.into_iter().map(|kernel| describe(kernel, &text)).collect::<Result<_>>()?;
    Ok(PtxModule { text, kernels, warnings: rewritten.warnings })
}

fn flags(sm: u32) -> Vec<String> {
    let version = if sm >= 100 { "+ptx86" } else { "+ptx78" };
    // Fast math as on a GPU, except that NaN and infinity stay what they are. Convergent: a call of a function that holds a
    // barrier must not be duplicated or moved under a branch. Everything is inlined: a call keeps its caller's registers in memory.
    let flags = format!(
        "-x c++-cpp-output -std=c++17 -fdeclspec -target nvptx64-nvidia-cuda -nogpulib -O3 \
         -fno-exceptions -fno-rtti -fno-math-errno -fno-threadsafe-statics -fno-strict-aliasing -ffp-contract=fast \
         -Xclang -fconvergent-functions -mllvm -inline-threshold={INLINED} -Wno-everything -fno-caret-diagnostics -fno-color-diagnostics -ferror-limit=20 \
         -march=sm_{sm} -Xclang -target-feature -Xclang {version} -S - -o -"
    );
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Instructions, roughly, up to which a function is put where it is called.
const INLINED: u32 = 1_000_000;

/// Bytes of all parameters of an entry at most.
const PARAMETERS: u32 = 4096;

/// The compute capability, times ten, from which on kernels can begin early.
const EARLY: u32 = 90;

fn check_indices(kernel: &KernelEntry) -> Result<()> {
    for parameter in &kernel.parameters {
        let (index, limit) = match &parameter.semantic {
            Semantic::Buffer { index, .. } => (index, usize::MAX),
            Semantic::Threadgroup { index } => (index, THREADGROUP_ARGUMENTS),
            // Kernels with textures have no entry.
            Semantic::BuiltIn(_)
            | Semantic::Unsupported(_)
            | Semantic::Texture { .. }
            | Semantic::Sampler { .. } => continue,
        };
        let (name, kernel) = (&parameter.name, &kernel.host_name);
        let number: usize = index.parse().map_err(|_| {
            Error::refused(format!(
                "the index of `{name}` of kernel `{kernel}` is `{index}`; the PTX target needs a plain number"
            ))
        })?;
        if number >= limit {
            return Err(Error::refused(format!(
                "`{name}` of kernel `{kernel}` is [[threadgroup({number})]]; PTX entries have threadgroup arguments 0 to {}",
                limit - 1
            )));
        }
    }
    Ok(())
}

fn describe(kernel: KernelEntry, text: &str) -> Result<PtxKernel> {
    let entry = ptx_symbol(&kernel.host_name);
    let static_shared = static_shared(text, &entry);
    let (name, parameters) = (kernel.host_name, kernel.parameters);
    let mut described = PtxKernel { name, entry, buffers: 0, by_value: 0, static_shared, parameters };
    described.buffers = described.buffer_indices().into_iter().max().map_or(0, |highest| highest + 1);
    // Without buffers, the first parameter is the offsets.
    let by_value = if described.buffers > 0 { first_bytes(text, &described.entry) } else { 0 };
    described.by_value = by_value;
    let others =
        8 * described.buffers.saturating_sub(u32::from(by_value > 0)) + 4 * THREADGROUP_ARGUMENTS as u32;
    let all = by_value.saturating_add(others);
    if all > PARAMETERS {
        let name = &described.name;
        return Err(Error::refused(format!(
            "kernel `{name}` has {all} bytes of parameters, {by_value} of them buffer 0 by value; PTX entries have {PARAMETERS}"
        )));
    }
    Ok(described)
}

/// Bytes of the first parameter where it is no address: `.param .align 4 .b8 name_param_0[24]`.
fn first_bytes(text: &str, entry: &str) -> u32 {
    let mark = format!("{entry}_param_0[");
    let declared = text.lines().find_map(|line| line.trim_start().strip_prefix(".param ")?.split_once(&mark));
    declared.and_then(|(_, rest)| rest.split_once(']')?.0.parse().ok()).unwrap_or(0)
}

/// Moves the numbers of threads that kernels say they have at most to where an assembler looks for them: it then gives each
/// thread as many registers as there are for so many.
fn with_limits(text: &str) -> String {
    let mut limits = BTreeMap::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        let limit = line.split_once(PTX_LIMIT).and_then(|(_, rest)| rest.strip_suffix(';')).map(|rest| {
            let (name, number) = rest.split_once(" = ").unwrap_or((rest, "0"));
            (name, number.parse::<u32>().unwrap_or(0))
        });
        match limit {
            Some((name, threads)) => drop(limits.insert(name, threads)),
            None => lines.push(line),
        }
    }
    let (mut out, mut directive) = (String::with_capacity(text.len()), None);
    for line in lines {
        if let Some((_, rest)) = line.split_once(".entry ") {
            let name = rest.trim_end_matches(['(', ')', ' ']);
            directive = limits.get(name).filter(|threads| **threads > 0);
        }
        if let Some(threads) = directive.filter(|_| line == "{") {
            out.extend([".maxntid ", &threads.to_string(), ", 1, 1\n"]);
            directive = None;
        }
        out += line;
        out.push('\n');
    }
    out
}

/// The sizes of the shared variables that the entry's code names.
fn static_shared(text: &str, entry: &str) -> u32 {
    let Some(start) = text.find(&format!(".entry {entry}(")) else { return 0 };
    let body = text[start..].split("\n}").next().unwrap_or_default();
    let declared = text.lines().filter(|line| !line.contains(".extern")).filter_map(shared_variable);
    declared.filter(|(name, _)| body.contains(name)).map(|(_, bytes)| bytes).sum()
}

/// Name and bytes of `.shared .align 16 .b8 name[512];` or `.shared .align 4 .f32 name;`.
fn shared_variable(line: &str) -> Option<(&str, u32)> {
    let declaration = line.split_once(".shared ")?.1.trim_end().strip_suffix(';')?;
    let mut words = declaration.rsplit(' ');
    let (variable, kind) = (words.next()?, words.next()?);
    let bits: u32 = kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    match variable.strip_suffix(']').and_then(|variable| variable.split_once('[')) {
        Some((name, count)) => Some((name, count.parse::<u32>().ok()?.checked_mul(bits / 8)?)),
        None => Some((variable, bits / 8)),
    }
}
