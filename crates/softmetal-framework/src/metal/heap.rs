//! `MTLHeap`: memory that buffers are cut from.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::buffer::{self, Options, StorageMode};
use super::descriptor::{Properties, properties};
use super::device::Device;
use super::{labels, memory};
use crate::faults::{self, Fault};
use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::objc::{Id, Method, Strong, This, class, give, lend, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(static HEAP = c"MTLSoftHeap", &NS_OBJECT, all, none);
class!(pub(crate) static DESCRIPTOR = c"MTLHeapDescriptor", &NS_OBJECT, described, none);

const ALIGNMENT: usize = 256;
/// `MTLHazardTrackingModeTracked`.
const TRACKED: usize = 2;

/// The three modes are one number as well, as `MTLResourceOptions` has them.
fn described() -> Vec<Method> {
    let mut all = properties! {
        c"size" c"setSize:" usize;
        c"storageMode" c"setStorageMode:" usize;
        c"cpuCacheMode" c"setCpuCacheMode:" usize;
        c"hazardTrackingMode" c"setHazardTrackingMode:" usize;
        c"type" c"setType:" isize;
    };
    all.extend(methods! { Properties;
        c"resourceOptions"(this) -> usize { options_of(&this) }
        c"setResourceOptions:"(this, bits: usize) {
            let options = Options::of(bits);
            this.set(c"storageMode", options.storage as usize);
            this.set(c"cpuCacheMode", options.bits & 0xF);
            this.set(c"hazardTrackingMode", options.tracking);
        }
    });
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(Properties::of(&[(c"storageMode", StorageMode::Private as usize)])) }
    });
    all
}

fn options_of(properties: &Properties) -> usize {
    let [cache, storage, tracking] =
        [c"cpuCacheMode", c"storageMode", c"hazardTrackingMode"].map(|mode| properties.number(mode));
    cache | storage << 4 | tracking << 8
}

struct Heap {
    device: This<Device>,
    memory: Arc<softmetal::Buffer>,
    options: Options,
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
    let kind = properties.number(c"type") as isize;
    if kind != 0 {
        refuse(
            Rule::Descriptor,
            format!("a heap of type {kind}: of MTLHeapType this framework has automatic ones alone, 0"),
        );
    }
    let options = Options::of(options_of(&properties));
    if faults::strikes(Fault::Allocation) {
        return None;
    }
    let memory = Arc::new(memory::new(size)?);
    device.allocated.fetch_add(size as u64, Ordering::Relaxed);
    Some(Strong::new(&HEAP, Heap { device: device.again(), memory, options, taken: Arc::default() }))
}

/// Refuses what is no heap of a device.
pub(crate) fn check(heap: Id, device: Id) {
    if heap.this::<Heap>().device.id != device {
        refuse(Rule::Device, format!("useHeap: {} is of another device than the encoder", heap.describe()));
    }
}

/// Whether Metal keeps commands in order that use a heap's buffers: only where it is told to.
pub(crate) fn tracks(heap: Id) -> bool {
    heap.this::<Heap>().options.tracking == TRACKED
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.device.allocated.fetch_sub(self.memory.len() as u64, Ordering::Relaxed);
    }
}

impl Heap {
    /// The first place where so many bytes are free.
    fn place(&self, length: usize) -> Option<usize> {
        let mut taken = lock(&self.taken);
        taken.sort_unstable();
        let mut start = 0usize;
        for (used, len) in taken.iter() {
            if start.checked_add(length).is_some_and(|end| end <= *used) {
                break;
            }
            start = start.max((used + len).next_multiple_of(ALIGNMENT));
        }
        start.checked_add(length).filter(|end| *end <= self.memory.len())?;
        taken.push((start, length));
        Some(start)
    }

    /// The bytes of the largest piece that is free and begins at a multiple of `alignment`.
    fn largest(&self, alignment: usize) -> usize {
        if !alignment.is_power_of_two() {
            refuse(
                Rule::Alignment,
                format!("maxAvailableSizeWithAlignment: {alignment}: Metal asserts a power of two"),
            );
        }
        let mut taken = lock(&self.taken).clone();
        taken.push((self.memory.len(), 0));
        taken.sort_unstable();
        let (mut free, mut most) = (0usize, 0);
        for (used, len) in taken {
            let start = free.checked_next_multiple_of(alignment.max(ALIGNMENT)).unwrap_or(usize::MAX);
            most = most.max(used.saturating_sub(start));
            free = free.max(used + len);
        }
        most
    }

    fn buffer(&self, heap: Id, length: usize, options: usize) -> Option<Strong> {
        let (asked, own) = (Options::of(options), self.options);
        if asked.storage != own.storage || asked.bits & 0xF != own.bits & 0xF {
            refuse(
                Rule::StorageMode,
                format!(
                    "a {:?} buffer of CPU cache mode {} in a {:?} heap of mode {}: Metal asserts that they agree",
                    asked.storage,
                    asked.bits & 0xF,
                    own.storage,
                    own.bits & 0xF
                ),
            );
        }
        if !buffer::allowed(&self.device, length) {
            return None;
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
        c"storageMode"(this) -> usize { this.options.storage as usize }
        c"cpuCacheMode"(this) -> usize { this.options.bits & 0xF }
        c"hazardTrackingMode"(this) -> usize { if this.options.tracking == TRACKED { TRACKED } else { 1 } }
        c"resourceOptions"(this) -> usize { this.options.bits }
        c"type"(_) -> isize { 0 }
        c"maxAvailableSizeWithAlignment:"(this, alignment: usize) -> usize { this.largest(alignment) }
        c"newBufferWithLength:options:"(this, length: usize, options: usize) -> Id {
            give(this.buffer(this.id, length, options))
        }
    };
    all.extend(labels());
    all
}
