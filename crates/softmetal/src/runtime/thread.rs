//! A GPU thread as the scheduler sees it.

use std::{
    cell::Cell,
    ffi::{c_char, c_void},
};

use super::{abi, image::text, switch::Context};
use crate::check::Site;

/// Where a GPU thread stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    New,
    Ready,
    Simd,
    SimdBarrier,
    Barrier,
    /// Between two accesses, in lockstep: the other lanes have their turn first.
    Step,
    #[default]
    Done,
}

/// A call in the source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) file: *const c_char,
    /// With its column, see [`abi::LINE_BITS`].
    pub(crate) line: i32,
}

/// One GPU thread; a cache line, since every barrier touches each of them.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(super) struct Thread {
    pub(super) context: Context,
    pub(super) file: Cell<*const c_char>,
    pub(super) line: Cell<i32>,
    pub(super) flags: Cell<i32>,
    pub(super) run: Cell<Option<abi::SimdFn>>,
    pub(super) input: Cell<*mut c_void>,
    pub(super) output: Cell<*mut c_void>,
    /// The stack it runs on: a finished thread hands its stack to the next unstarted one.
    pub(super) fiber: Cell<u32>,
    pub(super) state: Cell<State>,
}

impl Thread {
    /// Both wait at the same call in the source; for collectives, for the same operation.
    #[inline]
    pub(super) fn beside(&self, other: &Self) -> bool {
        self.line.get() == other.line.get() && self.file.get() == other.file.get()
    }

    #[inline]
    pub(super) fn same_collective(&self, other: &Self) -> bool {
        self.beside(other) && self.run.get().map(|f| f as usize) == other.run.get().map(|f| f as usize)
    }

    pub(super) fn site(&self) -> Site {
        // SAFETY: null, or a string literal of the library, which is never unloaded.
        let file = unsafe { text(self.file.get()) };
        Site::new(file, self.line.get() as u32)
    }
}
