//! Buffers of a dispatch: what the host bound, and the memory the kernel gets to see.

use std::{collections::BTreeMap, ffi::c_void, ops::Range, ptr};

use super::{Problem, writes};
use crate::{
    check::{Access, Checker, Finding, Kind, Region, Report, Who, binding},
    diagnostic::Severity,
    library::{ArgumentKind, Kernel},
    runtime::{
        THREADGROUP_MEMORY,
        abi::{MAX_BUFFERS, MAX_THREADGROUP_ARGS},
        bytes::{Element, as_bytes},
        memory::{Aligned, Guarded},
    },
};

/// A value that can be bound or set as a function constant.
pub trait Scalar {
    /// Its bytes, as the kernel sees them.
    fn to_bytes(self) -> Vec<u8>;
}

impl<T: Element> Scalar for T {
    fn to_bytes(self) -> Vec<u8> {
        as_bytes(&[self]).to_vec()
    }
}

impl Scalar for bool {
    fn to_bytes(self) -> Vec<u8> {
        vec![u8::from(self)]
    }
}

impl Scalar for &[u8] {
    fn to_bytes(self) -> Vec<u8> {
        self.to_vec()
    }
}

impl Scalar for Vec<u8> {
    fn to_bytes(self) -> Vec<u8> {
        self
    }
}

#[derive(Debug)]
enum Source<'a> {
    Input(&'a [u8]),
    Output(&'a mut [u8]),
    Owned(Vec<u8>),
    Alias(u32),
}

impl Source<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Input(b) => b,
            Self::Output(b) => b,
            Self::Owned(b) => b,
            Self::Alias(_) => &[],
        }
    }
}

/// What the host bound, by index.
#[derive(Debug, Default)]
pub(super) struct Bindings<'a> {
    buffers: BTreeMap<u32, (Source<'a>, usize)>,
    threadgroup: BTreeMap<u32, u32>,
}

impl<'a> Bindings<'a> {
    pub(super) fn input(&mut self, index: u32, bytes: &'a [u8], offset: usize) {
        self.buffers.insert(index, (Source::Input(bytes), offset));
    }

    pub(super) fn output(&mut self, index: u32, bytes: &'a mut [u8], offset: usize) {
        self.buffers.insert(index, (Source::Output(bytes), offset));
    }

    pub(super) fn owned(&mut self, index: u32, bytes: Vec<u8>) {
        self.buffers.insert(index, (Source::Owned(bytes), 0));
    }

    pub(super) fn alias(&mut self, index: u32, of: u32, offset: usize) {
        self.buffers.insert(index, (Source::Alias(of), offset));
    }

    pub(super) fn threadgroup(&mut self, index: u32, bytes: u32) {
        self.threadgroup.insert(index, bytes);
    }

    pub(super) fn threadgroup_lengths(&self) -> [u32; MAX_THREADGROUP_ARGS] {
        let mut lengths = [0; MAX_THREADGROUP_ARGS];
        for (&index, &len) in &self.threadgroup {
            lengths[index as usize] = len;
        }
        lengths
    }

    /// Bytes that a kernel sees at `index`.
    fn visible(&self, index: u32) -> Option<usize> {
        let (source, offset) = self.buffers.get(&index)?;
        let len = match source {
            Source::Alias(of) => self.buffers.get(of)?.0.bytes().len(),
            own => own.bytes().len(),
        };
        len.checked_sub(*offset)
    }

    /// Refuses what cannot be bound; reports arguments that are missing or too small.
    pub(super) fn verify(&self, kernel: &Kernel, source: &str) -> Result<Vec<Report>, Problem> {
        for (&index, (buffer, offset)) in &self.buffers {
            if index as usize >= MAX_BUFFERS {
                return Err(Problem::NoSlot { index });
            }
            if let Source::Alias(of) = buffer
                && self.buffers.get(of).is_none_or(|(s, _)| matches!(s, Source::Alias(_)))
            {
                return Err(Problem::Alias { index, of: *of });
            }
            if self.visible(index).is_none() {
                return Err(Problem::Offset { index, offset: *offset, len: buffer.bytes().len() });
            }
        }
        if let Some((&index, _)) = self.threadgroup.iter().find(|(i, _)| **i as usize >= MAX_THREADGROUP_ARGS)
        {
            return Err(Problem::NoSlot { index });
        }
        let bytes = self.threadgroup.values().map(|&b| u64::from(b)).sum();
        if bytes > THREADGROUP_MEMORY as u64 {
            return Err(Problem::ThreadgroupMemory { bytes });
        }
        let mut reports = Vec::new();
        for argument in &kernel.arguments {
            match argument.kind {
                ArgumentKind::Threadgroup(index)
                    if self.threadgroup.get(&index).is_none_or(|&len| len == 0) =>
                {
                    return Err(Problem::NoThreadgroupMemory { index });
                }
                ArgumentKind::Buffer(index) if !argument.pointer && !argument.optional => {
                    let needed = argument.element_size as usize;
                    let (kind, found) = match self.visible(index) {
                        None => (Kind::UnboundBuffer, "nothing is bound to it".to_owned()),
                        Some(len) if len < needed => {
                            (Kind::BufferTooSmall, format!("{len} bytes are bound to it"))
                        }
                        Some(_) => continue,
                    };
                    let text = format!(
                        "argument `{}` at buffer {index} needs {needed} bytes, {found}; the kernel was not run",
                        argument.name
                    );
                    reports.push(binding(&kernel.name, source, kind, index, text));
                }
                _ => {}
            }
        }
        Ok(reports)
    }

