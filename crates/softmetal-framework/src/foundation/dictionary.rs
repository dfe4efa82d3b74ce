//! `NSDictionary` and `NSNumber`, as macros of a compilation, and shapes and feeds of graphs, use them.

use super::array::objects;
use super::object::NS_OBJECT;
use super::string::{text, try_text};
use crate::objc::{Id, InObjects, Method, Strong, class, lend, methods, none, raw_methods};

class!(pub(crate) static NS_DICTIONARY = c"NSDictionary", &NS_OBJECT, all, none);
class!(pub(crate) static NS_NUMBER = c"NSNumber", &NS_OBJECT, number, number_makers);

struct Dictionary(Vec<(Strong, Strong)>);

struct Number(f64);

fn all() -> Vec<Method> {
    let mut all = methods! { Dictionary;
        c"count"(this) -> usize { this.0.len() }
        c"objectForKey:"(this, key: Id) -> Id {
            let asked = try_text(key);
            lend(this.0.iter().find(|(known, _)| Some(text(known.id())) == asked).map(|(_, value)| value.clone()))
        }
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(Dictionary(Vec::new())) }
        c"initWithObjects:forKeys:count:"(this, values: InObjects, keys: InObjects, count: usize) -> Id {
            let values = values.copy(count).into_iter().filter_map(Strong::retained);
            let keys = keys.copy(count).into_iter().filter_map(Strong::retained);
            this.initialise(Dictionary(keys.zip(values).collect()))
        }
    });
    all
}

fn number() -> Vec<Method> {
    let mut all = methods! { Number;
        c"doubleValue"(this) -> f64 { this.0 }
        c"integerValue"(this) -> isize { this.0 as isize }
        c"unsignedIntegerValue"(this) -> usize { this.0 as usize }
    };
    all.extend(raw_methods! {
        c"initWithInteger:"(this, value: isize) -> Id { this.initialise(Number(value as f64)) }
        c"initWithDouble:"(this, value: f64) -> Id { this.initialise(Number(value)) }
        c"initWithBool:"(this, value: bool) -> Id { this.initialise(Number(f64::from(u8::from(value)))) }
    });
    all
}

fn number_makers() -> Vec<Method> {
    raw_methods! {
        c"numberWithUnsignedInteger:"(_this, value: usize) -> Id { number_of(value).lend() }
        c"numberWithInteger:"(_this, value: isize) -> Id { Strong::new(&NS_NUMBER, Number(value as f64)).lend() }
    }
}

/// A new number.
pub(crate) fn number_of(value: usize) -> Strong {
    Strong::new(&NS_NUMBER, Number(value as f64))
}

/// Numbers of an array, which must be whole and not negative.
pub(crate) fn numbers(array: Id) -> Vec<usize> {
    objects(array).iter().map(|number| number.id().this::<Number>().0 as usize).collect()
}

/// Keys and values; none for null.
pub(crate) fn dictionary_objects(dictionary: Id) -> Vec<(Strong, Strong)> {
    if dictionary.is_null() { Vec::new() } else { dictionary.this::<Dictionary>().0.clone() }
}

/// Keys and values as texts; none for null.
pub(crate) fn dictionary_entries(dictionary: Id) -> Vec<(String, String)> {
    if dictionary.is_null() {
        return Vec::new();
    }
    let value = |id: Id| id.try_this::<Number>().map_or_else(|| text(id), |number| number.0.to_string());
    dictionary.this::<Dictionary>().0.iter().map(|(key, held)| (text(key.id()), value(held.id()))).collect()
}
