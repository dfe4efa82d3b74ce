//! Memory of the GPU.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use block2::RcBlock;
use metallic_core::Bytes;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice as _, MTLResourceOptions};

use super::device::RawDevice;
use super::residency::Residency;
use crate::driver::check::{self, BufferFacts};
use crate::driver::memory;
use crate::error::GpuError;
use crate::gpu::{BufferId, Limits, Storage};

pub(super) type RawBuffer = Retained<ProtocolObject<dyn MTLBuffer>>;

/// What buffers of one device share.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) device: RawDevice,
    pub(super) limits: Limits,
    pub(super) residency: Option<Arc<Residency>>,
    /// Bytes of all living buffers.
    pub(super) held: Arc<AtomicU64>,
}

impl Memory {
    /// Bytes in use on the device.
    pub(super) fn held(&self) -> u64 {
        memory::held(self.device.currentAllocatedSize() as u64, self.held.load(Ordering::Relaxed))
    }

    pub(super) fn allocate(&self, bytes: usize, storage: Storage) -> Result<Buffer, GpuError> {
        let len = memory::rounded(bytes);
        memory::check("a buffer", len, self.held(), &self.limits)?;
        let options = match storage {
            Storage::Shared => MTLResourceOptions::StorageModeShared,
            Storage::Private => MTLResourceOptions::StorageModePrivate,
        };
        let raw = self
            .device
            .newBufferWithLength_options(len, options)
            .ok_or_else(|| GpuError::no_room("a buffer", len, self.limits.budget))?;
        let facts = BufferFacts { len: bytes, writable: true, host: storage == Storage::Shared };
        Ok(self.own(raw, len, facts))
    }

    /// A buffer over `len` bytes of a mapping from `start` on, where the system makes one. `driver::import` planned
    /// both: whole pages of it.
    pub(super) fn share(
        &self,
        mapping: &Bytes,
        start: usize,
        len: usize,
    ) -> Result<Option<Buffer>, GpuError> {
        memory::check("weights", len, self.held(), &self.limits)?;
        let inside = mapping.get(start..).filter(|rest| !rest.is_empty());
        let first = inside.ok_or(GpuError::OutOfBounds { start, end: start, len: mapping.len() })?;
        let pages: NonNull<c_void> = NonNull::from(first).cast();
        let owner = mapping.clone();
        // The block owns the mapping and goes with the buffer, whoever holds that last.
        let release = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            let _mapping = &owner;
        });
        // SAFETY: `pages` begins a page of a mapping, and `len` bytes from there are whole pages of it, the rest of
        // its last one included (`import::plan`); they stay mapped as long as the buffer lives, for the block owns
        // the mapping. The pages may be read only: `facts` keeps host and kernels from writing them.
        let raw = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(
                pages,
                len,
                // Nobody writes it, so there is no order to keep.
                MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked,
                Some(&release),
            )
        };
        Ok(raw.map(|raw| self.own(raw, len, BufferFacts { len, writable: false, host: true })))
    }

    fn own(&self, raw: RawBuffer, bytes: usize, facts: BufferFacts) -> Buffer {
        // A private buffer has no contents: the pointer would be null, which its type excludes.
        let contents = facts.host.then(|| RwLock::new(raw.contents().cast()));
        self.held.fetch_add(bytes as u64, Ordering::Relaxed);
        let set = self.residency.as_ref().map(|residency| residency.add(&raw, bytes));
        Buffer { raw, facts, contents, bytes, set, memory: self.clone() }
    }
}

/// A buffer, alive as long as anyone refers to it: the driver's table, or work on its way.
pub(super) struct Buffer {
    pub(super) raw: RawBuffer,
    pub(super) facts: BufferFacts,
    /// Where the host sees the buffer: `facts.len` bytes at least, for as long as `raw` lives. The lock orders the
    /// host's own reads and writes; that the GPU is done with the bytes is for the caller to know.
    contents: Option<RwLock<NonNull<u8>>>,
    bytes: usize,
    set: Option<usize>,
    memory: Memory,
}

// SAFETY: buffers of Metal may be used from any thread, and their reference counts are atomic. The host's view of the
// contents is behind a lock.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(super) fn write(&self, id: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        check::host(id, &self.facts, (offset, bytes.len()), true)?;
        if let Some(contents) = &self.contents {
            let to = contents.write().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the range lies inside the contents, which may be written (checked above); the lock keeps
            // other threads out; `bytes` is no part of them, as no reference to contents is ever made.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(offset).as_ptr(), bytes.len()) };
        }
        Ok(())
    }

    pub(super) fn read(&self, id: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        check::host(id, &self.facts, (offset, out.len()), false)?;
        if let Some(contents) = &self.contents {
            let from = contents.read().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the range lies inside the contents (checked above); the lock keeps writers out; `out` is no
            // part of them.
            unsafe { ptr::copy_nonoverlapping(from.add(offset).as_ptr(), out.as_mut_ptr(), out.len()) };
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        autoreleasepool(|_| {
            if let (Some(residency), Some(set)) = (&self.memory.residency, self.set) {
                residency.remove(&self.raw, self.bytes, set);
            }
        });
        self.memory.held.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}
