//! Memory of a device: size classes for what comes and goes, exact allocations for what stays, one budget for all.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{fmt, ptr};

use metallic_core::Bytes;

use crate::command::Region;
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Storage};

/// Bytes of the smallest size class.
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

struct Shared {
    gpu: Arc<dyn Gpu>,
    budget: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: u64,
    idle: u64,
    peak: u64,
    allocations: u64,
    reuses: u64,
    classes: BTreeMap<(usize, Private), Class>,
    imports: Imports,
}

/// Whether the host does not reach a buffer: [`Storage`] with an order.
type Private = bool;

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

    /// The device.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.shared.gpu
    }

    /// A buffer for a while, of a size class. It may hold old bytes. Work that uses it must be done before it is dropped.
    pub fn transient(
        &self,
        what: &'static str,
        bytes: usize,
        storage: Storage,
    ) -> Result<PooledBuffer, GpuError> {
        let class = bytes.max(SMALLEST).checked_next_power_of_two();
        let class = class.filter(|class| *class <= self.shared.gpu.limits().max_buffer);
        let key = class.map(|class| (class, storage == Storage::Private));
        if let Some(key) = key
            && let Some(id) = self.shared.reuse(key)
        {
            let region = Region::whole(id, key.0).slice(0, bytes)?;
            return Ok(PooledBuffer { shared: self.shared.clone(), region, held: key.0, class: Some(key) });
        }
        let made = key.map(|key| (key, self.shared.allocate(what, key.0, storage)));
        if let Some((key, Ok(id))) = made {
            self.shared.state().classes.entry(key).or_default().live += 1;
            let region = Region::whole(id, key.0).slice(0, bytes)?;
            return Ok(PooledBuffer { shared: self.shared.clone(), region, held: key.0, class: Some(key) });
        }
        if let Some((key, Err(error))) = made
            && key.0 == bytes
        {
            return Err(error);
        }
        // What a class rounds up to may not fit where the request itself does.
        let id = self.shared.allocate(what, bytes, storage)?;
        let region = Region::whole(id, bytes);
        Ok(PooledBuffer { shared: self.shared.clone(), region, held: bytes, class: None })
    }

    /// A zeroed buffer of exactly this size, for what stays: the arena of a program, a KV cache.
    pub fn allocate(
        &self,
        what: &'static str,
        bytes: usize,
        storage: Storage,
    ) -> Result<Allocation, GpuError> {
        let id = self.shared.allocate(what, bytes, storage)?;
        let region = Region::whole(id, bytes);
        let held = Held { shared: self.shared.clone(), region, bytes, copied: bytes, of: None };
        Ok(Allocation(Arc::new(held)))
    }

    /// Read-only bytes of the host as a buffer. They count in full, copied or not: the device must have them at hand.
    /// Bytes that the device reads where they lie are one buffer, and count once, however often they are imported.
    pub fn import(&self, what: &'static str, bytes: &Bytes) -> Result<Allocation, GpuError> {
        if let Some(known) = self.shared.state().imports.find(bytes) {
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
            of: None,
        };
        made.region = whole.slice(imported.offset, held)?;
        if made.copied > 0 {
            return Ok(Allocation(Arc::new(made)));
        }
        made.of = Some(bytes.clone());
        let made = Arc::new(made);
        // Another thread may have been first; `made` is given back when the lock is no longer held.
        let kept = self.shared.state().imports.keep(bytes, &made);
        Ok(Allocation(kept))
    }

    /// Gives every idle buffer back to the device; returns their bytes.
    pub fn trim(&self) -> u64 {
        self.shared.trim()
    }

    /// Buffers the device has allocated for it so far.
    pub fn allocations(&self) -> u64 {
        self.shared.state().allocations
    }

    /// What it holds and has done so far.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.state();
        let mut classes: Vec<ClassStats> = Vec::new();
        for ((bytes, _), class) in &state.classes {
            let add =
                ClassStats { bytes: *bytes, live: class.live, idle: class.idle.len(), reuses: class.reuses };
            match classes.last_mut().filter(|last| last.bytes == *bytes) {
                Some(last) => {
                    last.live += add.live;
                    last.idle += add.idle;
                    last.reuses += add.reuses;
                }
                None => classes.push(add),
            }
        }
        PoolStats {
            live_bytes: state.live,
            idle_bytes: state.idle,
            peak_bytes: state.peak,
            budget: self.shared.budget,
            allocations: state.allocations,
            reuses: state.reuses,
            classes,
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reuse(&self, key: (usize, Private)) -> Option<BufferId> {
        let mut state = self.state();
        let class = state.classes.get_mut(&key)?;
        let id = class.idle.pop()?;
        class.live += 1;
        class.reuses += 1;
        state.reuses += 1;
        state.idle -= key.0 as u64;
        state.live += key.0 as u64;
        Some(id)
    }

    /// A buffer of the device.
    fn allocate(&self, what: &'static str, bytes: usize, storage: Storage) -> Result<BufferId, GpuError> {
        let most = self.gpu.limits().max_buffer;
        if bytes > most {
            return Err(GpuError::OutOfMemory { what, needed: bytes, budget: Some(most as u64) });
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
                self.state().allocations += 1;
                Ok(made)
            }
            Err(error) => {
                self.unreserve(bytes);
                Err(match error {
                    GpuError::OutOfMemory { needed, .. } => {
                        GpuError::OutOfMemory { what, needed, budget: self.budget }
                    }
                    other => other,
                })
            }
        }
    }

    /// Counts bytes as live if the budget allows it.
    fn reserve(&self, bytes: usize, what: &'static str) -> Result<(), GpuError> {
        let fits = |state: &State| {
            self.budget.is_none_or(|most| (state.live + state.idle).saturating_add(bytes as u64) <= most)
        };
        let mut state = self.state();
        if !fits(&state) {
            drop(state);
            self.trim();
            state = self.state();
            if !fits(&state) {
                return Err(GpuError::OutOfMemory { what, needed: bytes, budget: self.budget });
            }
        }
        state.live += bytes as u64;
        state.peak = state.peak.max(state.live + state.idle);
        Ok(())
    }

    fn unreserve(&self, bytes: usize) {
        self.state().live -= bytes as u64;
    }

    fn trim(&self) -> u64 {
        let mut state = self.state();
        let gone: Vec<BufferId> = state.classes.values_mut().flat_map(|class| class.idle.drain(..)).collect();
        let bytes = std::mem::take(&mut state.idle);
        drop(state);
        for id in gone {
            self.gpu.free(id);
        }
        bytes
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let (live, idle) = (state.live, state.idle);
        f.debug_struct("Pool").field("live", &live).field("idle", &idle).finish_non_exhaustive()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.trim();
    }
}

