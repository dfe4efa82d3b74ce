//! Objects and their reference counts. The memory of an object is never given back: what is left of a released one is
//! a gravestone, which says what it was when it is used.

use std::any::Any;
use std::backtrace::Backtrace;
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::class::Class;
use super::pool;
use super::sel::Sel;
use crate::lock;
use crate::problem::{Rule, refuse};

/// What an object holds.
pub(crate) type Payload = Arc<dyn Any + Send + Sync>;

/// The count of objects that are never released.
const FOREVER: isize = isize::MIN / 2;

/// An object. The first field is that of classes.
#[repr(C)]
pub(crate) struct Object {
    isa: &'static Class,
    /// 0: released.
    count: AtomicIsize,
    /// Command buffers under way that use it without holding it.
    borrowed: AtomicUsize,
    payload: Mutex<Option<Payload>>,
    /// Makes the payload of a constant when it is first used.
    constant: Option<fn() -> Payload>,
    /// Where it was made, where that is worth its time.
    origin: OnceLock<Backtrace>,
    label: Mutex<Option<String>>,
}

impl Object {
    const fn new(isa: &'static Class, count: isize, constant: Option<fn() -> Payload>) -> Object {
        Object {
            isa,
            count: AtomicIsize::new(count),
            borrowed: AtomicUsize::new(0),
            payload: Mutex::new(None),
            constant,
            origin: OnceLock::new(),
            label: Mutex::new(None),
        }
    }

    /// An object of the framework that is always there.
    pub(crate) const fn constant(isa: &'static Class, make: fn() -> Payload) -> Object {
        Object::new(isa, FOREVER, Some(make))
    }

    fn is_gone(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn payload(&self) -> Option<Payload> {
        let mut payload = lock(&self.payload);
        if payload.is_none() {
            *payload = self.constant.map(|make| make());
        }
        payload.clone()
    }
}

/// Those that are alive and counted.
fn living() -> &'static Mutex<HashSet<Id>> {
    static LIVING: OnceLock<Mutex<HashSet<Id>>> = OnceLock::new();
    LIVING.get_or_init(Mutex::default)
}

/// A pointer to an object or to a class, or null.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id(*const Object);

