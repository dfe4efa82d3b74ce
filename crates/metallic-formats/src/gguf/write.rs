//! The GGUF writer.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use metallic_core::DType;

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
        let spec = TensorSpec { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.shape };
        let len = spec.checked(&mut self.names)?;
        if len != tensor.data.len() {
            let (found, needed) = (format!("{} bytes", tensor.data.len()), format!("{len} bytes"));
            return Err(FormatError::tensor(UNNAMED, &tensor.name, "the data", found, needed));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Writes the file at `path`, which appears complete or not at all: the bytes go to a temporary name
    /// beside it first.
    pub fn write(&self, path: &Path) -> Result<(), FormatError> {
        let mut file = GgufStream::create(path, &self.metadata, self.specs())?;
        for tensor in &self.tensors {
            file.write(&tensor.data)?;
        }
        file.finish()
    }

    fn specs(&self) -> impl Iterator<Item = TensorSpec<'_>> {
        self.tensors.iter().map(|t| TensorSpec { name: &t.name, dtype: t.dtype, shape: &t.shape })
    }

    /// The whole file in memory.
    pub fn to_vec(&self) -> Result<Vec<u8>, FormatError> {
        let Head { bytes: mut out, alignment, .. } = Head::new(&self.metadata, self.specs())?;
        for tensor in &self.tensors {
            out.extend_from_slice(&tensor.data);
            out.resize(out.len() + padding(tensor.data.len(), alignment), 0);
        }
        Ok(out)
    }
}

/// A tensor of a file whose data comes later.
#[derive(Clone, Copy, Debug)]
pub struct TensorSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// Row-major, outermost axis first.
    pub shape: &'a [usize],
}

impl TensorSpec<'_> {
    /// How many bytes it takes; an error for what a reader would refuse, or what has a name of these.
    fn checked(&self, names: &mut HashSet<String>) -> Result<usize, FormatError> {
        let TensorSpec { name, dtype, shape } = *self;
        let fail = |what, found: String, needed: String| {
            Err(FormatError::tensor(UNNAMED, name, what, found, needed))
        };
        if name.is_empty() {
            return fail("the name", "empty".into(), "a name".into());
        }
        if dtype.ggml_id().is_none() {
            return fail("the dtype", dtype.to_string(), "one that GGUF has".into());
        }
        if !(1..=MAX_DIMS).contains(&shape.len()) || shape.contains(&0) {
            return fail("the shape", format!("{shape:?}"), "1 to 4 axes of 1 or more".into());
        }
        let Some(len) = byte_len(dtype, shape) else {
            let needed = format!("rows in blocks of {} that can be addressed", dtype.block_len());
            return fail("the shape", format!("{shape:?}"), needed);
        };
        if !names.insert(name.to_owned()) {
            return Err(FormatError::duplicate(UNNAMED, "tensor", name));
        }
        Ok(len)
    }
}

/// A GGUF file that is written one tensor after the other, so that only one need be in memory. It appears complete or not at
/// all: until [`GgufStream::finish`] its bytes are under a temporary name beside it.
pub struct GgufStream {
    path: PathBuf,
    temporary: Temporary,
    out: BufWriter<File>,
    alignment: usize,
    /// Bytes of the tensors to come, the next one last.
    expected: Vec<usize>,
}

impl GgufStream {
    /// Begins the file at `path` with its metadata and the descriptions of all its tensors.
    pub fn create<'a>(
        path: &Path,
        metadata: &Metadata,
        tensors: impl Iterator<Item = TensorSpec<'a>>,
    ) -> Result<GgufStream, FormatError> {
        let fail = |reason| FormatError::io(path, "write", reason);
        let Head { bytes, alignment, mut lengths } = Head::new(metadata, tensors)?;
        lengths.reverse();
        let Some(name) = path.file_name() else {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "this path has no file name")));
        };
        let temporary = Temporary::beside(path, name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary.0).map_err(fail)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&bytes).map_err(fail)?;
        Ok(GgufStream { path: path.to_owned(), temporary, out, alignment, expected: lengths })
    }

    fn io(&self, reason: io::Error) -> FormatError {
        FormatError::io(&self.path, "write", reason)
    }

    /// Writes the data of the next tensor.
    pub fn write(&mut self, data: &[u8]) -> Result<(), FormatError> {
        let expected = self.expected.pop().unwrap_or_default();
        if data.len() != expected {
            let reason = format!("a tensor has {} bytes and was announced with {expected}", data.len());
            return Err(self.io(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let padding = vec![0; padding(data.len(), self.alignment)];
        let written = self.out.write_all(data).and_then(|()| self.out.write_all(&padding));
        written.map_err(|reason| self.io(reason))
    }

    /// Leaves the data of the next tensor out: it reads as zeros, and takes no room on file systems that keep holes.
    pub fn skip(&mut self) -> Result<(), FormatError> {
        let Some(len) = self.expected.pop() else {
            let reason = "all tensors that were announced are there already";
            return Err(self.io(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        };
        let whole = len.next_multiple_of(self.alignment) as u64;
        let skipped = self.out.flush().and_then(|()| {
            let file = self.out.get_mut();
            let end = file.stream_position()?.saturating_add(whole);
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))
        });
        skipped.map(drop).map_err(|reason| self.io(reason))
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), FormatError> {
        if !self.expected.is_empty() {
            let reason = format!("{} of its tensors were not written", self.expected.len());
            return Err(self.io(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let done = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        done.and_then(|()| fs::rename(&self.temporary.0, &self.path)).map_err(|reason| self.io(reason))
    }
}

impl std::fmt::Debug for GgufStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GgufStream(`{}`, {} tensors to come)", self.path.display(), self.expected.len())
    }
}

/// Everything before the data section, padding included.
struct Head {
    bytes: Vec<u8>,
    alignment: usize,
    /// Bytes of each tensor.
    lengths: Vec<usize>,
}

impl Head {
    fn new<'a>(
        metadata: &Metadata,
        tensors: impl Iterator<Item = TensorSpec<'a>>,
    ) -> Result<Head, FormatError> {
        let alignment = alignment(metadata)?;
        let tensors: Vec<TensorSpec<'_>> = tensors.collect();
        let mut out = MAGIC.to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((metadata.len() as u64).to_le_bytes());
        for (key, given) in metadata.iter() {
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
        let (mut offset, mut names, mut lengths) = (0, HashSet::new(), Vec::new());
        for tensor in tensors {
            let len = tensor.checked(&mut names)?;
            lengths.push(len);
            value::string(&mut out, tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for axis in tensor.shape.iter().rev() {
                out.extend((*axis as u64).to_le_bytes());
            }
            // Types without an id were refused.
            out.extend(tensor.dtype.ggml_id().unwrap_or_default().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += len + padding(len, alignment);
        }
        out.resize(out.len() + padding(out.len(), alignment), 0);
        Ok(Head { bytes: out, alignment, lengths })
    }
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
