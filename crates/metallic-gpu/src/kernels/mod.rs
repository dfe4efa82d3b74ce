//! Kernels: each family is a `.metal` file beside the Rust that plans its launches. A plan is a pure function of types,
//! sizes and limits; it picks the kernel, its constants, the grid and the params.

pub(crate) mod attention;
pub(crate) mod attention_plain;
pub(crate) mod attention_tiles;
pub(crate) mod axes;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod gather;
#[cfg(test)]
pub(crate) mod harness;
pub(crate) mod matmul;
pub(crate) mod matvec;
pub(crate) mod norm;
pub(crate) mod project;
#[cfg(test)]
mod project_tests;
pub(crate) mod qkv;
mod quant;
pub(crate) mod recurrent;
pub(crate) mod rope;
mod rows;
pub(crate) mod sample;
pub(crate) mod sdpa;
pub(crate) mod softmax;
// Planned by drivers of hardware alone.
#[cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]
pub(crate) mod transfer;
mod typed;

use metallic_core::DType;

pub(crate) use quant::{QUANT, QUANT_TYPES, row_bytes, weight_type};
pub(crate) use typed::{SOFTCAP, binary_code, count, scalar_code, unary_code};

use crate::command::Access;
use crate::error::GpuError;
use crate::gpu::Limits;
pub use crate::params::Params;
use crate::step::StepCounts;
use crate::threadgroup;

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

impl Family {
    /// The whole source, as a Metal compiler takes it. Lines keep the names of their files.
    pub fn source(&self) -> String {
        let mut source = String::from(PROLOGUE);
        source.extend(self.params.iter().copied());
        let file = (format!("{}.metal", self.name), self.text);
        let files = self.uses.iter().map(|(name, text)| ((*name).to_owned(), *text)).chain([file]);
        for (name, text) in files {
            source.extend(["#line 1 \"", &name, "\"\n", text, "\n"]);
        }
        source
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
        let (found, most) = (u64::from(self.threadgroup_bytes), u64::from(limits.threadgroup_memory));
        if found > most {
            return Err(GpuError::Launch { kernel, what: "bytes of threadgroup memory", found, most });
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

/// What stands behind a kernel's argument in a program. The lowering turns slots into bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The node's input of this index: an activation, or a weight as it lies in its file.
    Input(usize),
    /// The node's value.
    Output,
    /// Memory of this operation alone, by index into [`Stages::scratch`].
    Scratch(usize),
    /// A table of the step, see [`StepTable`].
    Step(StepTable),
    /// Tokens that the step before has chosen.
    Fed,
    /// Keys of the operation's state: `[blocks][kv_heads][BLOCK_TOKENS]` rows of a head.
    Keys,
    /// Values of the operation's state, laid out like the keys.
    Values,
    /// The operation's recurrent states: `F32 [slots, elements]`.
    Recurrent,
    /// The kernel's constants leave the argument unused.
    Unused,
}

impl Slot {
    pub(crate) const ROWS: Slot = Slot::Step(StepTable::Rows);
    pub(crate) const BLOCKS: Slot = Slot::Step(StepTable::Blocks);
}

/// What a step says, as the kernels see it. All elements are `uint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StepTable {
    /// Token ids: `[tokens]`.
    Tokens,
    /// Position of each token for rotary embeddings: `[tokens]`.
    Positions,
    /// Tokens whose result is wanted: `[outputs]`.
    Outputs,
    /// How tokens are chosen from their results, see [`metallic_core::sample`].
    Choices,
    /// For each token `(table, visible)`: where its sequence's block table begins in `Blocks`, and how many tokens of
    /// its sequence it may see, itself included; so it lies at `visible - 1`. `uint2 [tokens]`.
    Rows,
    /// Runs of at most [`TILE_TOKENS`] tokens of one sequence: `(first token, tokens, table, visible to the first)`.
    /// `uint4 [tiles]`.
    Tiles,
    /// For each sequence `(first token, tokens, recurrent state, 1 where it has no past)`. `uint4 [sequences]`.
    Sequences,
    /// Block tables of all sequences, one after another.
    Blocks,
}

/// Every table, in the order they lie in.
pub(crate) const TABLES: &[StepTable] = &[
    StepTable::Tokens,
    StepTable::Positions,
    StepTable::Outputs,
    StepTable::Choices,
    StepTable::Rows,
    StepTable::Tiles,
    StepTable::Sequences,
    StepTable::Blocks,
];

/// Query tokens of a tile in [`StepTable::Tiles`] at most.
pub(crate) const TILE_TOKENS: usize = 32;

/// How many bytes of an argument a launch moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Each once.
    Once,
    /// So many: fewer than are there by a gather, more by a kernel that reads them several times.
    Bytes(usize),
    /// So many for each token that is looked at, which the step alone knows.
    Seen {
        per_token: usize,
        /// How far back is looked.
        window: Option<usize>,
        /// By tiles of queries, which look at a token once for all their own.
        tiles: bool,
    },
}