/// A buffer of a size class; it goes back to its pool when it is dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    shared: Arc<Shared>,
    region: Region,
    held: usize,
    /// `None`: too big for any class.
    class: Option<(usize, Private)>,
}

impl PooledBuffer {
    /// The bytes asked for.
    pub fn region(&self) -> Region {
        self.region
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let bytes = self.held as u64;
        let mut state = self.shared.state();
        state.live -= bytes;
        let keep = state.idle + bytes <= IDLE_MOST;
        let kept = self.class.and_then(|key| state.classes.get_mut(&key)).is_some_and(|class| {
            class.live -= 1;
            if keep {
                class.idle.push(self.region.buffer());
            }
            keep
        });
        if kept {
            state.idle += bytes;
        } else {
            drop(state);
            self.shared.gpu.free(self.region.buffer());
        }
    }
}

/// A buffer of its own; it is freed when it is dropped, an import when the last of the same bytes is.
#[derive(Debug)]
pub struct Allocation(Arc<Held>);

#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    region: Region,
    /// Bytes it counts for.
    bytes: usize,
    copied: usize,
    /// The host's bytes that the device reads where they lie.
    of: Option<Bytes>,
}

impl Allocation {
    /// The bytes.
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
        let mut state = self.shared.state();
        state.live -= self.bytes as u64;
        if let Some(bytes) = &self.of {
            state.imports.forget(bytes, self);
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
