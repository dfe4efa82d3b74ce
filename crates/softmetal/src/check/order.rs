//! What barriers order: two accesses conflict unless a barrier that names their memory lies between them.

use std::collections::HashMap;

use super::shadow::{Mark, Scope};
use crate::runtime::abi;

/// The kinds of memory that threads share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Device,
    Threadgroup,
    Texture,
}

impl Memory {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Device => "device memory",
            Self::Threadgroup => "threadgroup memory",
            Self::Texture => "texture memory",
        }
    }
}

/// What lies between two accesses that nothing orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gap {
    /// They are in different threadgroups.
    Groups,
    /// No barrier at all.
    NoBarrier,
    /// Only barriers with `mem_none`.
    MemNone,
    /// Barriers that order other memory.
    WrongFlags,
}

/// Barriers of one threadgroup or one simdgroup, counted.
#[derive(Debug, Clone, Copy, Default)]
struct Epochs {
    now: u32,
    /// After the last barrier that ordered device memory, threadgroup memory, textures, anything.
    device: u32,
    threadgroup: u32,
    texture: u32,
    anything: u32,
}

impl Epochs {
    fn barrier(&mut self, flags: i32) {
        self.now += 1;
        if flags & abi::MEM_DEVICE != 0 {
            self.device = self.now;
        }
        if flags & abi::MEM_THREADGROUP != 0 {
            self.threadgroup = self.now;
        }
        if flags & abi::MEM_TEXTURE != 0 {
            self.texture = self.now;
        }
        if flags != 0 {
            self.anything = self.now;
        }
    }

    fn ordered(&self, epoch: u32, memory: Memory) -> bool {
        epoch
            < match memory {
                Memory::Device => self.device,
                Memory::Threadgroup => self.threadgroup,
                Memory::Texture => self.texture,
            }
    }

    fn gap(&self, epoch: u32) -> Option<Gap> {
        if epoch < self.anything {
            Some(Gap::WrongFlags)
        } else if epoch < self.now {
            Some(Gap::MemNone)
        } else {
            None
        }
    }
}

/// The barriers of the current threadgroup, and the device-wide fences of all.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    group: u32,
    epochs: Epochs,
    simdgroups: Vec<Epochs>,
    /// Epoch of the last device-wide fence of each threadgroup that had one.
    fences: HashMap<u32, u32>,
}

impl Clock {
    pub(crate) fn begin_group(&mut self, group: u32, threads: usize) {
        self.group = group;
        self.epochs = Epochs::default();
        self.simdgroups.clear();
        self.simdgroups.resize(threads.div_ceil(abi::SIMD_WIDTH), Epochs::default());
    }

    pub(crate) fn barrier(&mut self, flags: i32) {
        self.epochs.barrier(flags);
    }

    pub(crate) fn simdgroup_barrier(&mut self, simdgroup: usize, flags: i32) {
        self.simdgroups[simdgroup].barrier(flags);
    }

    pub(crate) fn device_fence(&mut self) {
        self.fences.insert(self.group, self.epochs.now);
    }

    /// The mark of an access that happens now.
    #[inline]
    pub(crate) fn mark(&self, thread: u32, pc: u32, atomic: bool) -> Mark {
        Mark {
            group: self.group,
            epoch: self.epochs.now,
            simd_epoch: self.simdgroups[thread as usize / abi::SIMD_WIDTH].now,
            pc,
            thread: thread as u16,
            scope: Scope::Thread,
            atomic,
        }
    }

    /// Why `before` is not ordered before `now`; nothing if it is.
    #[inline]
    pub(crate) fn gap(&self, before: &Mark, now: &Mark, memory: Memory) -> Option<Gap> {
        if before.group != now.group || before.scope == Scope::Grid {
            return (!self.fenced(before, now)).then_some(Gap::Groups);
        }
        if before.scope == Scope::Thread && before.thread == now.thread
            || self.epochs.ordered(before.epoch, memory)
        {
            return None;
        }
        let near = before.scope <= Scope::Simdgroup && before.simdgroup() == now.simdgroup();
        let simd = near.then(|| &self.simdgroups[usize::from(now.simdgroup())]);
        if simd.is_some_and(|s| s.ordered(before.simd_epoch, memory)) {
            return None;
        }
        let gap = self.epochs.gap(before.epoch).or(simd.and_then(|s| s.gap(before.simd_epoch)));
        Some(gap.unwrap_or(Gap::NoBarrier))
    }

    /// Both threadgroups passed a device-wide fence, the first of them after its access: the kernel synchronises through
    /// atomics, which no epoch can follow.
    fn fenced(&self, before: &Mark, now: &Mark) -> bool {
        !self.fences.is_empty()
            && self.fences.get(&before.group).is_some_and(|&epoch| epoch >= before.epoch)
            && self.fences.contains_key(&now.group)
    }
}
