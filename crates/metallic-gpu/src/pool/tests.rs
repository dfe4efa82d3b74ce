use super::*;
use crate::fault::{Counts, Fault, Faulty};
use crate::gpu::Limits;
use crate::null::Null;
use crate::threadgroup::tests::LIMITS;

fn pool(budget: Option<u64>) -> (Arc<Faulty>, Pool) {
    let gpu = Arc::new(Faulty::new(Arc::new(Null::new())));
    (gpu.clone(), Pool::new(gpu, budget))
}

#[test]
fn a_returned_buffer_serves_the_next_request_of_its_class() {
    let (gpu, pool) = pool(None);
    let first = pool.transient("test", 1000, Storage::Shared).unwrap();
    assert_eq!(first.region().len(), 1000, "no more than was asked for can be bound");
    let id = first.region().buffer();
    drop(first);
    let second = pool.transient("test", 600, Storage::Shared).unwrap();
    assert_eq!((second.region().buffer(), second.region().len()), (id, 600));
    let other = pool.transient("test", 600, Storage::Private).unwrap();
    assert_ne!(other.region().buffer(), id, "storage makes a class of its own");
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.reuses, gpu.calls(Fault::Allocate)), (2, 1, 2));
    assert_eq!(stats.classes, [ClassStats { bytes: 1024, live: 2, idle: 0, reuses: 1 }]);
    assert_eq!((stats.live_bytes, stats.idle_bytes, stats.peak_bytes), (2048, 0, 2048));
}

#[test]
fn a_steady_state_asks_the_device_for_nothing() {
    let (gpu, pool) = pool(None);
    for _ in 0..100 {
        let _a = pool.transient("a", 70_000, Storage::Shared).unwrap();
        let _b = pool.transient("b", 3, Storage::Shared).unwrap();
    }
    assert_eq!(gpu.calls(Fault::Allocate), 2);
    assert_eq!(pool.stats().reuses, 198);
}

#[test]
fn the_budget_is_hard_and_its_error_names_what_and_how_much() {
    let (gpu, pool) = pool(Some(10_000));
    let _kept = pool.allocate("weights", 6000, Storage::Private).unwrap();
    let error = pool.allocate("the arena of a program", 4001, Storage::Private).unwrap_err();
    assert_eq!(
        error,
        GpuError::OutOfMemory {
            what: "the arena of a program",
            needed: 4001,
            budget: Some(10_000),
            free: None
        }
    );
    assert!(error.to_string().contains("10000 bytes are allowed"), "{error}");
    assert_eq!(gpu.calls(Fault::Allocate), 1, "the device is not asked");
    pool.allocate("the arena of a program", 4000, Storage::Private).unwrap();
}

#[test]
fn the_device_s_own_budget_holds_where_it_is_less() {
    let limits = Limits { budget: Some(1000), max_buffer: 600, ..LIMITS };
    let pool = Pool::new(Arc::new(Null::with(limits)), Some(5000));
    assert_eq!(pool.stats().budget, Some(1000));
    assert!(matches!(pool.allocate("test", 601, Storage::Shared), Err(GpuError::OutOfMemory { .. })));
    let _one = pool.allocate("test", 600, Storage::Shared).unwrap();
    assert!(pool.allocate("test", 600, Storage::Shared).is_err());
}

#[test]
fn idle_buffers_make_room_before_a_request_fails() {
    let (gpu, pool) = pool(Some(4096));
    drop(pool.transient("test", 4096, Storage::Shared).unwrap());
    assert_eq!(pool.stats().idle_bytes, 4096);
    let _big = pool.allocate("test", 4000, Storage::Shared).unwrap();
    assert_eq!((pool.stats().idle_bytes, gpu.counts().bytes), (0, 4000));
}

#[test]
fn a_device_that_has_no_more_is_asked_again_once_idle_buffers_are_gone() {
    let (gpu, pool) = pool(None);
    drop(pool.transient("test", 4096, Storage::Shared).unwrap());
    gpu.fail(Fault::Allocate, 1);
    let _made = pool.allocate("test", 100, Storage::Shared).unwrap();
    assert_eq!(gpu.counts().bytes, 100);
    gpu.fail(Fault::Allocate, 1);
    let error = pool.allocate("KV cache", 100, Storage::Shared).unwrap_err();
    assert_eq!(error, GpuError::OutOfMemory { what: "KV cache", needed: 100, budget: None, free: None });
    assert_eq!(pool.stats().live_bytes, 100, "what failed is not counted");
}

#[test]
fn a_request_that_fits_is_served_where_its_class_does_not_fit() {
    let (_, pool) = pool(Some(5000));
    let buffer = pool.transient("test", 4097, Storage::Shared).unwrap();
    assert_eq!(buffer.region().len(), 4097);
    drop(buffer);
    assert_eq!((pool.stats().live_bytes, pool.stats().idle_bytes), (0, 0));
}

#[test]
fn imports_count_like_any_other_memory() {
    let (gpu, pool) = pool(Some(100));
    let imported = pool.import("weights", &Bytes::from(vec![7u8; 80])).unwrap();
    assert_eq!((imported.region().len(), pool.stats().live_bytes), (80, 80));
    assert!(pool.import("weights", &Bytes::from(vec![7u8; 80])).is_err());
    drop(imported);
    gpu.fail(Fault::Import, 1);
    assert!(pool.import("weights", &Bytes::from(vec![7u8; 80])).is_err());
    assert_eq!((pool.stats().live_bytes, gpu.counts().buffers), (0, 0));
}

