//! safetensors: the length of a JSON header, the header, tensor data without holes.

mod header;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;

use metallic_core::{Bytes, DType};

use self::header::{Entry, Header, Index};
use crate::contents::{Access, Contents};
use crate::error::shown;
use crate::tensor::byte_len;
use crate::{FormatError, Metadata, Tensor};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A type whose tensors are bytes here.
const FLOAT8: &str = "F8_E4M3";

/// The types a tensor may have here. Others are refused by name when the file is opened.
const DTYPES: [DType; 6] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8];

/// A safetensors model, from one file or from several with an index; tensor data stays in the files.
///
/// Tensors may begin at any byte: read them unaligned.
pub struct SafeTensors {
    metadata: Metadata,
    tensors: Vec<Tensor>,
    index: HashMap<String, usize>,
}

impl SafeTensors {
    /// Maps and checks a file, an index file, or what a folder holds: `model.safetensors`, or else
    /// `model.safetensors.index.json` with the files it names.
    pub fn open(path: &Path) -> Result<SafeTensors, FormatError> {
        SafeTensors::open_with(path, Access::Map)
    }

    /// The same, with its bytes had in this way.
    pub fn open_with(path: &Path, access: Access) -> Result<SafeTensors, FormatError> {
        if path.is_dir() {
            let (single, index) = (path.join(SINGLE), path.join(INDEX));
            // A link to a missing file counts as there, so that the error names it.
            if single.symlink_metadata().is_ok() {
                return SafeTensors::open_file(&single, access);
            }
            if index.symlink_metadata().is_ok() {
                return SafeTensors::open_index(&index, access);
            }
            let needed = format!("`{SINGLE}` or `{INDEX}` in this folder");
            return Err(FormatError::header(&path.display().to_string(), "the model file", "absent", needed));
        }
        if path.to_string_lossy().ends_with(".index.json") {
            return SafeTensors::open_index(path, access);
        }
        SafeTensors::open_file(path, access)
    }

    /// Checks `bytes`, the contents of the file called `file_name` in errors.
    pub fn parse(file_name: &str, bytes: Bytes) -> Result<SafeTensors, FormatError> {
        SafeTensors::of(file_name, &Contents::Whole(bytes))
    }

    /// Every tensor: by place in the file, file by file.
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

    /// The strings the header carries besides tensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn empty(file: &str) -> SafeTensors {
        SafeTensors { metadata: Metadata::empty(file), tensors: Vec::new(), index: HashMap::new() }
    }

    fn of(file: &str, contents: &Contents) -> Result<SafeTensors, FormatError> {
        let mut model = SafeTensors::empty(file);
        model.add_file(file, contents)?;
        Ok(model)
    }

    fn open_file(path: &Path, access: Access) -> Result<SafeTensors, FormatError> {
        SafeTensors::of(&path.display().to_string(), &Contents::open(path, access)?)
    }

    fn open_index(path: &Path, access: Access) -> Result<SafeTensors, FormatError> {
        let file = path.display().to_string();
        let contents = Contents::open(path, access)?;
        let index: Index = header::parse(&file, "the index", &contents.head(contents.len())?)?;

        let mut model = SafeTensors::empty(&file);
        let shards: BTreeSet<&str> = index.files.iter().map(|(_, shard)| shard.as_str()).collect();
        for shard in shards {
            check_shard_name(&file, shard)?;
            let path = path.with_file_name(shard);
            model.add_file(&path.display().to_string(), &Contents::open(&path, access)?)?;
        }
        match index.files.iter().find(|(name, _)| model.tensor(name).is_none()) {
            None => Ok(model),
            Some((name, shard)) => {
                let needed = format!("in `{}`, where the index puts it", shown(shard));
                Err(FormatError::tensor(&file, name, "the tensor", "absent", needed))
            }
        }
    }

    fn add_file(&mut self, file: &str, contents: &Contents) -> Result<(), FormatError> {
        let split = split(file, contents);
        // What is lost of a file is the reason for all else.
        contents.check()?;
        let (header, start) = split?;
        let data = Data { contents, start };
        for (key, value) in header.metadata {
            self.metadata.insert(key, value);
        }
        for tensor in place(file, data, header.tensors)? {
            if self.index.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                return Err(FormatError::duplicate(file, "tensor", &tensor.name));
            }
            self.tensors.push(tensor);
        }
        Ok(())
    }
}

impl fmt::Debug for SafeTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SafeTensors(`{}`, {} tensors)", self.metadata.file(), self.tensors.len())
    }
}

