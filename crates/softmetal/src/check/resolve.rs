//! From what was seen to reports.

use super::{Event, Finding, Kind, Report, Site, Who, symbols::Symbols};
use crate::{
    diagnostic::{Location, Severity},
    runtime::{
        abi::{self, SIMD_WIDTH},
        trap::{Cause, Trap},
    },
};

/// Threads of a dispatch and of its threadgroups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) threads: [u32; 3],
    pub(crate) threadgroup: [u32; 3],
}

impl Grid {
    /// Position of a thread in its threadgroup, which at the edge of the grid is smaller than the others.
    pub(crate) fn position(&self, who: Who) -> [u32; 3] {
        let size: [u32; 3] = std::array::from_fn(|a| {
            let left = self.threads[a].saturating_sub(who.group[a] * self.threadgroup[a]);
            left.clamp(1, self.threadgroup[a].max(1))
        });
        [who.thread % size[0], who.thread / size[0] % size[1], who.thread / size[0] / size[1]]
    }
}

/// Turns findings and events of one kernel into reports.
pub(crate) struct Resolver<'a> {
    pub(crate) symbols: Symbols,
    /// Where the library was loaded.
    pub(crate) base: usize,
    pub(crate) kernel: &'a str,
    pub(crate) grid: Grid,
    /// Arguments that nothing is bound to.
    pub(crate) unbound: Vec<String>,
    /// What threads that do not stay together weigh.
    pub(crate) divergence: Option<Severity>,
}

impl Resolver<'_> {
    pub(crate) fn finding(&mut self, finding: Finding) -> Report {
        let (at, line) = self.symbols.locate(finding.pc.unwrap_or(0));
        let callers = finding.pc.map(|pc| self.symbols.callers(pc)).unwrap_or_default();
        let (other, other_line) = finding.other_pc.map(|pc| self.symbols.locate(pc)).unzip();
        Report {
            kind: finding.kind,
            severity: finding.severity,
            kernel: self.kernel.to_owned(),
            at,
            other,
            thread: self.grid.position(finding.who),
            threadgroup: finding.who.group,
            buffer: finding.buffer.filter(|key| abi::texture_of(*key).is_none()),
            texture: finding.buffer.and_then(abi::texture_of),
            explanation: finding.explanation,
            line,
            other_line: other_line.flatten(),
            callers,
        }
    }

    /// Nothing for what the caller does not want to hear of.
    pub(crate) fn event(&mut self, event: Event, who: Who) -> Option<Report> {
        let plain = |kind, pc, explanation| (Finding::error(kind, who, pc, explanation), None, None);
        let diverged = |kind, text| Finding::error(kind, who, None, text);
        let (mut finding, site, elsewhere) = match event {
            Event::Divergence { site, waiting, total, elsewhere } => {
                let text = if elsewhere.is_some() {
                    format!("{waiting} of {total} threads wait at barriers, but not all at this one")
                } else {
                    format!("{waiting} of {total} threads wait at this barrier, the others have returned")
                };
                (diverged(Kind::BarrierDivergence, text), Some(site), elsewhere)
            }
            Event::SimdDivergence { site, waiting, live, elsewhere } => {
                let text = format!("{waiting} of {live} live lanes wait at this simdgroup barrier");
                (diverged(Kind::SimdgroupDivergence, text), Some(site), elsewhere)
            }
            Event::AbsentLane { site, wanted, here } => {
                let count = here.count_ones();
                let lane = who.thread as usize % SIMD_WIDTH;
                let text = if wanted as usize >= SIMD_WIDTH {
                    format!("lane {lane} takes the value of lane {wanted}, a simdgroup has {SIMD_WIDTH}")
                } else {
                    format!(
                        "lane {lane} takes the value of lane {wanted}, which is not among the {count} that are here"
                    )
                };
                (diverged(Kind::AbsentLane, text), Some(site), None)
            }
            Event::Scope { site, wanted, found } => {
                let text = format!("an operation of {wanted} simdgroups, the threadgroup has {found}");
                (diverged(Kind::ExecutionScope, text), Some(site), None)
            }
            Event::Assertion { site, text } => {
                let text = format!("`{text}` does not hold; the thread was stopped");
                let report = self.finding(Finding::error(Kind::Assertion, who, None, text));
                let (at, line) = self.symbols.place(&site);
                return Some(Report { at, line, ..report });
            }
            Event::ThreadgroupMemory { size, used, limit } => {
                let text = format!(
                    "{size} bytes more than the {used} in use exceed the limit of {limit}; the thread was stopped"
                );
                plain(Kind::ThreadgroupMemory, None, text)
            }
            Event::Trap(Trap { cause, pc }) => {
                let (kind, mut text) = trap(cause);
                // A plain kernel has nothing but null for them.
                if matches!(cause, Cause::Memory(address) if address < 1 << 16) && !self.unbound.is_empty() {
                    text = format!("{text}; nothing is bound to {}", self.unbound.join(" and "));
                }
                // The instruction itself, not the one after a call.
                plain(kind, Some(pc + 1), text)
            }
            Event::TimeLimit => plain(Kind::TimeLimit, None, "the kernel did not end in time".to_owned()),
            Event::NoMemory => plain(Kind::Crash, None, "no memory for another fiber's stack".to_owned()),
        };
        if site.is_some() {
            finding.severity = self.divergence?;
        }
        finding.pc = finding.pc.map(|pc| pc.wrapping_sub(self.base));
        let mut report = self.finding(finding);
        if let Some(site) = site {
            (report.at, report.line) = self.site(&site);
        }
        if let Some(site) = elsewhere {
            let (at, line) = self.site(&site);
            (report.other, report.other_line) = (Some(at), line);
        }
        Some(report)
    }

    fn site(&mut self, site: &Site) -> (Location, Option<String>) {
        self.symbols.place(site)
    }
}

fn trap(cause: Cause) -> (Kind, String) {
    let (kind, text) = match cause {
        Cause::Memory(address) if address < 1 << 16 => (Kind::Crash, "access through a null pointer"),
        Cause::Memory(address) => {
            return (Kind::Crash, format!("access to address {address:#x}, which is not mapped"));
        }
        Cause::StackOverflow => (
            Kind::StackOverflow,
            "the thread's stack is used up: endless recursion or a very large local array",
        ),
        Cause::Arithmetic => (Kind::Crash, "integer division by zero, or overflow of a division"),
        Cause::Instruction => (Kind::Crash, "a trap instruction: code the compiler found to be unreachable"),
        Cause::Timeout => (Kind::TimeLimit, "the kernel was still running here when its time was over"),
    };
    (kind, text.to_owned())
}

/// For reports without a run: nothing is bound where something must be.
pub(crate) fn binding(kernel: &str, source: &str, kind: Kind, key: u32, explanation: String) -> Report {
    Report {
        kind,
        severity: Severity::Error,
        kernel: kernel.to_owned(),
        at: Location { file: source.to_owned(), line: 0, column: 0 },
        other: None,
        thread: [0; 3],
        threadgroup: [0; 3],
        buffer: abi::texture_of(key).is_none().then_some(key),
        texture: abi::texture_of(key),
        explanation,
        line: None,
        other_line: None,
        callers: Vec::new(),
    }
}
