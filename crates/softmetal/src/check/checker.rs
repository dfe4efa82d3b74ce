//! One access after another.

use std::{collections::HashSet, ops::Range};

use super::{
    CheckOptions, Finding, Kind, Verdict, Who,
    order::{Clock, Gap, Memory},
    shadow::{Mark, Scope, Shadow},
};
use crate::{
    diagnostic::Severity,
    runtime::abi::{self, ACCESS_ATOMIC, ACCESS_WRITE, MEM_DEVICE},
};

/// Memory that kernels may be given.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) bytes: Range<usize>,
    /// The buffer index, or that of a threadgroup argument.
    pub(crate) index: Option<u32>,
    pub(crate) access: Access,
}

/// What may be done with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// All parameters that see it are const.
    Const,
    /// The host bound it for reading only.
    Input,
    Write,
    /// Stands for an argument that nothing is bound to.
    Unbound,
    Threadgroup {
        zeroed: bool,
    },
}

/// A fence of this scope or wider reaches other threadgroups.
const SCOPE_DEVICE: i32 = 3;
/// Farther from every region than this, an address belongs to none.
const NEAR: usize = 16 << 20;

/// The state of a checked dispatch.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    pub(super) options: CheckOptions,
    base: usize,
    /// Buffers first, then what the current threadgroup has.
    regions: Vec<Region>,
    shadows: Vec<Shadow>,
    buffers: usize,
    last: usize,
    /// That of the fiber that runs.
    pub(crate) stack: Range<usize>,
    /// Code, constants, globals and thread-locals of the library, and what entry points read of the runtime's own. Metal has no
    /// globals that can be written.
    library: Vec<Range<usize>>,
    pub(crate) clock: Clock,
    /// Threadgroups of the grid.
    groups: [u32; 3],
    findings: Vec<Finding>,
    seen: HashSet<(Kind, usize, usize)>,
    undecided: Option<Undecided>,
}

/// Two writes that race. What the second writes shows when its thread has gone on: perhaps what was there.
#[derive(Debug)]
pub(crate) struct Undecided {
    pub(crate) bytes: Range<usize>,
    finding: Finding,
}

impl Checker {
    /// `groups`: threadgroups of the grid; `base`: where the library was loaded; `library`: its memory.
    pub(crate) fn new(
        options: CheckOptions,
        base: usize,
        library: Vec<Range<usize>>,
        groups: [u32; 3],
    ) -> Self {
        Self { options, base, library, groups, ..Self::default() }
    }

    /// Adds a buffer; all come before the first threadgroup.
    pub(crate) fn buffer(&mut self, region: Region) {
        let tracked = matches!(region.access, Access::Write | Access::Input);
        self.shadows.push(Shadow::new(if tracked { region.bytes.len() } else { 0 }));
        self.regions.push(region);
        self.buffers = self.regions.len();
    }

    /// Adds memory that is neither a buffer nor watched, and that no kernel may write.
    pub(crate) fn allow_reads(&mut self, bytes: Range<usize>) {
        self.library.push(bytes);
    }

    pub(crate) fn begin_group(&mut self, n: u64, threads: usize) {
        self.regions.truncate(self.buffers);
        self.last = 0;
        // Marks of zero are those of no threadgroup.
        self.clock.begin_group(n as u32 + 1, threads);
    }

    pub(crate) fn threadgroup_memory(&mut self, bytes: Range<usize>, index: Option<u32>, zeroed: bool) {
        let slot = self.regions.len();
        if self.shadows.len() <= slot {
            self.shadows.push(Shadow::default());
        }
        self.shadows[slot].grow(bytes.len());
        self.regions.push(Region { bytes, index, access: Access::Threadgroup { zeroed } });
    }

    pub(crate) fn fence(&mut self, flags: i32, scope: i32) {
        if scope >= SCOPE_DEVICE && flags & (MEM_DEVICE | abi::MEM_TEXTURE) != 0 {
            self.clock.device_fence();
        }
    }