/// An index may name files beside it only.
fn check_shard_name(index: &str, shard: &str) -> Result<(), FormatError> {
    let plain = !shard.is_empty() && shard != "." && shard != ".." && !shard.contains(['/', '\\', ':', '\0']);
    if plain {
        return Ok(());
    }
    let found = format!("`{}`", shown(shard));
    Err(FormatError::header(index, "a file name", found, "the plain name of a file in the same folder"))
}

/// What lies behind the header.
#[derive(Clone, Copy)]
struct Data<'a> {
    contents: &'a Contents,
    /// Where it begins; inside the file.
    start: usize,
}

impl Data<'_> {
    fn len(&self) -> usize {
        self.contents.len() - self.start
    }

    fn window(&self, begin: usize, end: usize) -> Option<Bytes> {
        self.contents.window(self.start.checked_add(begin)?..self.start.checked_add(end)?)
    }
}

/// The header, and where the data behind it begins.
fn split(file: &str, contents: &Contents) -> Result<(Header, usize), FormatError> {
    let truncated = |what: &str, needed: u64, left: usize| FormatError::Truncated {
        file: file.into(),
        what: what.into(),
        needed,
        left: left as u64,
    };
    let bytes = contents.head(8)?;
    if bytes.starts_with(b"GGUF") {
        let (found, needed) = ("`GGUF`".into(), "the length of a JSON header");
        return Err(FormatError::NotThisFormat { file: file.into(), format: "safetensors", found, needed });
    }
    let len = bytes.first_chunk().ok_or_else(|| truncated("the header length", 8, bytes.len()))?;
    let len = u64::from_le_bytes(*len);
    let left = contents.len() - 8;
    let end =
        usize::try_from(len).ok().and_then(|len| len.checked_add(8)).filter(|end| *end <= contents.len());
    let end = end.ok_or_else(|| truncated("the header", len, left))?;
    let bytes = contents.head(end)?;
    let text = bytes.get(8..end).ok_or_else(|| truncated("the header", len, left))?;

    let text = str::from_utf8(text).map_err(|error| {
        let found = format!("not UTF-8 at its byte {}", error.valid_up_to());
        FormatError::header(file, "the header", found, "JSON in UTF-8")
    })?;
    Ok((header::parse(file, "the header", text.as_bytes())?, end))
}

/// Tensors with their windows into the data, by place. As the format demands they cover it without overlap,
/// hole or rest, so a tensor cannot be read with another's bytes.
fn place(file: &str, all: Data<'_>, entries: Vec<(String, Entry)>) -> Result<Vec<Tensor>, FormatError> {
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let begin = entry.offsets.0;
        tensors.push((begin, tensor(file, all, name, entry)?));
    }
    tensors.sort_by_key(|(begin, tensor)| (*begin, tensor.data.len()));

    let mut covered = 0;
    for (begin, Tensor { name, data, .. }) in &tensors {
        if *begin != covered {
            let needed = format!("{covered}, where the tensor before it ends");
            return Err(FormatError::tensor(file, name, "the begin of the data", begin, needed));
        }
        covered += data.len();
    }
    if covered != all.len() {
        let (found, needed) = (format!("{} bytes", all.len()), "bytes, where the last tensor ends");
        return Err(FormatError::header(file, "the data", found, format!("{covered} {needed}")));
    }
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

fn tensor(file: &str, data: Data<'_>, name: String, entry: Entry) -> Result<Tensor, FormatError> {
    let Entry { dtype, shape, offsets: (begin, end) } = entry;
    let fail =
        |what, found: String, needed: String| Err(FormatError::tensor(file, &name, what, found, needed));
    // Numbers of 8 bits, which whoever knows how they are scaled decodes.
    let dtype = if dtype == FLOAT8 { DType::U8.name().to_owned() } else { dtype };
    let Some(dtype) = DTYPES.into_iter().find(|known| known.name() == dtype) else {
        return fail("the dtype", shown(&dtype), format!("one of {}", DTYPES.map(DType::name).join(", ")));
    };
    let Some(len) = byte_len(dtype, &shape) else {
        return fail("the shape", shown(&format!("{shape:?}")), "a size that can be addressed".into());
    };
    let found = format!("[{begin}, {end}]");
    if begin > end {
        return fail("data_offsets", found, "a begin before the end".into());
    }
    if end - begin != len {
        return fail(
            "data_offsets",
            found,
            format!("{len} bytes for {dtype} {}", shown(&format!("{shape:?}"))),
        );
    }
    match data.window(begin, end) {
        Some(data) => Ok(Tensor { name, dtype, shape, data }),
        None => fail("data_offsets", found, format!("an end within the {} bytes of data", data.len())),
    }
}
