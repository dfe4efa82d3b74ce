//! Kernels that crash or never end: reports, and the process goes on.

use std::{
    thread,
    time::{Duration, Instant},
};

use softmetal::{Compiler, Device, Dispatch, Flavour, Kind, Library, Source, as_bytes_mut};

const BOTH: [Flavour; 2] = [Flavour::Plain, Flavour::Checked];

fn text(body: &str, flavour: Flavour) -> Library {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{body}");
    let compiler = Compiler::new().expect("clang 17 or newer is needed").flavour(flavour);
    compiler.compile(&Source::new("kernel.metal", source)).unwrap_or_else(|e| panic!("{e}"))
}

fn crash(
    body: &str,
    kernel: &str,
    flavour: Flavour,
    set: impl for<'a> Fn(Dispatch<'a>) -> Dispatch<'a>,
) -> (Kind, u32, Duration) {
    let library = text(body, flavour);
    let device = Device::with_workers(2);
    let start = Instant::now();
    let dispatch = device.dispatch(&library, kernel).unwrap().threads([64, 1, 1], [32, 1, 1]);
    let outcome = set(dispatch).run().unwrap();
    let report = outcome.reports.first().expect("a report");
    (report.kind, report.at.line, start.elapsed())
}

#[test]
fn a_null_pointer_ends_the_dispatch_and_not_the_process() {
    let (kind, line, _) = crash(
        "kernel void null(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
            out[i] = 1;
        }",
        "null",
        Flavour::Plain,
        |d| d,
    );
    assert_eq!((kind, line), (Kind::Crash, 4));
}

#[test]
fn endless_recursion_is_reported_as_stack_overflow_in_both_flavours() {
    for flavour in BOTH {
        let (kind, line, _) = crash(
            "static int deep(int n, thread int* up) {
                int here[64]; for (int k = 0; k < 64; k++) here[k] = n + up[k & 3];
                return deep(n + here[n & 63], here) + here[n & 31];
            }
            kernel void recurse(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { int x[4] = { 1, 2, 3, 4 }; out[i] = deep(i, x); }",
            "recurse",
            flavour,
            |d| d.value(0, vec![0_u8; 1024]),
        );
        assert_eq!(kind, Kind::StackOverflow);
        assert!((3..=5).contains(&line), "{flavour:?}: line {line}");
    }
}

#[test]
fn a_time_limit_may_be_as_long_as_it_likes() {
    let library = text(
        "kernel void fill(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = 0; }",
        Flavour::Plain,
    );
    let mut out = vec![9_u32; 32];
    let device = Device::new();
    let dispatch = device.dispatch(&library, "fill").unwrap().buffer_mut(0, as_bytes_mut(&mut out));
    let outcome = dispatch.threads([32, 1, 1], [32, 1, 1]).time_limit(Duration::MAX).run().unwrap();
    assert!(outcome.is_clean());
    assert_eq!(out, [0; 32]);
}

const MAYBE: &str = "
kernel void maybe(device uint* out [[buffer(0)]], constant ulong& wild [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const uint sum = simd_sum(i);
    threadgroup_barrier(mem_flags::mem_none);
    device uint* to = wild == 0 ? out : (device uint*)wild;
    to[i] = sum;
}";

/// Runs `maybe` on eight threadgroups, well or through a wild pointer.
fn maybe(device: &Device, library: &Library, wild: u64) {
    let mut out = vec![0_u32; 256];
    let dispatch = device.dispatch(library, "maybe").unwrap();
    let dispatch = dispatch.buffer_mut(0, as_bytes_mut(&mut out)).value(1, wild);
    let outcome = dispatch.threads([256, 1, 1], [32, 1, 1]).run().unwrap();
    assert_eq!(outcome.is_clean(), wild == 0, "{:?}", outcome.reports);
    if wild == 0 {
        assert!((0..256).all(|i: u32| out[i as usize] == i / 32 * 1024 + 496), "{out:?}");
    }
}

#[test]
fn a_crashed_device_goes_on_with_the_next_dispatch() {
    let (library, device) = (text(MAYBE, Flavour::Plain), Device::new());
    for wild in [64, 0, 64, 64, 0] {
        maybe(&device, &library, wild);
    }
}

#[test]
fn a_crash_leaves_dispatches_beside_it_alone() {
    let (library, device) = (text(MAYBE, Flavour::Plain), Device::with_workers(3));
    thread::scope(|scope| {
        for wild in [64, 0, 0, 64] {
            let (library, device) = (&library, &device);
            scope.spawn(move || (0..200).for_each(|_| maybe(device, library, wild)));
        }
    });
}

const ENDLESS: &str = "
kernel void spins(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    uint n = i + 1;
    while (n != 0) n = n * 3 | 1;
    out[i] = n;
}
kernel void waits(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    while (out[0] == 0) threadgroup_barrier(mem_flags::mem_device);
}
kernel void sums(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    uint n = i;
    while (simd_sum(n) != 1) n = simd_shuffle_xor(n, 1);
    out[i] = n;
}";

#[test]
fn endless_loops_are_stopped_by_the_time_limit_in_both_flavours() {
    for flavour in BOTH {
        let library = text(ENDLESS, flavour);
        for kernel in ["spins", "waits", "sums"] {
            let mut out = vec![0_u32; 64];
            let device = Device::with_workers(2);
            let start = Instant::now();
            let outcome = device
                .dispatch(&library, kernel)
                .unwrap()
                .buffer_mut(0, as_bytes_mut(&mut out))
                .threads([64, 1, 1], [32, 1, 1])
                .time_limit(Duration::from_millis(200))
                .run()
                .unwrap();
            assert!(start.elapsed() < Duration::from_secs(5), "{kernel} took {:?}", start.elapsed());
            assert!(
                outcome.reports.iter().any(|r| r.kind == Kind::TimeLimit),
                "{kernel}: {:?}",
                outcome.reports
            );
        }
    }
}
