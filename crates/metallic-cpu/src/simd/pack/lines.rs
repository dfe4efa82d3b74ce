//! Memory of packed weights, and of what else is large.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use memmap2::MmapMut;

/// A cache line and a vector.
const LINE: usize = 64;
/// Processors have pages of this size too, with which a walk through all weights waits for fewer address translations.
const HUGE_PAGE: usize = 2 << 20;

/// Zeros at the alignment of cache lines, as many for each tile.
///
/// They come from the system as zeros and are not touched here: pages are taken by whoever writes to them first, so
/// by all threads of a team together and not before they are needed.
pub struct Lines {
    /// Of the first tile.
    start: NonNull<u8>,
    memory: Memory,
    tiles: usize,
    tile: usize,
}

/// Who has the memory. What is large has pages of its own: the allocator would put it where memory was used before, and
/// write zeros over all of it.
enum Memory {
    Heap(NonNull<u8>, Layout),
    Pages(#[allow(dead_code, reason = "held until it is dropped")] MmapMut),
}

// SAFETY: the memory is owned, and lent by the rules of references.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// `None` where there is no room for them.
    pub fn zeros(tiles: usize, tile_bytes: usize) -> Option<Lines> {
        let tile = tile_bytes.checked_next_multiple_of(LINE)?;
        let bytes = tiles.checked_mul(tile)?;
        let (start, memory) = if bytes >= 2 * HUGE_PAGE { pages(bytes, true) } else { heap(bytes) }?;
        Some(Lines { start, memory, tiles, tile })
    }

    /// One tile, of which a little is written at a time: in small pages, so that nobody waits for a large one to be found and cleared.
    pub fn little_by_little(bytes: usize) -> Option<Lines> {
        let tile = bytes.checked_next_multiple_of(LINE)?;
        let (start, memory) = if tile >= HUGE_PAGE { pages(tile, false) } else { heap(tile) }?;
        Some(Lines { start, memory, tiles: 1, tile })
    }

    pub(in crate::simd) fn tiles(&self) -> usize {
        self.tiles
    }

    /// Bytes of all tiles.
    pub(super) fn bytes(&self) -> usize {
        self.tiles * self.tile
    }

    pub(super) fn tile_bytes(&self) -> usize {
        self.tile
    }

    /// All bytes of one tile.
    pub fn tile(&self, tile: usize) -> &[u8] {
        assert!(tile < self.tiles, "tile {tile} of {}", self.tiles);
        // SAFETY: inside the allocation (above), whose bytes are initialised and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(tile * self.tile), self.tile) }
    }

    /// All bytes of some tiles.
    pub fn tiles_mut(&mut self, tiles: Range<usize>) -> &mut [u8] {
        assert!(tiles.start <= tiles.end && tiles.end <= self.tiles, "tiles {tiles:?} of {}", self.tiles);
        // SAFETY: as above, borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.as_ptr().add(tiles.start * self.tile),
                tiles.len() * self.tile,
            )
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Memory::Heap(memory, layout) = self.memory {
            // SAFETY: allocated with this layout, and nobody has it any more.
            unsafe { dealloc(memory.as_ptr(), layout) };
        }
    }
}

/// So many zeros from the allocator, and where they begin.
fn heap(bytes: usize) -> Option<(NonNull<u8>, Memory)> {
    // Of a higher alignment the standard library would write zeros itself.
    let layout = Layout::from_size_align(bytes + LINE, align_of::<u64>()).ok()?;
    // SAFETY: the layout has a size above 0.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    // SAFETY: fewer than `LINE` bytes are skipped, which the allocation has more than asked for.
    let start = unsafe { memory.add(memory.align_offset(LINE)) };
    Some((start, Memory::Heap(memory, layout)))
}

/// So many zeros from the system, in large pages where it has some and that is wanted, and where they begin.
fn pages(bytes: usize, large: bool) -> Option<(NonNull<u8>, Memory)> {
    let len = bytes.checked_add(HUGE_PAGE).filter(|len| isize::try_from(*len).is_ok())?;
    let mut map = MmapMut::map_anon(len).ok()?;
    let skip = map.as_ptr().align_offset(HUGE_PAGE);
    // Whole ones: the rest of another would be memory for nothing. A refusal is no loss.
    #[cfg(target_os = "linux")]
    if large {
        let _ = map.advise_range(memmap2::Advice::HugePage, skip, bytes / HUGE_PAGE * HUGE_PAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = large;
    // SAFETY: fewer than `HUGE_PAGE` bytes are skipped, which the mapping has more than asked for.
    let start = unsafe { NonNull::new(map.as_mut_ptr())?.add(skip) };
    Some((start, Memory::Pages(map)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_zeros_apart_from_each_other_and_aligned() {
        for (tiles, bytes) in [(0, 100), (1, 1), (3, 100), (7, 1 << 20)] {
            let mut lines = Lines::zeros(tiles, bytes).unwrap();
            for tile in 0..tiles {
                let memory = lines.tile(tile);
                assert!(memory.len() == bytes.next_multiple_of(64) && memory.iter().all(|byte| *byte == 0));
                assert!(memory.as_ptr().addr().is_multiple_of(64));
            }
            for tile in 0..tiles {
                lines.tiles_mut(tile..tile + 1).fill(tile as u8 + 1);
            }
            assert!((0..tiles).all(|tile| lines.tile(tile).iter().all(|byte| *byte == tile as u8 + 1)));
        }
        for bytes in [1, 3 << 20] {
            let mut lines = Lines::little_by_little(bytes).unwrap();
            assert!(lines.tile(0).len() >= bytes && lines.tile(0).iter().all(|byte| *byte == 0));
            lines.tiles_mut(0..1).fill(7);
        }
        assert!(Lines::little_by_little(usize::MAX).is_none());
        for (tiles, bytes) in [(usize::MAX, 2), (1, usize::MAX), (2, isize::MAX as usize)] {
            assert!(Lines::zeros(tiles, bytes).is_none());
        }
    }
}
