//! The part of Foundation that Metal's interface is made of.

mod array;
mod dictionary;
mod error;
mod object;
mod process;
mod string;
mod url;

pub(crate) use array::{array, objects};
pub(crate) use dictionary::{dictionary_entries, dictionary_objects, number_of, numbers};
pub(crate) use error::{Domain, error};
pub(crate) use object::{NS_OBJECT, ROOT_META};
pub(crate) use string::{NS_STRING, constant, string, text, try_text};
pub(crate) use url::{data, path};

use crate::objc::Class;

/// Those that programs ask for by name.
pub(crate) static CLASSES: &[&Class] = &[
    &object::NS_OBJECT,
    &string::NS_STRING,
    &string::NS_MUTABLE_STRING,
    &array::NS_ARRAY,
    &array::NS_MUTABLE_ARRAY,
    &dictionary::NS_DICTIONARY,
    &dictionary::NS_NUMBER,
    &error::NS_ERROR,
    &url::NS_URL,
    &url::NS_DATA,
    &process::NS_PROCESS_INFO,
];

/// Whether objects of the class are worth knowing where they were made: those of Metal and MPS are, texts are not.
pub(crate) fn is_traced(class: &Class) -> bool {
    [&b"MTL"[..], b"MPS"].iter().any(|prefix| class.name().to_bytes().starts_with(prefix))
}
