//! Keeps all buffers in the GPU's reach, so that no submission waits for the system to bring them there.

use std::sync::Mutex;

use objc2::available;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::ns_string;
use objc2_metal::{MTLBuffer, MTLCommandQueue, MTLDevice as _, MTLResidencySet, MTLResidencySetDescriptor};

use super::device::RawDevice;
use crate::driver::residency::Sets;
use crate::lock;

/// Residency sets of a queue, where the system has them (macOS 15).
pub(super) struct Residency {
    device: RawDevice,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    state: Mutex<State>,
}

struct State {
    plan: Sets,
    sets: Vec<Set>,
}

struct Set {
    /// `None` where the system would not make it: its buffers are then left to the system.
    raw: Option<Retained<ProtocolObject<dyn MTLResidencySet>>>,
    changed: bool,
}

// SAFETY: a set belongs to no thread; the mutex around it lets one thread at a time send it messages, and its
// reference count is atomic like that of every object.
unsafe impl Send for Set {}

impl Residency {
    /// Sets that belong to the queue; `None` on older systems, which keep track themselves.
    pub(super) fn new(
        device: &RawDevice,
        queue: &Retained<ProtocolObject<dyn MTLCommandQueue>>,
        budget: Option<u64>,
    ) -> Option<Residency> {
        let state = Mutex::new(State { plan: Sets::new(budget), sets: Vec::new() });
        available!(macos = 15.0).then(|| Residency { device: device.clone(), queue: queue.clone(), state })
    }

    /// Puts a buffer into a set, and says which.
    pub(super) fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>, bytes: usize) -> usize {
        let mut state = lock(&self.state);
        let index = state.plan.place(bytes as u64);
        while state.sets.len() <= index {
            state.sets.push(Set { raw: self.make(), changed: false });
        }
        let set = &mut state.sets[index];
        if let Some(raw) = &set.raw {
            raw.addAllocation(ProtocolObject::from_ref(buffer));
            set.changed = true;
        }
        index
    }

    /// Takes a buffer out of its set: at once, for the set holds the memory until then.
    pub(super) fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>, bytes: usize, index: usize) {
        let mut state = lock(&self.state);
        state.plan.leave(index, bytes as u64);
        if let Some(raw) = state.sets.get(index).and_then(|set| set.raw.as_ref()) {
            raw.removeAllocation(ProtocolObject::from_ref(buffer));
            raw.commit();
        }
    }

    /// Makes additions count. Called before work is handed over: loading a model is one change.
    pub(super) fn settle(&self) {
        for set in lock(&self.state).sets.iter_mut().filter(|set| set.changed) {
            set.changed = false;
            if let Some(raw) = &set.raw {
                raw.commit();
                raw.requestResidency();
            }
        }
    }

    fn make(&self) -> Option<Retained<ProtocolObject<dyn MTLResidencySet>>> {
        let descriptor = MTLResidencySetDescriptor::new();
        descriptor.setLabel(Some(ns_string!("metallic")));
        let raw = self.device.newResidencySetWithDescriptor_error(&descriptor).ok()?;
        self.queue.addResidencySet(&raw);
        Some(raw)
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        for raw in lock(&self.state).sets.iter().filter_map(|set| set.raw.as_ref()) {
            raw.endResidency();
        }
    }
}