    /// The memory the kernel sees. Checked kernels work on copies with guards around them; others on the host's own memory
    /// where it is aligned and may be written.
    pub(super) fn prepare(&mut self, kernel: &Kernel, checked: bool) -> Result<Memory, Problem> {
        let mut memory = Memory::default();
        for (&index, (source, offset)) in &mut self.buffers {
            if matches!(source, Source::Alias(_)) {
                continue;
            }
            let aligned = (source.bytes().as_ptr() as usize).is_multiple_of(Aligned::ALIGN);
            let fail = |e: std::io::Error| Problem::Memory { index, reason: e.to_string() };
            let writable = matches!(source, Source::Output(_));
            let storage = if checked {
                Storage::Guarded(Guarded::copy_of(source.bytes()).map_err(fail)?)
            } else {
                match source {
                    Source::Output(b) if aligned => {
                        Storage::Host(b.as_mut_ptr() as usize..b.as_mut_ptr() as usize + b.len())
                    }
                    Source::Input(b) if aligned && !writes(kernel, index) => {
                        Storage::Host(b.as_ptr() as usize..b.as_ptr() as usize + b.len())
                    }
                    other => Storage::Aligned(Aligned::copy_of(other.bytes())),
                }
            };
            memory
                .blocks
                .insert(index, Block { storage, low: *offset, writable, constant: !writes(kernel, index) });
            memory.places.insert(index, (index, *offset));
        }
        for (&index, (source, offset)) in &self.buffers {
            if let Source::Alias(of) = source
                && let Some(block) = memory.blocks.get_mut(of)
            {
                block.low = block.low.min(*offset);
                block.constant &= !writes(kernel, index);
                memory.places.insert(index, (*of, *offset));
            }
        }
        if checked {
            memory.reserve_unbound(kernel)?;
        }
        Ok(memory)
    }
}

#[derive(Debug)]
enum Storage {
    Host(Range<usize>),
    Aligned(Aligned),
    Guarded(Guarded),
}

impl Storage {
    fn range(&self) -> Range<usize> {
        match self {
            Self::Host(range) => range.clone(),
            Self::Aligned(a) => a.address()..a.address() + a.bytes().len(),
            Self::Guarded(g) => g.address()..g.address() + g.bytes().len(),
        }
    }

    fn copy(&self) -> Option<&[u8]> {
        match self {
            Self::Host(_) => None,
            Self::Aligned(a) => Some(a.bytes()),
            Self::Guarded(g) => Some(g.bytes()),
        }
    }
}

/// One piece of memory, seen through one buffer index or several.
#[derive(Debug)]
struct Block {
    storage: Storage,
    /// The lowest offset it is bound at.
    low: usize,
    /// The host wants to see what is written.
    writable: bool,
    /// No parameter that sees it lets the kernel write.
    constant: bool,
}

/// What a kernel gets to see.
#[derive(Debug, Default)]
pub(super) struct Memory {
    blocks: BTreeMap<u32, Block>,
    /// Buffer index to block and offset.
    places: BTreeMap<u32, (u32, usize)>,
    /// Address space for arguments that nothing is bound to: no access to it goes unseen.
    unbound: BTreeMap<u32, Guarded>,
}

impl Memory {
    fn reserve_unbound(&mut self, kernel: &Kernel) -> Result<(), Problem> {
        for argument in &kernel.arguments {
            if let ArgumentKind::Buffer(index) = argument.kind
                && argument.pointer
                && !argument.optional
                && !self.places.contains_key(&index)
            {
                let space = Guarded::new(0).map_err(|e| Problem::Memory { index, reason: e.to_string() })?;
                self.unbound.insert(index, space);
            }
        }
        Ok(())
    }

