//! Classes: tables of selector to function, with the types of each.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::sync::OnceLock;

use super::encode::Implementation;
use super::object::Id;
use super::sel::Sel;

/// One entry of a class's table.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) sel: Sel,
    pub(crate) types: CString,
    pub(crate) imp: *const c_void,
}

// SAFETY: `imp` is the address of a function, which stays where it is.
unsafe impl Send for Method {}
// SAFETY: as above.
unsafe impl Sync for Method {}

impl Method {
    pub(crate) fn new<F: Implementation>(name: &CStr, function: F) -> Method {
        let types = CString::new(F::types()).unwrap_or_default();
        Method { sel: Sel::of(name), types, imp: function.address() }
    }
}

/// A class, or the class of one. The first field is that of objects, so that both receive messages.
#[repr(C)]
pub(crate) struct Class {
    /// Of a class its metaclass, of a metaclass that of the root.
    pub(crate) isa: &'static Class,
    name: &'static CStr,
    superclass: Option<&'static Class>,
    /// Of a metaclass, the class that it is of.
    of: Option<&'static Class>,
    methods: fn() -> Vec<Method>,
    table: OnceLock<HashMap<Sel, Method>>,
}

impl Class {
    pub(crate) const fn new(
        name: &'static CStr,
        superclass: Option<&'static Class>,
        isa: &'static Class,
        methods: fn() -> Vec<Method>,
    ) -> Class {
        Class { isa, name, superclass, of: None, methods, table: OnceLock::new() }
    }

    pub(crate) const fn meta(
        of: &'static Class,
        name: &'static CStr,
        root: &'static Class,
        methods: fn() -> Vec<Method>,
    ) -> Class {
        Class { isa: root, name, superclass: None, of: Some(of), methods, table: OnceLock::new() }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    pub(crate) fn is_meta(&self) -> bool {
        self.of.is_some()
    }

    /// Of the root's metaclass it is the root itself.
    pub(crate) fn superclass(&self) -> Option<&'static Class> {
        match self.of {
            None => self.superclass,
            Some(class) => Some(class.superclass.map_or(class, |above| above.isa)),
        }
    }

    pub(crate) fn method(&self, sel: Sel) -> Option<&Method> {
        let table = self.table.get_or_init(|| (self.methods)().into_iter().map(|m| (m.sel, m)).collect());
        let own = table.get(&sel).filter(|_| crate::metal::system_knows(sel));
        own.or_else(|| self.superclass()?.method(sel))
    }

    pub(crate) fn inherits(&self, from: &Class) -> bool {
        std::ptr::eq(self, from) || self.superclass().is_some_and(|above| above.inherits(from))
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name.to_string_lossy(), if self.is_meta() { " class" } else { "" })
    }
}

/// A class as messages carry it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct ClassRef(pub(crate) *const Class);

impl ClassRef {
    pub(crate) fn get(self) -> Option<&'static Class> {
        // SAFETY: classes are statics; a caller has no other address of one than ours.
        unsafe { self.0.as_ref() }
    }

    /// The class that receives a message of classes.
    pub(crate) fn of_receiver(class: Id) -> ClassRef {
        ClassRef(class.as_ptr().cast())
    }
}

/// Defines a class: its name, what it inherits, the methods of its objects and its own.
macro_rules! class {
    ($vis:vis static $name:ident = $text:literal, $super:expr, $methods:expr, $own:expr) => {
        $vis static $name: $crate::objc::Class = {
            static META: $crate::objc::Class =
                $crate::objc::Class::meta(&$name, $text, &$crate::foundation::ROOT_META, $own);
            $crate::objc::Class::new($text, Some($super), &META, $methods)
        };
    };
}
pub(crate) use class;

/// Methods of objects that hold a `$payload`: a selector, the receiver, the arguments, what comes back.
macro_rules! methods {
    ($payload:ty; $($sel:literal ($this:pat_param $(, $arg:ident: $type:ty)*) $(-> $returns:ty)? $body:block)*) => {
        vec![$({
            extern "C-unwind" fn imp(
                object: $crate::objc::Id,
                _: $crate::objc::Sel
                $(, $arg: $type)*
            ) -> $crate::objc::returns!($($returns)?) {
                let $this = object.this::<$payload>();
                $body
            }
            $crate::objc::Method::new($sel, imp as extern "C-unwind" fn(
                $crate::objc::Id, $crate::objc::Sel $(, $type)*) -> $crate::objc::returns!($($returns)?))
        }),*]
    };
}
pub(crate) use methods;

/// Methods that know their receiver alone: of classes, and of objects that were not initialised yet.
macro_rules! raw_methods {
    ($($sel:literal ($this:pat_param $(, $arg:ident: $type:ty)*) $(-> $returns:ty)? $body:block)*) => {
        vec![$({
            extern "C-unwind" fn imp(
                $this: $crate::objc::Id,
                _: $crate::objc::Sel
                $(, $arg: $type)*
            ) -> $crate::objc::returns!($($returns)?) {
                $body
            }
            $crate::objc::Method::new($sel, imp as extern "C-unwind" fn(
                $crate::objc::Id, $crate::objc::Sel $(, $type)*) -> $crate::objc::returns!($($returns)?))
        }),*]
    };
}
pub(crate) use raw_methods;

macro_rules! returns {
    () => {
        ()
    };
    ($type:ty) => {
        $type
    };
}
pub(crate) use returns;

/// No methods of its own.
pub(crate) fn none() -> Vec<Method> {
    Vec::new()
}

/// Sends `init`.
pub(crate) fn call_init(init: &Method, object: Id) -> Id {
    // SAFETY: methods named `init` have this type.
    let imp: extern "C-unwind" fn(Id, Sel) -> Id = unsafe { std::mem::transmute(init.imp) };
    imp(object, init.sel)
}
