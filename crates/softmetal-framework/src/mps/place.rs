//! A part of an `MTLBuffer` that MPS reads or writes.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use super::refuse_init;
use crate::faults::{self, Fault};
use crate::metal::{Buffer, Held};
use crate::objc::{Id, Strong};
use crate::problem::Rule;

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

    /// Where `this`, a matrix or an array of so many bytes, is initialised; nothing where that is refused, or fails on request.
    pub(super) fn of_init(
        this: Id,
        (what, form): (&str, &dyn Debug),
        (buffer, offset): (Id, usize),
        (element, needed): (usize, usize),
    ) -> Option<Place> {
        let Some(place) = Place::new(buffer, offset) else {
            refuse_init(
                this,
                Rule::MissingBinding,
                format!("{what} without a buffer: MPS asserts that there is one"),
            );
            return None;
        };
        if !offset.is_multiple_of(element) {
            refuse_init(
                this,
                Rule::Alignment,
                format!("{what} from byte {offset} on: its elements have {element} bytes"),
            );
        }
        let found = place.buffer.len().saturating_sub(offset);
        if needed > found {
            refuse_init(
                this,
                Rule::Range,
                format!(
                    "{what} {form:?} of {needed} bytes in {} with {found} behind its offset: MPS asserts that it is inside",
                    buffer.describe()
                ),
            );
        }
        if faults::strikes(Fault::Library) {
            this.release();
            return None;
        }
        Some(place)
    }

    /// As a command uses it: held the way its command buffer does.
    pub(crate) fn used(&self, retained: bool, writes: bool) -> (Held, Arc<Buffer>, bool) {
        (Held::new(self.object.id(), retained), self.span.buffer.clone(), writes)
    }
}
