//! What is in a file: mapped, or read when it is wanted.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metallic_core::{ByteSource, Bytes, BytesLost};

use crate::FormatError;
use crate::map::map;

/// How the bytes of a file are had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Mapped: pages come from the file as they are touched, and several processes share them.
    #[default]
    Map,
    /// Read into memory, each tensor when it is first used: for files that may change meanwhile, and for disks on a network.
    Read,
}

/// The contents of a file.
pub(crate) enum Contents {
    /// All bytes are at hand.
    Whole(Bytes),
    /// Parts are read.
    File(Arc<OpenFile>),
}

impl Contents {
    /// Opens the regular file at `path`.
    pub(crate) fn open(path: &Path, access: Access) -> Result<Contents, FormatError> {
        let fail = |reason| FormatError::io(path, "open", reason);
        let kind = fs::metadata(path).map_err(fail)?;
        // Opening a pipe would wait for a writer; a folder cannot be mapped.
        if !kind.is_file() {
            let found = if kind.is_dir() { "a folder" } else { "not a regular file" };
            return Err(FormatError::header(&path.display().to_string(), "it", found, "a model file"));
        }
        let file = File::open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        let len = usize::try_from(len).map_err(|_| {
            FormatError::header(&path.display().to_string(), "its length", len, "fewer bytes")
        })?;
        match access {
            _ if len == 0 => Ok(Contents::Whole(Bytes::from(Vec::new()))),
            Access::Map => Ok(Contents::Whole(map(path, &file)?)),
            Access::Read => {
                let path = path.display().to_string();
                Ok(Contents::File(Arc::new(OpenFile { path, len, file: Mutex::new(file) })))
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Contents::Whole(bytes) => bytes.len(),
            Contents::File(file) => file.len,
        }
    }

    /// The first `len` bytes or more, at most all.
    pub(crate) fn head(&self, len: usize) -> Result<Bytes, FormatError> {
        match self {
            Contents::Whole(bytes) => Ok(bytes.clone()),
            Contents::File(file) => {
                let mut head = Vec::new();
                file.read(0..len.min(file.len), &mut head)?;
                Ok(head.into())
            }
        }
    }

    /// Some of the bytes; `None` where they do not lie inside the file.
    pub(crate) fn window(&self, range: Range<usize>) -> Option<Bytes> {
        match self {
            Contents::Whole(bytes) => bytes.slice(range),
            Contents::File(_) if range.start > range.end || range.end > self.len() => None,
            Contents::File(file) => Some(Bytes::new(Arc::new(Part {
                file: Arc::clone(file),
                range,
                kept: OnceLock::new(),
                lost: OnceLock::new(),
            }))),
        }
    }

    /// Whether all that was read so far was there.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        match self {
            Contents::Whole(bytes) => Ok(bytes.check()?),
            // Its parts tell.
            Contents::File(_) => Ok(()),
        }
    }
}

/// A file that is read in parts.
pub(crate) struct OpenFile {
    path: String,
    len: usize,
    file: Mutex<File>,
}

impl OpenFile {
    /// Fills `buffer` with these bytes.
    fn read(&self, range: Range<usize>, buffer: &mut Vec<u8>) -> Result<(), BytesLost> {
        let lost = |error: io::Error| {
            let reason = match error.kind() {
                io::ErrorKind::UnexpectedEof => format!(
                    "it was cut short while it was in use: it had {} bytes when it was opened, and bytes {} to {} are not there any more",
                    self.len, range.start, range.end
                ),
                _ => format!("bytes {} to {} cannot be read: {error}", range.start, range.end),
            };
            BytesLost { file: self.path.clone(), reason }
        };
        buffer.clear();
        buffer.try_reserve_exact(range.len()).map_err(|_| lost(io::ErrorKind::OutOfMemory.into()))?;
        buffer.resize(range.len(), 0);
        // One place in the file for all: whoever reads moves it first.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(range.start as u64)).map_err(lost)?;
        file.read_exact(buffer).map_err(lost)
    }
}

/// A part of a file: read for each use, or once and kept where it is asked for as a slice.
struct Part {
    file: Arc<OpenFile>,
    range: Range<usize>,
    kept: OnceLock<Vec<u8>>,
    lost: OnceLock<BytesLost>,
}

impl ByteSource for Part {
    fn bytes(&self) -> &[u8] {
        self.kept.get_or_init(|| {
            let mut bytes = Vec::new();
            match self.file.read(self.range.clone(), &mut bytes) {
                Ok(()) => bytes,
                Err(error) => {
                    self.lost.get_or_init(|| error);
                    Vec::new()
                }
            }
        })
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn read<'a>(
        &'a self,
        range: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, BytesLost> {
        if let Some(kept) = self.kept.get() {
            self.check()?;
            return Ok(kept.get(range));
        }
        if range.start > range.end || range.end > self.len() {
            return Ok(None);
        }
        self.file.read(self.range.start + range.start..self.range.start + range.end, buffer)?;
        Ok(Some(buffer))
    }

    fn check(&self) -> Result<(), BytesLost> {
        self.lost.get().map_or(Ok(()), |lost| Err(lost.clone()))
    }
}
