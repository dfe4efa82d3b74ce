//! The runtime by its symbols, as objc2 reaches it, and small enough for an interpreter that watches every access
//! (`cargo xtask soundness`).

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::class::ClassRef;
use super::*;
use crate::foundation::NS_OBJECT;

// Of what it points to nothing is said to whoever calls.
#[allow(improper_ctypes)]
unsafe extern "C-unwind" {
    fn objc_getClass(name: *const c_char) -> Id;
    fn sel_registerName(name: *const c_char) -> Sel;
    fn objc_msg_lookup(receiver: Id, sel: Sel) -> *const c_void;
    fn objc_retain(object: Id) -> Id;
    fn objc_release(object: Id);
    fn objc_autorelease(object: Id) -> Id;
    fn objc_retainAutoreleasedReturnValue(object: Id) -> Id;
    fn objc_autoreleasePoolPush() -> *mut c_void;
    fn objc_autoreleasePoolPop(pool: *mut c_void);
    fn _Block_copy(block: *const c_void) -> *mut c_void;
    fn _Block_release(block: *const c_void);
}

/// Sends a message with these types.
macro_rules! send {
    ($receiver:expr, $sel:literal $(, $arg:expr => $type:ty)*; $returns:ty) => {{
        let receiver: Id = $receiver;
        // SAFETY: the method of this name has these types, which `encode` derives from its function.
        unsafe {
            let sel = sel_registerName($sel.as_ptr());
            let found = objc_msg_lookup(receiver, sel);
            let imp: extern "C-unwind" fn(Id, Sel $(, $type)*) -> $returns = std::mem::transmute(found);
            imp(receiver, sel $(, $arg)*)
        }
    }};
}

fn class_named(name: &CStr) -> Id {
    // SAFETY: the text ends in 0.
    unsafe { objc_getClass(name.as_ptr()) }
}

/// What an object holds, and how often one was dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counted() -> (Strong, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    (Strong::new(&NS_OBJECT, Counted(dropped.clone())), dropped)
}

fn message(panic: Box<dyn Any + Send>) -> String {
    panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text)
}

#[test]
fn messages_reach_classes_and_objects_through_the_symbols_of_the_runtime() {
    let text = "seven and one";
    let class = class_named(c"NSString");
    assert!(class_named(c"NSNoSuchClass").is_null());
    let object = send!(class, c"alloc"; Id);
    let object = send!(
        object, c"initWithBytes:length:encoding:",
        InBytes::of(text.as_bytes()) => InBytes, text.len() => usize, 4 => usize; Id
    );
    assert_eq!(send!(object, c"length"; usize), text.len());
    let ended = send!(object, c"UTF8String"; *const c_char);
    // SAFETY: the text ends in 0 and lives as long as its object.
    assert_eq!(unsafe { CStr::from_ptr(ended) }.to_str(), Ok(text));
    assert!(send!(object, c"isEqual:", object => Id; bool));
    let own = send!(object, c"class"; ClassRef);
    assert!(std::ptr::eq(own.0.cast(), class.as_ptr()));
    assert!(
        send!(object, c"isKindOfClass:", ClassRef::of_receiver(class_named(c"NSObject")) => ClassRef; bool)
    );
    assert!(
        !send!(object, c"isKindOfClass:", ClassRef::of_receiver(class_named(c"NSArray")) => ClassRef; bool)
    );
    let unknown = catch_unwind(|| send!(object, c"fly"; Id)).map(drop).map_err(message);
    assert!(unknown.clone().is_err_and(|text| text.contains("does not answer `fly`")), "{unknown:?}");
    // SAFETY: the reference is this test's own.
    unsafe { objc_release(object) };
}

#[test]
fn the_last_release_drops_what_an_object_holds_and_leaves_a_gravestone() {
    let (object, dropped) = counted();
    let id = object.id();
    // SAFETY: the object lives.
    let again = unsafe { objc_retain(id) };
    drop(object);
    assert_eq!((again.retain_count(), dropped.load(Ordering::Relaxed)), (1, 0));
    // SAFETY: the reference was taken above.
    unsafe { objc_release(id) };
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(id.is_gone());
    // SAFETY: gravestones are never freed: what uses one is told.
    let late = [
        catch_unwind(|| unsafe { objc_release(id) }),
        catch_unwind(|| {
            // SAFETY: as above.
            unsafe { objc_retain(id) };
        }),
        catch_unwind(|| {
            send!(id, c"hash"; usize);
        }),
    ];
    let late = late.map(|refused| refused.map_err(message).err().unwrap_or_default());
    for (text, rule) in late.iter().zip(["OverRelease", "UseAfterRelease", "UseAfterRelease"]) {
        assert!(text.contains(rule), "{text}");
    }
}

#[test]
fn references_are_counted_by_many_threads_at_once() {
    let (object, dropped) = counted();
    let times = if cfg!(miri) { 20 } else { 2000 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let own = object.clone();
            scope.spawn(move || {
                for _ in 0..times {
                    let borrowed = own.id().this::<Counted>();
                    let held = Strong::retained(borrowed.id);
                    drop((borrowed, held));
                }
            });
        }
    });
    assert_eq!((object.id().retain_count(), dropped.load(Ordering::Relaxed)), (1, 0));
    drop(object);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn pools_end_what_was_put_into_them_and_nothing_else() {
    let (outer, inner, returned) = (counted(), counted(), counted());
    let gone = || [&outer.1, &inner.1, &returned.1].map(|dropped| dropped.load(Ordering::Relaxed));
    // SAFETY: pools are ended in the order in which they were begun, and each reference is given up once.
    unsafe {
        let first = objc_autoreleasePoolPush();
        objc_autorelease(outer.0.give());
        let second = objc_autoreleasePoolPush();
        objc_autorelease(inner.0.give());
        // Taken at once, so it reaches no pool.
        let taken = objc_retainAutoreleasedReturnValue(returned.0.lend());
        objc_autoreleasePoolPop(second);
        assert_eq!(gone(), [0, 1, 0]);
        objc_autoreleasePoolPop(first);
        assert_eq!(gone(), [1, 1, 0]);
        objc_release(taken);
    }
    assert_eq!(gone(), [1, 1, 1]);
}

