//! Keeps all buffers in the GPU's reach, so that no submission waits for the system to bring them there.

use std::sync::{Mutex, PoisonError};

use objc2::available;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::ns_string;
use objc2_metal::{MTLBuffer, MTLCommandQueue, MTLDevice as _, MTLResidencySet, MTLResidencySetDescriptor};

use super::device::RawDevice;

/// A residency set, where the system has them (macOS 15).
pub(super) struct Residency {
    set: Mutex<Set>,
}

struct Set {
    raw: Retained<ProtocolObject<dyn MTLResidencySet>>,
    changed: bool,
}

// SAFETY: the set belongs to no thread; the mutex around it lets one thread at a time send it messages, and its
// reference count is atomic like that of every object.
unsafe impl Send for Set {}

impl Residency {
    /// A set that belongs to the queue; `None` on older systems, which keep track themselves, and where it fails.
    pub(super) fn new(device: &RawDevice, queue: &ProtocolObject<dyn MTLCommandQueue>) -> Option<Residency> {
        if !available!(macos = 15.0) {
            return None;
        }
        let descriptor = MTLResidencySetDescriptor::new();
        descriptor.setLabel(Some(ns_string!("metallic")));
        let raw = device.newResidencySetWithDescriptor_error(&descriptor).ok()?;
        queue.addResidencySet(&raw);
        Some(Residency { set: Mutex::new(Set { raw, changed: false }) })
    }

    pub(super) fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        self.with(|set| {
            set.raw.addAllocation(ProtocolObject::from_ref(buffer));
            set.changed = true;
        });
    }

    /// At once, for the set holds the memory until then.
    pub(super) fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        self.with(|set| {
            set.raw.removeAllocation(ProtocolObject::from_ref(buffer));
            set.raw.commit();
        });
    }

    /// Makes additions count. Called before work is handed over: loading a model is one change.
    pub(super) fn settle(&self) {
        self.with(|set| {
            if set.changed {
                set.raw.commit();
                set.raw.requestResidency();
                set.changed = false;
            }
        });
    }

    fn with(&self, act: impl FnOnce(&mut Set)) {
        act(&mut self.set.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Residency {
    fn drop(&mut self) {
        self.with(|set| set.raw.endResidency());
    }
}
