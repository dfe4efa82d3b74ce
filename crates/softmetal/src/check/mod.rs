//! The checker: every access of an instrumented kernel, held against the buffers, the threads and the barriers.

mod checker;
mod order;
mod report;
mod resolve;
mod shadow;
mod symbols;
mod textures;

pub(crate) use checker::{Access, Checker, Region};
pub use report::{Kind, Report};
pub(crate) use resolve::{Grid, Resolver, binding};
pub(crate) use symbols::Symbols;

use crate::{
    diagnostic::Severity,
    runtime::{abi::LINE_BITS, trap::Trap},
};

/// What the checker looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckOptions {
    /// The weight of races that only barriers with `mem_none` separate: by the specification these order no memory, though
    /// they do on many GPUs. `None` leaves them out.
    pub mem_none: Option<Severity>,
    /// The weight of barriers, of operations of several simdgroups and of shuffles that not all threads take part in: what
    /// they do then, the specification leaves open. `None` leaves them out.
    pub divergence: Option<Severity>,
    /// The weight of writes that race, but write what is there already: harmless on most GPUs. `None` leaves them out.
    pub same_value: Option<Severity>,
    /// The weight of texels that are not there: Metal reads zeros and drops what is written, but they are rarely meant. `None`
    /// leaves them out.
    pub texture_bounds: Option<Severity>,
    /// Whether infinities and NaN in what the kernel wrote are reported.
    pub non_finite: bool,
    /// Reports past this many are dropped.
    pub max_reports: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            mem_none: Some(Severity::Warning),
            divergence: Some(Severity::Error),
            same_value: Some(Severity::Warning),
            texture_bounds: Some(Severity::Warning),
            non_finite: false,
            max_reports: 64,
        }
    }
}

/// A GPU thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Who {
    /// Index in the threadgroup.
    pub(crate) thread: u32,
    pub(crate) group: [u32; 3],
}

/// Whether the thread can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Stop,
    /// It can; whether the memory is then as it was is to be told to the checker.
    Compare,
}

/// A barrier or a collective: the compiler may merge two calls into one, so the place comes from the call's arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Site {
    /// `line` as kernels pass it.
    pub(crate) fn new(file: String, line: u32) -> Self {
        Self { file, line: line & ((1 << LINE_BITS) - 1), column: line >> LINE_BITS }
    }
}

/// What the scheduler saw, in any flavour. Addresses are absolute.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Divergence {
        site: Site,
        waiting: usize,
        total: usize,
        elsewhere: Option<Site>,
    },
    SimdDivergence {
        site: Site,
        waiting: u32,
        live: u32,
        elsewhere: Option<Site>,
    },
    /// A lane wants the value of lane `wanted`; those in `here` have come.
    AbsentLane {
        site: Site,
        wanted: u32,
        here: u32,
    },
    Scope {
        site: Site,
        wanted: u32,
        found: u32,
    },
    Assertion {
        site: Site,
        text: String,
    },
    ThreadgroupMemory {
        size: usize,
        used: usize,
        limit: usize,
    },
    Trap(Trap),
    TimeLimit,
    NoMemory,
}

/// A mistake before its addresses are turned into places.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    /// Offset in the library, past the instruction; nothing if there is no place.
    pub(crate) pc: Option<usize>,
    pub(crate) other_pc: Option<usize>,
    pub(crate) who: Who,
    pub(crate) buffer: Option<u32>,
    pub(crate) explanation: String,
}

impl Finding {
    /// A mistake at one place, of no particular buffer.
    pub(crate) fn error(kind: Kind, who: Who, pc: Option<usize>, explanation: String) -> Self {
        Self { kind, severity: Severity::Error, pc, other_pc: None, who, buffer: None, explanation }
    }
}