    /// Everything found so far; the checker keeps nothing.
    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// The last write to byte `offset` of the buffer that was added as the `nth`: its place, thread index and threadgroup.
    pub(crate) fn writer(&self, nth: usize, offset: usize) -> Option<(usize, Who)> {
        let mark = self.shadows[..self.buffers].get(nth)?.writer(offset)?;
        Some((mark.pc as usize, Who { thread: u32::from(mark.thread), group: self.group_of(&mark) }))
    }

    fn group_of(&self, mark: &Mark) -> [u32; 3] {
        let (n, [x, y, _]) = (mark.group.saturating_sub(1), self.groups);
        [n % x, n / x % y, n / x / y]
    }

    /// Holds an access of `n` bytes against all rules.
    #[inline]
    pub(crate) fn access(&mut self, who: Who, address: usize, n: usize, flags: u32, pc: usize) -> Verdict {
        if !self.regions.get(self.last).is_some_and(|r| r.bytes.contains(&address)) {
            if self.stack.contains(&address) && n <= self.stack.end - address {
                return Verdict::Go;
            }
            match self.regions.iter().position(|r| r.bytes.contains(&address)) {
                Some(found) => self.last = found,
                None => return self.outside(who, address, n, flags, pc),
            }
        }
        let region = &self.regions[self.last];
        if address + n > region.bytes.end {
            return self.outside(who, address, n, flags, pc);
        }
        let write = flags & ACCESS_WRITE != 0;
        match region.access {
            Access::Const | Access::Input if write => self.constant(who, pc),
            Access::Const => Verdict::Go,
            Access::Unbound => self.unbound(who, write, pc),
            Access::Input | Access::Write => {
                let texture = region.index.is_some_and(|key| abi::texture_of(key).is_some());
                let memory = if texture { Memory::Texture } else { Memory::Device };
                self.shared(who, address, n, flags, pc, memory)
            }
            Access::Threadgroup { .. } => self.shared(who, address, n, flags, pc, Memory::Threadgroup),
        }
    }

    fn shared(
        &mut self,
        who: Who,
        address: usize,
        n: usize,
        flags: u32,
        pc: usize,
        memory: Memory,
    ) -> Verdict {
        let region = &self.regions[self.last];
        let write = flags & ACCESS_WRITE != 0;
        let now = self.clock.mark(who.thread, (pc - self.base) as u32, flags & ACCESS_ATOMIC != 0);
        let threadgroup = memory == Memory::Threadgroup;
        let uninitialised = region.access == Access::Threadgroup { zeroed: false } && !write;
        let (mut conflict, mut unwritten) = (None, false);
        let clock = &self.clock;
        self.shadows[self.last].visit(address - region.bytes.start, n, |cell| {
            if threadgroup {
                // Marks of other threadgroups are of other memory.
                if cell.write.group != now.group {
                    cell.write = Mark::default();
                }
                if cell.read.group != now.group {
                    cell.read = Mark::default();
                }
            }
            if uninitialised && cell.write.scope == Scope::Nobody {
                unwritten = true;
                return true;
            }
            let against = |mark: &Mark| {
                if mark.scope == Scope::Nobody || (mark.atomic && now.atomic) {
                    None
                } else {
                    clock.gap(mark, &now, memory)
                }
            };
            let written = against(&cell.write).map(|gap| (gap, cell.write, true));
            let found = written.or_else(|| {
                if write { against(&cell.read).map(|gap| (gap, cell.read, false)) } else { None }
            });
            conflict = conflict.or(found);
            let mark = if write { &mut cell.write } else { &mut cell.read };
            let open = mark.scope != Scope::Nobody
                && (!write || now.atomic && mark.atomic)
                && clock.gap(mark, &now, memory).is_some();
            // A plain access stays in view behind an atomic one of the same thread: others may not touch it either.
            if !(now.atomic && !mark.atomic && mark.same_moment(&now)) {
                *mark = if open { mark.joined(&now) } else { now };
            }
            if write {
                cell.read = Mark::default();
            }
            false
        });
        if unwritten {
            let reader = who.thread;
            let explanation =
                format!("thread {reader} reads {n} bytes that no thread of this threadgroup has written");
            self.add(Kind::UninitialisedThreadgroupMemory, Severity::Error, who, (pc, None), explanation);
        }
        match conflict {
            Some(conflict) => self.race(who, address..address + n, (pc, write), conflict, memory),
            None => Verdict::Go,
        }
    }

