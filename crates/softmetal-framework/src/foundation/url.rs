//! `NSURL` of files, and `NSData`.

use std::path::PathBuf;

use super::object::NS_OBJECT;
use super::string::{string, text};
use crate::objc::{Id, InBytes, Method, NsRange, OutBytes, Strong, class, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static NS_URL = c"NSURL", &NS_OBJECT, url, url_own);
class!(pub(crate) static NS_DATA = c"NSData", &NS_OBJECT, data_methods, none);

struct Url(PathBuf);

fn url() -> Vec<Method> {
    methods! { Url;
        c"path"(this) -> Id { string(&this.0.display().to_string()).lend() }
        c"absoluteString"(this) -> Id { string(&format!("file://{}", this.0.display())).lend() }
        c"isFileURL"(_) -> bool { true }
    }
}

fn url_own() -> Vec<Method> {
    raw_methods! {
        c"fileURLWithPath:"(_, path: Id) -> Id { file(path).lend() }
        c"fileURLWithPath:isDirectory:"(_, path: Id, _directory: bool) -> Id { file(path).lend() }
    }
}

fn file(path: Id) -> Strong {
    Strong::new(&NS_URL, Url(PathBuf::from(text(path))))
}

/// The file that a URL names; nothing for null.
pub(crate) fn path(url: Id) -> Option<PathBuf> {
    (!url.is_null()).then(|| url.this::<Url>().0.clone())
}

struct Data(Vec<u8>);

fn data_methods() -> Vec<Method> {
    let mut all = methods! { Data;
        c"length"(this) -> usize { this.0.len() }
        c"bytes"(this) -> InBytes { InBytes::of(&this.0) }
        c"getBytes:length:"(this, to: OutBytes, length: usize) { to.fill(&this.0[..length.min(this.0.len())]); }
        c"getBytes:range:"(this, to: OutBytes, range: NsRange) {
            match range.end().and_then(|end| this.0.get(range.location..end)) {
                Some(bytes) => to.fill(bytes),
                None => refuse(
                    Rule::Range,
                    format!("{range:?} of {} bytes: Foundation would throw NSRangeException", this.0.len()),
                ),
            }
        }
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(Data(Vec::new())) }
        c"initWithBytes:length:"(this, bytes: InBytes, length: usize) -> Id {
            this.initialise(Data(bytes.copy(length)))
        }
    });
    all
}

/// New data.
pub(crate) fn data(bytes: Vec<u8>) -> Strong {
    Strong::new(&NS_DATA, Data(bytes))
}