impl Moved {
    /// Bytes in a step; `None` where all of the region are moved once.
    pub(crate) fn bytes(self, step: &StepCounts) -> Option<usize> {
        match self {
            Moved::Once => None,
            Moved::Bytes(bytes) => Some(bytes),
            Moved::Seen { per_token, window, tiles } => {
                let within = |window: usize| {
                    if !tiles {
                        return window.saturating_mul(step.tokens);
                    }
                    window.saturating_sub(1).saturating_mul(step.tiles).saturating_add(step.tokens)
                };
                let seen = if tiles { step.tiles_see } else { step.seen };
                Some(per_token.saturating_mul(seen.min(window.map_or(usize::MAX, within))))
            }
        }
    }
}

/// One launch of an operation and what stands behind its arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stage {
    pub(crate) launch: Launch,
    slots: [SlotUse; MAX_ARGS],
}

/// What stands behind an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse {
    pub(crate) slot: Slot,
    /// Its first byte that counts.
    pub(crate) start: usize,
    pub(crate) moved: Moved,
}

impl Stage {
    /// A launch with its arguments in the kernel's order.
    #[allow(clippy::large_types_passed_by_value)] // It is moved in.
    pub(crate) fn new<const N: usize>(launch: Launch, given: [Slot; N]) -> Stage {
        const { assert!(N <= MAX_ARGS, "too many arguments") };
        let mut slots = [SlotUse { slot: Slot::Unused, start: 0, moved: Moved::Once }; MAX_ARGS];
        for (used, slot) in slots.iter_mut().zip(given) {
            used.slot = slot;
        }
        Stage { launch, slots }
    }

    /// Says how many bytes of the argument at `index` are moved.
    #[must_use]
    pub(crate) fn touching(self, index: usize, bytes: usize) -> Stage {
        self.moving(index, Moved::Bytes(bytes))
    }

    /// Says what of the argument at `index` is moved.
    #[must_use]
    pub(crate) fn moving(mut self, index: usize, moved: Moved) -> Stage {
        self.slots[index].moved = moved;
        self
    }

    /// Says at which byte the argument at `index` begins.
    #[must_use]
    pub(crate) fn starting(mut self, index: usize, start: usize) -> Stage {
        self.slots[index].start = start;
        self
    }

    pub(crate) fn slots(&self) -> &[SlotUse] {
        &self.slots[..self.launch.kernel.args.len().min(MAX_ARGS)]
    }
}

/// How an operation runs: launches one after another, and the bytes of scratch they share.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stages {
    pub(crate) stages: Vec<Stage>,
    /// Bytes of each scratch, by index.
    pub(crate) scratch: Vec<usize>,
}

impl Stages {
    /// Says of every launch whether its weights may begin anywhere.
    pub(crate) fn bytewise(mut self, bytewise: bool) -> Stages {
        self.stages.iter_mut().for_each(|stage| stage.launch.bytewise |= bytewise);
        self
    }

    pub(crate) fn add_scratch(&mut self, bytes: usize) -> Slot {
        self.scratch.push(bytes);
        Slot::Scratch(self.scratch.len() - 1)
    }

    /// What was the result becomes memory of this operation alone, for stages that follow.
    pub(crate) fn keep_output(&mut self, bytes: usize) -> Slot {
        let kept = self.add_scratch(bytes);
        self.replace(Slot::Output, kept);
        kept
    }

    /// Another slot behind every argument that has this one.
    pub(crate) fn replace(&mut self, slot: Slot, by: Slot) {
        self.slot_uses().filter(|used| used.slot == slot).for_each(|used| used.slot = by);
    }

    /// What stands behind the arguments of all stages.
    pub(crate) fn slot_uses(&mut self) -> impl Iterator<Item = &mut SlotUse> {
        self.stages.iter_mut().flat_map(|stage| &mut stage.slots)
    }

    /// These stages, then those; scratch is shared out between them.
    pub(crate) fn append(&mut self, mut more: Stages) {
        for used in more.slot_uses() {
            if let Slot::Scratch(index) = &mut used.slot {
                *index += self.scratch.len();
            }
        }
        self.stages.extend(more.stages);
        self.scratch.extend(more.scratch);
    }
}

impl From<Stage> for Stages {
    fn from(stage: Stage) -> Stages {
        Stages { stages: vec![stage], scratch: Vec::new() }
    }
}

/// Every family, for tests that hold all kernels to their declarations.
pub const FAMILIES: &[&Family] = &[
    &attention::FAMILY,
    &attention_plain::FAMILY,
    &attention_tiles::FAMILY,
    &copy::FAMILY,
    &elementwise::FAMILY,
    &experts::FAMILY,
    &gather::FAMILY,
    &matmul::FAMILY,
    &matvec::FAMILY,
    &norm::FAMILY,
    &qkv::FAMILY,
    &recurrent::FAMILY,
    &rope::FAMILY,
    &sample::FAMILY,
    &sdpa::FAMILY,
    &softmax::FAMILY,
    &transfer::FAMILY,
];
