//! `NSObject`, which everything inherits.

use std::ffi::CStr;

use super::string::string;
use crate::objc::{Class, ClassRef, Id, Method, Sel, raw_methods};

/// Its metaclass, which is the class of all metaclasses.
pub(crate) static ROOT_META: Class = Class::meta(&NS_OBJECT, NAME, &ROOT_META, own);
pub(crate) static NS_OBJECT: Class = Class::new(NAME, None, &ROOT_META, methods);

const NAME: &CStr = c"NSObject";

fn methods() -> Vec<Method> {
    raw_methods! {
        c"init"(this) -> Id { this }
        c"self"(this) -> Id { this }
        c"retain"(this) -> Id { this.retain(); this }
        c"release"(this) { this.release(); }
        c"retainCount"(this) -> usize { this.retain_count() }
        c"copy"(this) -> Id { this.retain(); this }
        c"class"(this) -> ClassRef { ClassRef(this.class().map_or(std::ptr::null(), std::ptr::from_ref)) }
        c"hash"(this) -> usize { this.as_ptr() as usize }
        c"isEqual:"(this, other: Id) -> bool { this == other }
        c"isKindOfClass:"(this, class: ClassRef) -> bool {
            this.class().zip(class.get()).is_some_and(|(own, asked)| own.inherits(asked))
        }
        c"isProxy"(_) -> bool { false }
        c"respondsToSelector:"(this, sel: Sel) -> bool {
            this.class().is_some_and(|class| class.method(sel).is_some())
        }
        c"description"(this) -> Id { string(&this.describe()).lend() }
        c"debugDescription"(this) -> Id { string(&this.describe()).lend() }
    }
}

fn own() -> Vec<Method> {
    raw_methods! {
        c"alloc"(this) -> Id { alloc(this) }
        c"new"(this) -> Id { send_init(alloc(this)) }
        c"class"(this) -> ClassRef { ClassRef::of_receiver(this) }
    }
}

fn alloc(class: Id) -> Id {
    ClassRef::of_receiver(class).get().map_or(Id::NULL, |class| Id::alloc(class, super::is_traced(class)))
}

/// `init` of the object's own class.
fn send_init(object: Id) -> Id {
    let init = object.class().and_then(|class| class.method(Sel::of(c"init")));
    init.map_or(object, |method| crate::objc::call_init(method, object))
}
