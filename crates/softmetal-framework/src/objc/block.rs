//! Blocks: closures of C, on the stack until they are copied. The memory of a copy is never given back: what is left of a
//! released one is its count.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicI32, AtomicIsize, Ordering};

use super::args::BlockArg;
use super::object::Id;
use crate::problem::{Rule, refuse};

const NEEDS_FREE: c_int = 1 << 24;
const HAS_COPY_DISPOSE: c_int = 1 << 25;
const IS_GLOBAL: c_int = 1 << 28;

#[repr(C)]
struct Header {
    isa: *const c_void,
    flags: c_int,
    /// Of a block on the heap: references to it.
    count: AtomicI32,
    invoke: *const c_void,
    descriptor: *const Descriptor,
}

#[repr(C)]
struct Descriptor {
    _reserved: c_ulong,
    size: c_ulong,
    /// These two only with `HAS_COPY_DISPOSE`.
    copy: extern "C-unwind" fn(*mut c_void, *const c_void),
    dispose: extern "C-unwind" fn(*mut c_void),
}

/// A class of blocks, which nobody sends messages to.
#[repr(transparent)]
pub(crate) struct BlockClass(#[allow(dead_code, reason = "its address alone is used")] [usize; 32]);

#[unsafe(no_mangle)]
static _NSConcreteStackBlock: BlockClass = BlockClass([0; 32]);
#[unsafe(no_mangle)]
static _NSConcreteMallocBlock: BlockClass = BlockClass([0; 32]);
#[unsafe(no_mangle)]
static _NSConcreteGlobalBlock: BlockClass = BlockClass([0; 32]);

static ALIVE: AtomicIsize = AtomicIsize::new(0);

/// Blocks on the heap.
pub(crate) fn alive() -> isize {
    ALIVE.load(Ordering::Relaxed)
}

/// Flags of a block, read by themselves: a block on the stack, or a global one, may lie where nothing can be written, so that no
/// reference to a header with its count may be made of it.
fn flags(block: *const Header) -> Option<c_int> {
    // SAFETY: the caller of the runtime hands over a block or null.
    (!block.is_null()).then(|| unsafe { (&raw const (*block).flags).read() })
}

/// The references to a block on the heap.
///
/// # Safety
/// It is one that `_Block_copy` made; those are never freed.
unsafe fn references(block: *const Header) -> &'static AtomicI32 {
    // SAFETY: see above; what `malloc` gave can be written.
    unsafe { &(*block).count }
}

#[unsafe(export_name = "_Block_copy")]
extern "C-unwind" fn block_copy(block: *const c_void) -> *mut c_void {
    let header = block.cast::<Header>();
    let Some(flags) = flags(header) else { return std::ptr::null_mut() };
    if flags & IS_GLOBAL != 0 {
        return block.cast_mut();
    }
    if flags & NEEDS_FREE != 0 {
        // SAFETY: the flag says so.
        let references = unsafe { references(header) };
        if references.fetch_add(1, Ordering::Relaxed) <= 0 {
            references.fetch_sub(1, Ordering::Relaxed);
            refuse(Rule::UseAfterRelease, format!("block {block:p} is copied after its last release"));
        }
        return block.cast_mut();
    }
    // SAFETY: a block has a descriptor, which says how long it is; the copy is as long, and `copy` moves what the
    // block captured.
    unsafe {
        let descriptor = (&raw const (*header).descriptor).read();
        let size = (&raw const (*descriptor).size).read() as usize;
        let to = libc::malloc(size);
        if to.is_null() {
            return to;
        }
        std::ptr::copy_nonoverlapping(block.cast::<u8>(), to.cast::<u8>(), size);
        let copy = to.cast::<Header>();
        (*copy).isa = std::ptr::from_ref(&_NSConcreteMallocBlock).cast();
        (*copy).flags |= NEEDS_FREE;
        (*copy).count = AtomicI32::new(1);
        if flags & HAS_COPY_DISPOSE != 0 {
            ((*descriptor).copy)(to, block);
        }
        ALIVE.fetch_add(1, Ordering::Relaxed);
        to
    }
}

#[unsafe(export_name = "_Block_release")]
extern "C-unwind" fn block_release(block: *const c_void) {
    let header = block.cast::<Header>();
    let Some(flags) = flags(header).filter(|flags| flags & NEEDS_FREE != 0) else { return };
    // SAFETY: the flag says so.
    let references = unsafe { references(header) };
    match references.fetch_sub(1, Ordering::AcqRel) {
        1 => {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
            // The block itself stays, as objects do: whoever releases it once more must find its count.
            if flags & HAS_COPY_DISPOSE != 0 {
                // SAFETY: the last reference goes; `dispose` drops what the block captured.
                unsafe { ((*(*header).descriptor).dispose)(block.cast_mut()) };
            }
        }
        count if count <= 0 => {
            references.fetch_add(1, Ordering::Relaxed);
            refuse(Rule::OverRelease, format!("block {block:p} is released more often than it was copied"));
        }
        _ => {}
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn _Block_object_assign(to: *mut c_void, object: *const c_void, _flags: c_int) {
    // SAFETY: the helper of a block's copy passes the place of a captured object.
    unsafe { to.cast::<*const c_void>().write(object) };
}

#[unsafe(no_mangle)]
extern "C-unwind" fn _Block_object_dispose(_object: *const c_void, _flags: c_int) {}

/// A block that is held until it was called.
#[derive(Debug)]
pub(crate) struct Block(*mut c_void);

// SAFETY: who hands over a block that is called later says by that that any thread may call it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn copy_of(block: BlockArg) -> Option<Block> {
        Some(block_copy(block.0)).filter(|copy| !copy.is_null()).map(Block)
    }

    fn invoke(&self) -> *const c_void {
        // SAFETY: `self` holds the block.
        unsafe { (*self.0.cast::<Header>()).invoke }
    }

    /// Calls a block that takes an object.
    pub(crate) fn call(&self, object: Id) {
        // SAFETY: blocks that this is used for are of this type.
        let invoke: extern "C-unwind" fn(*mut c_void, Id) = unsafe { std::mem::transmute(self.invoke()) };
        invoke(self.0, object);
    }

    /// Calls a block that takes an address and a length.
    pub(crate) fn call_range(&self, address: usize, len: usize) {
        // SAFETY: blocks that this is used for are of this type.
        let invoke: extern "C-unwind" fn(*mut c_void, usize, usize) =
            unsafe { std::mem::transmute(self.invoke()) };
        invoke(self.0, address, len);
    }

    /// Calls a block that takes an object and a number.
    pub(crate) fn call_value(&self, object: Id, value: u64) {
        // SAFETY: blocks that this is used for are of this type.
        let invoke: extern "C-unwind" fn(*mut c_void, Id, u64) =
            unsafe { std::mem::transmute(self.invoke()) };
        invoke(self.0, object, value);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        block_release(self.0);
    }
}
