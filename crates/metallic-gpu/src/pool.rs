//! Memory of a device: size classes for what comes and goes, exact allocations for what stays, one budget for all.

use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use metallic_core::{Bytes, PoolUse};

use crate::command::Region;
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Storage};
use crate::lock;

const SMALLEST: usize = 256;
/// Bytes of buffers nobody uses that are kept for the next request.
const IDLE_MOST: u64 = 256 << 20;

/// What one size class has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of each of its buffers.
    pub bytes: usize,
    /// Buffers in use.
    pub live: usize,
    /// Buffers kept for the next request.
    pub idle: usize,
    /// Requests served by a buffer that was there.
    pub reuses: u64,
}

/// What a pool holds and has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes in use, in buffers of every kind.
    pub live_bytes: u64,
    /// Bytes kept for the next request.
    pub idle_bytes: u64,
    /// Most bytes held at one time, idle ones included.
    pub peak_bytes: u64,
    /// Bytes that may be held at one time.
    pub budget: Option<u64>,
    /// Buffers the device was asked for.
    pub allocations: u64,
    /// Requests served without asking the device.
    pub reuses: u64,
    /// The size classes that were used, smallest first.
    pub classes: Vec<ClassStats>,
}

/// Memory of a device under a budget. Clones share it.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    gpu: Arc<dyn Gpu>,
    budget: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// But for its classes, and the budget.
    stats: PoolStats,
    classes: BTreeMap<(usize, Storage), Class>,
    imports: Imports,
}

#[derive(Debug, Default)]
struct Class {
    idle: Vec<BufferId>,
    live: usize,
    reuses: u64,
}

impl Pool {
    /// A pool of `budget` bytes; without one, of as many as the device says it has.
    pub fn new(gpu: Arc<dyn Gpu>, budget: Option<u64>) -> Pool {
        let budget = budget.into_iter().chain(gpu.limits().budget).min();
        Pool { shared: Arc::new(Shared { gpu, budget, state: Mutex::default() }) }
    }

    /// A buffer for a while, of a size class. It may hold old bytes. Work that uses it must be done before it is dropped.
    pub fn transient(
        &self,
        what: &'static str,
        bytes: usize,
        storage: Storage,
    ) -> Result<Allocation, GpuError> {
        let shared = &self.shared;
        let class = bytes.max(SMALLEST).checked_next_power_of_two();
        if let Some(class) = class.filter(|class| *class <= shared.gpu.limits().max_buffer) {
            let key = (class, storage);
            let found = shared.reuse(key).map_or_else(|| shared.allocate(what, class, storage), Ok);
            match found {
                Ok(id) => {
                    lock(&shared.state).classes.entry(key).or_default().live += 1;
                    let region = Region::whole(id, class).slice(0, bytes)?;
                    return Ok(self.hold(region, class, Kind::Class(key)));
                }
                Err(error) if class == bytes => return Err(error),
                // What a class rounds up to may not fit where the request itself does.
                Err(_) => {}
            }
        }
        self.allocate(what, bytes, storage)
    }

    /// A zeroed buffer of exactly this size, for what stays: the arena of a program, a KV cache.
    pub fn allocate(
        &self,
        what: &'static str,
        bytes: usize,
        storage: Storage,
    ) -> Result<Allocation, GpuError> {
        let id = self.shared.allocate(what, bytes, storage)?;
        Ok(self.hold(Region::whole(id, bytes), bytes, Kind::Own))
    }

    fn hold(&self, region: Region, bytes: usize, kind: Kind) -> Allocation {
        Allocation(Arc::new(Held { shared: self.shared.clone(), region, bytes, copied: bytes, kind }))
    }

    /// Read-only bytes of the host as a buffer. They count in full, copied or not: the device must have them at hand.
    /// Bytes that the device reads where they lie are one buffer, and count once, however often they are imported.
    pub fn import(&self, what: &'static str, bytes: &Bytes) -> Result<Allocation, GpuError> {
        if let Some(known) = lock(&self.shared.state).imports.find(bytes) {
            return Ok(Allocation(known));
        }
        let held = bytes.len();
        let imported = self.shared.ask(what, held, || self.shared.gpu.import(bytes))?;
        let whole = Region::whole(imported.buffer, imported.offset.saturating_add(held));
        // From here on it gives back what was taken.
        let mut made = Held {
            shared: self.shared.clone(),
            region: whole,
            bytes: held,
            copied: imported.copied,
            kind: Kind::Own,
        };
        made.region = whole.slice(imported.offset, held)?;
        if made.copied > 0 {
            return Ok(Allocation(Arc::new(made)));
        }
        made.kind = Kind::Import(bytes.clone());
        let made = Arc::new(made);
        // Another thread may have been first; `made` is given back when the lock is no longer held.
        let kept = lock(&self.shared.state).imports.keep(bytes, &made);
        Ok(Allocation(kept))
    }

    /// Gives every idle buffer back to the device; returns their bytes.
    pub fn trim(&self) -> u64 {
        self.shared.trim()
    }

    /// Buffers the device has allocated for it so far.
    pub fn allocations(&self) -> u64 {
        lock(&self.shared.state).stats.allocations
    }

    /// What it holds and has done so far.
    pub fn stats(&self) -> PoolStats {
        let state = lock(&self.shared.state);
        let mut classes: BTreeMap<usize, ClassStats> = BTreeMap::new();
        for ((bytes, _), class) in &state.classes {
            let sum = classes.entry(*bytes).or_insert(ClassStats { bytes: *bytes, ..ClassStats::default() });
            sum.live += class.live;
            sum.idle += class.idle.len();
            sum.reuses += class.reuses;
        }
        let classes = classes.into_values().collect();
        PoolStats { budget: self.shared.budget, classes, ..state.stats.clone() }
    }
}

