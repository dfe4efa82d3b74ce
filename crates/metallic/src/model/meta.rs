//! One view over what files say about a model: GGUF metadata, and `config.json` as transformers 4 and 5 write it.

use std::cell::RefCell;

use metallic_formats::{Array, FormatError, Metadata, Value as GgufValue};
use serde_json::{Map, Value};

use super::ModelError;

/// Which of its two spellings of a [`Key`] a file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `blk.3.attn_q.weight`, `llama.embedding_length`
    Gguf,
    /// `model.layers.3.self_attn.q_proj.weight`, `hidden_size`
    HuggingFace,
}

/// What files call a number or a tensor.
///
/// `a|b` are several spellings, of which the first one there counts; an empty one is never there. Numbers of a GGUF file
/// stand behind its architecture's name, unless they begin with `general.` or `tokenizer.`; those of `config.json` may lie
/// in objects: `rope_parameters.rope_theta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// In GGUF files.
    pub gguf: &'static str,
    /// In Hugging Face folders.
    pub hf: &'static str,
}

impl Key {
    /// A key by its spelling in GGUF files and in Hugging Face folders.
    pub const fn new(gguf: &'static str, hf: &'static str) -> Key {
        Key { gguf, hf }
    }

    pub(crate) fn spellings(self, naming: Naming) -> impl Iterator<Item = &'static str> {
        let spelled = match naming {
            Naming::Gguf => self.gguf,
            Naming::HuggingFace => self.hf,
        };
        spelled.split('|').filter(|name| !name.is_empty())
    }
}

/// A type that a value of a file can be read as.
pub trait Field<'a>: Sized {
    /// What complaints say was needed.
    const NEEDED: &'static str;
    /// Reads it from GGUF metadata; `None` where the key is absent.
    fn gguf(metadata: &'a Metadata, key: &str) -> Result<Option<Self>, FormatError>;
    /// Reads it from JSON; `None` where the value is of another type.
    fn json(value: &'a Value) -> Option<Self>;
    /// What a GGUF file has for it.
    fn to_gguf(&self) -> GgufValue;
}

macro_rules! field {
    ($type:ty, $needed:literal, $gguf:expr, $json:expr, $value:expr) => {
        impl<'a> Field<'a> for $type {
            const NEEDED: &'static str = $needed;

            fn gguf(metadata: &'a Metadata, key: &str) -> Result<Option<Self>, FormatError> {
                $gguf(metadata, key)
            }

            fn json(value: &'a Value) -> Option<Self> {
                $json(value)
            }

            fn to_gguf(&self) -> GgufValue {
                $value(self)
            }
        }
    };
}

fn list<'a, T>(value: &'a Value, item: impl Fn(&'a Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(item).collect()
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64()?.try_into().ok()
}

field!(usize, "a whole number", Metadata::opt_usize, whole, |n: &usize| GgufValue::U32(*n as u32));
field!(f32, "a number", Metadata::opt_f32, |v: &Value| v.as_f64().map(|n| n as f32), |v: &f32| {
    GgufValue::F32(*v)
});
field!(bool, "true or false", Metadata::opt_bool, Value::as_bool, |v: &bool| GgufValue::Bool(*v));
field!(&'a str, "a string", Metadata::opt_str, Value::as_str, |v: &&str| GgufValue::String((*v).to_owned()));
field!(Vec<f32>, "a list of numbers", Metadata::opt_f32s, |v| list(v, <f32 as Field>::json), |v: &Vec<
    f32,
>| {
    GgufValue::Array(Array::F32(v.clone()))
});
field!(
    Vec<usize>,
    "a list of whole numbers",
    |metadata: &Metadata, key: &str| {
        let negative = |n: i32| FormatError::Key {
            file: metadata.file().to_owned(),
            key: key.to_owned(),
            found: format!("a list with {n}"),
            needed: <Vec<usize>>::NEEDED.to_owned(),
        };
        let counts =
            |list: Vec<i32>| list.into_iter().map(|n| usize::try_from(n).map_err(|_| negative(n))).collect();
        metadata.opt_i32s(key)?.map(counts).transpose()
    },
    |v| list(v, whole),
    |v: &Vec<usize>| GgufValue::Array(Array::I32(v.iter().map(|n| *n as i32).collect()))
);
field!(
    Vec<&'a str>,
    "a list of strings",
    |metadata: &'a Metadata, key: &str| {
        Ok(metadata.opt_strings(key)?.map(|list| list.iter().map(String::as_str).collect()))
    },
    |v| list(v, Value::as_str),
    |v: &Vec<&str>| GgufValue::Array(Array::Strings(v.iter().map(|s| (*s).to_owned()).collect()))
);

#[derive(Clone, Debug)]
enum Section<'a> {
    Gguf(&'a Metadata),
    /// An object and the path to it, which ends with a dot; nothing where the file has no such object.
    Json {
        map: Option<&'a Map<String, Value>>,
        path: String,
    },
}

/// What a file says about its model. Every complaint names the file, the key as that file spells it, what was found and
/// what was needed.
#[derive(Clone, Debug)]
pub struct Meta<'a> {
    file: &'a str,
    architecture: &'a str,
    section: Section<'a>,
    /// What was read, under the names that GGUF files have for it.
    found: Option<&'a Found>,
    /// Tokens a sequence shall have, where that is said.
    context: Option<usize>,
}

