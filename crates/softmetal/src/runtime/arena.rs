//! Threadgroup memory: arguments and variables of one threadgroup, poisoned before use.

/// What a threadgroup may use on every Apple GPU, unless a device says otherwise.
pub(crate) const LIMIT: usize = 32 << 10;
/// Unused bytes between allocations, so that an overrun is nobody's memory.
const GAP: usize = 64;
const ALIGN: usize = 64;
/// Reads as NaN in every float type.
const POISON: u8 = 0xFF;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; ALIGN]);

/// Memory of one host thread, reused by each threadgroup it runs.
pub(crate) struct Arena {
    lines: Vec<Line>,
    next: usize,
    /// Bytes in use, gaps not counted.
    pub(crate) used: usize,
    variables: Vec<(usize, usize)>,
    /// Bytes that the device has.
    pub(crate) limit: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self { lines: room(LIMIT), next: GAP, used: 0, variables: Vec::new(), limit: LIMIT }
    }
}

/// Room for `limit` bytes in slices of one byte would be absurd; this is room for some 500 variables.
fn room(limit: usize) -> Vec<Line> {
    vec![Line([POISON; ALIGN]); limit.saturating_add(512 * (GAP + ALIGN)) / ALIGN]
}

impl Arena {
    /// Forgets the last threadgroup's allocations; the next one may have `limit` bytes.
    pub(crate) fn clear(&mut self, limit: usize) {
        if limit != self.limit {
            (self.lines, self.limit) = (room(limit), limit);
        }
        self.next = GAP;
        self.used = 0;
        self.variables.clear();
    }

    /// The address of a `threadgroup` variable and whether this call made it; nothing if there is no more room.
    pub(crate) fn variable(
        &mut self,
        key: usize,
        size: usize,
        align: usize,
        zeroed: bool,
    ) -> Option<(usize, bool)> {
        if let Some((_, address)) = self.variables.iter().find(|(k, _)| *k == key) {
            return Some((*address, false));
        }
        let address = self.allocate(size, align, if zeroed { 0 } else { POISON })?;
        self.variables.push((key, address));
        Some((address, true))
    }

    /// The address of a `[[threadgroup(n)]]` argument.
    pub(crate) fn argument(&mut self, size: usize) -> Option<usize> {
        self.allocate(size, ALIGN, POISON)
    }

    fn allocate(&mut self, size: usize, align: usize, fill: u8) -> Option<usize> {
        let base = self.lines.as_ptr() as usize;
        let start = (base + self.next).next_multiple_of(align.max(16)) - base;
        if self.used + size > self.limit || start + size + GAP > self.lines.len() * ALIGN {
            return None;
        }
        // SAFETY: `start + size` lies in `lines` (above), whose elements are plain bytes.
        unsafe { self.lines.as_mut_ptr().cast::<u8>().add(start).write_bytes(fill, size) };
        self.next = start + size + GAP;
        self.used += size;
        Some(base + start)
    }
}
