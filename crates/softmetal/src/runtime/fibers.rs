//! The fibers of one host thread. None is dropped while it is suspended: its frames are a kernel's.

use std::ops::Range;

use corosensei::Coroutine;

use super::{
    memory::{self, FiberStack},
    trap::{Exit, Running},
};

pub(super) type Fiber = Coroutine<(), (), Exit, FiberStack>;

/// What belongs to fibers alone; callbacks never see it.
pub(super) struct Fibers {
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) stacks: Vec<FiberStack>,
    pub(super) made: usize,
    pub(super) size: usize,
}

pub(super) struct Slot {
    pub(super) fiber: Fiber,
    pub(super) running: Running,
    pub(super) stack: Range<usize>,
}

impl Fibers {
    /// Brings a fiber's record into the cache.
    #[inline]
    pub(super) fn fetch(&self, slot: usize) {
        memory::prefetch(&raw const self.slots[slot] as usize);
    }

    /// Takes the stack of a fiber that ended, or that must not go on.
    pub(super) fn recycle(&mut self, slot: usize) {
        if let Some(Slot { mut fiber, .. }) = self.slots[slot].take() {
            if !fiber.done() {
                // SAFETY: its frames are those of a kernel and of `run_threads`: nothing in them needs dropping, and unwinding
                // through code built without exceptions is not possible.
                unsafe { fiber.force_reset() };
            }
            self.stacks.push(fiber.into_stack());
        }
    }

    pub(super) fn clear(&mut self) {
        for slot in 0..self.slots.len() {
            self.recycle(slot);
        }
    }
}

impl Drop for Fibers {
    fn drop(&mut self) {
        self.clear();
    }
}
