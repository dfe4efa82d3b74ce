//! A bounded cache of things that are dear to make: least recently used first out, never what is in use.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metallic_core::CacheUse;

use crate::lock;

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMetrics {
    /// Values it holds, remembered failures included.
    pub entries: usize,
    /// Values it keeps at most, unless more are in use.
    pub capacity: usize,
    /// Requests it could serve.
    pub hits: u64,
    /// Requests for which a value had to be made.
    pub misses: u64,
    /// Values it let go to make room.
    pub evictions: u64,
    /// Values that could not be made.
    pub failures: u64,
    /// Time spent making values.
    pub compile: Duration,
    /// Age of the oldest value it holds.
    pub oldest: Option<Duration>,
    /// Time since any was last asked for.
    pub idle: Option<Duration>,
}

impl CacheMetrics {
    /// As programs tell it, under a name.
    pub fn usage(&self, name: &'static str) -> CacheUse {
        let CacheMetrics { entries, capacity, hits, misses, evictions, compile, oldest, idle, .. } = *self;
        let limit = (capacity > 0).then_some(capacity);
        CacheUse { name, entries, limit, hits, misses, evictions, making: compile, oldest, idle }
    }
}

/// Values by key. A value is in use as long as somebody besides the cache holds it.
#[derive(Debug)]
pub struct Cache<K, V, E> {
    state: Mutex<State<K, V, E>>,
    /// Signalled when a value is made, or could not be.
    made: Condvar,
    /// Which failures would come again: those are not tried again.
    lasting: fn(&E) -> bool,
}

#[derive(Debug)]
struct State<K, V, E> {
    entries: HashMap<K, Entry<V, E>>,
    clock: u64,
    /// When any value was last asked for.
    asked: Option<Instant>,
    metrics: CacheMetrics,
}

#[derive(Debug)]
struct Entry<V, E> {
    used: u64,
    begun: Instant,
    /// `None` while a thread makes the value.
    value: Option<Result<Arc<V>, E>>,
}

impl<V, E> Entry<V, E> {
    fn is_idle(&self) -> bool {
        match &self.value {
            Some(Ok(value)) => Arc::strong_count(value) == 1,
            Some(Err(_)) => true,
            None => false,
        }
    }
}

impl<K: Eq + Hash + Clone, V, E: Clone> Cache<K, V, E> {
    /// A cache that gives the same answer again, unasked, for failures that are `lasting`.
    pub fn remembering(capacity: usize, lasting: fn(&E) -> bool) -> Cache<K, V, E> {
        let metrics = CacheMetrics { capacity: capacity.max(1), ..CacheMetrics::default() };
        let state = State { entries: HashMap::new(), clock: 0, asked: None, metrics };
        Cache { state: Mutex::new(state), made: Condvar::new(), lasting }
    }

    /// The value of a key; `make` makes it where it is not there. Threads that want one key at one time wait for the first.
    pub fn get_or_make(&self, key: &K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        let mut state = lock(&self.state);
        state.asked = Some(Instant::now());
        loop {
            state.clock += 1;
            let now = state.clock;
            match state.entries.get_mut(key) {
                Some(Entry { used, value: Some(value), .. }) => {
                    *used = now;
                    let value = value.clone();
                    state.metrics.hits += 1;
                    return value;
                }
                Some(_) => state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner),
                None => {
                    let begun = Instant::now();
                    state.entries.insert(key.clone(), Entry { used: now, begun, value: None });
                    state.metrics.misses += 1;
                    break;
                }
            }
        }
        drop(state);
        // Dropped without a value, where `make` panics, it lets the next thread try.
        let mut place = Place { cache: self, key, outcome: None };
        let start = Instant::now();
        let value = make().map(Arc::new);
        place.outcome = Some((value.clone(), start.elapsed()));
        value
    }

    /// What it has done so far.
    pub fn metrics(&self) -> CacheMetrics {
        let state = lock(&self.state);
        let oldest = state.entries.values().map(|entry| entry.begun).min().map(|begun| begun.elapsed());
        let idle = state.asked.map(|asked| asked.elapsed());
        CacheMetrics { entries: state.entries.len(), oldest, idle, ..state.metrics }
    }

    /// Lets go of everything that is not in use, and of every failure.
    pub fn clear(&self) {
        self.release(|_| true);
    }

    /// Lets go of failures, so that they are tried again.
    pub fn forget_failures(&self) {
        self.release(Result::is_err);
    }

    fn release(&self, which: impl Fn(&Result<Arc<V>, E>) -> bool) {
        let mut state = lock(&self.state);
        let gone = |entry: &Entry<V, E>| entry.is_idle() && entry.value.as_ref().is_some_and(&which);
        let keys: Vec<K> =
            state.entries.iter().filter(|(_, entry)| gone(entry)).map(|(key, _)| key.clone()).collect();
        let dropped: Vec<_> = keys.iter().filter_map(|key| state.entries.remove(key)).collect();
        drop(state);
        drop(dropped);
    }

    fn settle(&self, key: &K, outcome: Option<(Result<Arc<V>, E>, Duration)>) {
        let mut dropped = Vec::new();
        let mut state = lock(&self.state);
        let value = outcome.map(|(value, took)| {
            state.metrics.compile += took;
            state.metrics.failures += u64::from(value.is_err());
            value
        });
        let lasting = |value: &Result<Arc<V>, E>| value.as_ref().err().is_none_or(self.lasting);
        match (value.filter(lasting), state.entries.get_mut(key)) {
            (Some(value), Some(entry)) => entry.value = Some(value),
            _ => dropped.extend(state.entries.remove(key)),
        }
        while state.entries.len() > state.metrics.capacity {
            let idle = state.entries.iter().filter(|(_, entry)| entry.is_idle());
            let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone()) else {
                break;
            };
            dropped.extend(state.entries.remove(&oldest));
            state.metrics.evictions += 1;
        }
        drop(state);
        self.made.notify_all();
        // Outside the lock: letting go of a value may call a driver.
        drop(dropped);
    }
}

