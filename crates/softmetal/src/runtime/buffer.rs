//! Memory that outlives dispatches: the host and kernels take turns at it.

use std::{
    any::Any,
    fmt,
    ops::Range,
    ptr,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use super::memory::Mapping;
use crate::error::{Error, Result};

/// Memory that kernels and the host share.
///
/// The host waits while a dispatch that may write it runs, and the other way round: nobody sees a half-written value. Dispatches
/// that only read it run side by side.
pub struct Buffer {
    start: usize,
    len: usize,
    lock: RwLock<()>,
    owner: Owner,
}

/// What keeps the memory alive.
enum Owner {
    Device(#[allow(dead_code)] Mapping),
    Host(#[allow(dead_code)] Arc<dyn AsRef<[u8]> + Send + Sync>),
    Foreign {
        read_only: bool,
        #[allow(dead_code)]
        keeper: Arc<dyn Any + Send + Sync>,
    },
}

impl Buffer {
    /// `len` zero bytes, at the start of a page.
    pub fn new(len: usize) -> Result<Self> {
        let mapping = Mapping::reserved(len).map_err(|source| Error::NoMemory { bytes: len, source })?;
        Ok(Self { start: mapping.start, len, lock: RwLock::new(()), owner: Owner::Device(mapping) })
    }

    /// Memory of the host, without copying it. It can only be read.
    pub fn from_owner(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        // Shared and never given out again, so the owner stays where it is and cannot take these bytes back.
        let bytes = (*owner).as_ref();
        let (start, len) = (bytes.as_ptr() as usize, bytes.len());
        Self { start, len, lock: RwLock::new(()), owner: Owner::Host(owner) }
    }

    /// Memory of somebody else's, which `keeper` keeps where it is: for those who have a device of their own to show.
    ///
    /// # Safety
    /// `len` bytes from `start` on can be read, and written unless `read_only`, as long as `keeper` lives. Who else uses them
    /// while kernels run does so at their own risk, as with a GPU.
    pub unsafe fn foreign(
        start: *mut u8,
        len: usize,
        read_only: bool,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let owner = Owner::Foreign { read_only, keeper };
        Self { start: start.expose_provenance(), len, lock: RwLock::new(()), owner }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Without a single byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether neither the host nor kernels can write it.
    pub fn read_only(&self) -> bool {
        match &self.owner {
            Owner::Device(_) => false,
            Owner::Host(_) => true,
            Owner::Foreign { read_only, .. } => *read_only,
        }
    }

    /// Copies bytes from `offset` on to `out`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let range = self.range(offset, out.len())?;
        self.hold(false).get(range.start, out);
        Ok(())
    }

    /// Replaces the bytes from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let range = self.writable(offset, bytes.len())?;
        self.hold(true).put(range.start, bytes);
        Ok(())
    }

    /// Copies `len` bytes from `offset` on to `to_offset` of a buffer, which may be this one, even where the two overlap.
    pub fn copy_to(&self, offset: usize, to: &Buffer, to_offset: usize, len: usize) -> Result<()> {
        let from = self.range(offset, len)?;
        let into = to.writable(to_offset, len)?;
        let _locks = if ptr::eq(self, to) {
            [Some(to.hold(true)), None]
        } else if ptr::from_ref(self) < ptr::from_ref(to) {
            [Some(self.hold(false)), Some(to.hold(true))]
        } else {
            [Some(to.hold(true)), Some(self.hold(false))]
        };
        // SAFETY: both ranges lie in their buffers (above), which are locked; `copy` lets them overlap.
        unsafe {
            ptr::copy((self.start + from.start) as *const u8, (to.start + into.start) as *mut u8, len);
        }
        Ok(())
    }

    fn range(&self, offset: usize, len: usize) -> Result<Range<usize>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(offset..end),
            _ => Err(Error::BufferRange { offset, len, size: self.len }),
        }
    }

    fn writable(&self, offset: usize, len: usize) -> Result<Range<usize>> {
        if self.read_only() {
            return Err(Error::BufferReadOnly { size: self.len });
        }
        self.range(offset, len)
    }

    /// Where it lies.
    pub fn address(&self) -> usize {
        self.start
    }

    /// Keeps others from writing it, or from using it at all. Who holds several takes them in the order of their addresses.
    pub(crate) fn hold(&self, alone: bool) -> Hold<'_> {
        let lock = if alone {
            Lock::Alone { _guard: self.lock.write().unwrap_or_else(PoisonError::into_inner) }
        } else {
            Lock::Shared { _guard: self.lock.read().unwrap_or_else(PoisonError::into_inner) }
        };
        Hold { buffer: self, lock }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes{})", self.len, if self.read_only() { ", read-only" } else { "" })
    }
}

/// A buffer while it is locked.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) buffer: &'a Buffer,
    lock: Lock<'a>,
}

#[derive(Debug)]
enum Lock<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl Hold<'_> {
    /// Copies bytes from `offset` on to `out`. No kernel may be running on the memory itself.
    pub(crate) fn get(&self, offset: usize, out: &mut [u8]) {
        let room = self.buffer.len.checked_sub(offset).is_some_and(|room| out.len() <= room);
        assert!(room, "outside the buffer");
        // SAFETY: in bounds (above), and no kernel writes while this lock is held: they run under a lock of their own. Who else
        // knows the address, as with `foreign`, may write: that is at their own risk (see there), and no reference to the
        // memory is made which would promise that nobody does.
        unsafe {
            ptr::copy_nonoverlapping((self.buffer.start + offset) as *const u8, out.as_mut_ptr(), out.len());
        }
    }

    /// Replaces the bytes from `offset` on.
    pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let room = self.buffer.len.checked_sub(offset).is_some_and(|room| bytes.len() <= room);
        assert!(room && !self.buffer.read_only(), "outside the buffer");
        assert!(matches!(self.lock, Lock::Alone { .. }), "others may be reading");
        // SAFETY: in bounds and writable (above), and the lock keeps kernels and other holders away; who else knows the address
        // is there at their own risk, as in `get`. `bytes` is not of this buffer, which no slice is ever made of.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), (self.buffer.start + offset) as *mut u8, bytes.len());
        }
    }
}
