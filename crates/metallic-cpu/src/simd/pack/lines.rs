//! Memory of packed weights.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

/// A cache line and a vector.
const LINE: usize = 64;
/// Processors have pages of this size too, with which a walk through all weights waits for fewer address translations.
const HUGE_PAGE: usize = 2 << 20;

/// Zeros at the alignment of cache lines, as many for each tile.
///
/// They come from the system as zeros and are not touched here: pages are taken by whoever writes to them first, so
/// by all threads of a team together and not before they are needed.
pub(in crate::simd) struct Lines {
    /// Of the allocation.
    memory: NonNull<u8>,
    layout: Layout,
    /// Bytes before the first tile.
    skip: usize,
    tiles: usize,
    tile: usize,
}

// SAFETY: the memory is owned, and lent by the rules of references.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}

impl Lines {
    /// `None` where there is no room for them.
    pub(super) fn zeros(tiles: usize, tile_bytes: usize) -> Option<Lines> {
        let tile = tile_bytes.checked_next_multiple_of(LINE)?;
        let bytes = tiles.checked_mul(tile)?;
        let align = if bytes >= 2 * HUGE_PAGE { HUGE_PAGE } else { LINE };
        // Of a higher alignment the standard library would write zeros itself.
        let layout = Layout::from_size_align(bytes.checked_add(align)?, align_of::<u64>()).ok()?;
        // SAFETY: the layout has a size above 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = memory.align_offset(align);
        let lines = Lines { memory, layout, skip, tiles, tile };
        if align == HUGE_PAGE {
            // Whole ones: the rest of another would be memory for nothing.
            ask_for_huge_pages(lines.start(), bytes / HUGE_PAGE * HUGE_PAGE);
        }
        Some(lines)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the allocation has the alignment more bytes than the tiles, and fewer are skipped.
        unsafe { self.memory.as_ptr().add(self.skip) }
    }

    /// Bytes of all tiles.
    pub(super) fn bytes(&self) -> usize {
        self.tiles * self.tile
    }

    pub(super) fn tile_bytes(&self) -> usize {
        self.tile
    }

    pub(in crate::simd) fn tile(&self, tile: usize) -> &[u8] {
        assert!(tile < self.tiles, "tile {tile} of {}", self.tiles);
        // SAFETY: inside the allocation (above), whose bytes are initialised and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start().add(tile * self.tile), self.tile) }
    }

    pub(super) fn tiles_mut(&mut self, tiles: Range<usize>) -> &mut [u8] {
        assert!(tiles.start <= tiles.end && tiles.end <= self.tiles, "tiles {tiles:?} of {}", self.tiles);
        // SAFETY: as above, borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.start().add(tiles.start * self.tile), tiles.len() * self.tile)
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody has it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: *const u8, len: usize) {
    const MADV_HUGEPAGE: std::ffi::c_int = 14;
    unsafe extern "C" {
        fn madvise(start: *const u8, len: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
    }
    // SAFETY: advice about whole pages of our own allocation; it changes no contents, and a refusal is no loss.
    unsafe { madvise(start, len, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: *const u8, _: usize) {}

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
        for (tiles, bytes) in [(usize::MAX, 2), (1, usize::MAX), (2, isize::MAX as usize)] {
            assert!(Lines::zeros(tiles, bytes).is_none());
        }
    }
}