/// Values by the names that GGUF files have for them, in the order they were read.
pub(crate) type Found = RefCell<Vec<(&'static str, GgufValue)>>;

/// Where a larger model keeps what is about its model of text.
const TEXT: &str = "text_config";
const ARCHITECTURE: Key = Key::new("general.architecture", "model_type");

impl<'a> Meta<'a> {
    /// The metadata of the GGUF file called `file`.
    pub fn gguf(file: &'a str, metadata: &'a Metadata) -> Result<Meta<'a>, ModelError> {
        Meta::named(Meta {
            file,
            architecture: "",
            section: Section::Gguf(metadata),
            found: None,
            context: None,
        })
    }

    /// The `config.json` called `file`.
    pub fn json(file: &'a str, map: &'a Map<String, Value>) -> Result<Meta<'a>, ModelError> {
        let section = Section::Json { map: Some(map), path: String::new() };
        Meta::named(Meta { file, architecture: "", section, found: None, context: None })
    }

    /// The `config.json` of a model, or of the model of text in a larger one where none of these families is called as the
    /// whole is.
    pub(super) fn of_text(
        file: &'a str,
        map: &'a Map<String, Value>,
        families: &[&super::Family],
    ) -> Result<Meta<'a>, ModelError> {
        let whole = Meta::json(file, map)?;
        let known = |meta: &Meta<'_>| families.iter().any(|family| family.hf.contains(&meta.architecture));
        if known(&whole) || !map.contains_key(TEXT) {
            return Ok(whole);
        }
        let text = Meta::named(whole.within(TEXT)?)?;
        Ok(if known(&text) { text } else { whole })
    }

    /// The same, which notes what is read of it.
    pub(crate) fn noting(self, found: &'a Found) -> Meta<'a> {
        Meta { found: Some(found), ..self }
    }

    /// The same, of a model for sequences of so many tokens.
    pub(crate) fn for_context(self, context: Option<usize>) -> Meta<'a> {
        Meta { context, ..self }
    }

    /// Tokens a sequence shall have, where that is said.
    pub(crate) fn context(&self) -> Option<usize> {
        self.context
    }

    fn named(meta: Meta<'a>) -> Result<Meta<'a>, ModelError> {
        Ok(Meta { architecture: meta.get(ARCHITECTURE)?, ..meta })
    }

    /// The file that complaints name.
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// The family's name as the file gives it: `llama`, `qwen2`.
    pub fn architecture(&self) -> &'a str {
        self.architecture
    }

    /// The spelling this file uses.
    pub fn naming(&self) -> Naming {
        match self.section {
            Section::Gguf(_) => Naming::Gguf,
            Section::Json { .. } => Naming::HuggingFace,
        }
    }

    /// Whether the file has this key, with whatever value but `null`.
    pub fn has(&self, key: Key) -> bool {
        self.spelling(key).is_some()
    }

    /// A value; `None` where the file does not have it, or has `null`.
    pub fn opt<T: Field<'a>>(&self, key: Key) -> Result<Option<T>, ModelError> {
        for name in key.spellings(self.naming()) {
            let found = match &self.section {
                Section::Gguf(metadata) => {
                    T::gguf(metadata, &self.full(name)).map_err(|error| match error {
                        FormatError::Key { found, .. } => self.complain(name, found, T::NEEDED),
                        other => ModelError::Format(other),
                    })?
                }
                Section::Json { map, .. } => {
                    let read = |v| T::json(v).ok_or_else(|| self.complain(name, v, T::NEEDED));
                    map.and_then(|map| lookup(map, name)).map(read).transpose()?
                }
            };
            if let Some(value) = &found {
                if let (Some(notes), Some(name)) = (self.found, key.spellings(Naming::Gguf).next()) {
                    notes.borrow_mut().push((name, value.to_gguf()));
                }
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A value the file must have.
    pub fn get<T: Field<'a>>(&self, key: Key) -> Result<T, ModelError> {
        self.opt(key)?.ok_or_else(|| self.bad(key, "nothing", T::NEEDED))
    }

    /// A value, or `default` where the file does not have it.
    pub fn get_or<T: Field<'a>>(&self, key: Key, default: T) -> Result<T, ModelError> {
        Ok(self.opt(key)?.unwrap_or(default))
    }

    /// A value for each layer, from a list or from one value for all; `None` where the file has neither.
    pub fn per_layer<T>(&self, key: Key, layers: usize) -> Result<Option<Vec<T>>, ModelError>
    where
        T: Field<'a> + Clone,
        Vec<T>: Field<'a>,
    {
        if !self.is_list(key) {
            return Ok(self.opt::<T>(key)?.map(|value| vec![value; layers]));
        }
        let list: Vec<T> = self.get(key)?;
        if list.len() != layers {
            let found = format!("a list of {}", list.len());
            return Err(self.bad(key, found, format!("one for each of the {layers} layers")));
        }
        Ok(Some(list))
    }

    /// A number from 1 to `most`. A list will do where all layers have the same, or 0: nothing of the kind.
    pub fn opt_count(&self, key: Key, most: usize) -> Result<Option<usize>, ModelError> {
        if !self.is_list(key) {
            return self.opt(key)?.map(|found| self.checked(key, found, most)).transpose();
        }
        let list: Vec<usize> = self.get(key)?;
        let found = list.iter().copied().max().unwrap_or(0);
        if list.iter().any(|n| *n != 0 && *n != found) {
            return Err(self.bad(key, "numbers that differ", "the same for all layers"));
        }
        self.checked(key, found, most).map(Some)
    }

    /// A number from 1 to `most` that the file must have.
    pub fn count(&self, key: Key, most: usize) -> Result<usize, ModelError> {
        self.opt_count(key, most)?.ok_or_else(|| self.bad(key, "nothing", usize::NEEDED))
    }

    /// `found`, which stands under `key` or follows from others, where it is from 1 to `most`.
    pub fn checked(&self, key: Key, found: usize, most: usize) -> Result<usize, ModelError> {
        let fits = (1..=most).contains(&found);
        if fits { Ok(found) } else { Err(self.bad(key, found, format!("1 to {most}"))) }
    }

    /// The view inside an object of `config.json`, spelled as in a [`Key`]; an empty one where it is absent. GGUF has no
    /// objects: the view stays as it is.
    pub fn within(&self, object: &'static str) -> Result<Meta<'a>, ModelError> {
        let Section::Json { map, .. } = &self.section else { return Ok(self.clone()) };
        let found = Key::new("", object)
            .spellings(Naming::HuggingFace)
            .find_map(|name| Some((name, map.and_then(|map| lookup(map, name))?)));
        let (map, path) = match found {
            None => (None, String::new()),
            Some((name, Value::Object(map))) => (Some(map), format!("{}.", self.full(name))),
            Some((name, other)) => return Err(self.complain(name, other, "an object")),
        };
        Ok(Meta { section: Section::Json { map, path }, ..self.clone() })
    }

    /// The complaint that `key` is `found` and not `needed`.
    pub fn bad(&self, key: Key, found: impl ToString, needed: impl Into<String>) -> ModelError {
        let first = || key.spellings(self.naming()).next();
        let foreign = if key.hf.is_empty() { key.gguf } else { key.hf };
        self.complain(self.spelling(key).or_else(first).unwrap_or(foreign), found, needed)
    }

    #[allow(clippy::needless_pass_by_value, reason = "numbers and texts are both given as they are")]
    fn complain(&self, name: &str, found: impl ToString, needed: impl Into<String>) -> ModelError {
        let (file, key) = (self.file.to_owned(), self.full(name));
        ModelError::Config { file, key, found: found.to_string(), needed: needed.into() }
    }

    fn full(&self, name: &str) -> String {
        match &self.section {
            Section::Gguf(_) if ["general.", "tokenizer."].iter().any(|p| name.starts_with(p)) => {
                name.to_owned()
            }
            Section::Gguf(_) => format!("{}.{name}", self.architecture),
            Section::Json { path, .. } => format!("{path}{name}"),
        }
    }

    /// The spelling the file has of a key.
    fn spelling(&self, key: Key) -> Option<&'static str> {
        key.spellings(self.naming()).find(|name| match &self.section {
            Section::Gguf(metadata) => metadata.get(&self.full(name)).is_some(),
            Section::Json { map, .. } => map.is_some_and(|map| lookup(map, name).is_some()),
        })
    }

    fn is_list(&self, key: Key) -> bool {
        self.spelling(key).is_some_and(|name| match &self.section {
            Section::Gguf(metadata) => matches!(metadata.get(&self.full(name)), Some(GgufValue::Array(_))),
            Section::Json { map, .. } => map.and_then(|map| lookup(map, name)).is_some_and(Value::is_array),
        })
    }
}

