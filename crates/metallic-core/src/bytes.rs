//! Shared, read-only bytes: a window into a mapped file, a part of a file that is read on use, or an owned buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes of a file that cannot be had (any more).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{file}`: {reason}")]
pub struct BytesLost {
    /// The file.
    pub file: String,
    /// What became of them.
    pub reason: String,
}

/// Who holds bytes: memory, or a file.
pub trait ByteSource: Send + Sync {
    /// All of them; fewer where some cannot be had, for which [`check`](ByteSource::check) then has the reason.
    fn bytes(&self) -> &[u8];

    /// How many there are.
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of them, for one use: where they lie, or in `buffer`. `None` where `range` is not inside them.
    fn read<'a>(
        &'a self,
        range: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, BytesLost> {
        let _ = buffer;
        Ok(self.bytes().get(range))
    }

    /// The memory that holds some of them may be had back for now; they can be read again.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }

    /// Whether all that was read so far was there.
    fn check(&self) -> Result<(), BytesLost> {
        Ok(())
    }
}

impl ByteSource for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A cheap handle to bytes that someone else owns, such as a mapped file.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn ByteSource>,
    range: Range<usize>,
    mapped: bool,
}

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: Arc<dyn ByteSource>) -> Bytes {
        let range = 0..owner.len();
        Bytes { owner, range, mapped: false }
    }

    /// All bytes of `owner`, which has whole pages of memory for itself, as a mapped file does: a device may share
    /// them, the rest of the last page included.
    pub fn mapped(owner: Arc<dyn ByteSource>) -> Bytes {
        Bytes { mapped: true, ..Bytes::new(owner) }
    }

    /// The whole mapping that these bytes lie in and where they begin in it, where they were [`mapped`](Bytes::mapped).
    pub fn mapping(&self) -> Option<(Bytes, usize)> {
        self.mapped.then(|| (Bytes::mapped(self.owner.clone()), self.range.start))
    }

    /// How many there are; reads none.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A window into these bytes; `None` where it does not lie inside them.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        let range = self.within(range)?;
        Some(Bytes { owner: self.owner.clone(), range, mapped: self.mapped })
    }

    /// Some of these bytes, for one use: where they lie, or in `buffer` where they are read from a file. None of them where
    /// the range does not lie inside.
    pub fn read<'a>(&'a self, range: Range<usize>, buffer: &'a mut Vec<u8>) -> Result<&'a [u8], BytesLost> {
        let Some(range) = self.within(range) else { return Ok(&[]) };
        Ok(self.owner.read(range, buffer)?.unwrap_or(&[]))
    }

    /// The memory that holds some of these bytes may be had back for now, where that is possible; they can be read again.
    pub fn release(&self, range: Range<usize>) {
        if let Some(range) = self.within(range) {
            self.owner.release(range);
        }
    }

    /// Whether all bytes that were read of this file or memory so far, here or elsewhere, were there: what was read from a
    /// mapped file may be zeros where the file was cut short meanwhile.
    pub fn check(&self) -> Result<(), BytesLost> {
        self.owner.check()
    }

    /// A range of these bytes as one of the owner's.
    fn within(&self, range: Range<usize>) -> Option<Range<usize>> {
        let inside = range.start <= range.end && range.end <= self.len();
        inside.then(|| self.range.start + range.start..self.range.start + range.end)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::new(Arc::new(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    /// Of a file that is not mapped, reads these bytes and keeps them; empty where they cannot be had, for which
    /// [`check`](Bytes::check) then has the reason.
    fn deref(&self) -> &[u8] {
        self.owner.bytes().get(self.range.clone()).unwrap_or(&[])
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} B)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_outside_is_refused() {
        let bytes = Bytes::from(vec![1, 2, 3, 4]);
        let inner = bytes.slice(1..3).unwrap();
        assert_eq!(&inner[..], &[2, 3]);
        assert_eq!(&inner.slice(1..2).unwrap()[..], &[3]);
        assert!(inner.slice(1..3).is_none());
        let (start, end) = (3, 2);
        assert!(bytes.slice(start..end).is_none());
    }

    #[test]
    fn a_window_into_a_mapping_knows_the_whole_of_it() {
        let bytes = Bytes::mapped(Arc::new(vec![1, 2, 3, 4])).slice(1..4).unwrap().slice(1..3).unwrap();
        let (whole, start) = bytes.mapping().unwrap();
        assert_eq!((&whole[..], start), (&[1, 2, 3, 4][..], 2));
        assert!(
            Bytes::from(vec![1, 2]).slice(1..2).unwrap().mapping().is_none(),
            "a vector shares its pages"
        );
    }
}
