//! Checked reading of little-endian fields from untrusted bytes.

use std::fmt;

use crate::FormatError;

/// A position in a file. Every read is checked against what is left before anything is allocated.
pub(super) struct Cursor<'a> {
    pub(super) file: &'a str,
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a str, bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { file, bytes, pos: 0 }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.pos
    }

    fn truncated(&self, what: &dyn fmt::Display, needed: u64) -> FormatError {
        let (file, what) = (self.file.to_string(), what.to_string());
        FormatError::Truncated { file, what, needed, left: self.left() as u64 }
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, what: &dyn fmt::Display) -> Result<&'a [u8], FormatError> {
        let end = usize::try_from(len).ok().and_then(|len| self.pos.checked_add(len));
        let taken = end.and_then(|end| self.bytes.get(self.pos..end));
        let taken = taken.ok_or_else(|| self.truncated(what, len))?;
        self.pos += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &dyn fmt::Display) -> Result<[u8; N], FormatError> {
        let bytes = self.bytes[self.pos..].first_chunk().ok_or_else(|| self.truncated(what, N as u64))?;
        self.pos += N;
        Ok(*bytes)
    }

    pub(super) fn u32(&mut self, what: &dyn fmt::Display) -> Result<u32, FormatError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &dyn fmt::Display) -> Result<u64, FormatError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things that take at least `least` bytes each, so that it can be trusted as a capacity.
    pub(super) fn count(&mut self, least: u64, what: &dyn fmt::Display) -> Result<usize, FormatError> {
        let count = self.u64(what)?;
        match usize::try_from(count) {
            Ok(n) if count.checked_mul(least).is_some_and(|bytes| bytes <= self.left() as u64) => Ok(n),
            _ => {
                let needed =
                    format!("at most {}, as {} bytes are left", self.left() as u64 / least, self.left());
                Err(FormatError::header(self.file, what.to_string(), count, needed))
            }
        }
    }

    /// A string with its length before it.
    pub(super) fn string(&mut self, what: &dyn fmt::Display) -> Result<&'a str, FormatError> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        str::from_utf8(bytes).map_err(|error| {
            let begin = error.valid_up_to();
            let bad = bytes[begin..][..8.min(bytes.len() - begin)].escape_ascii();
            let found = format!("not UTF-8 at its byte {begin} (`{bad}`)");
            FormatError::header(self.file, what.to_string(), found, "UTF-8 text")
        })
    }
}
