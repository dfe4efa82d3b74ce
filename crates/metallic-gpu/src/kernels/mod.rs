//! Kernels: each family is a `.metal` file beside the Rust that plans its launches. A plan is a pure function of types,
//! sizes and limits; it picks the kernel, its constants, the grid and the params.

pub(crate) mod attention;
pub(crate) mod attention_head;
pub(crate) mod attention_heads;
pub(crate) mod attention_merge;
pub(crate) mod attention_plain;
pub(crate) mod attention_staged;
pub(crate) mod attention_tiles;
pub(crate) mod attention_units;
pub(crate) mod axes;
pub(crate) mod cell_columns;
pub(crate) mod cell_matmul;
pub(crate) mod cell_matvec;
pub(crate) mod cell_qkv;
pub(crate) mod cell_rows;
pub(crate) mod cells;
pub(crate) mod copy;
pub(crate) mod declared;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod gather;
pub(crate) mod gemm;
#[cfg(test)]
pub(crate) mod harness;
pub(crate) mod library;
pub(crate) mod matmul;
pub(crate) mod matvec;
pub(crate) mod norm;
pub(crate) mod peaks;
pub(crate) mod project;
#[cfg(test)]
mod project_tests;
pub(crate) mod qkv;
mod quant;
pub(crate) mod recurrent;
pub(crate) mod relay;
pub(crate) mod rope;
mod rows;
pub(crate) mod sample;
pub(crate) mod sdpa;
pub(crate) mod softmax;
mod stage;
pub(crate) mod tensor_matmul;
// Planned by drivers of hardware alone.
#[cfg_attr(not(any(test, target_os = "macos", metal_on_linux)), allow(dead_code))]
pub(crate) mod transfer;
mod typed;

use metallic_core::DType;

pub(crate) use quant::{QUANT, QUANT_TYPES, row_bytes, weight_type};
pub(crate) use stage::{Moved, Slot, SlotUse, Stage, Stages, StepTable, TABLES, TILE_TOKENS};
pub(crate) use typed::{SOFTCAP, binary_code, count, scalar_code, unary_code};

use crate::command::Access;
use crate::error::GpuError;
use crate::gpu::Limits;
pub use crate::params::Params;
use crate::threadgroup;
pub use gemm::Gemm;
pub use stage::Call;

/// Buffer arguments of a kernel at most, its params apart.
pub const MAX_ARGS: usize = 16;
/// Function constants of a kernel at most.
pub const MAX_CONSTANTS: usize = 12;

/// Values of a kernel's function constants, at indices that follow each other. All are `uint` in the MSL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Constants {
    values: [u32; MAX_CONSTANTS],
    first: usize,
    end: usize,
}

impl Constants {
    /// No constants.
    pub const NONE: Constants = Constants { values: [0; MAX_CONSTANTS], first: 0, end: 0 };

    /// Constants 0, 1, ….
    pub fn of<const N: usize>(given: [u32; N]) -> Constants {
        Constants::starting::<0, N>(given)
    }

    /// Constants `FIRST`, `FIRST + 1`, …: those before belong to shared files the family does without.
    pub fn starting<const FIRST: usize, const N: usize>(given: [u32; N]) -> Constants {
        const { assert!(FIRST + N <= MAX_CONSTANTS, "too many function constants") };
        let mut values = [0; MAX_CONSTANTS];
        values[FIRST..FIRST + N].copy_from_slice(&given);
        Constants { values, first: FIRST, end: FIRST + N }
    }

    /// Each index with its value.
    pub fn values(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        (self.first..self.end).map(|index| (index, self.values[index]))
    }
}

/// A buffer argument of a kernel as the MSL declares it; the first stands at buffer index 1.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Arg {
    /// Its name in the MSL.
    pub name: &'static str,
    /// What the kernel may do with it: `device const T*` is read only.
    pub access: Access,
    /// Alignment of its first byte.
    pub align: usize,
}