    pub(super) fn pointers(&self) -> [*mut c_void; MAX_BUFFERS] {
        let mut pointers = [ptr::null_mut(); MAX_BUFFERS];
        for (&index, (block, offset)) in &self.places {
            pointers[index as usize] = (self.blocks[block].storage.range().start + offset) as *mut c_void;
        }
        for (&index, space) in &self.unbound {
            pointers[index as usize] = space.address() as *mut c_void;
        }
        pointers
    }

    pub(super) fn regions(&self) -> Vec<Region> {
        let bound = self.blocks.iter().map(|(&index, b)| {
            let range = b.storage.range();
            let access = if b.constant {
                Access::Const
            } else if b.writable {
                Access::Write
            } else {
                Access::Input
            };
            Region { bytes: range.start + b.low..range.end, index: Some(index), access }
        });
        let unbound = self.unbound.iter().map(|(&index, space)| {
            let at = space.address();
            Region {
                bytes: at - Guarded::MARGIN..at + Guarded::MARGIN,
                index: Some(index),
                access: Access::Unbound,
            }
        });
        bound.chain(unbound).collect()
    }

    /// Copies what was written back to where the host wants it.
    pub(super) fn give_back(&self, bindings: &mut Bindings<'_>) {
        for (index, block) in &self.blocks {
            if let Some((Source::Output(to), _)) = bindings.buffers.get_mut(index)
                && let Some(from) = block.storage.copy()
                && !block.constant
            {
                to.copy_from_slice(from);
            }
        }
    }

    /// The first infinity or NaN that the kernel wrote to each buffer.
    pub(super) fn non_finite<'t>(
        &self,
        kernel: &Kernel,
        checker: &Checker,
        type_of: impl Fn(usize) -> &'t str,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        for (n, argument) in kernel.arguments.iter().enumerate() {
            let ArgumentKind::Buffer(index) = argument.kind else { continue };
            let (Some(float), Some(block)) = (Float::of(type_of(n)), self.blocks.get(&index)) else {
                continue;
            };
            let Some(bytes) = block.storage.copy().filter(|_| !block.constant) else { continue };
            let elements = bytes[block.low..].chunks_exact(float.size()).enumerate();
            let bad = elements.filter(|(_, e)| !float.is_finite(e)).find_map(|(i, e)| {
                let (pc, who) = checker.writer(index, i * float.size())?;
                Some((i, float.show(e), pc, who))
            });
            if let Some((i, value, pc, who)) = bad {
                found.push(non_finite(index, i, value, (pc, who)));
            }
        }
        found
    }
}

fn non_finite(index: u32, element: usize, value: &str, (pc, who): (usize, Who)) -> Finding {
    Finding {
        kind: Kind::NonFinite,
        severity: Severity::Error,
        pc: Some(pc),
        other_pc: None,
        who,
        buffer: Some(index),
        explanation: format!("element {element} of buffer {index} is {value}"),
    }
}

#[derive(Debug, Clone, Copy)]
enum Float {
    Single,
    Half,
    Brain,
}

impl Float {
    /// The float type a parameter points to, also inside vectors.
    fn of(type_text: &str) -> Option<Self> {
        if type_text.contains("bf16") || type_text.contains("bfloat") {
            Some(Self::Brain)
        } else if type_text.contains("_Float16") || type_text.contains("half") {
            Some(Self::Half)
        } else if type_text.contains("float") {
            Some(Self::Single)
        } else {
            None
        }
    }

    fn size(self) -> usize {
        if matches!(self, Self::Single) { 4 } else { 2 }
    }

    /// Exponent bits all set: infinite or NaN. The rest tells which.
    fn split(self, bytes: &[u8]) -> (bool, bool) {
        let raw = bytes.iter().rev().fold(0_u32, |n, b| n << 8 | u32::from(*b));
        let (exponent, fraction) = match self {
            Self::Single => (0x7F80_0000, 0x007F_FFFF),
            Self::Half => (0x7C00, 0x03FF),
            Self::Brain => (0x7F80, 0x007F),
        };
        (raw & exponent == exponent, raw & fraction != 0)
    }

    fn is_finite(self, bytes: &[u8]) -> bool {
        !self.split(bytes).0
    }

    fn show(self, bytes: &[u8]) -> &'static str {
        if self.split(bytes).1 { "not a number" } else { "infinite" }
    }
}