/// A block that captured a reference, laid out as a compiler does.
#[repr(C)]
struct Literal {
    isa: *const c_void,
    flags: c_int,
    reserved: c_int,
    invoke: extern "C-unwind" fn(*mut Literal, Id, u64),
    descriptor: &'static Descriptor,
    captured: *const AtomicUsize,
}

#[repr(C)]
struct Descriptor {
    reserved: c_ulong,
    size: c_ulong,
    copy: extern "C-unwind" fn(*mut Literal, *const Literal),
    dispose: extern "C-unwind" fn(*mut Literal),
}

static DESCRIPTOR: Descriptor =
    Descriptor { reserved: 0, size: size_of::<Literal>() as c_ulong, copy, dispose };

extern "C-unwind" fn copy(to: *mut Literal, _: *const Literal) {
    // SAFETY: the bytes were copied before; one more copy shares what was captured.
    unsafe { Arc::increment_strong_count((*to).captured) };
}

extern "C-unwind" fn dispose(block: *mut Literal) {
    // SAFETY: the reference that `copy` took.
    unsafe { Arc::decrement_strong_count((*block).captured) };
}

extern "C-unwind" fn invoke(block: *mut Literal, _: Id, value: u64) {
    // SAFETY: whoever calls a block holds it, and so what it captured.
    let sum = unsafe { &*(*block).captured };
    sum.fetch_add(usize::try_from(value).unwrap_or(0), Ordering::Relaxed);
}

fn literal(captured: &Arc<AtomicUsize>) -> Literal {
    const HAS_COPY_DISPOSE: c_int = 1 << 25;
    let captured = Arc::as_ptr(captured);
    let isa = std::ptr::null();
    Literal { isa, flags: HAS_COPY_DISPOSE, reserved: 0, invoke, descriptor: &DESCRIPTOR, captured }
}

#[test]
fn blocks_live_as_long_as_their_copies_and_may_be_called_on_other_threads() {
    let sum = Arc::new(AtomicUsize::new(0));
    let block = {
        let on_stack = literal(&sum);
        args::BlockArg(std::ptr::from_ref(&on_stack).cast()).copy().expect("memory")
    };
    assert_eq!(Arc::strong_count(&sum), 2);
    std::thread::scope(|scope| {
        for value in 1..=3 {
            let block = &block;
            scope.spawn(move || block.call_value(Id::NULL, value));
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), 6);
    drop(block);
    assert_eq!(Arc::strong_count(&sum), 1, "what it captured is dropped with it");
}

#[test]
fn a_block_is_copied_once_and_counted_then() {
    let captured = Arc::new(AtomicUsize::new(0));
    let on_stack = literal(&captured);
    // SAFETY: a block as a compiler makes one; the copies are released as often as they were made, and once more, which
    // must be refused: what is left of a block is never freed.
    unsafe {
        let copy = _Block_copy(std::ptr::from_ref(&on_stack).cast());
        assert_eq!(_Block_copy(copy), copy);
        assert_eq!(Arc::strong_count(&captured), 2);
        _Block_release(copy);
        _Block_release(copy);
        assert_eq!(Arc::strong_count(&captured), 1);
        let late = catch_unwind(AssertUnwindSafe(|| _Block_release(copy))).map_err(message);
        assert!(late.clone().is_err_and(|text| text.contains("OverRelease")), "{late:?}");
        assert!(_Block_copy(std::ptr::null()).is_null());
    }
}

#[test]
fn arguments_are_read_and_written_where_they_lie() {
    let bytes = [1u8, 2, 3, 4];
    assert_eq!(InBytes::of(&bytes).after(1).copy(3), [2, 3, 4]);
    assert!(InBytes::of(&bytes).copy(0).is_empty());
    let (first, second) = (counted().0, counted().0);
    let mut places = [Id::NULL; 2];
    let at = places.as_mut_ptr();
    // SAFETY: as wide as a pointer, which is all that these are; two objects have room.
    let out = unsafe { std::mem::transmute::<*mut Id, OutObject>(at) };
    // SAFETY: as above.
    let objects = unsafe { std::mem::transmute::<*mut Id, InObjects>(at) };
    out.put_at(1, second.id());
    // SAFETY: pools are ended in the order in which they were begun.
    let pool = unsafe { objc_autoreleasePoolPush() };
    out.put(first.clone());
    assert_eq!(objects.copy(2), [first.id(), second.id()]);
    // SAFETY: as above.
    unsafe { objc_autoreleasePoolPop(pool) };
    let mut room = [0u8; 4];
    // SAFETY: as wide as a pointer, to four bytes.
    let out: OutBytes = unsafe { std::mem::transmute(room.as_mut_ptr()) };
    out.after(1).fill(&[7, 8]);
    assert_eq!(room, [0, 7, 8, 0]);
    let numbers = [3usize, 5];
    // SAFETY: as wide as a pointer, to two numbers.
    let read: InNumbers = unsafe { std::mem::transmute(numbers.as_ptr()) };
    assert_eq!(read.copy(2), numbers);
}
