//! Files as bytes, without reading them.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use metallic_core::{ByteSource, Bytes, BytesLost};

use crate::FormatError;
#[cfg(any(target_os = "linux", target_os = "macos"))]
use crate::mmap_guard::{Watched, watch};

/// A mapped file.
struct Mapped {
    path: String,
    // Before the mapping, so that it is dropped first: nothing is watched where nothing is mapped.
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    watched: Option<Watched>,
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
            // read, and zeros in place of what it lost are zeros again. A refusal is no loss.
            let _ =
                unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    fn check(&self) -> Result<(), BytesLost> {
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        if let Some(at) = self.watched.as_ref().and_then(Watched::lost) {
            return Err(BytesLost {
                file: self.path.clone(),
                reason: format!(
                    "it was cut short while it was in use: it had {} bytes when it was opened, and from byte {at} on they cannot be \
                     read any more",
                    self.map.len()
                ),
            });
        }
        Ok(())
    }
}

/// An open file that is not empty, mapped read-only.
pub(crate) fn map(path: &Path, file: &File) -> Result<Bytes, FormatError> {
    // SAFETY: the mapping is read-only, and no `&mut` to it is ever made. Its length is that of the file now. Where the file
    // becomes shorter, what is lost reads as zeros and is told by `check`; that nobody writes into it is the contract of the
    // crate (see its documentation).
    let map = unsafe { Mmap::map(file) }.map_err(|reason| FormatError::io(path, "map", reason))?;
    Ok(Bytes::mapped(Arc::new(Mapped {
        path: path.display().to_string(),
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        watched: watch(map.as_ptr(), map.len()),
        map,
    })))
}
