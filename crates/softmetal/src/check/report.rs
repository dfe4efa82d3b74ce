//! What the checker says.

use std::fmt;

use serde::Serialize;

use crate::diagnostic::{Location, Severity};

/// The kinds of mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// An access outside every buffer.
    OutOfBounds,
    /// An access through an argument that nothing is bound to.
    UnboundBuffer,
    /// A buffer shorter than the value it must hold.
    BufferTooSmall,
    /// A read of threadgroup memory that no thread of the threadgroup wrote.
    UninitialisedThreadgroupMemory,
    /// Two threads of a threadgroup use the same memory, one writes, and no barrier orders them.
    DataRace,
    /// Only barriers with `mem_none` lie between the two.
    MemNoneOrdering,
    /// The barrier between the two orders other memory.
    WrongMemFlags,
    /// Threads of different threadgroups use the same memory, and one writes.
    ThreadgroupRace,
    /// Not all threads of the threadgroup reach the same barrier.
    BarrierDivergence,
    /// Not all lanes of the simdgroup reach the same barrier.
    SimdgroupDivergence,
    /// An address that is no multiple of the type's alignment.
    MisalignedAccess,
    /// An index outside the declared array.
    ArrayIndex,
    /// A write to `constant` memory or through a pointer to const, or to a buffer that was bound for reading.
    WriteToConstant,
    /// A result that is infinite or not a number.
    NonFinite,
    /// More threadgroup memory than a GPU has.
    ThreadgroupMemory,
    /// A null pointer was used.
    NullPointer,
    /// A shift by more bits than the type has.
    ShiftRange,
    /// An integer division by zero.
    DivisionByZero,
    /// A bool that is neither true nor false.
    InvalidValue,
    /// Control reached a place that cannot be reached.
    Unreachable,
    /// The kernel crashed.
    Crash,
    /// The kernel used up its stack.
    StackOverflow,
    /// The kernel did not end in time.
    TimeLimit,
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfBounds => "out-of-bounds access",
            Self::UnboundBuffer => "unbound buffer",
            Self::BufferTooSmall => "buffer too small",
            Self::UninitialisedThreadgroupMemory => "uninitialised threadgroup memory",
            Self::DataRace => "data race",
            Self::MemNoneOrdering => "data race across mem_none",
            Self::WrongMemFlags => "data race across a barrier with other mem_flags",
            Self::ThreadgroupRace => "data race between threadgroups",
            Self::BarrierDivergence => "threadgroup barrier in divergent control flow",
            Self::SimdgroupDivergence => "simdgroup barrier in divergent control flow",
            Self::MisalignedAccess => "misaligned access",
            Self::ArrayIndex => "array index out of bounds",
            Self::WriteToConstant => "write to constant memory",
            Self::NonFinite => "non-finite result",
            Self::ThreadgroupMemory => "too much threadgroup memory",
            Self::NullPointer => "null pointer",
            Self::ShiftRange => "shift out of range",
            Self::DivisionByZero => "integer division by zero",
            Self::InvalidValue => "invalid value",
            Self::Unreachable => "unreachable code reached",
            Self::Crash => "crash",
            Self::StackOverflow => "stack overflow",
            Self::TimeLimit => "time limit",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One mistake of a kernel, seen in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What kind of mistake.
    pub kind: Kind,
    /// How much it weighs.
    pub severity: Severity,
    /// The kernel's host name.
    pub kernel: String,
    /// The access, barrier or crash.
    pub at: Location,
    /// For races, the earlier access; for divergence, another barrier that threads wait at.
    pub other: Option<Location>,
    /// Position in the threadgroup of the thread at `at`.
    pub thread: [u32; 3],
    /// Its threadgroup.
    pub threadgroup: [u32; 3],
    /// The buffer or, for threadgroup arguments, the threadgroup index concerned.
    pub buffer: Option<u32>,
    /// One line that says what happened.
    pub explanation: String,
    /// The source line of `at`, if the file can be read.
    pub line: Option<String>,
    /// The source line of `other`.
    pub other_line: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} in kernel `{}`", self.severity, self.kind, self.kernel)?;
        let places = self.other.iter().map(|o| (o, &self.other_line)).chain([(&self.at, &self.line)]);
        let width = places.clone().map(|(at, _)| at.line.max(1).ilog10() as usize + 1).max().unwrap_or(1);
        for (at, line) in places {
            writeln!(f, "{:width$}--> {at}", "")?;
            if let Some(line) = line {
                let text = line.trim_end();
                writeln!(f, "{:>width$} | {text}", at.line)?;
                if at.column > 0 {
                    // Tabs keep their width, so that the caret stands below its column.
                    let pad: String = text
                        .chars()
                        .take(at.column as usize - 1)
                        .map(|c| if c == '\t' { c } else { ' ' })
                        .collect();
                    writeln!(f, "{:width$} | {pad}^", "")?;
                }
            }
        }
        let [x, y, z] = self.thread;
        let [gx, gy, gz] = self.threadgroup;
        write!(f, "{:width$} = {} (thread {x},{y},{z} of threadgroup {gx},{gy},{gz})", "", self.explanation)
    }
}
