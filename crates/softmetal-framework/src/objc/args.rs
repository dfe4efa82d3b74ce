//! Arguments of messages that are more than numbers and objects. Their pointers are good for what the message's
//! documentation says: that is the caller's promise, as with Apple's framework.

use std::ffi::c_void;

use super::block::Block;
use super::object::{Id, Strong};
use super::pool;

/// `MTLSize`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct MtlSize {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

impl MtlSize {
    pub(crate) fn axes(self) -> [usize; 3] {
        [self.width, self.height, self.depth]
    }
}

/// `MTLRegion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct MtlRegion {
    pub(crate) origin: MtlSize,
    pub(crate) size: MtlSize,
}

/// `NSRange`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NsRange {
    pub(crate) location: usize,
    pub(crate) length: usize,
}

impl NsRange {
    pub(crate) fn end(self) -> Option<usize> {
        self.location.checked_add(self.length)
    }
}

/// `const void *`: bytes to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InBytes(*const c_void);

impl InBytes {
    /// Bytes of an object's own, good as long as it lives.
    pub(crate) fn of(bytes: &[u8]) -> InBytes {
        InBytes(bytes.as_ptr().cast())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// From so many bytes further on.
    pub(crate) fn after(self, bytes: usize) -> InBytes {
        InBytes(self.0.wrapping_byte_add(bytes))
    }

    pub(crate) fn copy(self, len: usize) -> Vec<u8> {
        if self.0.is_null() || len == 0 {
            return Vec::new();
        }
        // SAFETY: the message says that so many bytes can be read.
        unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), len) }.to_vec()
    }
}

/// `void *`: bytes that are written, or kept.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutBytes(*mut c_void);

impl OutBytes {
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// From so many bytes further on.
    pub(crate) fn after(self, bytes: usize) -> OutBytes {
        OutBytes(self.0.wrapping_byte_add(bytes))
    }

    pub(crate) fn fill(self, bytes: &[u8]) {
        if !self.0.is_null() {
            // SAFETY: the message says that so many bytes can be written, and they are the caller's own.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>(), bytes.len()) };
        }
    }
}

/// `id const *`: objects to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InObjects(*const Id);

impl InObjects {
    pub(crate) fn copy(self, count: usize) -> Vec<Id> {
        if self.0.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: the message says that so many pointers can be read.
        unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec()
    }
}

/// `const NSUInteger *`: numbers to read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct InNumbers(*const usize);

impl InNumbers {
    pub(crate) fn copy(self, count: usize) -> Vec<usize> {
        if self.0.is_null() || count == 0 {
            return Vec::new();
        }
        // SAFETY: the message says that so many numbers can be read.
        unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec()
    }
}

/// `id *`: where an object goes, an error most of the time.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutObject(*mut Id);

impl OutObject {
    /// Leaves an object that the caller's pool owns.
    pub(crate) fn put(self, object: Strong) {
        let id = object.id();
        pool::add(object);
        if !self.0.is_null() {
            // SAFETY: the message says that a pointer can be written there.
            unsafe { self.0.write(id) };
        }
    }

    /// For arrays of objects: writes the `at`-th.
    pub(crate) fn put_at(self, at: usize, id: Id) {
        if !self.0.is_null() {
            // SAFETY: the message says that there is room for as many objects as were asked for.
            unsafe { self.0.add(at).write(id) };
        }
    }
}

/// A block that a message hands over; it must be copied to last.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct BlockArg(pub(super) *const c_void);

impl BlockArg {
    pub(crate) fn copy(self) -> Option<Block> {
        Block::copy_of(self)
    }
}
