//! GGUF, versions 2 and 3: header, metadata, tensor descriptions, padding, tensor data.

mod cursor;
mod read;
mod value;
mod write;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use metallic_core::Bytes;

use crate::contents::{Access, Contents};
use crate::error::shown;
use crate::{FormatError, Metadata, Tensor};

pub use write::{GgufStream, GgufWriter, TensorSpec};

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;
/// Far above any page size; a file that asks for more is broken.
const MAX_ALIGNMENT: usize = 1 << 20;
/// Of a model split into files: how many, and which one this is, from 0 on.
const SPLIT_COUNT: &str = "split.count";
const SPLIT_NUMBER: &str = "split.no";
const MAX_DIMS: usize = 4;
const MAX_KEY_LEN: usize = 65535;

/// A GGUF file: metadata, and tensors whose data stays in the file.
///
/// Text in it must be UTF-8, vocabulary entries included: replacing bytes would make two tokens out of one,
/// so such a file is refused with the index of the entry.
pub struct Gguf {
    /// Its keys and values, in the order of the file.
    pub metadata: Metadata,
    version: u32,
    alignment: usize,
    tensors: Vec<Tensor>,
    index: HashMap<String, usize>,
}

impl Gguf {
    /// Maps and checks the file at `path`; of a model split into several (`x-00001-of-00003.gguf`), all of them.
    pub fn open(path: &Path) -> Result<Gguf, FormatError> {
        Gguf::open_with(path, Access::Map)
    }

    /// The same, with its bytes had in this way.
    pub fn open_with(path: &Path, access: Access) -> Result<Gguf, FormatError> {
        let open = |path: &Path| read::parse(&path.display().to_string(), &Contents::open(path, access)?);
        let mut first = open(path)?;
        let count = first.metadata.opt_usize(SPLIT_COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(first);
        }
        let number = first.metadata.opt_usize(SPLIT_NUMBER)?.unwrap_or(0);
        if number != 0 {
            let needed = "the first one: it names the rest";
            let found = format!("{number}, so this is file {} of {count}", number + 1);
            return Err(FormatError::key(first.metadata.file(), SPLIT_NUMBER, found, needed));
        }
        for part in 2..=count {
            let end = format!("-00001-of-{count:05}.gguf");
            let name =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(&end));
            let Some(name) = name else {
                let needed = format!("1, or a file whose name ends with `{end}`");
                return Err(FormatError::key(first.metadata.file(), SPLIT_COUNT, count, needed));
            };
            first.join(open(&path.with_file_name(format!("{name}-{part:05}-of-{count:05}.gguf")))?)?;
        }
        Ok(first)
    }

    /// Takes the tensors of another part of the same model.
    fn join(&mut self, part: Gguf) -> Result<(), FormatError> {
        for tensor in part.tensors {
            if self.index.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                return Err(FormatError::duplicate(part.metadata.file(), "tensor", &tensor.name));
            }
            self.tensors.push(tensor);
        }
        Ok(())
    }

    /// Checks `bytes`, the contents of the file called `file_name` in errors.
    pub fn parse(file_name: &str, bytes: Bytes) -> Result<Gguf, FormatError> {
        read::parse(file_name, &Contents::Whole(bytes))
    }

    /// Every tensor, in the order of the file.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The tensor of this name, or an error that names it.
    pub fn require(&self, name: &str) -> Result<&Tensor, FormatError> {
        self.tensor(name).ok_or_else(|| FormatError::MissingTensor {
            file: self.metadata.file().into(),
            tensor: shown(name),
        })
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensor data starts at multiples of this many bytes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "Gguf(`{}`, v{}, {keys} keys, {tensors} tensors)", self.metadata.file(), self.version)
    }
}

/// The alignment the metadata asks for: a power of two from 8 to 1 MiB, 32 where it says nothing.
fn alignment(metadata: &Metadata) -> Result<usize, FormatError> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let fits = |n: &usize| n.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(n);
    value.integer().and_then(|n| usize::try_from(n).ok()).filter(fits).ok_or_else(|| {
        let needed = format!("a power of two from 8 to {MAX_ALIGNMENT}");
        FormatError::key(metadata.file(), ALIGNMENT_KEY, value, needed)
    })
}
