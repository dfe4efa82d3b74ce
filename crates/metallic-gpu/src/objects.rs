//! What a driver has made, by id. Ids are never used twice: an old one finds nothing, never another object.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::GpuError;
use crate::gpu::{BufferId, LibraryId, PipelineId};

/// The buffers, libraries and pipelines of a device.
#[derive(Debug)]
pub(crate) struct Objects<B, L, P> {
    last: u32,
    pub(crate) buffers: Table<B>,
    libraries: HashMap<LibraryId, Arc<L>>,
    pub(crate) pipelines: HashMap<PipelineId, Arc<P>>,
}

impl<B, L, P> Default for Objects<B, L, P> {
    fn default() -> Objects<B, L, P> {
        let buffers = Table { entries: HashMap::new(), shared: HashMap::new() };
        Objects { last: 0, buffers, libraries: HashMap::new(), pipelines: HashMap::new() }
    }
}

impl<B, L, P> Objects<B, L, P> {
    fn id(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Keeps a buffer, which may lie over pages of the host.
    pub(crate) fn add_buffer(&mut self, buffer: B, pages: Option<Pages>) -> BufferId {
        let id = BufferId(self.id());
        self.buffers.insert(id, buffer, pages);
        id
    }

    pub(crate) fn add_library(&mut self, library: L) -> LibraryId {
        let id = LibraryId(self.id());
        self.libraries.insert(id, Arc::new(library));
        id
    }

    pub(crate) fn add_pipeline(&mut self, pipeline: P) -> PipelineId {
        let id = PipelineId(self.id());
        self.pipelines.insert(id, Arc::new(pipeline));
        id
    }

    /// A buffer that was not given back.
    pub(crate) fn buffer(&self, id: BufferId) -> Result<Arc<B>, GpuError> {
        let gone = || GpuError::execution(format!("buffer {}", id.0), "it was given back");
        self.buffers.get(id).cloned().ok_or_else(gone)
    }

    /// A library that was not given back, to make a kernel of.
    pub(crate) fn library(&self, id: LibraryId, function: &str) -> Result<Arc<L>, GpuError> {
        let gone = || GpuError::compile(function, "its library was given back");
        self.libraries.get(&id).cloned().ok_or_else(gone)
    }

    /// Gives a library back; what is made of it stays.
    pub(crate) fn drop_library(&mut self, id: LibraryId) -> Option<Arc<L>> {
        self.libraries.remove(&id)
    }
}

/// Pages of the host: address and length.
pub(crate) type Pages = (usize, usize);

/// Buffers by id. Imports of the same pages share one, which lives until the last of them is given back.
#[derive(Debug)]
pub(crate) struct Table<B> {
    entries: HashMap<BufferId, Entry<B>>,
    shared: HashMap<Pages, BufferId>,
}

#[derive(Debug)]
struct Entry<B> {
    buffer: Arc<B>,
    uses: usize,
    pages: Option<Pages>,
}

impl<B> Table<B> {
    pub(crate) fn insert(&mut self, id: BufferId, buffer: B, pages: Option<Pages>) {
        self.entries.insert(id, Entry { buffer: Arc::new(buffer), uses: 1, pages });
        if let Some(pages) = pages {
            self.shared.insert(pages, id);
        }
    }

    pub(crate) fn get(&self, id: BufferId) -> Option<&Arc<B>> {
        self.entries.get(&id).map(|entry| &entry.buffer)
    }

    /// One use more of the buffer over these pages, where there is one.
    pub(crate) fn share(&mut self, pages: Pages) -> Option<BufferId> {
        let id = *self.shared.get(&pages)?;
        self.entries.get_mut(&id)?.uses += 1;
        Some(id)
    }

    /// One use less; the buffer, when that was the last.
    pub(crate) fn release(&mut self, id: BufferId) -> Option<Arc<B>> {
        let entry = self.entries.get_mut(&id)?;
        entry.uses -= 1;
        if entry.uses > 0 {
            return None;
        }
        let entry = self.entries.remove(&id)?;
        if let Some(pages) = entry.pages {
            self.shared.remove(&pages);
        }
        Some(entry.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_lives_until_its_last_use_is_given_back() {
        let mut table = Objects::<_, (), ()>::default().buffers;
        let (a, b) = (BufferId(1), BufferId(2));
        table.insert(a, "pages", Some((4096, 100)));
        table.insert(b, "own", None);
        assert_eq!(table.share((4096, 100)), Some(a));
        assert_eq!(table.share((4096, 101)), None);
        assert_eq!(table.release(a), None);
        assert_eq!(table.get(a).map(|found| **found), Some("pages"));
        assert_eq!(table.release(a).map(|last| *last), Some("pages"));
        assert!(table.get(a).is_none());
        assert_eq!(table.share((4096, 100)), None, "the pages are free again");
        assert_eq!(table.release(a), None, "twice is no harm");
        assert_eq!(table.release(b).map(|last| *last), Some("own"));
    }

    #[test]
    fn who_holds_a_buffer_keeps_it_past_its_release() {
        let mut table = Objects::<_, (), ()>::default().buffers;
        table.insert(BufferId(1), vec![1, 2, 3], None);
        let kept = table.get(BufferId(1)).cloned().unwrap();
        drop(table.release(BufferId(1)));
        assert_eq!(*kept, [1, 2, 3]);
    }
}