/// An argument the kernel reads, of elements aligned to `align` bytes.
pub(crate) const fn reads(name: &'static str, align: usize) -> Arg {
    Arg { name, access: Access::Read, align }
}

/// An argument the kernel writes and does not read, of elements aligned to `align` bytes.
pub(crate) const fn writes(name: &'static str, align: usize) -> Arg {
    Arg { name, access: Access::Write, align }
}

/// An argument the kernel reads and writes, of elements aligned to `align` bytes.
pub(crate) const fn updates(name: &'static str, align: usize) -> Arg {
    Arg { name, access: Access::ReadWrite, align }
}

/// One `.metal` file with everything that goes before it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Family {
    /// The file's name without its ending.
    pub name: &'static str,
    /// Declarations of its params.
    pub params: &'static [&'static str],
    /// Shared files it builds on, by name and text.
    pub uses: &'static [(&'static str, &'static str)],
    /// Its text.
    pub text: &'static str,
    /// Every kernel function of the text, by what they take; tests hold the text to it.
    pub kernels: &'static [&'static [Function]],
}

/// A kernel function's name, and its buffer arguments.
pub type Function = (&'static str, &'static [Arg]);

/// Declares `FAMILY`: the name of its file, its params, the shared files it builds on, and its kernel functions by what they
/// take: arguments in the order of the MSL, each with the alignment of its elements, as in
/// `"copy", "turn" { reads x: 4; writes out: 4 }`. `"map" each float of size { … }` declares `map_f32`, `map_f16` and
/// `map_bf16`, whose elements are of `size` bytes.
macro_rules! family {
    (
        $file:literal ($($params:ident),+) uses $($uses:ident),+;
        $($($name:literal),+ $(each float of $size:ident)? { $($args:tt)+ })+
    ) => {
        pub(crate) const FAMILY: $crate::kernels::Family = $crate::kernels::Family {
            name: $file,
            params: &[$($params::MSL),+],
            uses: &[$($uses),+],
            text: include_str!(concat!($file, ".metal")),
            kernels: &[$($crate::kernels::functions!([$($name),+] $([$size])? $($args)+)),+],
        };
    };
}

macro_rules! functions {
    ([$name:literal] [$size:ident] $($access:ident $($arg:ident: $align:expr),+);+) => {{
        const fn args($size: usize) -> [$crate::kernels::Arg; [$($(stringify!($arg)),+),+].len()] {
            [$($($crate::kernels::$access(stringify!($arg), $align)),+),+]
        }
        const WIDE: &[$crate::kernels::Arg] = &args(4);
        const NARROW: &[$crate::kernels::Arg] = &args(2);
        &[(concat!($name, "_f32"), WIDE), (concat!($name, "_f16"), NARROW), (concat!($name, "_bf16"), NARROW)]
    }};
    ([$($name:literal),+] $($access:ident $($arg:ident: $align:expr),+);+) => {{
        const ARGS: &[$crate::kernels::Arg] =
            &[$($($crate::kernels::$access(stringify!($arg), $align)),+),+];
        &[$(($name, ARGS)),+]
    }};
}
pub(crate) use {family, functions};

/// Helpers every family may use.
pub(crate) const COMMON: (&str, &str) = ("common.metal", include_str!("common.metal"));
/// How kernels begin before those before them are done.
pub(crate) const EARLY: (&str, &str) = ("early.metal", include_str!("early.metal"));

/// Goes before every family. Products and sums round apart unless a kernel says `fma`: the safe math of Metal would fuse
/// them, and its numbers would not be those of other devices. Compilers that know one of the pragmas pass over the other.
const PROLOGUE: &str = "#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)
#pragma STDC FP_CONTRACT OFF
// A kernel that is a template, under the name it is launched by, and one for each float type.
#define KERNEL(NAME, ...) template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
#define EACH_FLOAT(NAME, F) KERNEL(NAME \"_f32\", F<float>) KERNEL(NAME \"_f16\", F<half>) KERNEL(NAME \"_bf16\", F<bfloat>)
";