#[test]
fn a_device_without_room_for_an_import_is_asked_again_once_idle_buffers_are_gone() {
    let (gpu, pool) = pool(None);
    drop(pool.transient("test", 4096, Storage::Shared).unwrap());
    gpu.fail(Fault::Import, 1);
    let bytes = Bytes::from(vec![7u8; 80]);
    let _made = pool.import("weights", &bytes).unwrap();
    assert_eq!((gpu.calls(Fault::Import), gpu.counts().bytes), (2, 80));
    gpu.fail(Fault::Import, 1);
    let error = pool.import("weights", &bytes).unwrap_err();
    assert_eq!(error, GpuError::OutOfMemory { what: "weights", needed: 80, budget: None, free: None });
    assert_eq!(
        (pool.stats().live_bytes, gpu.calls(Fault::Import)),
        (80, 3),
        "there was nothing to give back"
    );
}

/// Bytes of a mapped file.
fn mapped(len: usize) -> Bytes {
    Bytes::mapped(Arc::new(vec![7u8; len]))
}

#[test]
fn a_file_that_two_programs_read_counts_once() {
    let (gpu, pool) = pool(Some(100));
    let file = mapped(80);
    let first = pool.import("weights", &file).unwrap();
    let second = pool.import("weights", &file).unwrap();
    assert_eq!(first.region(), second.region());
    assert_eq!((pool.stats().live_bytes, pool.stats().allocations, gpu.calls(Fault::Import)), (80, 1, 1));
    let part = file.slice(0..20).unwrap();
    let other = pool.import("weights", &part).unwrap();
    assert_eq!(other.region().len(), 20, "other bytes are another import");
    assert!(pool.import("weights", &mapped(80)).is_err(), "and so is another file");
    drop(first);
    assert_eq!((pool.stats().live_bytes, gpu.counts().bytes), (100, 100), "the second still reads it");
    drop((second, other));
    assert_eq!((pool.stats().live_bytes, gpu.counts()), (0, Counts::default()));
    // What nobody reads any longer is forgotten, for other bytes may come to lie there.
    let again = pool.import("weights", &file).unwrap();
    assert_eq!((again.region().len(), gpu.calls(Fault::Import)), (80, 3));
}

#[test]
fn copies_of_the_same_bytes_are_memory_each() {
    let (gpu, pool) = pool(None);
    let bytes = Bytes::from(vec![7u8; 80]);
    let both = [pool.import("weights", &bytes).unwrap(), pool.import("weights", &bytes).unwrap()];
    assert_ne!(both[0].region(), both[1].region());
    assert_eq!((pool.stats().live_bytes, gpu.counts().bytes), (160, 160));
}

#[test]
fn a_thread_that_comes_second_gives_its_own_import_back() {
    let (_, pool) = pool(None);
    let held = |what| pool.allocate(what, 10, Storage::Shared).unwrap().0;
    let (bytes, first, second) = (mapped(10), held("first"), held("second"));
    let mut imports = Imports::default();
    assert!(Arc::ptr_eq(&imports.keep(&bytes, &first), &first));
    assert!(Arc::ptr_eq(&imports.keep(&bytes, &second), &first));
    imports.forget(&bytes, &second);
    assert!(imports.find(&bytes).is_some_and(|found| Arc::ptr_eq(&found, &first)), "it was never kept");
    imports.forget(&bytes, &first);
    assert!(imports.find(&bytes).is_none());
}

#[test]
fn threads_that_import_one_file_share_it() {
    let (gpu, pool) = pool(None);
    let file = mapped(64);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let one = pool.import("weights", &file).unwrap();
                    let two = pool.import("weights", &file).unwrap();
                    assert_eq!(one.region(), two.region());
                }
            });
        }
    });
    assert_eq!((pool.stats().live_bytes, gpu.counts()), (0, Counts::default()));
}

#[test]
fn nothing_leaks() {
    let (gpu, pool) = pool(None);
    let held: Vec<_> = (0..50).map(|i| pool.transient("test", i * 100, Storage::Shared).unwrap()).collect();
    let kept = pool.allocate("test", 5000, Storage::Private).unwrap();
    let import = pool.import("test", &Bytes::from(vec![1u8; 10])).unwrap();
    assert_eq!(gpu.counts().bytes as u64, pool.stats().live_bytes);
    drop(held);
    assert_eq!(gpu.counts().bytes as u64, pool.stats().live_bytes + pool.stats().idle_bytes);
    assert_eq!(pool.trim() + 5010, pool.stats().peak_bytes);
    assert_eq!((pool.stats().idle_bytes, gpu.counts().bytes), (0, 5010));
    drop((kept, import));
    drop(pool.transient("test", 100, Storage::Shared).unwrap());
    drop(pool);
    assert_eq!(gpu.counts(), Counts::default());
}

#[test]
fn threads_share_a_pool_within_its_budget() {
    let (gpu, pool) = pool(Some(1 << 16));
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let pool = pool.clone();
            scope.spawn(move || {
                for i in 0..200 {
                    if let Ok(buffer) =
                        pool.transient("test", (thread * 131 + i * 97) % 9000, Storage::Shared)
                    {
                        let stats = pool.stats();
                        assert!(stats.live_bytes >= buffer.region().len() as u64);
                        assert!(stats.live_bytes + stats.idle_bytes <= 1 << 16);
                    }
                }
            });
        }
    });
    assert_eq!(pool.stats().live_bytes, 0);
    drop(pool);
    assert_eq!(gpu.counts(), Counts::default());
}
