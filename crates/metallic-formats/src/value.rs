//! Metadata values.

use std::fmt;

use crate::error::shown;

/// One metadata value, of the type its file gives it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the types their names say")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array. Arrays of arrays are refused: no known model has one.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the types their names say")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Strings(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// `$body` for the vector inside an [`Array`], whatever its element type.
macro_rules! each {
    ($array:expr, $values:ident => $body:expr) => {
        match $array {
            Array::U8($values) => $body,
            Array::I8($values) => $body,
            Array::U16($values) => $body,
            Array::I16($values) => $body,
            Array::U32($values) => $body,
            Array::I32($values) => $body,
            Array::F32($values) => $body,
            Array::Bool($values) => $body,
            Array::Strings($values) => $body,
            Array::U64($values) => $body,
            Array::I64($values) => $body,
            Array::F64($values) => $body,
        }
    };
}

impl Value {
    /// The name of its type: `u32`, `string`, `array`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }

    /// The value as an integer, where it is one.
    pub(crate) fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                return None;
            }
        })
    }
}

impl Array {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        each!(self, values => values.len())
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of its element type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::F32(_) => "f32",
            Array::Bool(_) => "bool",
            Array::Strings(_) => "string",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F64(_) => "f64",
        }
    }

    /// The elements as integers that fit an `i32`, where they are integers and do.
    pub(crate) fn i32s(&self) -> Option<Vec<i32>> {
        fn fit<T: Copy + TryInto<i32>>(values: &[T]) -> Option<Vec<i32>> {
            values.iter().map(|v| (*v).try_into().ok()).collect()
        }
        match self {
            Array::U8(v) => fit(v),
            Array::I8(v) => fit(v),
            Array::U16(v) => fit(v),
            Array::I16(v) => fit(v),
            Array::U32(v) => fit(v),
            Array::I32(v) => Some(v.clone()),
            Array::U64(v) => fit(v),
            Array::I64(v) => fit(v),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Strings(_) => None,
        }
    }
}

/// Type and value, in one line: `u32 7`, ``string `llama` ``, `array of 3 strings`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.type_name();
        match self {
            Value::U8(v) => write!(f, "{kind} {v}"),
            Value::I8(v) => write!(f, "{kind} {v}"),
            Value::U16(v) => write!(f, "{kind} {v}"),
            Value::I16(v) => write!(f, "{kind} {v}"),
            Value::U32(v) => write!(f, "{kind} {v}"),
            Value::I32(v) => write!(f, "{kind} {v}"),
            Value::F32(v) => write!(f, "{kind} {v}"),
            Value::Bool(v) => write!(f, "{kind} {v}"),
            Value::String(v) => write!(f, "{kind} `{}`", shown(v)),
            Value::Array(v) => write!(f, "{v}"),
            Value::U64(v) => write!(f, "{kind} {v}"),
            Value::I64(v) => write!(f, "{kind} {v}"),
            Value::F64(v) => write!(f, "{kind} {v}"),
        }
    }
}

/// `array of 3 string`: arrays are too long to print.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array of {} {}", self.len(), self.type_name())
    }
}

macro_rules! from {
    ($($from:ty => $to:ident),+ $(,)?) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$to(value.into())
            }
        })+
    };
}

from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, &str => String, String => String, Array => Array,
}

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Value {
        Value::Array(Array::Strings(values))
    }
}

impl From<Vec<f32>> for Value {
    fn from(values: Vec<f32>) -> Value {
        Value::Array(Array::F32(values))
    }
}

impl From<Vec<i32>> for Value {
    fn from(values: Vec<i32>) -> Value {
        Value::Array(Array::I32(values))
    }
}