/// The entry of a value that is being made.
struct Place<'a, K: Eq + Hash + Clone, V, E: Clone> {
    cache: &'a Cache<K, V, E>,
    key: &'a K,
    outcome: Option<(Result<Arc<V>, E>, Duration)>,
}

impl<K: Eq + Hash + Clone, V, E: Clone> Drop for Place<'_, K, V, E> {
    fn drop(&mut self) {
        self.cache.settle(self.key, self.outcome.take());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    type Numbers = Cache<u32, u32, &'static str>;

    fn numbers(capacity: usize) -> Numbers {
        Numbers::remembering(capacity, |_| false)
    }

    fn get(cache: &Numbers, key: u32) -> Arc<u32> {
        cache.get_or_make(&key, || Ok(key * 10)).unwrap()
    }

    #[test]
    fn a_value_is_made_once() {
        let cache = numbers(4);
        assert_eq!(*get(&cache, 1), 10);
        assert_eq!(*cache.get_or_make(&1, || Err("made again")).unwrap(), 10);
        let metrics = cache.metrics();
        assert_eq!((metrics.hits, metrics.misses, metrics.entries), (1, 1, 1));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let cache = numbers(2);
        get(&cache, 1);
        get(&cache, 2);
        get(&cache, 1);
        get(&cache, 3);
        let before = cache.metrics();
        assert_eq!((before.entries, before.evictions), (2, 1));
        get(&cache, 1);
        assert_eq!(cache.metrics().hits, before.hits + 1, "1 was used after 2");
        get(&cache, 2);
        assert_eq!(cache.metrics().misses, before.misses + 1, "2 was let go");
    }

    #[test]
    fn what_is_in_use_stays_however_full_the_cache_is() {
        let cache = numbers(2);
        let held: Vec<_> = (0..5).map(|key| get(&cache, key)).collect();
        assert_eq!(cache.metrics().entries, 5);
        for (key, value) in (0..).zip(&held) {
            assert!(Arc::ptr_eq(value, &get(&cache, key)), "{key} was made again");
        }
        drop(held);
        get(&cache, 9);
        assert_eq!(cache.metrics().entries, 2, "room is made as soon as it can be");
    }

    #[test]
    fn lasting_failures_are_remembered_and_others_are_tried_again() {
        let cache: Numbers = Cache::remembering(4, |error| *error == "lasting");
        assert_eq!(cache.get_or_make(&1, || Err("lasting")), Err("lasting"));
        assert_eq!(cache.get_or_make(&1, || Ok(1)), Err("lasting"));
        assert_eq!(cache.get_or_make(&2, || Err("passing")), Err("passing"));
        assert_eq!(cache.get_or_make(&2, || Ok(2)), Ok(Arc::new(2)));
        assert_eq!(cache.metrics().failures, 2);
        cache.forget_failures();
        assert_eq!(cache.get_or_make(&1, || Ok(1)), Ok(Arc::new(1)));
    }

    #[test]
    fn threads_that_want_one_value_wait_for_the_first() {
        let cache = numbers(4);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let value = cache.get_or_make(&7, || {
                        made.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(20));
                        Ok(70)
                    });
                    assert_eq!(*value.unwrap(), 70);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert!(cache.metrics().compile >= Duration::from_millis(20));
    }

    #[test]
    fn a_panic_while_making_leaves_the_cache_usable() {
        let cache = numbers(4);
        let panicked = catch_unwind(AssertUnwindSafe(|| cache.get_or_make(&1, || panic!("broken"))));
        assert!(panicked.is_err());
        assert_eq!(*get(&cache, 1), 10);
    }

    #[test]
    fn clearing_keeps_what_is_in_use() {
        let cache = numbers(4);
        let held = get(&cache, 1);
        get(&cache, 2);
        cache.clear();
        assert_eq!(cache.metrics().entries, 1);
        assert!(Arc::ptr_eq(&held, &get(&cache, 1)));
    }
}