impl PoolStats {
    /// As programs tell it, under a name.
    pub fn usage(&self, name: &'static str) -> PoolUse {
        PoolUse {
            name,
            live: self.live_bytes,
            idle: self.idle_bytes,
            peak: self.peak_bytes,
            budget: self.budget,
            allocations: self.allocations,
            reuses: self.reuses,
        }
    }
}

impl Shared {
    fn reuse(&self, key: (usize, Storage)) -> Option<BufferId> {
        let mut state = lock(&self.state);
        let class = state.classes.get_mut(&key)?;
        let id = class.idle.pop()?;
        class.reuses += 1;
        state.stats.reuses += 1;
        state.stats.idle_bytes -= key.0 as u64;
        state.stats.live_bytes += key.0 as u64;
        Some(id)
    }

    fn allocate(&self, what: &'static str, bytes: usize, storage: Storage) -> Result<BufferId, GpuError> {
        let most = self.gpu.limits().max_buffer;
        if bytes > most {
            return Err(GpuError::no_room(what, bytes, most as u64));
        }
        self.ask(what, bytes, || self.gpu.allocate(bytes, storage))
    }

    /// Asks the device for memory of so many bytes, and once more where it has none and idle buffers can go.
    fn ask<T>(
        &self,
        what: &'static str,
        bytes: usize,
        device: impl Fn() -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        self.reserve(bytes, what)?;
        let mut made = device();
        if matches!(made, Err(GpuError::OutOfMemory { .. })) && self.trim() > 0 {
            made = device();
        }
        match made {
            Ok(made) => {
                lock(&self.state).stats.allocations += 1;
                Ok(made)
            }
            Err(error) => {
                lock(&self.state).stats.live_bytes -= bytes as u64;
                Err(match error {
                    GpuError::OutOfMemory { needed, free, .. } => {
                        let needed = if needed == 0 { bytes } else { needed };
                        GpuError::OutOfMemory { what, needed, budget: self.budget, free }
                    }
                    other => other,
                })
            }
        }
    }

    /// Counts bytes as live if the budget allows it.
    fn reserve(&self, bytes: usize, what: &'static str) -> Result<(), GpuError> {
        let fits = |state: &State| {
            self.budget.is_none_or(|most| {
                (state.stats.live_bytes + state.stats.idle_bytes).saturating_add(bytes as u64) <= most
            })
        };
        let mut state = lock(&self.state);
        if !fits(&state) {
            drop(state);
            self.trim();
            state = lock(&self.state);
            if !fits(&state) {
                return Err(GpuError::no_room(what, bytes, self.budget));
            }
        }
        state.stats.live_bytes += bytes as u64;
        state.stats.peak_bytes = state.stats.peak_bytes.max(state.stats.live_bytes + state.stats.idle_bytes);
        Ok(())
    }

    fn trim(&self) -> u64 {
        let mut state = lock(&self.state);
        let gone: Vec<BufferId> = state.classes.values_mut().flat_map(|class| class.idle.drain(..)).collect();
        let bytes = std::mem::take(&mut state.stats.idle_bytes);
        drop(state);
        for id in gone {
            self.gpu.free(id);
        }
        bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.trim();
    }
}

/// A buffer; it goes back to its pool when it is dropped, an import when the last of the same bytes is.
#[derive(Debug)]
pub struct Allocation(Arc<Held>);

#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    region: Region,
    bytes: usize,
    copied: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Freed when it is dropped.
    Own,
    /// Of a size class, and kept for the next request.
    Class((usize, Storage)),
    /// The host's bytes, which the device reads where they lie.
    Import(Bytes),
}

impl Allocation {
    /// The bytes asked for.
    pub fn region(&self) -> Region {
        self.0.region
    }

    /// Bytes of memory it takes; none where the device reads the host's own pages.
    pub fn copied(&self) -> usize {
        self.0.copied
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let bytes = self.bytes as u64;
        let mut state = lock(&self.shared.state);
        state.stats.live_bytes -= bytes;
        match &self.kind {
            Kind::Own => {}
            Kind::Import(bytes) => state.imports.forget(bytes, self),
            Kind::Class(key) => {
                let keep = state.stats.idle_bytes + bytes <= IDLE_MOST;
                if let Some(class) = state.classes.get_mut(key) {
                    class.live -= 1;
                    if keep {
                        class.idle.push(self.region.buffer());
                        state.stats.idle_bytes += bytes;
                        return;
                    }
                }
            }
        }
        drop(state);
        self.shared.gpu.free(self.region.buffer());
    }
}

/// The host's bytes that the device reads where they lie, by address and length. Each entry's buffer keeps its bytes, so
/// an address that is found is still theirs.
#[derive(Debug, Default)]
struct Imports(HashMap<(usize, usize), Weak<Held>>);

impl Imports {
    fn key(bytes: &Bytes) -> (usize, usize) {
        (bytes.as_ptr().addr(), bytes.len())
    }

    fn find(&self, bytes: &Bytes) -> Option<Arc<Held>> {
        self.0.get(&Imports::key(bytes))?.upgrade()
    }

    /// The buffer of these bytes: the one that is known, or else this one.
    fn keep(&mut self, bytes: &Bytes, made: &Arc<Held>) -> Arc<Held> {
        if let Some(known) = self.find(bytes) {
            return known;
        }
        self.0.insert(Imports::key(bytes), Arc::downgrade(made));
        made.clone()
    }

    /// Removes a buffer that goes, unless a newer one has taken its place.
    fn forget(&mut self, bytes: &Bytes, held: &Held) {
        let key = Imports::key(bytes);
        if self.0.get(&key).is_some_and(|known| ptr::eq(known.as_ptr(), held)) {
            self.0.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