// SAFETY: what it points to is never freed, and everything in it is atomic, behind a lock or constant.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    pub(crate) const NULL: Id = Id(std::ptr::null());

    pub(crate) const fn of(object: &'static Object) -> Id {
        Id(object)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn as_ptr(self) -> *const Object {
        self.0
    }

    /// The class that answers for the receiver.
    pub(crate) fn class(self) -> Option<&'static Class> {
        if self.is_null() {
            return None;
        }
        // SAFETY: a caller has addresses of objects and classes from us alone; both begin with this field and are
        // never freed.
        Some(unsafe { *self.0.cast::<&'static Class>() })
    }

    /// The object; nothing for null and for classes.
    pub(crate) fn get(self) -> Option<&'static Object> {
        self.class().filter(|class| !class.is_meta())?;
        // SAFETY: not null and no class (above), so it is one of our objects, which are never freed.
        unsafe { self.0.as_ref() }
    }

    /// Whether it was released for the last time.
    pub(crate) fn is_gone(self) -> bool {
        self.get().is_some_and(Object::is_gone)
    }

    /// What an object is called in messages.
    pub(crate) fn describe(self) -> String {
        match self.class() {
            None => "nil".to_owned(),
            Some(class) => {
                let label = self.label().filter(|label| !label.is_empty());
                let label = label.map(|label| format!(" \"{label}\"")).unwrap_or_default();
                format!("{class:?} {:p}{label}", self.0)
            }
        }
    }

    pub(crate) fn label(self) -> Option<String> {
        lock(&self.get()?.label).clone()
    }

    pub(crate) fn set_label(self, label: Option<String>) {
        if let Some(object) = self.get() {
            *lock(&object.label) = label;
        }
    }

    /// Where it was made.
    pub(crate) fn origin(self) -> Option<String> {
        // The long form: its paths are whole.
        let trace = format!("{:#}", self.get()?.origin.get()?);
        // Not this crate, nor the bindings, nor the standard library.
        let inner = ["softmetal-framework/src/", "/objc2", "/block2", "/rustc/", "/library/"];
        let lines: Vec<&str> = trace.lines().collect();
        // A frame has a line for its function, behind its address, and one for its place where that is known.
        let caller = lines.windows(2).find(|frame| {
            let place = frame[1].trim_start();
            place.starts_with("at ") && !inner.iter().any(|part| place.contains(part))
        })?;
        let function = caller[0].rsplit(" - ").next().unwrap_or_default();
        Some(format!("{} {}", function.trim(), caller[1].trim()))
    }

    /// What it holds, if it is a `T`.
    pub(crate) fn try_this<T: Any + Send + Sync>(self) -> Option<This<T>> {
        let payload = self.get()?.payload()?.downcast::<T>().ok()?;
        Some(This { id: self, payload })
    }

    /// What it must hold.
    ///
    /// # Panics
    /// If it is released, not initialised or of another class: an Objective-C program would crash here.
    pub(crate) fn this<T: Any + Send + Sync>(self) -> This<T> {
        if let Some(this) = self.try_this::<T>() {
            return this;
        }
        if self.is_gone() {
            refuse(
                Rule::UseAfterRelease,
                format!("{} is used after its last release{}", self.describe(), made(self)),
            );
        }
        refuse(
            Rule::WrongObject,
            format!("{} is no {}, or was never initialised", self.describe(), std::any::type_name::<T>()),
        );
        panic!("{} is no {}", self.describe(), std::any::type_name::<T>());
    }

    /// Fills an object that `alloc` made.
    pub(crate) fn initialise<T: Any + Send + Sync>(self, value: T) -> Id {
        if let Some(object) = self.get() {
            *lock(&object.payload) = Some(Arc::new(value));
        }
        self
    }

    pub(crate) fn retain(self) {
        let Some(object) = self.get() else { return };
        if object.count.load(Ordering::Relaxed) <= FOREVER / 2 {
            return;
        }
        if object.count.fetch_add(1, Ordering::Relaxed) <= 0 {
            object.count.fetch_sub(1, Ordering::Relaxed);
            refuse(
                Rule::UseAfterRelease,
                format!("{} is retained after its last release{}", self.describe(), made(self)),
            );
        }
    }

    pub(crate) fn release(self) {
        let Some(object) = self.get() else { return };
        if object.count.load(Ordering::Relaxed) <= FOREVER / 2 {
            return;
        }
        match object.count.fetch_sub(1, Ordering::AcqRel) {
            1 => self.end(object),
            count if count <= 0 => {
                object.count.fetch_add(1, Ordering::Relaxed);
                refuse(
                    Rule::OverRelease,
                    format!("{} is released more often than it was retained{}", self.describe(), made(self)),
                );
            }
            _ => {}
        }
    }

    fn end(self, object: &Object) {
        lock(living()).remove(&self);
        let users = object.borrowed.load(Ordering::Acquire);
        if users > 0 {
            refuse(
                Rule::ReleasedInFlight,
                format!(
                    "{} is released for the last time while {users} command buffers without references use it: \
                     the GPU would read memory that is given back{}",
                    self.describe(),
                    made(self)
                ),
            );
        }
        let payload = lock(&object.payload).take();
        drop(payload);
    }

    /// A command buffer without references begins (or ends) to use it.
    pub(crate) fn borrow(self) {
        if let Some(object) = self.get() {
            object.borrowed.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn give_back(self) {
        if let Some(object) = self.get() {
            object.borrowed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn retain_count(self) -> usize {
        self.get()
            .map_or(1, |object| usize::try_from(object.count.load(Ordering::Relaxed)).unwrap_or(usize::MAX))
    }

    /// Makes an object of a class that has no payload yet, with one reference.
    pub(crate) fn alloc(class: &'static Class, traced: bool) -> Id {
        let object: &'static Object = Box::leak(Box::new(Object::new(class, 1, None)));
        if traced {
            // Resolved only when it is shown.
            let _ = object.origin.set(Backtrace::force_capture());
        }
        let id = Id(object);
        lock(living()).insert(id);
        id
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

fn made(id: Id) -> String {
    id.origin().map(|place| format!("; it was made by {place}")).unwrap_or_default()
}

/// An object's payload, and which object it is.
pub(crate) struct This<T> {
    pub(crate) id: Id,
    payload: Arc<T>,
}

impl<T> This<T> {
    /// The same once more.
    pub(crate) fn again(&self) -> This<T> {
        This { id: self.id, payload: self.payload.clone() }
    }

    /// What the object holds, also after its release.
    pub(crate) fn share(&self) -> Arc<T> {
        self.payload.clone()
    }
}

impl<T> Deref for This<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.payload
    }
}

/// A reference that counts.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Strong(Id);

impl Strong {
    /// A new object.
    pub(crate) fn new<T: Any + Send + Sync>(class: &'static Class, value: T) -> Strong {
        Strong(Id::alloc(class, crate::foundation::is_traced(class)).initialise(value))
    }

    /// A reference of one's own; nothing for null.
    pub(crate) fn retained(id: Id) -> Option<Strong> {
        if id.is_null() {
            return None;
        }
        id.retain();
        Some(Strong(id))
    }

    pub(crate) fn id(&self) -> Id {
        self.0
    }

    /// Hands the reference to the caller: for methods whose names begin with `new`, `alloc`, `init` or `copy`.
    pub(crate) fn give(self) -> Id {
        let id = self.0;
        std::mem::forget(self);
        id
    }

    /// Lends the object for as long as the caller's pool: for all other methods.
    pub(crate) fn lend(self) -> Id {
        pool::return_value(self)
    }
}

/// `give` of what may be missing.
pub(crate) fn give(object: Option<Strong>) -> Id {
    object.map_or(Id::NULL, Strong::give)
}

/// `lend` of what may be missing.
pub(crate) fn lend(object: Option<Strong>) -> Id {
    object.map_or(Id::NULL, Strong::lend)
}

impl Clone for Strong {
    fn clone(&self) -> Strong {
        self.0.retain();
        Strong(self.0)
    }
}

impl Drop for Strong {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl fmt::Debug for Strong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Objects that are alive and whose class is counted, in no order.
pub(crate) fn alive() -> Vec<Id> {
    lock(living()).iter().copied().collect()
}

/// What answers messages that nobody should send: nothing happens, and 0 comes back.
pub(crate) extern "C-unwind" fn nothing(_: Id, _: Sel) -> usize {
    0
}
