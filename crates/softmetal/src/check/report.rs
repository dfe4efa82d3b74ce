//! What the checker says.

use std::fmt;

use serde::Serialize;

use crate::diagnostic::{Location, Severity};

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal,)+) => {
        /// The kinds of mistakes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])+ $kind,)+
        }

        impl fmt::Display for Kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$kind => $name,)+
                })
            }
        }
    };
}
kinds! {
    /// An access outside every buffer.
    OutOfBounds = "out-of-bounds access",
    /// An access through an argument that nothing is bound to.
    UnboundBuffer = "unbound buffer",
    /// A buffer shorter than the value it must hold.
    BufferTooSmall = "buffer too small",
    /// A read of threadgroup memory that no thread of the threadgroup wrote.
    UninitialisedThreadgroupMemory = "uninitialised threadgroup memory",
    /// Two threads of a threadgroup use the same memory, one writes, and no barrier orders them.
    DataRace = "data race",
    /// Two threads write the same value to the same memory, and nothing orders them.
    SameValueRace = "data race of equal writes",
    /// Only barriers with `mem_none` lie between the two.
    MemNoneOrdering = "data race across mem_none",
    /// The barrier between the two orders other memory.
    WrongMemFlags = "data race across a barrier with other mem_flags",
    /// Threads of different threadgroups use the same memory, and one writes.
    ThreadgroupRace = "data race between threadgroups",
    /// Not all threads of the threadgroup reach the same barrier.
    BarrierDivergence = "threadgroup barrier in divergent control flow",
    /// Not all lanes of the simdgroup reach the same barrier.
    SimdgroupDivergence = "simdgroup barrier in divergent control flow",
    /// A value is taken from a lane of the simdgroup that does not take part.
    AbsentLane = "value of a lane that does not take part",
    /// An operation of several simdgroups in a threadgroup that has more, or fewer.
    ExecutionScope = "execution scope other than the threadgroup",
    /// An address that is no multiple of the type's alignment.
    MisalignedAccess = "misaligned access",
    /// An index outside the declared array.
    ArrayIndex = "array index out of bounds",
    /// A write to `constant` memory or through a pointer to const, or to a buffer that was bound for reading.
    WriteToConstant = "write to constant memory",
    /// A result that is infinite or not a number.
    NonFinite = "non-finite result",
    /// A texel that the texture does not have.
    TextureBounds = "texel outside of the texture",
    /// A texture or a sampler that is used where none is bound.
    UnboundTexture = "unbound texture",
    /// A texture of integers that a sampler is to mix.
    TextureFilter = "linear filter of integers",
    /// More threadgroup memory than a GPU has.
    ThreadgroupMemory = "too much threadgroup memory",
    /// A null pointer was used.
    NullPointer = "null pointer",
    /// A shift by more bits than the type has.
    ShiftRange = "shift out of range",
    /// An integer division by zero.
    DivisionByZero = "integer division by zero",
    /// A bool that is neither true nor false.
    InvalidValue = "invalid value",
    /// Control reached a place that cannot be reached.
    Unreachable = "unreachable code reached",
    /// An `assert` that does not hold.
    Assertion = "assertion failed",
    /// The kernel crashed.
    Crash = "crash",
    /// The kernel used up its stack.
    StackOverflow = "stack overflow",
    /// The kernel did not end in time.
    TimeLimit = "time limit",
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
    /// The texture concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub texture: Option<u32>,
    /// One line that says what happened.
    pub explanation: String,
    /// The source line of `at`, if the file can be read.
    pub line: Option<String>,
    /// The source line of `other`.
    pub other_line: Option<String>,
    /// Where the function that has `at` was called, and so on up to the kernel, as far as the compiler put them into one.
    pub callers: Vec<Location>,
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
        for caller in &self.callers {
            writeln!(f, "{:width$} = called at {caller}", "")?;
        }
        let [x, y, z] = self.thread;
        let [gx, gy, gz] = self.threadgroup;
        write!(f, "{:width$} = {} (thread {x},{y},{z} of threadgroup {gx},{gy},{gz})", "", self.explanation)
    }
}
