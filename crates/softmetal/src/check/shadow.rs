//! Shadow memory: for each word the last write and the last reads, and when they are ordered before what comes next.

/// Shadow of one page describes this many bytes.
const PAGE: usize = 1024;
const WORD: usize = 4;

/// Whose accesses a mark stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Scope {
    #[default]
    Nobody,
    Thread,
    Simdgroup,
    Threadgroup,
    Grid,
}

/// An access, or several that no barrier has ordered yet; the fields are those of the last.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    /// Threadgroup, counted through the grid.
    pub(crate) group: u32,
    /// Threadgroup barriers passed before it.
    pub(crate) epoch: u32,
    /// Simdgroup barriers passed before it.
    pub(crate) simd_epoch: u32,
    /// Offset of the instruction in the library.
    pub(crate) pc: u32,
    pub(crate) thread: u16,
    pub(crate) scope: Scope,
    pub(crate) atomic: bool,
}

impl Mark {
    pub(crate) fn simdgroup(&self) -> u16 {
        self.thread / 32
    }

    /// One thread's, with no barrier between this mark and `now`.
    pub(crate) fn same_moment(&self, now: &Self) -> bool {
        self.scope == Scope::Thread
            && (self.group, self.thread, self.epoch, self.simd_epoch)
                == (now.group, now.thread, now.epoch, now.simd_epoch)
    }

    /// This mark joined by `now`, which it is not ordered before.
    pub(crate) fn joined(&self, now: &Self) -> Self {
        let scope = if self.scope == Scope::Nobody {
            now.scope
        } else if self.group != now.group {
            Scope::Grid
        } else if self.thread == now.thread {
            self.scope
        } else if self.simdgroup() == now.simdgroup() {
            self.scope.max(Scope::Simdgroup)
        } else {
            self.scope.max(Scope::Threadgroup)
        };
        Self { scope, atomic: now.atomic && (self.scope == Scope::Nobody || self.atomic), ..*now }
    }
}

/// What is known about a word, or about a byte where a finer access was seen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cell {
    pub(crate) write: Mark,
    pub(crate) read: Mark,
}

#[derive(Debug)]
struct Page {
    /// One cell per byte rather than per word.
    fine: bool,
    cells: Vec<Cell>,
}

impl Page {
    fn refine(&mut self) {
        self.cells = self.cells.iter().flat_map(|c| [*c; WORD]).collect();
        self.fine = true;
    }
}

/// Shadow of one allocation; pages come into being as they are touched.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Page>>,
}

impl Shadow {
    pub(crate) fn new(len: usize) -> Self {
        let mut shadow = Self::default();
        shadow.grow(len);
        shadow
    }

    pub(crate) fn grow(&mut self, len: usize) {
        if self.pages.len() < len.div_ceil(PAGE) {
            self.pages.resize_with(len.div_ceil(PAGE), || None);
        }
    }

    /// Visits the cells of `n` bytes at `offset` until `f` has seen enough.
    #[inline]
    pub(crate) fn visit(&mut self, offset: usize, n: usize, mut f: impl FnMut(&mut Cell) -> bool) {
        let (mut at, end) = (offset, offset + n);
        while at < end {
            let start = at / PAGE * PAGE;
            let stop = end.min(start + PAGE);
            let (low, high) = (at - start, stop - start);
            let Some(page) = self.pages.get_mut(at / PAGE) else { return };
            let page =
                page.get_or_insert_with(|| Page { fine: false, cells: vec![Cell::default(); PAGE / WORD] });
            if !page.fine && (low % WORD != 0 || high % WORD != 0) {
                page.refine();
            }
            let cells =
                if page.fine { &mut page.cells[low..high] } else { &mut page.cells[low / WORD..high / WORD] };
            for cell in cells {
                if f(cell) {
                    return;
                }
            }
            at = stop;
        }
    }

    /// The last write to the byte at `offset`.
    pub(crate) fn writer(&self, offset: usize) -> Option<Mark> {
        let page = self.pages.get(offset / PAGE)?.as_ref()?;
        let i = offset % PAGE;
        let mark = page.cells[if page.fine { i } else { i / WORD }].write;
        (mark.scope != Scope::Nobody).then_some(mark)
    }
}
