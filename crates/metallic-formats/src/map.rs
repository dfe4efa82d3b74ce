//! Files as bytes, without reading them: the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use metallic_core::{ByteSource, Bytes};

use crate::FormatError;

/// A mapped file.
struct Mapped {
    map: Mmap,
}

impl ByteSource for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let (start, len) = (range.start, range.len());
            // SAFETY: the pages of a shared, read-only mapping of a file come back from the file when they are next
            // read, so nobody sees other bytes. A refusal is no loss.
            let _ =
                unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// The contents of the regular file at `path`, mapped read-only.
pub(crate) fn map(path: &Path) -> Result<Bytes, FormatError> {
    let fail = |reason| FormatError::io(path, "open", reason);
    let kind = fs::metadata(path).map_err(fail)?;
    // Opening a pipe would wait for a writer; a folder cannot be mapped.
    if !kind.is_file() {
        let found = if kind.is_dir() { "a folder" } else { "not a regular file" };
        return Err(FormatError::header(&path.display().to_string(), "it", found, "a model file"));
    }
    if kind.len() == 0 {
        return Ok(Bytes::from(Vec::new()));
    }
    let file = File::open(path).map_err(fail)?;
    // SAFETY: the mapping is read-only, and no `&mut` to it is ever made. Its
    // length is that of the file now; that others leave the file alone is the contract of the crate (see
    // its documentation).
    let map = unsafe { Mmap::map(&file) }.map_err(|reason| FormatError::io(path, "map", reason))?;
    Ok(Bytes::mapped(Arc::new(Mapped { map })))
}
