//! `NSString`.

use std::ffi::c_char;
use std::sync::Arc;

use super::object::NS_OBJECT;
use crate::objc::{Id, InBytes, Method, Payload, Strong, class, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static NS_STRING = c"NSString", &NS_OBJECT, all, none);
class!(pub(crate) static NS_MUTABLE_STRING = c"NSMutableString", &NS_STRING, none, none);

const UTF8: usize = 4;

/// A text with a 0 behind it, which may contain zeros.
struct Text {
    text: String,
    ended: Vec<u8>,
}

impl Text {
    fn new(text: &str) -> Text {
        let ended = text.bytes().chain([0]).collect();
        Text { text: text.to_owned(), ended }
    }
}

fn all() -> Vec<Method> {
    let mut all = methods! { Text;
        c"UTF8String"(this) -> *const c_char { this.ended.as_ptr().cast() }
        c"length"(this) -> usize { this.text.encode_utf16().count() }
        c"lengthOfBytesUsingEncoding:"(this, encoding: usize) -> usize {
            check_encoding(encoding);
            this.text.len()
        }
        c"isEqual:"(this, other: Id) -> bool { same(&this.text, other) }
        c"isEqualToString:"(this, other: Id) -> bool { same(&this.text, other) }
        c"hash"(this) -> usize { this.text.bytes().fold(5381, |h: usize, b| h.wrapping_mul(33) ^ b as usize) }
        c"description"(this) -> Id { string(&this.text).lend() }
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(Text::new("")) }
        c"initWithBytes:length:encoding:"(this, bytes: InBytes, length: usize, encoding: usize) -> Id {
            check_encoding(encoding);
            if let Ok(text) = String::from_utf8(bytes.copy(length)) {
                return this.initialise(Text::new(&text));
            }
            this.release();
            Id::NULL
        }
    });
    all
}

fn same(text: &str, other: Id) -> bool {
    other.try_this::<Text>().is_some_and(|other| other.text == text)
}

fn check_encoding(encoding: usize) {
    if encoding != UTF8 {
        refuse(
            Rule::Descriptor,
            format!("a text in encoding {encoding}: UTF-8, which is {UTF8}, is what there is here"),
        );
    }
}

/// A new text.
pub(crate) fn string(text: &str) -> Strong {
    Strong::new(&NS_STRING, Text::new(text))
}

/// What a constant text holds.
pub(crate) fn constant(text: &str) -> Payload {
    Arc::new(Text::new(text))
}

/// The text of a string that must be one.
pub(crate) fn text(string: Id) -> String {
    string.this::<Text>().text.clone()
}

/// The text of what may be null.
pub(crate) fn try_text(string: Id) -> Option<String> {
    (!string.is_null()).then(|| text(string))
}
