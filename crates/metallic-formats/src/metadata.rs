//! The metadata of a model file: an ordered map with typed access.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::shown;
use crate::{Array, FormatError, Value};

/// Keys and values in the order of the file. A typed getter that fails names the file, the key, what was
/// found and what was needed.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: Arc<str>,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// No keys yet; `file` is the name that errors give.
    pub fn empty(file: impl Into<Arc<str>>) -> Metadata {
        Metadata { file: file.into(), entries: Vec::new(), index: HashMap::new() }
    }

    /// The name of the file these keys came from.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Sets a key, keeping its place where it exists; returns the value it had.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        if let Some(&i) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[i].1, value));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Every key and value, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A string; `None` where the key is absent.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.convert(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer of any width that fits a `u32`; `None` where the key is absent.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, FormatError> {
        self.convert(key, "an integer from 0 to 2^32 - 1", |value| value.integer()?.try_into().ok())
    }

    /// An integer of any width that fits a `usize`; `None` where the key is absent.
    pub fn opt_usize(&self, key: &str) -> Result<Option<usize>, FormatError> {
        self.convert(key, "an integer that counts something", |value| value.integer()?.try_into().ok())
    }

    /// A floating-point number of either width; `None` where the key is absent.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        self.convert(key, "a floating-point number", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A truth value; `None` where the key is absent.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.convert(key, "a bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// An array of strings; `None` where the key is absent.
    pub fn opt_strings(&self, key: &str) -> Result<Option<&[String]>, FormatError> {
        self.convert(key, "an array of strings", |value| match value {
            Value::Array(Array::Strings(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// An array of floating-point numbers of either width; `None` where the key is absent.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, FormatError> {
        self.convert(key, "an array of floating-point numbers", |value| match value {
            Value::Array(Array::F32(values)) => Some(values.clone()),
            Value::Array(Array::F64(values)) => Some(values.iter().map(|v| *v as f32).collect()),
            _ => None,
        })
    }

    /// An array of integers of any width that all fit an `i32`; `None` where the key is absent.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, FormatError> {
        self.convert(key, "an array of integers from -2^31 to 2^31 - 1", |value| match value {
            Value::Array(values) => values.i32s(),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str, FormatError> {
        self.present(key, "a string", self.opt_str(key)?)
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<&[String], FormatError> {
        self.present(key, "an array of strings", self.opt_strings(key)?)
    }

    fn convert<'a, T>(
        &'a self,
        key: &str,
        needed: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| FormatError::key(&self.file, key, value, needed))
    }

    fn present<T>(&self, key: &str, needed: &'static str, value: Option<T>) -> Result<T, FormatError> {
        value.ok_or_else(|| FormatError::MissingKey { file: self.file.to_string(), key: shown(key), needed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::empty("m.gguf");
        metadata.insert("arch", "llama");
        metadata.insert("layers", 7_u8);
        metadata.insert("heads", -2_i32);
        metadata.insert("big", u64::MAX);
        metadata.insert("eps", 1e-5_f64);
        metadata.insert("types", Array::U8(vec![1, 2]));
        metadata
    }

    #[test]
    fn integers_of_any_width_are_accepted_where_they_fit() {
        let metadata = sample();
        assert_eq!(metadata.opt_u32("layers").unwrap(), Some(7));
        assert_eq!(metadata.opt_usize("big").unwrap(), Some(usize::MAX));
        assert_eq!(metadata.opt_i32s("types").unwrap(), Some(vec![1, 2]));
        assert_eq!(metadata.opt_f32("eps").unwrap(), Some(1e-5));
    }

    #[test]
    fn a_wrong_type_names_file_key_found_and_needed() {
        let metadata = sample();
        let cases = [
            (metadata.opt_usize("heads").unwrap_err(), "`heads` is i32 -2, needed an integer"),
            (
                metadata.opt_u32("big").unwrap_err(),
                "is u64 18446744073709551615, needed an integer from 0 to 2^32",
            ),
            (metadata.opt_u32("arch").unwrap_err(), "`arch` is string `llama`, needed an integer"),
            (metadata.opt_strings("types").unwrap_err(), "is array of 2 u8, needed an array of strings"),
            (metadata.str("tied").unwrap_err(), "`tied` is missing, needed a string"),
        ];
        for (error, part) in cases {
            let text = error.to_string();
            assert!(text.starts_with("`m.gguf`: ") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn absent_is_none_and_keys_keep_their_order() {
        let mut metadata = sample();
        assert_eq!(metadata.opt_str("name").unwrap(), None);
        assert_eq!(metadata.insert("layers", 8_u8), Some(Value::U8(7)));
        let keys: Vec<_> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["arch", "layers", "heads", "big", "eps", "types"]);
        assert_eq!(metadata.len(), 6);
    }
}
