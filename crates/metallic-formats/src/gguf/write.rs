//! The GGUF writer.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ALIGNMENT_KEY, MAGIC, MAX_DIMS, MAX_KEY_LEN, alignment, value};
use crate::tensor::byte_len;
use crate::{FormatError, Metadata, Tensor, Value};

/// Collects metadata and tensors and writes them as GGUF version 3.
///
/// ```
/// use metallic_core::{Bytes, DType};
/// use metallic_formats::{Gguf, GgufWriter, Tensor};
///
/// let mut writer = GgufWriter::new();
/// writer.insert("general.architecture", "llama");
/// let data = Bytes::from(vec![0; 24]);
/// writer.add(Tensor { name: "w".into(), dtype: DType::F32, shape: vec![2, 3], data })?;
/// let file = Gguf::parse("w.gguf", writer.to_vec()?.into())?;
/// assert_eq!(file.require("w")?.shape, [2, 3]);
/// # Ok::<(), metallic_formats::FormatError>(())
/// ```
#[derive(Debug)]
pub struct GgufWriter {
    metadata: Metadata,
    tensors: Vec<Tensor>,
    names: HashSet<String>,
}

/// How errors call a file that is not yet one.
const UNNAMED: &str = "the new GGUF file";

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter::new()
    }
}

impl GgufWriter {
    /// Nothing to write yet.
    pub fn new() -> GgufWriter {
        GgufWriter::with_metadata(Metadata::empty(UNNAMED))
    }

    /// Begins with the metadata of another file; its `general.alignment` is kept.
    pub fn with_metadata(metadata: Metadata) -> GgufWriter {
        GgufWriter { metadata, tensors: Vec::new(), names: HashSet::new() }
    }

    /// Sets a metadata key; `general.alignment` among them decides the alignment of the data.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut GgufWriter {
        self.metadata.insert(key, value);
        self
    }

    /// Adds a tensor, refusing what a reader would refuse.
    pub fn add(&mut self, tensor: Tensor) -> Result<(), FormatError> {
        let fail = |what, found: String, needed: String| {
            Err(FormatError::tensor(UNNAMED, &tensor.name, what, found, needed))
        };
        let Tensor { name, dtype, shape, data } = &tensor;
        if name.is_empty() {
            return fail("the name", "empty".into(), "a name".into());
        }
        if dtype.ggml_id().is_none() {
            return fail("the dtype", dtype.to_string(), "one that GGUF has".into());
        }
        if !(1..=MAX_DIMS).contains(&shape.len()) || shape.contains(&0) {
            return fail("the shape", format!("{shape:?}"), "1 to 4 axes of 1 or more".into());
        }
        match byte_len(*dtype, shape) {
            Some(len) if len == data.len() => {}
            Some(len) => return fail("the data", format!("{} bytes", data.len()), format!("{len} bytes")),
            None => {
                let needed = format!("rows in blocks of {} that can be addressed", dtype.block_len());
                return fail("the shape", format!("{shape:?}"), needed);
            }
        }
        if !self.names.insert(name.clone()) {
            return Err(FormatError::duplicate(UNNAMED, "tensor", name));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Writes the file at `path`, which appears complete or not at all: the bytes go to a temporary name
    /// beside it first.
    pub fn write(&self, path: &Path) -> Result<(), FormatError> {
        let fail = |reason| FormatError::io(path, "write", reason);
        let head = self.head()?;
        let Some(name) = path.file_name() else {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "this path has no file name")));
        };
        let temporary = Temporary::beside(path, name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary.0).map_err(fail)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let finish =
            |out: BufWriter<File>| out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all();
        self.emit(&head, &mut out).and_then(|()| finish(out)).map_err(fail)?;
        fs::rename(&temporary.0, path).map_err(fail)
    }

    /// The whole file in memory.
    pub fn to_vec(&self) -> Result<Vec<u8>, FormatError> {
        let head = self.head()?;
        let mut out = Vec::new();
        let fail = |reason| FormatError::Io { file: UNNAMED.into(), action: "write", reason };
        self.emit(&head, &mut out).map_err(fail)?;
        Ok(out)
    }

    fn emit(&self, head: &Head, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&head.bytes)?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            out.write_all(&vec![0; padding(tensor.data.len(), head.alignment)])?;
        }
        Ok(())
    }

    /// Everything before the data section, padding included.
    fn head(&self) -> Result<Head, FormatError> {
        let alignment = alignment(&self.metadata)?;
        let mut out = MAGIC.to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, given) in self.metadata.iter() {
            if key.len() > MAX_KEY_LEN {
                let found = format!("under a key of {} bytes", key.len());
                let needed = format!("a key of at most {MAX_KEY_LEN} bytes");
                return Err(FormatError::key(UNNAMED, key, found, needed));
            }
            value::string(&mut out, key);
            if key == ALIGNMENT_KEY {
                // The type the format fixes for it, whatever width it was given in.
                value::write(&mut out, &Value::U32(alignment as u32));
            } else {
                value::write(&mut out, given);
            }
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            value::string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for axis in tensor.shape.iter().rev() {
                out.extend((*axis as u64).to_le_bytes());
            }
            // `add` refused the types without an id.
            out.extend(tensor.dtype.ggml_id().unwrap_or_default().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.data.len() + padding(tensor.data.len(), alignment);
        }
        out.resize(out.len() + padding(out.len(), alignment), 0);
        Ok(Head { bytes: out, alignment })
    }
}

struct Head {
    bytes: Vec<u8>,
    alignment: usize,
}

/// A file name that is removed again unless it was renamed away.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(path: &Path, name: &OsStr) -> Temporary {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{count}.part", std::process::id()));
        Temporary(path.with_file_name(hidden))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Gone already after the rename, and there is nobody to tell where it fails.
        let _ = fs::remove_file(&self.0);
    }
}

fn padding(len: usize, alignment: usize) -> usize {
    len.next_multiple_of(alignment) - len
}
