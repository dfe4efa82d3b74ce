//! Metadata values.

use std::fmt;

use serde::Serialize;

use crate::error::shown;

/// Runs a macro over every type of single values: variant, variant of arrays, Rust type, name, id in GGUF files.
macro_rules! for_types {
    ($run:ident) => {
        $run! {
            U8 U8 u8 "u8" 0;
            I8 I8 i8 "i8" 1;
            U16 U16 u16 "u16" 2;
            I16 I16 i16 "i16" 3;
            U32 U32 u32 "u32" 4;
            I32 I32 i32 "i32" 5;
            F32 F32 f32 "f32" 6;
            Bool Bool bool "bool" 7;
            String Strings String "string" 8;
            U64 U64 u64 "u64" 10;
            I64 I64 i64 "i64" 11;
            F64 F64 f64 "f64" 12;
        }
    };
}
pub(crate) use for_types;

macro_rules! define {
    ($($one:ident $many:ident $type:ident $name:literal $id:literal;)+) => {
        /// One metadata value, of the type its file gives it.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs, reason = "the variants are the types their names say")]
        pub enum Value {
            $($one($type),)+
            Array(Array),
        }

        /// A metadata array. Arrays of arrays are refused: no known model has one.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(untagged)]
        #[allow(missing_docs, reason = "the variants are the types their names say")]
        pub enum Array {
            $($many(Vec<$type>),)+
        }

        impl Value {
            /// The name of its type: `u32`, `string`, `array`.
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Value::$one(_) => $name,)+
                    Value::Array(_) => "array",
                }
            }
        }

        impl Array {
            /// How many elements it has.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$many(values) => values.len(),)+
                }
            }

            /// The name of its element type.
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Array::$many(_) => $name,)+
                }
            }

            /// Its elements as single values.
            pub fn values(&self) -> Box<dyn Iterator<Item = Value> + '_> {
                match self {
                    $(Array::$many(values) => Box::new(values.iter().cloned().map(Value::$one)),)+
                }
            }
        }

        /// Type and value, in one line: `u32 7`, ``string `llama` ``, `array of 3 string`.
        impl fmt::Display for Value {
            #[allow(unreachable_patterns, reason = "texts are shown otherwise")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Value::String(v) => write!(f, "string `{}`", shown(v)),
                    Value::Array(v) => v.fmt(f),
                    $(Value::$one(v) => write!(f, "{} {v}", $name),)+
                }
            }
        }

        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Value {
                    Value::$one(value)
                }
            }

            impl From<Vec<$type>> for Value {
                fn from(values: Vec<$type>) -> Value {
                    Value::Array(Array::$many(values))
                }
            }
        )+
    };
}
for_types!(define);

impl Value {
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
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers that fit an `i32`, where they are integers and do.
    pub(crate) fn i32s(&self) -> Option<Vec<i32>> {
        if matches!(self, Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Strings(_)) {
            return None;
        }
        self.values().map(|value| value.integer()?.try_into().ok()).collect()
    }
}

/// `array of 3 string`: arrays are too long to print.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array of {} {}", self.len(), self.type_name())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<Array> for Value {
    fn from(values: Array) -> Value {
        Value::Array(values)
    }
}
