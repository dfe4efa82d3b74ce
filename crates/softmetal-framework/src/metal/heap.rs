//! `MTLHeap`: memory that buffers are cut from.

use std::sync::{Arc, Mutex};

use super::buffer::{self, Options, StorageMode};
use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::{labels, memory};
use crate::faults::{self, Fault};
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Id, Method, Strong, This, class, give, lend, methods, none};
use crate::problem::{Rule, refuse};

class!(static HEAP = c"MTLSoftHeap", &NS_OBJECT, all, none);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLHeapDescriptor", [c"storageMode" = 2],
    c"size" c"setSize:" usize;
    c"storageMode" c"setStorageMode:" usize;
    c"cpuCacheMode" c"setCpuCacheMode:" usize;
    c"hazardTrackingMode" c"setHazardTrackingMode:" usize;
    c"resourceOptions" c"setResourceOptions:" usize;
    c"type" c"setType:" isize;
);

const ALIGNMENT: usize = 256;

struct Heap {
    device: This<Device>,
    memory: Arc<softmetal::Buffer>,
    storage: usize,
    /// Pieces that are in use, by their start.
    taken: Arc<Mutex<Vec<(usize, usize)>>>,
}

/// `newHeapWithDescriptor:`.
pub(crate) fn new(device: &This<Device>, descriptor: Id) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    let size = properties.number(c"size");
    if size == 0 {
        refuse(Rule::Descriptor, "a heap of 0 bytes: Metal asserts that it has some".to_owned());
    }
    if faults::strikes(Fault::Allocation) {
        return None;
    }
    let memory = Arc::new(memory::new(size)?);
    let storage = properties.number(c"storageMode");
    Some(Strong::new(&HEAP, Heap { device: device.again(), memory, storage, taken: Arc::default() }))
}

impl Heap {
    /// The first place where so many bytes are free.
    fn place(&self, length: usize) -> Option<usize> {
        let mut taken = lock(&self.taken);
        taken.sort_unstable();
        let mut start = 0usize;
        for (used, len) in taken.iter() {
            if start + length <= *used {
                break;
            }
            start = start.max((used + len).next_multiple_of(ALIGNMENT));
        }
        if start + length > self.memory.len() {
            return None;
        }
        taken.push((start, length));
        Some(start)
    }

    fn buffer(&self, heap: Id, length: usize, options: usize) -> Option<Strong> {
        let storage = Options::of(options).storage;
        if storage != StorageMode::of(self.storage) {
            refuse(
                Rule::StorageMode,
                format!(
                    "a {storage:?} buffer in a {:?} heap: Metal asserts that they agree",
                    StorageMode::of(self.storage)
                ),
            );
        }
        let offset = self.place(length)?;
        let piece = Piece { _memory: self.memory.clone(), taken: self.taken.clone(), offset };
        let memory = memory::part(&self.memory, offset, length, Arc::new(piece))?;
        Some(buffer::in_heap(&self.device, Strong::retained(heap)?, memory, offset, options))
    }
}

/// A piece of a heap while a buffer has it.
struct Piece {
    _memory: Arc<softmetal::Buffer>,
    taken: Arc<Mutex<Vec<(usize, usize)>>>,
    offset: usize,
}

impl Drop for Piece {
    fn drop(&mut self) {
        lock(&self.taken).retain(|(start, _)| *start != self.offset);
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { Heap;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"size"(this) -> usize { this.memory.len() }
        c"usedSize"(this) -> usize { lock(&this.taken).iter().map(|(_, len)| len).sum() }
        c"currentAllocatedSize"(this) -> usize { this.memory.len() }
        c"storageMode"(this) -> usize { this.storage }
        c"hazardTrackingMode"(_) -> usize { 1 }
        c"type"(_) -> isize { 0 }
        c"maxAvailableSizeWithAlignment:"(this, _alignment: usize) -> usize {
            let used: usize = lock(&this.taken).iter().map(|(_, len)| len).sum();
            this.memory.len() - used.min(this.memory.len())
        }
        c"newBufferWithLength:options:"(this, length: usize, options: usize) -> Id {
            give(this.buffer(this.id, length, options))
        }
    };
    all.extend(labels());
    all
}
