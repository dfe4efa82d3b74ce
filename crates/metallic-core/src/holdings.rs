//! What programs hold besides their weights: caches of what is dear to make, and pools of memory.

use std::time::Duration;

/// What a cache holds and has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Which one.
    pub name: &'static str,
    /// Entries now.
    pub entries: usize,
    /// Entries at most; `None` where there is no limit.
    pub limit: Option<usize>,
    /// Times what was asked for was there.
    pub hits: u64,
    /// Times it was not.
    pub misses: u64,
    /// Entries that went to make room.
    pub evictions: u64,
    /// Time spent on making entries.
    pub making: Duration,
    /// Age of the oldest entry, where it is known.
    pub oldest: Option<Duration>,
    /// Time since any entry was last used, where it is known.
    pub idle: Option<Duration>,
}

/// What a pool of memory holds and has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Which one.
    pub name: &'static str,
    /// Bytes in use.
    pub live: u64,
    /// Bytes kept for the next request.
    pub idle: u64,
    /// Most bytes held at one time.
    pub peak: u64,
    /// Bytes that may be held.
    pub budget: Option<u64>,
    /// Buffers the device was asked for.
    pub allocations: u64,
    /// Requests served without asking.
    pub reuses: u64,
}
