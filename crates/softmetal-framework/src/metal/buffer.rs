//! `MTLBuffer`.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::device::Device;
use super::{heap, labels, memory, reach, texture};
use crate::faults::{self, Fault};
use crate::foundation::NS_OBJECT;
use crate::objc::{
    Block, BlockArg, Id, InBytes, Method, NsRange, OutBytes, Strong, This, class, give, lend, methods, none,
};
use crate::problem::{Rule, refuse};

class!(pub(crate) static BUFFER = c"MTLSoftBuffer", &NS_OBJECT, all, none);

/// Where memory lies, by the numbers of `MTLStorageMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorageMode {
    Shared = 0,
    Managed = 1,
    Private = 2,
    Memoryless = 3,
}

impl StorageMode {
    pub(crate) fn of(number: usize) -> StorageMode {
        match number {
            0 => StorageMode::Shared,
            1 => StorageMode::Managed,
            2 => StorageMode::Private,
            _ => StorageMode::Memoryless,
        }
    }
}

/// `MTLResourceOptions`, taken apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) bits: usize,
    pub(crate) storage: StorageMode,
    /// 0: the default of what makes it, 1: untracked, 2: tracked.
    pub(crate) tracking: usize,
}

impl Options {
    pub(crate) fn of(bits: usize) -> Options {
        if bits & !0x3FF != 0 || bits & 0xF > 1 || bits >> 4 & 0xF > 3 || bits >> 8 & 3 == 3 {
            refuse(
                Rule::Descriptor,
                format!("{bits:#x} are no MTLResourceOptions: Metal asserts that they are valid"),
            );
        }
        Options { bits, storage: StorageMode::of(bits >> 4 & 0xF), tracking: bits >> 8 & 3 }
    }
}

/// What an `MTLBuffer` holds.
pub(crate) struct Buffer {
    pub(crate) device: This<Device>,
    pub(crate) memory: Arc<softmetal::Buffer>,
    options: Options,
    pub(crate) tracked: bool,
    /// The heap it is from, and where in it.
    heap: Option<(Strong, usize)>,
    /// Bytes that count as its device's, where they are its own.
    counted: u64,
    purgeable: AtomicUsize,
    /// Who used it, for resources that Metal does not track.
    pub(crate) uses: super::untracked::Uses,
}

impl Buffer {
    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// The heap it is from.
    pub(crate) fn heap(&self) -> Option<Id> {
        self.heap.as_ref().map(|(heap, _)| heap.id())
    }

    pub(crate) fn storage(&self) -> StorageMode {
        self.options.storage
    }

    fn contents(&self, id: Id) -> *mut c_void {
        if matches!(self.storage(), StorageMode::Private | StorageMode::Memoryless) {
            refuse(
                Rule::StorageMode,
                format!(
                    "contents of {}, whose storage mode is {:?}: Metal returns NULL, which objc2 takes for an address",
                    id.describe(),
                    self.storage()
                ),
            );
        }
        std::ptr::with_exposed_provenance_mut(self.memory.address())
    }

