//! `NSArray`.

use super::object::NS_OBJECT;
use crate::objc::{
    Id, InObjects, Method, NsRange, OutObject, Strong, class, lend, methods, none, raw_methods,
};
use crate::problem::{Rule, refuse};

class!(pub(crate) static NS_ARRAY = c"NSArray", &NS_OBJECT, all, none);
class!(pub(crate) static NS_MUTABLE_ARRAY = c"NSMutableArray", &NS_ARRAY, none, none);

struct Array(Vec<Strong>);

impl Array {
    fn at(&self, index: usize) -> Option<Strong> {
        if index >= self.0.len() {
            refuse(
                Rule::Range,
                format!(
                    "object {index} of an array of {}: Foundation would throw NSRangeException",
                    self.0.len()
                ),
            );
        }
        self.0.get(index).cloned()
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { Array;
        c"count"(this) -> usize { this.0.len() }
        c"objectAtIndex:"(this, index: usize) -> Id { lend(this.at(index)) }
        c"objectAtIndexedSubscript:"(this, index: usize) -> Id { lend(this.at(index)) }
        c"firstObject"(this) -> Id { lend(this.0.first().cloned()) }
        c"lastObject"(this) -> Id { lend(this.0.last().cloned()) }
        c"getObjects:"(this, objects: OutObject) {
            this.0.iter().enumerate().for_each(|(place, object)| objects.put_at(place, object.id()));
        }
        c"getObjects:range:"(this, objects: OutObject, range: NsRange) {
            for (place, index) in (range.location..range.location + range.length).enumerate() {
                objects.put_at(place, this.at(index).map_or(Id::NULL, |object| object.id()));
            }
        }
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(Array(Vec::new())) }
        c"initWithObjects:count:"(this, list: InObjects, count: usize) -> Id {
            this.initialise(Array(list.copy(count).into_iter().filter_map(Strong::retained).collect()))
        }
    });
    all
}

/// A new array.
pub(crate) fn array(objects: Vec<Strong>) -> Strong {
    Strong::new(&NS_ARRAY, Array(objects))
}

/// The objects of an array; none for null.
pub(crate) fn objects(array: Id) -> Vec<Strong> {
    if array.is_null() { Vec::new() } else { array.this::<Array>().0.clone() }
}
