//! Buffers by id. Imports of the same pages share one, which lives until the last of them is given back.

use std::collections::HashMap;
use std::sync::Arc;

use crate::gpu::BufferId;

/// Pages of the host: address and length.
pub(crate) type Pages = (usize, usize);

/// The buffers of a device. Ids are never used twice: an old one finds nothing, never another buffer.
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

impl<B> Default for Table<B> {
    fn default() -> Table<B> {
        Table { entries: HashMap::new(), shared: HashMap::new() }
    }
}

impl<B> Table<B> {
    /// A buffer under a new id.
    pub(crate) fn insert(&mut self, id: BufferId, buffer: B, pages: Option<Pages>) {
        self.entries.insert(id, Entry { buffer: Arc::new(buffer), uses: 1, pages });
        if let Some(pages) = pages {
            self.shared.insert(pages, id);
        }
    }

    /// The buffer of an id.
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
        let mut table = Table::default();
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
        let mut table = Table::default();
        table.insert(BufferId(1), vec![1, 2, 3], None);
        let kept = table.get(BufferId(1)).cloned().unwrap();
        drop(table.release(BufferId(1)));
        assert_eq!(*kept, [1, 2, 3]);
    }
}