/// Goes before what uses [`TENSOR_OPS`]: Apple's tensor operations, which Metal 4 has.
const TENSOR_PROLOGUE: &str = "#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;
";

/// What families on tensor operations build on, see the file.
pub(crate) const TENSOR_OPS: (&str, &str) = ("tensor_ops.metal", include_str!("tensor_ops.metal"));

impl Family {
    /// Whether it is written on tensor operations.
    pub fn needs_tensor_ops(&self) -> bool {
        self.uses.contains(&TENSOR_OPS)
    }

    /// The whole source, as a Metal compiler takes it. Lines keep the names of their files.
    pub fn source(&self) -> String {
        let mut source = String::from(PROLOGUE);
        if self.needs_tensor_ops() {
            source.push_str(TENSOR_PROLOGUE);
        }
        source.extend(self.params.iter().copied());
        let file = (format!("{}.metal", self.name), self.text);
        let files = self.uses.iter().map(|(name, text)| ((*name).to_owned(), *text)).chain([file]);
        for (name, text) in files {
            source.extend(["#line 1 \"", &name, "\"\n", text, "\n"]);
        }
        source
    }

    /// The name of a function constant of its files.
    pub(crate) fn constant(&self, index: usize) -> Option<&'static str> {
        let files = self.uses.iter().map(|(_, text)| *text).chain([self.text]);
        files.into_iter().find_map(|text| constant_name(text, index))
    }

    /// Every kernel function with its buffer arguments.
    pub fn functions(&self) -> impl Iterator<Item = Function> {
        self.kernels.iter().copied().flatten().copied()
    }

    /// Whether a kernel of this name and these arguments is declared.
    pub fn declares(&self, function: &str, args: &[Arg]) -> bool {
        self.functions().any(|declared| declared == (function, args))
    }

    /// A kernel of the family. One that is not declared is refused where it is made ready.
    pub(crate) fn kernel(&'static self, name: &str, constants: Constants) -> Kernel {
        let found = self.functions().find(|(function, _)| *function == name);
        let (function, args) = found.unwrap_or((self.name, &[]));
        Kernel { family: self, function, constants, args }
    }

    /// A kernel that exists for each float type.
    pub(crate) fn of_float(
        &'static self,
        name: &'static str,
        dtype: DType,
        constants: Constants,
    ) -> Result<Kernel, GpuError> {
        if !dtype.is_float() {
            let reason = format!("elements of {dtype}, F32, F16 or BF16 are needed");
            return Err(GpuError::unsupported(name, reason));
        }
        Ok(self.kernel(&format!("{name}_{dtype}").to_lowercase(), constants))
    }
}

/// A function of a family with its constants: what a pipeline is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Where it is written.
    pub family: &'static Family,
    /// Its name in the MSL.
    pub function: &'static str,
    /// Its function constants.
    pub constants: Constants,
    /// Its buffer arguments, from index 1 on.
    pub args: &'static [Arg],
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    /// What runs.
    pub kernel: Kernel,
    /// Its numbers.
    pub params: Params,
    /// Threadgroups.
    pub groups: [u32; 3],
    /// Threads of each.
    pub threads: [u32; 3],
    /// Bytes of threadgroup memory at index 0; 0: none.
    pub threadgroup_bytes: u32,
    /// Multiply-adds; 0 where the bytes it moves are all that takes time.
    pub work: u64,
    /// Weights are read byte by byte, so they may begin anywhere: their blocks have an odd number of bytes.
    pub bytewise: bool,
}

impl Kernel {
    /// The kernel over threadgroups of so many threads; what else it takes is added by struct update.
    pub(crate) fn launch(self, params: Params, groups: [u32; 3], threads: [u32; 3]) -> Launch {
        Launch { kernel: self, params, groups, threads, threadgroup_bytes: 0, work: 0, bytewise: false }
    }

