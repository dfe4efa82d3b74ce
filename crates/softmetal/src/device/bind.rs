//! Buffers of a dispatch as the host bound them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{Problem, writes};
use crate::{
    check::{Kind, Report, binding},
    library::{ArgumentKind, Kernel},
    runtime::{
        Buffer, Hold,
        abi::{MAX_BUFFERS, MAX_THREADGROUP_ARGS, texture_of},
        bytes::{Element, as_bytes},
    },
    texture::{Sampler, Texture},
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

/// What is bound to one index.
#[derive(Debug)]
pub(super) enum Source<'a> {
    Input { bytes: &'a [u8], offset: usize },
    Output { bytes: &'a mut [u8], offset: usize },
    Owned(Vec<u8>),
    Alias { of: u32, offset: usize },
    Shared { buffer: &'a Buffer, range: Range<usize> },
}

impl Source<'_> {
    /// Bytes of the whole, and the first that the kernel sees; nothing for an alias.
    fn extent(&self) -> Option<(usize, usize)> {
        match self {
            Self::Input { bytes, offset } => Some((bytes.len(), *offset)),
            Self::Output { bytes, offset } => Some((bytes.len(), *offset)),
            Self::Owned(bytes) => Some((bytes.len(), 0)),
            Self::Alias { .. } => None,
            Self::Shared { range, .. } => Some((range.len(), 0)),
        }
    }

    /// Has memory of its own that an alias can name.
    fn can_be_aliased(&self) -> bool {
        matches!(self, Self::Input { .. } | Self::Output { .. } | Self::Owned(_))
    }
}

/// What the host bound, each index once.
#[derive(Debug, Default)]
pub(super) struct Bindings<'a> {
    /// Textures among them, by their key.
    pub(super) buffers: BTreeMap<u32, Source<'a>>,
    pub(super) textures: BTreeMap<u32, &'a Texture>,
    pub(super) samplers: BTreeMap<u32, Sampler>,
    pub(super) threadgroup: BTreeMap<u32, u32>,
}

impl<'a> Bindings<'a> {
    pub(super) fn threadgroup_lengths(&self) -> [Option<u32>; MAX_THREADGROUP_ARGS] {
        let mut lengths = [None; MAX_THREADGROUP_ARGS];
        for (&index, &len) in &self.threadgroup {
            lengths[index as usize] = Some(len);
        }
        lengths
    }

    /// Pointers of the kernel that nothing is bound to, by index and name.
    pub(super) fn unbound(&self, kernel: &Kernel) -> Vec<String> {
        let pointers = kernel.arguments.iter().filter(|a| a.pointer && !a.optional);
        let missing = pointers.filter_map(|a| match a.kind {
            ArgumentKind::Buffer(index) if !self.buffers.contains_key(&index) => {
                Some(format!("buffer {index} (`{}`)", a.name))
            }
            _ => None,
        });
        missing.collect()
    }

    /// Bytes that a kernel sees at `index`.
    fn visible(&self, index: u32) -> Option<usize> {
        let (len, offset) = match self.buffers.get(&index)? {
            Source::Alias { of, offset } => (self.buffers.get(of)?.extent()?.0, *offset),
            own => own.extent()?,
        };
        len.checked_sub(offset)
    }

    /// Refuses what cannot be bound; reports arguments that are missing or too small.
    pub(super) fn verify(
        &self,
        kernel: &Kernel,
        source: &str,
        threadgroup_memory: usize,
    ) -> Result<Vec<Report>, Problem> {
        for (&index, bound) in &self.buffers {
            if index as usize >= MAX_BUFFERS
                && texture_of(index).is_none_or(|slot| !self.textures.contains_key(&slot))
            {
                return Err(Problem::NoSlot { index });
            }
            self.verify_source(index, bound, kernel)?;
        }
        if let Some(&index) = self.threadgroup.keys().find(|index| **index as usize >= MAX_THREADGROUP_ARGS) {
            return Err(Problem::NoThreadgroupSlot { index });
        }
        let bytes = self.threadgroup.values().map(|&bytes| u64::from(bytes)).sum();
        if bytes > threadgroup_memory as u64 {
            return Err(Problem::ThreadgroupMemory { bytes, most: threadgroup_memory });
        }
        self.verify_slots()?;
        let mut reports = self.verify_textures(kernel, source)?;
        for argument in &kernel.arguments {
            match argument.kind {
                ArgumentKind::Threadgroup(index) if !self.threadgroup.contains_key(&index) => {
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

    fn verify_source(&self, index: u32, source: &Source<'_>, kernel: &Kernel) -> Result<(), Problem> {
        match source {
            Source::Alias { of, offset } => {
                let aliased = self.buffers.get(of).filter(|s| s.can_be_aliased()).and_then(Source::extent);
                let Some((len, _)) = aliased else {
                    return Err(Problem::Alias { index, of: *of });
                };
                if *offset > len {
                    return Err(Problem::Offset { index, offset: *offset, len });
                }
            }
            Source::Shared { buffer, range } => {
                if range.start > range.end || range.end > buffer.len() {
                    return Err(Problem::Range { index, range: range.clone(), len: buffer.len() });
                }
                for argument in kernel.arguments.iter().filter(|a| a.kind == ArgumentKind::Buffer(index)) {
                    let name = || argument.name.clone();
                    if buffer.read_only() && argument.writes() {
                        return Err(Problem::ReadOnly { index, argument: name() });
                    }
                    let needed = (argument.alignment as usize).max(1);
                    let off = (buffer.address() + range.start) % needed;
                    if off != 0 {
                        return Err(Problem::Alignment { index, argument: name(), off, needed });
                    }
                }
            }
            own => {
                if let Some((len, offset)) = own.extent()
                    && offset > len
                {
                    return Err(Problem::Offset { index, offset, len });
                }
            }
        }
        Ok(())
    }

    /// The indices whose memory the kernel may write, through them or through an alias.
    pub(super) fn written(&self, kernel: &Kernel) -> BTreeSet<u32> {
        let through = self.buffers.iter().filter(|(index, _)| writes(kernel, **index));
        through
            .map(|(&index, source)| if let Source::Alias { of, .. } = source { *of } else { index })
            .collect()
    }

    /// Locks the shared buffers for a run of the kernel, each once and in an order that all dispatches keep.
    pub(super) fn hold(&self, kernel: &Kernel) -> Vec<Hold<'a>> {
        let mut buffers: Vec<(&'a Buffer, bool)> = Vec::new();
        for (index, source) in &self.buffers {
            if let Source::Shared { buffer, .. } = source {
                let buffer: &'a Buffer = buffer;
                let alone = writes(kernel, *index);
                match buffers.iter_mut().find(|(b, _)| std::ptr::eq(*b, buffer)) {
                    Some((_, whole)) => *whole |= alone,
                    None => buffers.push((buffer, alone)),
                }
            }
        }
        buffers.sort_unstable_by_key(|(b, _)| std::ptr::from_ref(*b) as usize);
        buffers.into_iter().map(|(buffer, alone)| buffer.hold(alone)).collect()
    }
}