    fn modified(&self, id: Id, range: NsRange) {
        if self.storage() != StorageMode::Managed {
            refuse(
                Rule::StorageMode,
                format!(
                    "didModifyRange: of {}, which is not managed: Metal asserts that it is",
                    id.describe()
                ),
            );
        }
        if range.end().is_none_or(|end| end > self.len()) {
            refuse(
                Rule::Range,
                format!("didModifyRange: {range:?} of {} with {} bytes", id.describe(), self.len()),
            );
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.allocated.fetch_sub(self.counted, Ordering::Relaxed);
        reach::forget(self);
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { Buffer;
        c"length"(this) -> usize { this.len() }
        c"contents"(this) -> *mut c_void { this.contents(this.id) }
        c"didModifyRange:"(this, range: NsRange) { this.modified(this.id, range); }
        c"newTextureWithDescriptor:offset:bytesPerRow:"(this, descriptor: Id, offset: usize, row: usize) -> Id {
            give(texture::of_buffer(&this, descriptor, offset, row))
        }
        c"gpuAddress"(this) -> u64 { reach::address_of(&this) }
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"storageMode"(this) -> usize { this.storage() as usize }
        c"cpuCacheMode"(this) -> usize { this.options.bits & 0xF }
        c"hazardTrackingMode"(this) -> usize { if this.tracked { 2 } else { 1 } }
        c"resourceOptions"(this) -> usize { this.options.bits }
        c"allocatedSize"(this) -> usize { this.len().next_multiple_of(16 << 10) }
        c"heap"(this) -> Id { lend(this.heap.as_ref().map(|(heap, _)| heap.clone())) }
        c"heapOffset"(this) -> usize { this.heap.as_ref().map_or(0, |(_, offset)| *offset) }
        c"isAliasable"(_) -> bool { false }
        c"addDebugMarker:range:"(_, _marker: Id, _range: NsRange) { }
        c"removeAllDebugMarkers"(_) { }
        c"setPurgeableState:"(this, state: usize) -> usize {
            // 1 asks, 2 is not volatile, 3 volatile, 4 empty.
            let old = this.purgeable.load(Ordering::Relaxed);
            if state != 1 { this.purgeable.store(state, Ordering::Relaxed); }
            old
        }
    };
    all.extend(labels());
    all
}

fn make(
    device: &This<Device>,
    memory: softmetal::Buffer,
    options: Options,
    heap: Option<(Strong, usize)>,
) -> Strong {
    let own = heap.is_none();
    let counted = if own { memory.len() as u64 } else { 0 };
    device.allocated.fetch_add(counted, Ordering::Relaxed);
    // Devices track by default, heaps as they were told to.
    let tracked = match options.tracking {
        0 => heap.as_ref().is_none_or(|(heap, _)| heap::tracks(heap.id())),
        tracking => tracking == 2,
    };
    let buffer = Buffer {
        device: device.again(),
        memory: Arc::new(memory),
        options,
        tracked,
        heap,
        counted,
        purgeable: AtomicUsize::new(2),
        uses: super::untracked::Uses::default(),
    };
    Strong::new(&BUFFER, buffer)
}

/// Whether the device makes a buffer of that length; what breaks Metal's rules is refused.
pub(crate) fn allowed(device: &Device, length: usize) -> bool {
    if length == 0 {
        refuse(Rule::Range, "a buffer of 0 bytes: Metal asserts that a buffer has at least one".to_owned());
    }
    let most = device.profile.max_buffer;
    if length > most {
        refuse(
            Rule::Range,
            format!(
                "a buffer of {length} bytes: {} allows {most}, and Metal asserts it",
                device.profile.name
            ),
        );
    }
    !faults::strikes(Fault::Allocation)
}

/// `newBufferWithLength:options:`.
pub(crate) fn new(device: &This<Device>, length: usize, options: usize) -> Option<Strong> {
    let options = Options::of(options);
    if options.storage == StorageMode::Memoryless {
        refuse(Rule::StorageMode, "a buffer without memory: only textures can be memoryless".to_owned());
    }
    let memory = allowed(device, length).then(|| memory::new(length))??;
    Some(make(device, memory, options, None))
}

/// `newBufferWithBytes:length:options:`.
pub(crate) fn of_bytes(
    device: &This<Device>,
    bytes: InBytes,
    length: usize,
    options: usize,
) -> Option<Strong> {
    if matches!(Options::of(options).storage, StorageMode::Private | StorageMode::Memoryless) {
        refuse(
            Rule::StorageMode,
            "a buffer of the host's bytes that the host does not reach: Metal asserts shared or managed"
                .to_owned(),
        );
    }
    if bytes.is_null() {
        refuse(Rule::Range, "a buffer of the bytes at NULL: Metal asserts that there are some".to_owned());
    }
    let buffer = new(device, length, options)?;
    // As long as the buffer.
    let _ = buffer.id().this::<Buffer>().memory.write(0, &bytes.copy(length));
    Some(buffer)
}

/// Calls a program's deallocator when nothing uses its memory any more.
struct Lender {
    block: Option<Block>,
    address: usize,
    len: usize,
}

impl Drop for Lender {
    fn drop(&mut self) {
        if let Some(block) = &self.block {
            block.call_range(self.address, self.len);
        }
    }
}

/// `newBufferWithBytesNoCopy:length:options:deallocator:`.
pub(crate) fn of_pages(
    device: &This<Device>,
    pages: OutBytes,
    length: usize,
    options: usize,
    deallocator: BlockArg,
) -> Option<Strong> {
    const PAGE: usize = 4096;
    let (options, address) = (Options::of(options), pages.address());
    if options.storage != StorageMode::Shared && options.storage != StorageMode::Managed {
        refuse(
            Rule::StorageMode,
            "memory of the host as a private buffer: Metal asserts shared or managed".to_owned(),
        );
    }
    if address == 0 || !address.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
        refuse(
            Rule::Alignment,
            format!(
                "{length} bytes at {address:#x} without a copy: Metal takes whole pages alone, here of {PAGE} bytes"
            ),
        );
    }
    if !allowed(device, length) {
        return None;
    }
    let lender = Lender { block: deallocator.copy(), address, len: length };
    Some(make(device, memory::lent(address, length, Arc::new(lender)), options, None))
}

/// A buffer in a heap.
pub(crate) fn in_heap(
    device: &This<Device>,
    heap: Strong,
    memory: softmetal::Buffer,
    offset: usize,
    options: usize,
) -> Strong {
    make(device, memory, Options::of(options), Some((heap, offset)))
}