/// What stands at `path`, and is not null.
fn lookup<'a>(map: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let value = map.get(name).filter(|value| !value.is_null())?;
    match rest {
        None => Some(value),
        Some(rest) => lookup(value.as_object()?, rest),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HIDDEN: Key = Key::new("embedding_length", "hidden_size|n_embd");
    const TOKENS: Key = Key::new("tokenizer.ggml.tokens", "");
    const TYPES: Key = Key::new("types", "layer_types");
    const KV: Key = Key::new("kv", "text.kv");

    fn metadata() -> Metadata {
        let mut metadata = Metadata::empty("m.gguf");
        metadata.insert("general.architecture", "toy");
        metadata.insert("toy.embedding_length", 64_u32);
        metadata.insert("toy.kv", vec![0, 2, 2]);
        metadata.insert("tokenizer.ggml.tokens", vec!["a".to_owned(), "b".to_owned()]);
        metadata
    }

    fn config() -> Map<String, Value> {
        let value = json!({"model_type": "toy", "n_embd": 64, "hidden_size": null, "layer_types": ["a", "b"],
            "text": {"kv": [0, 2, 2], "rope": {"theta": "x"}}});
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn one_key_reads_both_spellings() {
        let (metadata, config) = (metadata(), config());
        for meta in [Meta::gguf("m.gguf", &metadata).unwrap(), Meta::json("config.json", &config).unwrap()] {
            assert_eq!(meta.architecture(), "toy");
            assert_eq!(meta.get::<usize>(HIDDEN).unwrap(), 64);
            assert_eq!(meta.opt_count(KV, 9).unwrap(), Some(2), "the layer without any does not count");
            assert_eq!(meta.per_layer::<usize>(KV, 3).unwrap(), Some(vec![0, 2, 2]));
            assert_eq!(meta.per_layer::<usize>(HIDDEN, 2).unwrap(), Some(vec![64, 64]));
            assert!(!meta.get_or(Key::new("no", "no"), false).unwrap());
        }
        let meta = Meta::gguf("m.gguf", &metadata).unwrap();
        assert_eq!(meta.get::<Vec<&str>>(TOKENS).unwrap(), ["a", "b"]);
        let meta = Meta::json("config.json", &config).unwrap();
        assert_eq!(meta.opt::<Vec<&str>>(TOKENS).unwrap(), None);
        assert_eq!(meta.get::<Vec<&str>>(TYPES).unwrap(), ["a", "b"]);
    }

    #[test]
    fn complaints_use_the_spelling_of_the_file() {
        let (metadata, config) = (metadata(), config());
        let gguf = Meta::gguf("m.gguf", &metadata).unwrap();
        let json = Meta::json("config.json", &config).unwrap();
        let theta = Key::new("rope.theta", "theta");
        let rope = json.within("rope|text.rope").unwrap();
        let cases = [
            (
                gguf.get::<&str>(HIDDEN).unwrap_err(),
                "`m.gguf`: toy.embedding_length is u32 64, it must be a string",
            ),
            (gguf.get::<f32>(theta).unwrap_err(), "`m.gguf`: toy.rope.theta is nothing, it must be a number"),
            (gguf.count(HIDDEN, 9).unwrap_err(), "`m.gguf`: toy.embedding_length is 64, it must be 1 to 9"),
            (json.get::<bool>(HIDDEN).unwrap_err(), "`config.json`: n_embd is 64, it must be true or false"),
            (
                rope.get::<f32>(theta).unwrap_err(),
                "`config.json`: text.rope.theta is \"x\", it must be a number",
            ),
            (json.within("n_embd").unwrap_err(), "`config.json`: n_embd is 64, it must be an object"),
            (
                json.per_layer::<&str>(TYPES, 3).unwrap_err(),
                "is a list of 2, it must be one for each of the 3 layers",
            ),
        ];
        for (error, part) in cases {
            assert!(
                matches!(error, ModelError::Config { .. }) && error.to_string().contains(part),
                "{error}"
            );
        }
        assert_eq!(json.within("absent").unwrap().opt::<f32>(theta).unwrap(), None);
    }
}
