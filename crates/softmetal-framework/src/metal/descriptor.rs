//! Objects that are their properties.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::sync::Mutex;

use crate::lock;
use crate::objc::Strong;

/// What was set, by the name of the property.
#[derive(Default)]
pub(crate) struct Properties {
    numbers: Mutex<HashMap<&'static CStr, usize>>,
    objects: Mutex<HashMap<&'static CStr, Strong>>,
}

impl Properties {
    /// With values other than 0 to begin with.
    pub(crate) fn of(defaults: &[(&'static CStr, usize)]) -> Properties {
        let properties = Properties::default();
        for (name, value) in defaults {
            properties.set(name, *value);
        }
        properties
    }

    pub(crate) fn number(&self, name: &CStr) -> usize {
        lock(&self.numbers).get(name).copied().unwrap_or(0)
    }

    pub(crate) fn set(&self, name: &'static CStr, value: usize) {
        lock(&self.numbers).insert(name, value);
    }

    /// All numbers that were set, by name.
    pub(crate) fn numbers(&self) -> BTreeMap<&'static CStr, usize> {
        lock(&self.numbers).iter().map(|(name, value)| (*name, *value)).collect()
    }

    pub(crate) fn object(&self, name: &CStr) -> Option<Strong> {
        lock(&self.objects).get(name).cloned()
    }

    pub(crate) fn set_object(&self, name: &'static CStr, value: Option<Strong>) {
        let old = match value {
            Some(value) => lock(&self.objects).insert(name, value),
            None => lock(&self.objects).remove(name),
        };
        // Not under the lock: it may end an object.
        drop(old);
    }
}

/// Getters and setters, by the type of each property.
macro_rules! properties {
    ($($get:literal $set:literal $kind:ident;)*) => {{
        let mut all: Vec<$crate::objc::Method> = Vec::new();
        $(all.extend($crate::metal::descriptor::property!($get $set $kind));)*
        all
    }};
}
pub(crate) use properties;

macro_rules! property {
    ($get:literal $set:literal usize) => {
        $crate::objc::methods! { $crate::metal::descriptor::Properties;
            $get(this) -> usize { this.number($get) }
            $set(this, value: usize) { this.set($get, value); }
        }
    };
    ($get:literal $set:literal isize) => {
        $crate::objc::methods! { $crate::metal::descriptor::Properties;
            $get(this) -> isize { this.number($get) as isize }
            $set(this, value: isize) { this.set($get, value as usize); }
        }
    };
    ($get:literal $set:literal bool) => {
        $crate::objc::methods! { $crate::metal::descriptor::Properties;
            $get(this) -> bool { this.number($get) != 0 }
            $set(this, value: bool) { this.set($get, usize::from(value)); }
        }
    };
    ($get:literal $set:literal object) => {
        $crate::objc::methods! { $crate::metal::descriptor::Properties;
            $get(this) -> $crate::objc::Id { $crate::objc::lend(this.object($get)) }
            $set(this, value: $crate::objc::Id) { this.set_object($get, $crate::objc::Strong::retained(value)); }
        }
    };
}
pub(crate) use property;

/// A class of descriptors: its name, its properties, and what they begin with.
macro_rules! descriptor {
    ($vis:vis static $name:ident = $text:literal, [$($default:literal = $value:expr),*] $(, $($property:tt)*)?) => {
        $crate::objc::class!($vis static $name = $text, &$crate::foundation::NS_OBJECT, || {
            #[allow(unused_mut)]
            let mut all = $crate::metal::descriptor::properties! { $($($property)*)? };
            all.extend($crate::objc::raw_methods! {
                c"init"(this) -> $crate::objc::Id {
                    this.initialise($crate::metal::descriptor::Properties::of(&[$(($default, $value)),*]))
                }
            });
            all
        }, $crate::objc::none);
    };
}
pub(crate) use descriptor;
