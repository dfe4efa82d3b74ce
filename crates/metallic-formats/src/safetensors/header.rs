//! The JSON of safetensors: the header of a file and the index of a sharded model.
//!
//! Read field by field, because a map type would drop the first of two equal names in silence.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::FormatError;
use crate::error::shown;

/// What the header says of one tensor.
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// First byte and the byte after the last, from the start of the data.
    pub(super) offsets: (usize, usize),
}

/// The header of a file.
pub(super) struct Header {
    pub(super) metadata: Vec<(String, String)>,
    pub(super) tensors: Vec<(String, Entry)>,
}

/// `model.safetensors.index.json`: in which file each tensor is.
pub(super) struct Index {
    pub(super) files: Vec<(String, String)>,
}

/// Reads `text`, the part of `file` that is called `what` in errors.
pub(super) fn parse<'t, T: Object<'t>>(
    file: &str,
    what: &'static str,
    text: &'t [u8],
) -> Result<T, FormatError> {
    let parsed: Result<As<T>, _> = serde_json::from_slice(text);
    parsed.map(|parsed| parsed.0).map_err(|reason| FormatError::Json { file: file.into(), what, reason })
}

/// A JSON object, and no other JSON, as a value.
pub(super) trait Object<'de>: Sized {
    const NEEDED: &'static str;
    fn read<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error>;
}

/// What is read as an [`Object`].
struct As<T>(T);

impl<'de, T: Object<'de>> Deserialize<'de> for As<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<As<T>, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Object<'de>> Visitor<'de> for Fields<T> {
            type Value = As<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(T::NEEDED)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<As<T>, A::Error> {
                T::read(map).map(As)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// Names and texts, in order, doubles included.
impl<'de> Object<'de> for Vec<(String, String)> {
    const NEEDED: &'static str = "an object with a value for each name";

    fn read<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

impl<'de> Object<'de> for Header {
    const NEEDED: &'static str = "an object with an entry for each tensor";

    fn read<A: MapAccess<'de>>(mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { metadata: Vec::new(), tensors: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            let named = |error: A::Error| de::Error::custom(format!("`{}`: {error}", shown(&name)));
            if name == "__metadata__" {
                header.metadata.extend(map.next_value::<As<Vec<_>>>().map_err(named)?.0);
            } else {
                let As(entry) = map.next_value().map_err(named)?;
                header.tensors.push((name, entry));
            }
        }
        Ok(header)
    }
}

impl<'de> Object<'de> for Entry {
    const NEEDED: &'static str = "an object with `dtype`, `shape` and `data_offsets`";

    fn read<A: MapAccess<'de>>(mut map: A) -> Result<Entry, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "dtype" => once(&mut dtype, map.next_value()?, "dtype")?,
                "shape" => once(&mut shape, map.next_value()?, "shape")?,
                "data_offsets" => once(&mut offsets, map.next_value()?, "data_offsets")?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Entry {
            dtype: dtype.ok_or_else(|| de::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| de::Error::missing_field("shape"))?,
            offsets: offsets.ok_or_else(|| de::Error::missing_field("data_offsets"))?,
        })
    }
}

impl<'de> Object<'de> for Index {
    const NEEDED: &'static str = "an object with a `weight_map`";

    fn read<A: MapAccess<'de>>(mut map: A) -> Result<Index, A::Error> {
        let mut files = None;
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "weight_map" => once(&mut files, map.next_value::<As<_>>()?.0, "weight_map")?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Index { files: files.ok_or_else(|| de::Error::missing_field("weight_map"))? })
    }
}

fn once<T, E: de::Error>(slot: &mut Option<T>, value: T, field: &'static str) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(field)),
    }
}