    #[cold]
    fn race(
        &mut self,
        who: Who,
        bytes: Range<usize>,
        (pc, write): (usize, bool),
        (gap, other, other_wrote): (Gap, Mark, bool),
        memory: Memory,
    ) -> Verdict {
        let (kind, severity) = match gap {
            Gap::Groups => (Kind::ThreadgroupRace, Some(Severity::Error)),
            Gap::NoBarrier => (Kind::DataRace, Some(Severity::Error)),
            Gap::WrongFlags => (Kind::WrongMemFlags, Some(Severity::Error)),
            Gap::MemNone => (Kind::MemNoneOrdering, self.options.mem_none),
        };
        let Some(severity) = severity else { return Verdict::Go };
        let earlier = if other_wrote { "wrote" } else { "read" };
        let now = if write { "writes" } else { "reads" };
        let whose = match gap {
            Gap::Groups => format!("thread {} of threadgroup {:?}", other.thread, self.group_of(&other)),
            _ if other.scope == Scope::Thread => format!("thread {}", other.thread),
            _ => format!("several threads, thread {} among them,", other.thread),
        };
        let between = match gap {
            Gap::Groups => "nothing orders threadgroups".to_owned(),
            Gap::NoBarrier => format!("no barrier between them orders {}", memory.name()),
            Gap::WrongFlags => format!("the barrier between them does not order {}", memory.name()),
            Gap::MemNone => format!("the barrier between them is mem_none and orders no {}", memory.name()),
        };
        let explanation =
            format!("thread {} {now} {} that {whose} {earlier}; {between}", who.thread, memory.name());
        let finding = Finding {
            severity,
            other_pc: Some(other.pc as usize),
            buffer: self.regions[self.last].index,
            ..Finding::error(kind, who, Some(pc), explanation)
        };
        if !(write && other_wrote) {
            self.push(finding);
            return Verdict::Go;
        }
        self.undecided = Some(Undecided { bytes, finding });
        Verdict::Compare
    }

    /// The writes that wait for [`Checker::decide`], if there are any.
    #[inline]
    pub(crate) fn undecided(&self) -> Option<Range<usize>> {
        self.undecided.as_ref().map(|undecided| undecided.bytes.clone())
    }

    /// Whether the write that was undecided has left the bytes as they were.
    #[cold]
    pub(crate) fn decide(&mut self, same: bool) {
        let Some(Undecided { mut finding, .. }) = self.undecided.take() else { return };
        if same {
            let Some(severity) = self.options.same_value else { return };
            finding.kind = Kind::SameValueRace;
            finding.severity = severity.min(finding.severity);
            finding.explanation += "; both wrote the same";
        }
        self.push(finding);
    }

    #[cold]
    fn constant(&mut self, who: Who, pc: usize) -> Verdict {
        let region = &self.regions[self.last];
        let index = region.index.unwrap_or(0);
        let explanation = match region.access {
            Access::Const => format!("{} is const in this kernel", abi::name_of(index)),
            _ => format!("{} was bound for reading only", abi::name_of(index)),
        };
        self.add(Kind::WriteToConstant, Severity::Error, who, (pc, None), explanation);
        Verdict::Go
    }

    #[cold]
    fn unbound(&mut self, who: Who, write: bool, pc: usize) -> Verdict {
        let index = self.regions[self.last].index.unwrap_or(0);
        let what = if write { "written" } else { "read" };
        let explanation = format!("buffer {index} is {what}, but nothing is bound to it");
        self.add(Kind::UnboundBuffer, Severity::Error, who, (pc, None), explanation);
        Verdict::Stop
    }

