//! Memory that outlives dispatches.

use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use softmetal::{
    Buffer, Compiler, Device, Error, Flavour, Kind, Library, Outcome, Source, as_bytes, as_bytes_mut,
    device::Problem,
};

const BOTH: [Flavour; 2] = [Flavour::Plain, Flavour::Checked];

const KERNELS: &str = "#include <metal_stdlib>
using namespace metal;
kernel void add(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant float& by [[buffer(2)]],
                uint i [[thread_position_in_grid]]) {
    y[i] = x[i] + by;
}
kernel void past(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    y[i] = x[i + 1];
}
kernel void tick(device uint* all [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    all[i] += 1;
}";

fn library(flavour: Flavour) -> Library {
    let compiler = Compiler::new().expect("clang 17 or newer is needed").flavour(flavour);
    compiler.compile(&Source::new("buffers.metal", KERNELS)).unwrap_or_else(|e| panic!("{e}"))
}

fn floats(buffer: &Buffer, offset: usize, n: usize) -> Vec<f32> {
    let mut out = vec![0_f32; n];
    buffer.read(offset, as_bytes_mut(&mut out)).unwrap();
    out
}

fn problem(result: softmetal::Result<Outcome>) -> Problem {
    match result {
        Err(Error::Dispatch { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_buffer_keeps_what_one_dispatch_wrote_for_the_next() {
    for flavour in BOTH {
        let (library, device, arena) = (library(flavour), Device::new(), Buffer::new(4096).unwrap());
        arena.write(256, as_bytes(&[1.0_f32, 2.0, 3.0, 4.0])).unwrap();
        for (from, to) in [(256, 512), (512, 1024), (1024, 256)] {
            let outcome = device
                .dispatch(&library, "add")
                .unwrap()
                .bind(0, &arena, from..from + 16)
                .bind(1, &arena, to..to + 16)
                .value(2, 10.0_f32)
                .threads([4, 1, 1], [4, 1, 1])
                .run()
                .unwrap();
            assert!(outcome.is_clean(), "{}", outcome.reports[0]);
        }
        assert_eq!(floats(&arena, 256, 4), [31.0, 32.0, 33.0, 34.0]);
        assert_eq!(floats(&arena, 1024, 4), [21.0, 22.0, 23.0, 24.0]);
        assert_eq!(floats(&arena, 272, 4), [0.0; 4]);
    }
}

#[test]
fn host_memory_of_any_alignment_is_read_where_it_lies() {
    let mut bytes = vec![0_u8; 64];
    bytes[4..20].copy_from_slice(as_bytes(&[1.0_f32, 2.0, 3.0, 4.0]));
    let owner: Arc<Vec<u8>> = Arc::new(bytes);
    let weights = Buffer::from_owner(owner.clone());
    assert!(weights.read_only() && weights.len() == 64 && !weights.is_empty());
    assert!(matches!(weights.write(0, &[1]), Err(Error::BufferReadOnly { size: 64 })));
    let out = Buffer::new(16).unwrap();
    for flavour in BOTH {
        let (library, device) = (library(flavour), Device::new());
        let new = |kernel| device.dispatch(&library, kernel).unwrap().value(2, 1.0_f32);
        let outcome = new("add").bind(0, &weights, 4..20).bind(1, &out, 0..16).threads([4, 1, 1], [4, 1, 1]);
        assert!(outcome.run().unwrap().is_clean());
        assert_eq!(floats(&out, 0, 4), [2.0, 3.0, 4.0, 5.0]);
        let written = new("add").bind(0, &weights, 0..16).bind(1, &weights, 16..32);
        assert!(
            matches!(problem(written.run()), Problem::ReadOnly { index: 1, argument } if argument == "y")
        );
        let odd = new("add").bind(0, &weights, 5..21).bind(1, &out, 0..16);
        assert!(matches!(problem(odd.run()), Problem::Alignment { index: 0, off: 1, needed: 4, .. }));
    }
    drop(weights);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn what_cannot_be_read_written_or_allocated_is_an_error_that_says_so() {
    let buffer = Buffer::new(10).unwrap();
    let mut out = [0; 4];
    assert!(matches!(buffer.read(7, &mut out), Err(Error::BufferRange { offset: 7, len: 4, size: 10 })));
    assert!(matches!(buffer.read(usize::MAX, &mut out), Err(Error::BufferRange { .. })));
    assert!(matches!(buffer.write(11, &[]), Err(Error::BufferRange { offset: 11, len: 0, size: 10 })));
    buffer.write(6, &[1, 2, 3, 4]).unwrap();
    buffer.read(6, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3, 4]);
    let error = Buffer::new(usize::MAX).unwrap_err();
    assert!(matches!(error, Error::NoMemory { bytes: usize::MAX, .. }), "{error}");
    assert!(matches!(Buffer::new(1 << 50), Err(Error::NoMemory { .. })));
    assert!(Buffer::new(0).unwrap().is_empty());
    let library = library(Flavour::Plain);
    let device = Device::new();
    for range in [8..12, 11..11, std::ops::Range { start: 4, end: 2 }] {
        let dispatch = device.dispatch(&library, "add").unwrap().bind(0, &buffer, range.clone());
        assert_eq!(problem(dispatch.run()), Problem::Range { index: 0, range, len: 10 });
    }
}

#[test]
fn copies_go_between_buffers_and_within_one() {
    let (a, b) = (Buffer::new(8).unwrap(), Buffer::new(8).unwrap());
    a.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    a.copy_to(2, &b, 0, 4).unwrap();
    b.copy_to(0, &a, 6, 2).unwrap();
    a.copy_to(0, &a, 1, 6).unwrap();
    let (mut from_a, mut from_b) = ([0; 8], [0; 8]);
    a.read(0, &mut from_a).unwrap();
    b.read(0, &mut from_b).unwrap();
    assert_eq!((from_a, from_b), ([1, 1, 2, 3, 4, 5, 6, 4], [3, 4, 5, 6, 0, 0, 0, 0]));
    assert!(matches!(a.copy_to(5, &b, 0, 4), Err(Error::BufferRange { offset: 5, .. })));
    assert!(matches!(a.copy_to(0, &b, 5, 4), Err(Error::BufferRange { offset: 5, .. })));
    let fixed = Buffer::from_owner(Arc::new([9_u8; 4]));
    fixed.copy_to(0, &a, 0, 4).unwrap();
    assert!(matches!(a.copy_to(0, &fixed, 0, 4), Err(Error::BufferReadOnly { size: 4 })));
}

#[test]
fn an_access_past_a_bound_range_is_found_though_its_buffer_goes_on() {
    let library = library(Flavour::Checked);
    let (device, arena) = (Device::new(), Buffer::new(64).unwrap());
    let run = |x: std::ops::Range<usize>, y: std::ops::Range<usize>| {
        let dispatch = device.dispatch(&library, "past").unwrap().threads([4, 1, 1], [4, 1, 1]);
        dispatch.bind(0, &arena, x).bind(1, &arena, y).run().unwrap()
    };
    assert!(run(0..20, 32..48).is_clean());
    // The next range begins where this one ends, and is not reached by accident.
    for (x, y) in [(0..16, 32..48), (0..16, 16..32), (16..32, 0..16)] {
        let outcome = run(x, y);
        let report = outcome.reports.first().expect("a report");
        assert_eq!((report.kind, report.buffer, report.at.line), (Kind::OutOfBounds, Some(0), 8), "{report}");
    }
}

#[test]
fn ranges_that_overlap_see_each_others_writes_and_only_written_ones_come_back() {
    for flavour in BOTH {
        let (library, device, arena) = (library(flavour), Device::new(), Buffer::new(64).unwrap());
        arena.write(0, as_bytes(&[1.0_f32; 16])).unwrap();
        // Reads and writes the same elements, one threadgroup after another.
        let outcome = device
            .dispatch(&library, "add")
            .unwrap()
            .bind(0, &arena, 0..32)
            .bind(1, &arena, 4..36)
            .value(2, 1.0_f32)
            .threads([8, 1, 1], [1, 1, 1])
            .workers(1)
            .run()
            .unwrap();
        let raced = outcome.reports.iter().any(|r| r.kind == Kind::ThreadgroupRace);
        assert_eq!(raced, flavour == Flavour::Checked, "{:?}", outcome.reports);
        let right: Vec<f32> = (0..16_u8).map(|i| if i < 9 { f32::from(i) + 1.0 } else { 1.0 }).collect();
        assert_eq!(floats(&arena, 0, 16), right);
    }
}

#[test]
fn the_host_never_sees_a_dispatch_half_done() {
    let library = library(Flavour::Plain);
    let (device, counts, done) =
        (Device::with_workers(2), Buffer::new(4096).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                let dispatch = device.dispatch(&library, "tick").unwrap().bind(0, &counts, 0..4096);
                dispatch.threads([1024, 1, 1], [32, 1, 1]).run().unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let mut last = 0;
        while !done.load(Ordering::Acquire) {
            let mut seen = vec![0_u32; 1024];
            counts.read(0, as_bytes_mut(&mut seen)).unwrap();
            assert!(seen.iter().all(|&n| n == seen[0]) && seen[0] >= last, "{seen:?}");
            last = seen[0];
        }
    });
}
