//! The checker: every access of an instrumented kernel, held against the buffers, the threads and the barriers.

mod checker;
mod order;
mod report;
mod resolve;
mod shadow;
mod symbols;

pub(crate) use checker::{Access, Checker, Region};
pub use report::{Kind, Report};
pub(crate) use resolve::{Resolver, binding};
pub(crate) use symbols::Symbols;

use crate::{diagnostic::Severity, runtime::trap::Trap};

/// What the checker looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckOptions {
    /// The weight of races that only barriers with `mem_none` separate: by the specification these order no memory, though
    /// they do on many GPUs. `None` leaves them out.
    pub mem_none: Option<Severity>,
    /// Whether infinities and NaN in what the kernel wrote are reported.
    pub non_finite: bool,
    /// Reports past this many are dropped.
    pub max_reports: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { mem_none: Some(Severity::Warning), non_finite: false, max_reports: 64 }
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
}

/// A barrier: the compiler may merge two calls into one, so the place comes from the call's arguments, the column from `pc`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) pc: usize,
}

/// What the scheduler saw, in any flavour. Addresses are absolute.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Divergence { site: Site, waiting: usize, total: usize, elsewhere: Option<Site> },
    SimdDivergence { site: Site, waiting: u32, live: u32, elsewhere: Option<Site> },
    Scope { site: Site, wanted: u32, found: u32 },
    ThreadgroupMemory { size: usize, used: usize },
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
