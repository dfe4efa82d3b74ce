//! Memory from the operating system: fiber stacks and buffers with guards around them.

use std::{io, ops::Range, ptr};

const PAGE: usize = 4096;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// A frame larger than this could jump over the guard; kernels are built with stack probes, which touch every page.
pub(super) const GUARD: usize = 16 * PAGE;

/// A private mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(super) start: usize,
    len: usize,
}

impl Mapping {
    /// `len` zero bytes that the system counts as used from now on: what it cannot give fails here.
    pub(crate) fn reserved(len: usize) -> io::Result<Self> {
        Self::map(len, READ_WRITE, 0)
    }

    /// Address space of `len` bytes in whole pages.
    fn map(len: usize, access: i32, flags: i32) -> io::Result<Self> {
        let Some(len) = len.max(1).checked_next_multiple_of(PAGE).filter(|&n| isize::try_from(n).is_ok())
        else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping touches no existing memory.
        let p = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start: p as usize, len })
        }
    }

    /// Sets the access to `len` bytes, in whole pages, from `offset` on.
    fn protect(&mut self, offset: usize, len: usize, access: i32) -> io::Result<()> {
        debug_assert!(offset + len <= self.len, "outside the mapping");
        // SAFETY: the range lies in this mapping (above), in whole pages.
        let failed = unsafe { libc::mprotect((self.start + offset) as *mut _, len, access) } != 0;
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}

/// Brings the cache line at an address, valid or not, closer.
#[inline]
pub(super) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is a hint without effect on memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A fiber's stack, with a guard below it.
#[derive(Debug)]
pub(crate) struct FiberStack {
    mapping: Mapping,
    /// The top is lowered by this much.
    stagger: usize,
}

impl FiberStack {
    /// `nth` staggers the tops: equal page offsets would compete for the same few cache sets.
    pub(crate) fn new(size: usize, nth: usize) -> io::Result<Self> {
        let mut mapping = Mapping::map(size + GUARD, READ_WRITE, libc::MAP_NORESERVE)?;
        mapping.protect(0, GUARD, libc::PROT_NONE)?;
        Ok(Self { mapping, stagger: (nth % 29) * 128 })
    }

    /// The usable part.
    pub(crate) fn range(&self) -> Range<usize> {
        self.mapping.start + GUARD..self.mapping.start + self.mapping.len
    }

    /// Where it begins to grow downwards.
    pub(crate) fn top(&self) -> usize {
        self.mapping.start + self.mapping.len - self.stagger
    }
}

/// A buffer with unmapped space on both sides, so that an access past either end belongs to no other buffer.
#[derive(Debug)]
pub(crate) struct Guarded {
    mapping: Mapping,
    /// Bytes between the start of a page and the buffer.
    lead: usize,
    len: usize,
}

impl Guarded {
    /// Unmapped bytes on each side.
    pub(crate) const MARGIN: usize = 16 << 20;

    /// A copy of `bytes`, at the same distance from a page boundary as `like`.
    pub(crate) fn copy_of(bytes: &[u8], like: usize) -> io::Result<Self> {
        let lead = like % PAGE;
        let used = (lead + bytes.len()).next_multiple_of(PAGE);
        let mut mapping = Mapping::map(used + 2 * Self::MARGIN, libc::PROT_NONE, libc::MAP_NORESERVE)?;
        if !bytes.is_empty() {
            mapping.protect(Self::MARGIN, used, READ_WRITE)?;
        }
        let mut copy = Self { mapping, lead, len: bytes.len() };
        copy.bytes_mut().copy_from_slice(bytes);
        Ok(copy)
    }

    pub(crate) fn address(&self) -> usize {
        self.mapping.start + Self::MARGIN + self.lead
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes from `address` are mapped readable, and zero or copied.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` is the only handle.
        unsafe { std::slice::from_raw_parts_mut(self.address() as *mut u8, self.len) }
    }
}

/// A buffer aligned like one of a GPU, for host memory that is not.
#[derive(Debug)]
pub(crate) struct Aligned {
    words: Vec<u128>,
    len: usize,
}

impl Aligned {
    pub(crate) const ALIGN: usize = align_of::<u128>();

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self { words: vec![0; bytes.len().div_ceil(16).max(1)], len: bytes.len() };
        copy.bytes_mut().copy_from_slice(bytes);
        copy
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `words` has at least `len` bytes, all initialised.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; every bit pattern is a valid `u128`.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }
}

/// What some bytes were, to be compared with what they are later.
#[derive(Debug, Default)]
pub(crate) struct Noted(Vec<u8>);

impl Noted {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// # Safety
    /// The bytes can be read, and nobody writes them meanwhile.
    pub(super) unsafe fn clone_from_bytes(&mut self, bytes: Range<usize>) {
        self.0.clear();
        // SAFETY: as the caller promises.
        self.0.extend_from_slice(unsafe { slice(&bytes) });
    }

    /// # Safety
    /// As above.
    pub(super) unsafe fn equals_bytes(&self, bytes: Range<usize>) -> bool {
        // SAFETY: as the caller promises.
        self.0 == unsafe { slice(&bytes) }
    }
}

/// # Safety
/// The bytes can be read, and nobody writes them while the slice lives.
unsafe fn slice<'a>(bytes: &Range<usize>) -> &'a [u8] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(bytes.start as *const u8, bytes.len()) }
}
