//! Shared, read-only bytes: a window into a mapped file or an owned buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A cheap handle to bytes that someone else owns, such as a mapped file.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
    mapped: bool,
}

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Bytes {
        let range = 0..(*owner).as_ref().len();
        Bytes { owner, range, mapped: false }
    }

    /// All bytes of `owner`, which has whole pages of memory for itself, as a mapped file does: a device may share
    /// them, the rest of the last page included.
    pub fn mapped(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Bytes {
        Bytes { mapped: true, ..Bytes::new(owner) }
    }

    /// The whole mapping that these bytes lie in and where they begin in it, where they were [`mapped`](Bytes::mapped).
    pub fn mapping(&self) -> Option<(Bytes, usize)> {
        self.mapped.then(|| (Bytes::mapped(self.owner.clone()), self.range.start))
    }

    /// A window into these bytes; `None` where it does not lie inside them.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        let end = self.range.start + range.end;
        Some(Bytes { owner: self.owner.clone(), range: start..end, mapped: self.mapped })
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::new(Arc::new(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // A mapped file that shrinks under us is the mapper's concern; `get` keeps this total.
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or(&[])
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
