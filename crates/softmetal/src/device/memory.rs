//! Buffers of a dispatch as the kernel sees them.

use std::{ffi::c_void, ops::Range, ptr};

use super::{
    Problem,
    bind::{Bindings, Source},
    non_finite::Float,
    writes,
};
use crate::{
    check::{Access, Checker, Finding, Kind, Region},
    library::{ArgumentKind, Kernel},
    runtime::{
        Buffer, Hold, View,
        abi::{MAX_BUFFERS, texture_key, texture_of},
        memory::{Aligned, Guarded},
    },
};

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
            Self::Aligned(a) => addresses(a.bytes()),
            Self::Guarded(g) => addresses(g.bytes()),
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
    /// The index it goes by in reports.
    index: u32,
    /// The lowest offset it is bound at.
    low: usize,
    /// The host wants to see what is written.
    writable: bool,
    /// No parameter that sees it lets the kernel write.
    constant: bool,
    /// Of a copy of a shared buffer that may be written: the bytes as they were.
    before: Vec<u8>,
}

/// Where in the memory a buffer index points.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: u32,
    block: usize,
    /// Of the block's bytes.
    offset: usize,
}

/// What a kernel gets to see.
#[derive(Debug, Default)]
pub(super) struct Memory {
    blocks: Vec<Block>,
    places: Vec<Place>,
    /// Address space for arguments that nothing is bound to: no access to it goes unseen.
    unbound: Vec<(u32, Guarded)>,
}

