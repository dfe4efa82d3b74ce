//! Memory that the host reaches by its address, as kernels do.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

/// Bytes for a buffer, zero at first.
pub(crate) fn new(len: usize) -> Option<softmetal::Buffer> {
    softmetal::Buffer::new(len).ok()
}

/// Bytes that a program owns and lends with `newBufferWithBytesNoCopy`.
pub(crate) fn lent(address: usize, len: usize, keeper: Arc<dyn Any + Send + Sync>) -> softmetal::Buffer {
    let writable = pages_writable(address, len);
    // SAFETY: the program promises with that message that the bytes stay until its deallocator is called, which
    // `keeper` does; whether they can be written was looked up.
    unsafe {
        softmetal::Buffer::foreign(std::ptr::with_exposed_provenance_mut(address), len, !writable, keeper)
    }
}

/// A part of other memory.
pub(crate) fn part(
    of: &softmetal::Buffer,
    offset: usize,
    len: usize,
    keeper: Arc<dyn Any + Send + Sync>,
) -> Option<softmetal::Buffer> {
    offset.checked_add(len).filter(|end| *end <= of.len())?;
    let address = of.address() + offset;
    // SAFETY: the range lies in `of` (above), which may be written and which the keeper keeps.
    Some(unsafe {
        softmetal::Buffer::foreign(std::ptr::with_exposed_provenance_mut(address), len, false, keeper)
    })
}

/// Whether the system lets this process write all pages of a range: a mapped file is often read only.
fn pages_writable(address: usize, len: usize) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let ranges = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?, rest.as_bytes().get(1) == Some(&b'w')))
    });
    let inside = ranges.filter(|(start, end, _)| *start < address + len && address < *end);
    let writable: usize = inside
        .filter(|(_, _, writable)| *writable)
        .map(|(start, end, _)| end.min(address + len) - start.max(address))
        .sum();
    writable == len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_program_cannot_be_written_and_the_heap_can() {
        static TEXT: &str = "a text in the program";
        let heap = vec![1u8; 5000];
        assert!(!pages_writable(TEXT.as_ptr() as usize, TEXT.len()));
        assert!(pages_writable(heap.as_ptr() as usize, heap.len()));
        assert!(!pages_writable(16, 4096), "nothing is mapped there");
    }
}