    /// One thread for each of `n` elements.
    pub(crate) fn line(self, params: Params, n: u32, limits: &Limits) -> Launch {
        let (groups, threads) = threadgroup::linear(n, limits);
        self.launch(params, [groups, 1, 1], [threads, 1, 1])
    }

    /// One thread for each of `per_row` parts of each row.
    pub(crate) fn plane(self, params: Params, (per_row, rows): (u32, u32), limits: &Limits) -> Launch {
        let ([across, down], [width, height]) = threadgroup::plane((per_row, rows), limits);
        self.launch(params, [across, down, 1], [width, height, 1])
    }
}

/// The name that a source gives a function constant.
pub(crate) fn constant_name(source: &str, index: usize) -> Option<&str> {
    let mark = format!("[[function_constant({index})]]");
    let line = source.lines().find(|line| line.contains(&mark))?;
    line[..line.find(&mark)?].split_whitespace().next_back()
}

/// Multiply-adds of nested loops of these lengths.
pub(crate) fn work<const N: usize>(lengths: [usize; N]) -> u64 {
    lengths.into_iter().fold(1, |product: u64, length| product.saturating_mul(length as u64))
}

impl Launch {
    /// Refuses what the device, or the compiled kernel, does not allow.
    pub fn check(&self, limits: &Limits) -> Result<(), GpuError> {
        let kernel = self.kernel.function;
        let threads: u64 = self.threads.iter().map(|n| u64::from(*n)).product();
        let most = u64::from(limits.max_threads);
        if threads == 0 || threads > most {
            return Err(GpuError::Launch { kernel, what: "threads in a threadgroup", found: threads, most });
        }
        let (found, most) = (u64::from(self.threadgroup_bytes), u64::from(limits.most_threadgroup_memory()));
        if found > most {
            return Err(GpuError::Launch { kernel, what: "bytes of threadgroup memory", found, most });
        }
        let axes = ["threadgroups along x", "threadgroups along y", "threadgroups along z"];
        for ((what, found), most) in axes.into_iter().zip(self.groups).zip(limits.max_groups) {
            if found > most {
                let (found, most) = (u64::from(found), u64::from(most));
                return Err(GpuError::Launch { kernel, what, found, most });
            }
        }
        let groups = self.groups.iter().try_fold(1u32, |n, g| n.checked_mul(*g));
        match groups {
            Some(n) if n > 0 => Ok(()),
            found => {
                let found = found.map_or(u64::MAX, u64::from);
                Err(GpuError::Launch { kernel, what: "threadgroups", found, most: u64::from(u32::MAX) })
            }
        }
    }
}

/// Every family, for tests that hold all kernels to their declarations.
pub const FAMILIES: &[&Family] = &[
    &attention::FAMILY,
    &attention_head::FAMILY,
    &attention_heads::FAMILY,
    &attention_merge::FAMILY,
    &attention_plain::FAMILY,
    &attention_staged::FAMILY,
    &attention_tiles::FAMILY,
    &attention_units::FAMILY,
    &cell_columns::FAMILY,
    &cell_matmul::FAMILY,
    &cell_matvec::FAMILY,
    &cell_qkv::FAMILY,
    &cell_rows::FAMILY,
    &cells::FAMILY,
    &copy::FAMILY,
    &elementwise::FAMILY,
    &experts::FAMILY,
    &gather::FAMILY,
    &gemm::FAMILY,
    &library::FAMILY,
    &matmul::FAMILY,
    &matvec::FAMILY,
    &norm::FAMILY,
    &peaks::FAMILY,
    &relay::FAMILY,
    &qkv::FAMILY,
    &recurrent::FAMILY,
    &rope::FAMILY,
    &sample::FAMILY,
    &sdpa::FAMILY,
    &softmax::FAMILY,
    &tensor_matmul::FAMILY,
    &transfer::FAMILY,
];