    #[cold]
    fn outside(&mut self, who: Who, address: usize, n: usize, flags: u32, pc: usize) -> Verdict {
        let read = flags & ACCESS_WRITE == 0;
        let own = self.library.iter().any(|s| s.contains(&address) && n <= s.end - address);
        if own && read {
            return Verdict::Go;
        }
        if own {
            let explanation =
                "code, constants and tables of the kernel itself; the thread was stopped".to_owned();
            self.push(Finding::error(Kind::WriteToConstant, who, Some(pc), explanation));
            return Verdict::Stop;
        }
        let what = if flags & ACCESS_WRITE != 0 { "write" } else { "read" };
        let distance = |r: &Region| {
            if address < r.bytes.start {
                r.bytes.start - address
            } else {
                (address + n).saturating_sub(r.bytes.end)
            }
        };
        let nearest = (0..self.regions.len())
            .min_by_key(|&i| distance(&self.regions[i]))
            .filter(|&i| distance(&self.regions[i]) < NEAR);
        let explanation = if let Some(i) = nearest {
            self.last = i;
            let r = &self.regions[i];
            let place = if address < r.bytes.start {
                format!("{} bytes before the start of", r.bytes.start - address)
            } else if address < r.bytes.end {
                "across the end of".to_owned()
            } else {
                format!("{} bytes past the end of", address - r.bytes.end)
            };
            let name = match (r.access, r.index) {
                (Access::Threadgroup { .. }, Some(n)) => format!("threadgroup argument {n}"),
                (Access::Threadgroup { .. }, None) => "a threadgroup variable".to_owned(),
                (_, n) => abi::name_of(n.unwrap_or(0)),
            };
            format!("{what} of {n} bytes, {place} {name} ({} bytes); the thread was stopped", r.bytes.len())
        } else if address < 1 << 16 {
            format!("{what} of {n} bytes through a null pointer; the thread was stopped")
        } else {
            format!("{what} of {n} bytes far from every buffer; the thread was stopped")
        };
        let kind = if nearest.is_none() && address < 1 << 16 { Kind::NullPointer } else { Kind::OutOfBounds };
        let buffer = nearest.and_then(|i| self.regions[i].index);
        self.push(Finding { buffer, ..Finding::error(kind, who, Some(pc), explanation) });
        Verdict::Stop
    }

    /// What the undefined-behaviour instrumentation says about the running thread.
    pub(crate) fn fault(&mut self, who: Who, fault: &abi::Fault, type_text: &str, pc: usize) -> Verdict {
        use Verdict::{Go, Stop};
        let abi::Fault { a, b, .. } = *fault;
        let (kind, verdict, explanation) = match fault.kind {
            abi::FAULT_NULL => {
                (Kind::NullPointer, Stop, format!("null pointer to {type_text}; the thread was stopped"))
            }
            abi::FAULT_MISALIGNED => {
                let text =
                    format!("{type_text} needs {b}-byte alignment, the address is {} bytes off", a % b);
                (Kind::MisalignedAccess, Go, text)
            }
            // The array may lie on the stack, beside return addresses.
            abi::FAULT_INDEX => {
                let text = format!("index {} is outside {type_text}; the thread was stopped", a as i64);
                (Kind::ArrayIndex, Stop, text)
            }
            abi::FAULT_SHIFT => (Kind::ShiftRange, Go, format!("{type_text} shifted by {} bits", a as i64)),
            abi::FAULT_DIVISION => (Kind::DivisionByZero, Stop, "the thread was stopped".to_owned()),
            abi::FAULT_VALUE => (Kind::InvalidValue, Go, format!("{a} is no value of {type_text}")),
            _ => (Kind::Unreachable, Stop, "the thread was stopped".to_owned()),
        };
        self.push(Finding::error(kind, who, Some(pc), explanation));
        verdict
    }

    /// `pcs`: this access (absolute), the other (offset in the library).
    fn add(
        &mut self,
        kind: Kind,
        severity: Severity,
        who: Who,
        pcs: (usize, Option<usize>),
        explanation: String,
    ) {
        let found = Finding::error(kind, who, Some(pcs.0), explanation);
        let buffer = self.regions[self.last].index;
        self.push(Finding { severity, other_pc: pcs.1, buffer, ..found });
    }

    /// Keeps one finding per kind and pair of places.
    pub(super) fn push(&mut self, mut finding: Finding) {
        finding.pc = finding.pc.map(|pc| pc.wrapping_sub(self.base));
        let key = (finding.kind, finding.pc.unwrap_or(0), finding.other_pc.unwrap_or(0));
        if self.findings.len() < self.options.max_reports && self.seen.insert(key) {
            self.findings.push(finding);
        }
    }
}
