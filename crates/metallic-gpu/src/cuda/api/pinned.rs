//! Memory of the host that a GPU copies from by itself, while the host does something else.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::{Context, Event, Meaning, Memory, Stream, meaning};
use crate::error::GpuError;

/// Room for a piece of an upload.
#[derive(Debug)]
pub(in super::super) struct Slot {
    context: Arc<Context>,
    bytes: *mut c_void,
    room: usize,
    /// Bytes in it.
    held: usize,
    /// The moment when what was sent last has been copied.
    copied: Event,
    is_sent: bool,
}

// SAFETY: the memory is the slot's own, and see `Context`.
unsafe impl Send for Slot {}

impl Drop for Slot {
    fn drop(&mut self) {
        // A copy that is under way reads it; a device that is lost copies nothing.
        let _ = self.wait();
        // SAFETY: it was allocated once, and nothing reads it any more.
        unsafe { (self.context.functions().free_pinned)(self.bytes) };
    }
}

impl Slot {
    /// With room for so many bytes.
    pub(in super::super) fn new(context: &Arc<Context>, room: usize) -> Result<Slot, GpuError> {
        let (copied, mut bytes) = (Event::new(context)?, ptr::null_mut());
        // SAFETY: `bytes` receives where they lie.
        let status = unsafe { (context.functions().allocate_pinned)(&raw mut bytes, room, 0) };
        if meaning(status) == Meaning::NoMemory || (status == 0 && bytes.is_null()) {
            return Err(GpuError::no_room("pinned memory", room, None));
        }
        context.check(status, "pinned memory")?;
        Ok(Slot { context: context.clone(), bytes, room, held: 0, copied, is_sent: false })
    }

    fn wait(&mut self) -> Result<(), GpuError> {
        if std::mem::take(&mut self.is_sent) { self.copied.wait() } else { Ok(()) }
    }

    /// Puts bytes into it, once what was sent before has been copied.
    pub(in super::super) fn fill(&mut self, bytes: &[u8]) -> Result<(), GpuError> {
        if bytes.len() > self.room {
            return Err(GpuError::OutOfBounds { start: 0, end: bytes.len(), len: self.room });
        }
        self.wait()?;
        // SAFETY: there is room for them, nothing reads it meanwhile (above), and it is nobody else's.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.bytes.cast(), bytes.len()) };
        self.held = bytes.len();
        Ok(())
    }

    /// Begins to copy what it holds. The caller keeps the target until that is done.
    pub(in super::super) fn send(
        &mut self,
        stream: &Stream,
        to: &Memory,
        offset: usize,
    ) -> Result<(), GpuError> {
        let to = to.inside(offset, self.held)?;
        let functions = self.context.functions();
        // SAFETY: both ranges are there, and the slot is neither written nor freed before the copy is over.
        let status = unsafe { (functions.upload)(to, self.bytes, self.held, stream.handle()) };
        self.context.check(status, "a copy to the GPU")?;
        // Without the event the end of the copy could not be told: all of the stream is waited for.
        match self.copied.record(stream) {
            Ok(()) => self.is_sent = true,
            Err(error) => return stream.wait().and(Err(error)),
        }
        Ok(())
    }
}
