//! Whether the GPU can read the host's own pages, and which.

use std::ops::Range;

use crate::error::GpuError;

/// Kernels ask no more of where a weight begins.
const ALIGN: usize = 4;

/// How bytes of the host become a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Import {
    /// The GPU reads `len` bytes of the mapping from `start` on, both whole pages; the bytes begin at `offset` in them.
    Share { start: usize, len: usize, offset: usize },
    /// The bytes are copied into a buffer of their own.
    Copy,
}

/// A mapped file in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

/// Plans the import of `bytes` of a mapping: the pages around them. Neighbours may share a page. One buffer for the
/// whole file would be fewer, but the GPU's hold on it is all or nothing, and what is not used would count.
pub(crate) fn plan(
    mapping: Option<Mapping>,
    bytes: &Range<usize>,
    page: usize,
    max_buffer: usize,
) -> Result<Import, GpuError> {
    let too_long = || GpuError::no_room("one buffer", bytes.len(), max_buffer as u64);
    let copy = if bytes.len() <= max_buffer { Ok(Import::Copy) } else { Err(too_long()) };
    let Some(Mapping { address, len }) = mapping else { return copy };
    let page = page.max(1);
    if bytes.is_empty()
        || bytes.end > len
        || !address.is_multiple_of(page)
        || !bytes.start.is_multiple_of(ALIGN)
    {
        return copy;
    }
    let start = bytes.start / page * page;
    match bytes.end.checked_next_multiple_of(page).map(|end| end - start) {
        Some(len) if len <= max_buffer => Ok(Import::Share { start, len, offset: bytes.start - start }),
        // A page too many for sharing.
        _ => copy,
    }
}

/// Carries a plan out. `share` is given what [`Import::Share`] says, in its order; where it makes nothing of that, for
/// the system refuses pages without a reason, the bytes are copied.
pub(crate) fn carry_out<T>(
    plan: Import,
    share: impl FnOnce(usize, usize, usize) -> Result<Option<T>, GpuError>,
    copy: impl FnOnce() -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    let shared = match plan {
        Import::Share { start, len, offset } => share(start, len, offset)?,
        Import::Copy => None,
    };
    shared.map_or_else(copy, Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 16384;

    fn mapping(len: usize) -> Mapping {
        Mapping { address: 7 * PAGE, len }
    }

    #[test]
    fn tensors_of_a_mapped_file_are_read_where_they_lie() {
        let file = Some(mapping(10 * PAGE + 100));
        for (bytes, start, pages, offset) in [
            (32..64, 0, 1, 32),
            (PAGE..3 * PAGE, 1, 2, 0),
            (2 * PAGE + 32..4 * PAGE + 1, 2, 3, 32),
            (10 * PAGE + 4..10 * PAGE + 100, 10, 1, 4),
        ] {
            let found = plan(file, &bytes, PAGE, 3 * PAGE).unwrap();
            assert_eq!(found, Import::Share { start: start * PAGE, len: pages * PAGE, offset });
        }
    }

    #[test]
    fn shared_pages_hold_the_bytes_and_end_with_the_last_page_of_the_file() {
        for len in [1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 17] {
            for max in [PAGE, 2 * PAGE, 8 * PAGE] {
                for start in (0..len).step_by(4 * 997) {
                    for end in [start + 1, (start + PAGE).min(len), len] {
                        let Ok(Import::Share { start: first, len: shared, offset }) =
                            plan(Some(mapping(len)), &(start..end), PAGE, max)
                        else {
                            continue;
                        };
                        assert_eq!((first % PAGE, shared % PAGE), (0, 0));
                        assert_eq!(first + offset, start);
                        assert!(offset + (end - start) <= shared && shared <= max);
                        assert!(first + shared <= len.next_multiple_of(PAGE));
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_shared_is_copied() {
        let odd = Some(Mapping { address: 7 * PAGE + 16, len: 4 * PAGE });
        for (mapping, bytes, why) in [
            (None, 0..64, "memory of a vector shares its pages with others"),
            (odd, 0..64, "the mapping does not begin a page"),
            (Some(mapping(PAGE)), 2..66, "kernels need four-byte alignment"),
            (Some(mapping(PAGE)), 8..8, "nothing is there"),
            (Some(mapping(PAGE)), 0..2 * PAGE, "the file is shorter than the tensor says"),
            (Some(mapping(9 * PAGE)), 4..2 * PAGE + 4, "with its pages it is longer than a buffer"),
        ] {
            assert_eq!(plan(mapping, &bytes, PAGE, 2 * PAGE).unwrap(), Import::Copy, "{why}");
        }
    }

    #[test]
    fn pages_the_system_does_not_share_are_copied_and_what_is_too_much_is_an_error() {
        let full = || GpuError::no_room("weights", 3, 2);
        let plan = Import::Share { start: PAGE, len: 2 * PAGE, offset: 4 };
        let never = || panic!("there is no need to copy");
        assert_eq!(
            carry_out(plan, |start, len, offset| Ok(Some([start, len, offset])), never),
            Ok([PAGE, 2 * PAGE, 4])
        );
        assert_eq!(carry_out(plan, |_, _, _| Ok(None), || Ok("copied")), Ok("copied"));
        assert_eq!(carry_out::<u8>(plan, |_, _, _| Ok(None), || Err(full())), Err(full()));
        assert_eq!(
            carry_out::<u8>(plan, |_, _, _| Err(full()), || panic!("a copy takes as much")),
            Err(full())
        );
        let asked = |_, _, _| panic!("these were not to be shared");
        assert_eq!(carry_out(Import::Copy, asked, || Ok("copied")), Ok("copied"));
    }

    #[test]
    fn a_tensor_longer_than_a_buffer_is_refused() {
        let error = plan(Some(mapping(9 * PAGE)), &(0..3 * PAGE), PAGE, 2 * PAGE).unwrap_err();
        assert!(matches!(error, GpuError::OutOfMemory { needed, .. } if needed == 3 * PAGE), "{error}");
    }
}
