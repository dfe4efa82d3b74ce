//! The functions of the runtime by the names that objc2 links to.

use std::ffi::{CStr, c_char, c_uint, c_void};

use super::class::{Class, ClassRef, Method};
use super::object::{Id, Strong, nothing};
use super::pool;
use super::sel::Sel;
use crate::problem::{Rule, refuse};

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_registerName(name: *const c_char) -> Sel {
    // SAFETY: the caller passes a text that ends in 0.
    Sel::of(unsafe { CStr::from_ptr(name) })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_getName(sel: Sel) -> *const c_char {
    sel.as_ptr()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_isEqual(one: Sel, other: Sel) -> bool {
    one == other
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_getClass(name: *const c_char) -> *const Class {
    // SAFETY: the caller passes a text that ends in 0.
    let name = unsafe { CStr::from_ptr(name) };
    let all = crate::foundation::CLASSES.iter().chain(crate::metal::CLASSES).chain(crate::mps::CLASSES);
    let all = all.chain(crate::mps_graph::CLASSES);
    all.copied().find(|class| class.name() == name).map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The first thing that happens to a receiver in a debug build.
#[unsafe(no_mangle)]
extern "C-unwind" fn object_getClass(object: Id) -> *const Class {
    refuse_gone(object, "is sent a message");
    object.class().map_or(std::ptr::null(), std::ptr::from_ref)
}

fn refuse_gone(object: Id, what: &str) {
    if object.is_gone() {
        let made = object.origin().map(|place| format!("; it was made by {place}")).unwrap_or_default();
        refuse(Rule::UseAfterRelease, format!("{} {what} after its last release{made}", object.describe()));
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getName(class: ClassRef) -> *const c_char {
    class.get().map_or(std::ptr::null(), |class| class.name().as_ptr())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getSuperclass(class: ClassRef) -> *const Class {
    class.get().and_then(Class::superclass).map_or(std::ptr::null(), std::ptr::from_ref)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_isMetaClass(class: ClassRef) -> bool {
    class.get().is_some_and(Class::is_meta)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getInstanceMethod(class: ClassRef, sel: Sel) -> *const Method {
    class.get().and_then(|class| class.method(sel)).map_or(std::ptr::null(), std::ptr::from_ref)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getClassMethod(class: ClassRef, sel: Sel) -> *const Method {
    class.get().and_then(|class| class.isa.method(sel)).map_or(std::ptr::null(), std::ptr::from_ref)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_respondsToSelector(class: ClassRef, sel: Sel) -> bool {
    class.get().is_some_and(|class| class.method(sel).is_some())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn method_getName(method: &Method) -> Sel {
    method.sel
}

#[unsafe(no_mangle)]
extern "C-unwind" fn method_getTypeEncoding(method: &Method) -> *const c_char {
    method.types.as_ptr()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn method_getImplementation(method: &Method) -> *const c_void {
    method.imp
}

#[unsafe(no_mangle)]
extern "C-unwind" fn method_getNumberOfArguments(method: &Method) -> c_uint {
    2 + method.sel.name().matches(':').count() as c_uint
}

/// The function that answers a message.
#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: Id, sel: Sel) -> *const c_void {
    pool::settle();
    if receiver.is_gone() {
        refuse_gone(receiver, &format!("is sent `{}`", sel.name()));
        return nothing as *const c_void;
    }
    let Some(class) = receiver.class() else { return nothing as *const c_void };
    if let Some(method) = class.method(sel) {
        return method.imp;
    }
    refuse(Rule::NoMethod, format!("{} does not answer `{}`", receiver.describe(), sel.name()));
    nothing as *const c_void
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retain(object: Id) -> Id {
    pool::settle();
    object.retain();
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_release(object: Id) {
    pool::settle();
    object.release();
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(object: Id) -> Id {
    pool::settle();
    if let Some(own) = Strong::retained(object) {
        // The reference that is given up, in place of the one that was just taken.
        object.release();
        pool::add(own);
    }
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleaseReturnValue(object: Id) -> Id {
    objc_autorelease(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutorelease(object: Id) -> Id {
    objc_autorelease(objc_retain(object))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: Id) -> Id {
    pool::retain_returned(object);
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    std::ptr::without_provenance_mut(pool::push())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    pool::pop(pool.addr());
}

/// Protocols have no objects here: what a class answers is in its table.
#[unsafe(no_mangle)]
extern "C-unwind" fn objc_getProtocol(_name: *const c_char) -> *const c_void {
    std::ptr::null()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_conformsToProtocol(_class: ClassRef, _protocol: *const c_void) -> bool {
    false
}

/// The version of macOS that the framework stands for, as `major << 16 | minor << 8 | patch`.
#[unsafe(no_mangle)]
extern "C" fn softmetal_macos_version() -> u32 {
    crate::settings::macos_version()
}