impl Memory {
    /// Checked kernels work on copies with guards around them; others on the host's own memory where it is aligned and may be
    /// written. Shared buffers that are not checked are never copied.
    pub(super) fn of(
        bindings: &mut Bindings<'_>,
        holds: &[Hold<'_>],
        kernel: &Kernel,
        checked: bool,
    ) -> Result<Self, Problem> {
        let mut memory = Self::default();
        // Known before storage is chosen: an alias may be written though the index that has the memory is not.
        let written = bindings.written(kernel);
        for (index, source) in &mut bindings.buffers {
            let constant = !written.contains(index);
            memory.add_source(*index, source, constant, checked)?;
        }
        for (&index, source) in &bindings.buffers {
            if let Source::Alias { of, offset } = *source {
                memory.add_alias(index, of, offset);
            }
        }
        if checked {
            for hold in holds {
                memory.add_copies(hold, bindings, kernel)?;
            }
            memory.reserve_unbound(kernel)?;
        }
        Ok(memory)
    }

    fn add(&mut self, block: Block, offset: usize) {
        self.places.push(Place { index: block.index, block: self.blocks.len(), offset });
        self.blocks.push(block);
    }

    fn add_source(
        &mut self,
        index: u32,
        source: &mut Source<'_>,
        constant: bool,
        checked: bool,
    ) -> Result<(), Problem> {
        let (bytes, low, writable) = match source {
            Source::Input { bytes, offset } => (*bytes, *offset, false),
            Source::Output { bytes, offset } => (&**bytes, *offset, true),
            Source::Owned(bytes) => (&**bytes, 0, false),
            Source::Alias { .. } => return Ok(()),
            Source::Shared { buffer, range } => {
                if !checked {
                    let storage = Storage::Host(buffer.address() + range.start..buffer.address() + range.end);
                    let before = Vec::new();
                    self.add(Block { storage, index, low: 0, writable: true, constant, before }, 0);
                }
                return Ok(());
            }
        };
        let own = addresses(bytes);
        let storage = if checked {
            Storage::Guarded(Guarded::copy_of(bytes, 0).map_err(|e| no_memory(index, &e))?)
        } else if own.start.is_multiple_of(Aligned::ALIGN) && (writable || constant) {
            match source {
                Source::Output { bytes, .. } => {
                    let start = bytes.as_mut_ptr() as usize;
                    Storage::Host(start..start + bytes.len())
                }
                _ => Storage::Host(own),
            }
        } else {
            Storage::Aligned(Aligned::copy_of(bytes))
        };
        self.add(Block { storage, index, low, writable, constant, before: Vec::new() }, low);
        Ok(())
    }

    fn add_alias(&mut self, index: u32, of: u32, offset: usize) {
        if let Some(&Place { block, .. }) = self.places.iter().find(|p| p.index == of) {
            self.blocks[block].low = self.blocks[block].low.min(offset);
            self.places.push(Place { index, block, offset });
        }
    }

    /// One guarded copy for each group of bound ranges of a buffer that overlap.
    fn add_copies(
        &mut self,
        hold: &Hold<'_>,
        bindings: &Bindings<'_>,
        kernel: &Kernel,
    ) -> Result<(), Problem> {
        let mut ranges: Vec<(u32, Range<usize>)> = shared(bindings, hold.buffer).collect();
        ranges.sort_unstable_by_key(|(index, range)| (range.start, *index));
        for group in ranges.chunk_by({
            let mut end = 0;
            move |(_, a), (_, b)| {
                end = a.end.max(end);
                b.start < end
            }
        }) {
            let start = group[0].1.start;
            let end = group.iter().map(|(_, r)| r.end).max().unwrap_or(start);
            let index = group.iter().map(|(i, _)| *i).min().unwrap_or(0);
            let mut before = vec![0; end - start];
            hold.get(start, &mut before);
            let copy =
                Guarded::copy_of(&before, hold.buffer.address() + start).map_err(|e| no_memory(index, &e))?;
            let constant = group.iter().all(|(i, _)| !writes(kernel, *i));
            if constant {
                before = Vec::new();
            }
            let block = self.blocks.len();
            let place =
                |(index, r): &(u32, Range<usize>)| Place { index: *index, block, offset: r.start - start };
            self.places.extend(group.iter().map(place));
            let storage = Storage::Guarded(copy);
            self.blocks.push(Block { storage, index, low: 0, writable: true, constant, before });
        }
        Ok(())
    }

    fn reserve_unbound(&mut self, kernel: &Kernel) -> Result<(), Problem> {
        for argument in &kernel.arguments {
            if let ArgumentKind::Buffer(index) = argument.kind
                && argument.pointer
                && !argument.optional
                && !self.places.iter().any(|p| p.index == index)
            {
                self.unbound.push((index, Guarded::copy_of(&[], 0).map_err(|e| no_memory(index, &e))?));
            }
        }
        Ok(())
    }

    pub(super) fn pointers(&self) -> [*mut c_void; MAX_BUFFERS] {
        let mut pointers = [ptr::null_mut(); MAX_BUFFERS];
        for place in self.places.iter().filter(|place| texture_of(place.index).is_none()) {
            let start = self.blocks[place.block].storage.range().start;
            pointers[place.index as usize] = (start + place.offset) as *mut c_void;
        }
        for (index, space) in &self.unbound {
            pointers[*index as usize] = space.address() as *mut c_void;
        }
        pointers
    }

    /// The textures by slot, where the kernel finds them.
    pub(super) fn textures(&self, bindings: &Bindings<'_>, kernel: &Kernel) -> Vec<Option<View>> {
        let mut views = vec![None; bindings.textures.keys().max().map_or(0, |slot| *slot as usize + 1)];
        for (&slot, texture) in &bindings.textures {
            let key = texture_key(slot);
            let Some(place) = self.places.iter().find(|place| place.index == key) else { continue };
            let address = self.blocks[place.block].storage.range().start + place.offset;
            let writable = writes(kernel, key) && !texture.buffer().read_only();
            views[slot as usize] = Some(View::of(texture, address, writable));
        }
        views
    }

    /// One region per block, in their order, then those of unbound arguments.
    pub(super) fn regions(&self) -> Vec<Region> {
        let bound = self.blocks.iter().map(|b| {
            let range = b.storage.range();
            let access = match (b.constant, b.writable) {
                (true, _) => Access::Const,
                (false, true) => Access::Write,
                (false, false) => Access::Input,
            };
            Region { bytes: range.start + b.low..range.end, index: Some(b.index), access }
        });
        let unbound = self.unbound.iter().map(|(index, space)| {
            let bytes = space.address() - Guarded::MARGIN..space.address() + Guarded::MARGIN;
            Region { bytes, index: Some(*index), access: Access::Unbound }
        });
        bound.chain(unbound).collect()
    }

    /// Copies what was written back to where the host wants it. The rest of a shared buffer stays: somebody else may have
    /// written it meanwhile.
    pub(super) fn give_back(&self, bindings: &mut Bindings<'_>, holds: &mut [Hold<'_>], kernel: &Kernel) {
        for (index, source) in &mut bindings.buffers {
            let Some(place) = self.places.iter().find(|p| p.index == *index) else { continue };
            let block = &self.blocks[place.block];
            let Some(from) = block.storage.copy().filter(|_| !block.constant) else { continue };
            match source {
                Source::Output { bytes, .. } => bytes.copy_from_slice(from),
                Source::Shared { buffer, range } if writes(kernel, *index) => {
                    if let Some(hold) = holds.iter_mut().find(|h| ptr::eq(h.buffer, *buffer)) {
                        let seen = place.offset..place.offset + range.len();
                        let after = &from[seen.clone()];
                        for changed in changes(&block.before[seen], after) {
                            hold.put(range.start + changed.start, &after[changed]);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// The first infinity or NaN that the kernel wrote to each buffer.
    pub(super) fn non_finite(&self, kernel: &Kernel, checker: &Checker, types: &[String]) -> Vec<Finding> {
        let mut found = Vec::new();
        for (argument, type_text) in kernel.arguments.iter().zip(types) {
            let ArgumentKind::Buffer(index) = argument.kind else { continue };
            let place = self.places.iter().find(|p| p.index == index);
            let (Some(float), Some(place)) = (Float::of(type_text), place) else { continue };
            let block = &self.blocks[place.block];
            let Some(bytes) = block.storage.copy().filter(|_| !block.constant) else { continue };
            let mut elements = bytes[place.offset..].chunks_exact(float.size()).enumerate();
            let bad = elements.find_map(|(i, element)| {
                let value = float.non_finite(element)?;
                let at = place.offset + i * float.size() - block.low;
                Some((i, value, checker.writer(place.block, at)?))
            });
            if let Some((i, value, (pc, who))) = bad {
                let text = format!("element {i} of buffer {index} is {value}");
                found.push(Finding {
                    buffer: Some(index),
                    ..Finding::error(Kind::NonFinite, who, Some(pc), text)
                });
            }
        }
        found
    }
}

/// Where two texts of a length differ.
fn changes<'b>(before: &'b [u8], after: &'b [u8]) -> impl Iterator<Item = Range<usize>> + 'b {
    let differs = move |at: usize| before[at] != after[at];
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = (next..after.len()).find(|&at| differs(at))?;
        next = (start..after.len()).find(|&at| !differs(at)).unwrap_or(after.len());
        Some(start..next)
    })
}

fn addresses(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

/// What of a shared buffer is bound, by index.
fn shared<'b>(
    bindings: &'b Bindings<'_>,
    wanted: &'b Buffer,
) -> impl Iterator<Item = (u32, Range<usize>)> + 'b {
    bindings.buffers.iter().filter_map(move |(index, source)| match source {
        Source::Shared { buffer, range } if ptr::eq(*buffer, wanted) => Some((*index, range.clone())),
        _ => None,
    })
}

fn no_memory(index: u32, error: &std::io::Error) -> Problem {
    Problem::Memory { index, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Argument;

    #[test]
    fn runs_of_bytes_that_differ_are_found() {
        for (before, after, expected) in [
            ("", "", vec![]),
            ("same", "same", vec![]),
            ("abcdef", "Abc--F", vec![0..1, 3..6]),
            ("abc|abc", "xyz|xyz", vec![0..3, 4..7]),
        ] {
            let found: Vec<_> = changes(before.as_bytes(), after.as_bytes()).collect();
            assert_eq!(found, expected, "{before} {after}");
        }
    }

    #[test]
    fn only_what_a_checked_kernel_wrote_goes_back_to_a_shared_buffer() {
        let argument = Argument {
            name: "x".to_owned(),
            type_text: "device uint*".to_owned(),
            kind: ArgumentKind::Buffer(0),
            element_size: 4,
            alignment: 4,
            pointer: true,
            reference: false,
            read_only: false,
            optional: false,
            texture: None,
        };
        let kernel = Kernel { name: "f".to_owned(), arguments: vec![argument], max_threads: None };
        let buffer = Buffer::new(16).expect("memory");
        let mut bindings = Bindings::default();
        bindings.buffers.insert(0, Source::Shared { buffer: &buffer, range: 4..16 });
        let mut holds = bindings.hold(&kernel);
        let mut memory = Memory::of(&mut bindings, &holds, &kernel, true).expect("memory");
        // The kernel writes one byte of its copy, the host another of the buffer.
        let Storage::Guarded(copy) = &mut memory.blocks[0].storage else { panic!("a copy with guards") };
        copy.bytes_mut()[2] = 7;
        holds[0].put(10, &[9]);
        memory.give_back(&mut bindings, &mut holds, &kernel);
        drop(holds);
        let mut bytes = [0; 16];
        buffer.read(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0]);
    }
}
