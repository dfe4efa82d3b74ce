//! A part of an `MTLBuffer` that MPS reads or writes.

use std::ops::Deref;
use std::sync::Arc;

use crate::metal::{Buffer, Held};
use crate::objc::{Id, Strong};

/// Bytes of a buffer from an offset on. They do not hold the buffer's object: a command that outlives it is found out.
#[derive(Clone)]
pub(crate) struct Span {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: usize,
}

impl Span {
    /// So many bytes from `start` on.
    pub(crate) fn read(&self, start: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        let read = self.buffer.memory.read(self.offset + start, &mut bytes);
        read.map(|()| bytes).map_err(|error| error.to_string())
    }

    pub(crate) fn write(&self, start: usize, bytes: &[u8]) -> Result<(), String> {
        self.buffer.memory.write(self.offset + start, bytes).map_err(|error| error.to_string())
    }
}

/// A buffer and where in it something begins, held as the headers say of matrices and arrays.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) span: Span,
    pub(crate) object: Strong,
}

impl Deref for Place {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.span
    }
}

impl Place {
    /// Nothing for null.
    pub(crate) fn new(buffer: Id, offset: usize) -> Option<Place> {
        let object = Strong::retained(buffer)?;
        Some(Place { span: Span { buffer: buffer.this::<Buffer>().share(), offset }, object })
    }

    /// As a command uses it: held the way its command buffer does.
    pub(crate) fn used(&self, retained: bool, writes: bool) -> (Held, Arc<Buffer>, bool) {
        (Held::new(self.object.id(), retained), self.span.buffer.clone(), writes)
    }
}
