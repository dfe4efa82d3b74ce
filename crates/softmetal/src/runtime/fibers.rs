//! The stacks of one host thread, and which of them are free.

use std::{cell::RefCell, io, ops::Range};

use super::memory::FiberStack;

/// Stacks by number. A fiber takes one when it begins and gives it back when it ends.
#[derive(Debug, Default)]
pub(super) struct Fibers {
    stacks: RefCell<Vec<FiberStack>>,
    free: RefCell<Vec<u32>>,
}

impl Fibers {
    /// A free stack of at least `size` bytes, the one that was used last if there is one: its number and its top.
    pub(super) fn take(&self, size: usize) -> io::Result<(u32, usize)> {
        let mut stacks = self.stacks.borrow_mut();
        if let Some(n) = self.free.borrow_mut().pop() {
            return Ok((n, stacks[n as usize].top()));
        }
        let stack = FiberStack::new(size, stacks.len() + 1)?;
        let top = stack.top();
        stacks.push(stack);
        Ok(((stacks.len() - 1) as u32, top))
    }

    /// Gives a stack back.
    pub(super) fn give(&self, n: u32) {
        self.free.borrow_mut().push(n);
    }

    /// Takes all stacks back, also those of fibers that did not end: frames of kernels need no clearing.
    pub(super) fn reclaim(&self) {
        let count = self.stacks.borrow().len();
        let mut free = self.free.borrow_mut();
        if free.len() < count {
            free.clear();
            free.extend((0..count as u32).rev());
        }
    }

    /// The usable part of a stack; nothing if there is no such stack.
    pub(super) fn range(&self, n: u32) -> Range<usize> {
        let stacks = self.stacks.try_borrow();
        stacks.ok().and_then(|s| s.get(n as usize).map(FiberStack::range)).unwrap_or(0..0)
    }
}
