//! How a GGUF file holds metadata values.

use std::fmt;

use super::cursor::Cursor;
use crate::error::shown;
use crate::value::for_types;
use crate::{Array, FormatError, Value};

/// The id of arrays, beside those of single values.
const ARRAY: u32 = 9;

/// A type of single values.
trait Single: Sized {
    /// Bytes of the shortest one.
    const LEAST: u64;
    fn read(cursor: &mut Cursor, what: &dyn fmt::Display) -> Result<Self, FormatError>;
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($type:ident),+) => {
        $(impl Single for $type {
            const LEAST: u64 = size_of::<$type>() as u64;

            fn read(cursor: &mut Cursor, what: &dyn fmt::Display) -> Result<$type, FormatError> {
                cursor.array(what).map($type::from_le_bytes)
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        })+
    };
}
numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Single for bool {
    const LEAST: u64 = 1;

    fn read(cursor: &mut Cursor, what: &dyn fmt::Display) -> Result<bool, FormatError> {
        match u8::read(cursor, what)? {
            0 => Ok(false),
            1 => Ok(true),
            byte => {
                let found = format!("a bool stored as {byte}");
                Err(FormatError::header(cursor.file, what.to_string(), found, "0 or 1"))
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Single for String {
    const LEAST: u64 = 8;

    fn read(cursor: &mut Cursor, what: &dyn fmt::Display) -> Result<String, FormatError> {
        cursor.string(what).map(str::to_string)
    }

    fn write(&self, out: &mut Vec<u8>) {
        string(out, self);
    }
}

/// A text with its length before it.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn elements<T: Single>(cursor: &mut Cursor, what: &dyn fmt::Display) -> Result<Vec<T>, FormatError> {
    let count = cursor.count(T::LEAST, &format_args!("the length of {what}"))?;
    (0..count).map(|i| T::read(cursor, &format_args!("entry {i} of {what}"))).collect()
}

macro_rules! define {
    ($($one:ident $many:ident $type:ident $name:literal $id:literal;)+) => {
        /// The value of `key`, of the type with the id `kind`.
        pub(super) fn read(cursor: &mut Cursor, key: &str, kind: u32) -> Result<Value, FormatError> {
            let name = shown(key);
            Ok(match kind {
                $($id => Value::$one(Single::read(cursor, &format_args!("metadata key `{name}`"))?),)+
                ARRAY => Value::Array(read_array(cursor, key)?),
                _ => {
                    let found = format!("of type id {kind}");
                    return Err(FormatError::key(cursor.file, key, found, "a type id from 0 to 12"));
                }
            })
        }

        fn read_array(cursor: &mut Cursor, key: &str) -> Result<Array, FormatError> {
            let name = shown(key);
            let what = &format_args!("the array in metadata key `{name}`");
            let (found, needed) = match cursor.u32(what)? {
                $($id => return elements(cursor, what).map(Array::$many),)+
                ARRAY => ("an array of arrays".to_string(), "an array of plain values"),
                kind => (format!("an array of type id {kind}"), "an element type id from 0 to 12"),
            };
            Err(FormatError::key(cursor.file, key, found, needed))
        }

        /// The id of its type, and the value.
        pub(super) fn write(out: &mut Vec<u8>, value: &Value) {
            match value {
                $(Value::$one(value) => {
                    out.extend(u32::to_le_bytes($id));
                    value.write(out);
                })+
                Value::Array(values) => {
                    out.extend(ARRAY.to_le_bytes());
                    match values {
                        $(Array::$many(values) => {
                            out.extend(u32::to_le_bytes($id));
                            out.extend((values.len() as u64).to_le_bytes());
                            for value in values {
                                value.write(out);
                            }
                        })+
                    }
                }
            }
        }
    };
}
for_types!(define);
