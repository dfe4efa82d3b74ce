//! Execution: results, schedules, and what a dispatch refuses.

use std::{path::PathBuf, thread};

use softmetal::{
    Compiler, Device, Error, Flavour, Library, Pipeline, Source, as_bytes, as_bytes_mut, device::Problem,
};

const BOTH: [Flavour; 2] = [Flavour::Plain, Flavour::Checked];

fn file(name: &str, flavour: Flavour) -> Library {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name);
    compiler(flavour).compile(&Source::from_file(path).unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

fn text(body: &str, flavour: Flavour) -> Library {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{body}");
    compiler(flavour).compile(&Source::new("kernel.metal", source)).unwrap_or_else(|e| panic!("{e}"))
}

fn compiler(flavour: Flavour) -> Compiler {
    Compiler::new().expect("clang 17 or newer is needed").flavour(flavour)
}

/// A q4_0 matrix with its values, and a vector.
fn q4_0(rows: usize, columns: usize) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let mut state = 1_u32;
    let mut random = move || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        state >> 16
    };
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for _ in 0..rows * columns / 32 {
        bytes.extend(0x2C00_u16.to_le_bytes()); // 1/16 as a half
        let quants: Vec<u8> = (0..16).map(|_| random() as u8).collect();
        values.extend(quants.iter().map(|q| f32::from(q & 15) / 16.0 - 0.5));
        values.extend(quants.iter().map(|q| f32::from(q >> 4) / 16.0 - 0.5));
        bytes.extend(quants);
    }
    let x = (0..columns).map(|_| random() as f32 / 32768.0 - 1.0).collect();
    (bytes, values, x)
}

#[test]
fn a_quantised_matvec_gives_the_same_numbers_in_both_flavours_and_on_any_number_of_host_threads() {
    for flavour in BOTH {
        let library = file("q4_0_matvec.metal", flavour);
        for (rows, columns, workers) in [(37, 256, 1), (37, 256, 3), (160, 512, 2)] {
            let (weights, values, x) = q4_0(rows, columns);
            let mut y = vec![f32::NAN; rows];
            let device = Device::with_workers(workers);
            let outcome = device
                .dispatch(&library, "q4_0_matvec")
                .unwrap()
                .buffer(0, &weights)
                .buffer(1, as_bytes(&x))
                .buffer_mut(2, as_bytes_mut(&mut y))
                .value(3, rows as u32)
                .value(4, columns as u32)
                .threadgroups([(rows as u32).div_ceil(16), 1, 1], [128, 1, 1])
                .run()
                .unwrap();
            assert!(outcome.is_clean(), "{}", outcome.reports[0]);
            for (row, y) in y.iter().enumerate() {
                let right: f32 = (0..columns).map(|c| values[row * columns + c] * x[c]).sum();
                assert!((y - right).abs() < 1e-3, "row {row}: {y} instead of {right}");
            }
        }
    }
}

#[test]
fn function_constants_threadgroup_memory_and_templates_work_together() {
    for flavour in BOTH {
        let library = file("rms_norm.metal", flavour);
        for has_weights in [false, true] {
            let (rows, n) = (3_usize, 100_usize);
            let x: Vec<f32> = (0..rows * n).map(|i| (i % 17) as f32 - 8.0).collect();
            let w: Vec<f32> = (0..n).map(|i| 1.0 + (i % 5) as f32).collect();
            let mut y = vec![f32::NAN; rows * n];
            let device = Device::new();
            let outcome = device
                .dispatch(&library, "rms_norm_f32")
                .unwrap()
                .buffer(0, as_bytes(&x))
                .buffer(1, as_bytes(&w))
                .buffer_mut(2, as_bytes_mut(&mut y))
                .value(3, n as u32)
                .value(4, 1e-5_f32)
                .threadgroup_memory(0, 128)
                .constant("has_w", has_weights)
                .threadgroups([rows as u32, 1, 1], [64, 1, 1])
                .seed(u64::from(has_weights))
                .run()
                .unwrap();
            assert!(outcome.is_clean(), "{}", outcome.reports[0]);
            for (i, y) in y.iter().enumerate() {
                let row = &x[i / n * n..][..n];
                let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f32>() / n as f32 + 1e-5).sqrt();
                let right = x[i] * scale * if has_weights { w[i % n] } else { 1.0 };
                assert!((y - right).abs() < 1e-4, "element {i}: {y} instead of {right}");
            }
        }
    }
}

const CONSTANTS: &str = "
constant uint factor [[function_constant(0)]];
constant bool shifted [[function_constant(1)]];
constant uint shift = is_function_constant_defined(shifted) && shifted ? factor + 1 : 0;
kernel void fill(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = i * factor + shift; }";

#[test]
fn each_dispatch_has_its_own_function_constants_also_when_others_run_beside_it() {
    for flavour in BOTH {
        let library = text(CONSTANTS, flavour);
        let device = Device::with_workers(2);
        thread::scope(|scope| {
            for host in 0..3_u32 {
                let (library, device) = (&library, &device);
                scope.spawn(move || {
                    let plain = Pipeline::new(library, "fill").unwrap().constant("factor", host).unwrap();
                    let shifted = plain.clone().constant(1, true).unwrap();
                    for round in 0..100_u32 {
                        let (pipeline, add) = if round % 3 == 0 { (&shifted, host + 1) } else { (&plain, 0) };
                        let mut out = vec![0_u32; 256];
                        let dispatch = device.dispatch_of(pipeline).buffer_mut(0, as_bytes_mut(&mut out));
                        let outcome = dispatch.threads([256, 1, 1], [16, 1, 1]).run().unwrap();
                        assert!(outcome.is_clean(), "{}", outcome.reports[0]);
                        assert!(out.iter().zip(0..).all(|(&x, i)| x == i * host + add), "{out:?}");
                    }
                });
            }
        });
        // A constant set for one dispatch leaves those of the next alone.
        let pipeline = Pipeline::new(&library, "fill").unwrap().constant("factor", 7_u32).unwrap();
        for (set, first) in [(Some(9_u32), 9), (None, 7)] {
            let mut out = vec![0_u32; 2];
            let dispatch = device.dispatch_of(&pipeline).buffer_mut(0, as_bytes_mut(&mut out));
            let dispatch = dispatch.threads([2, 1, 1], [2, 1, 1]);
            let dispatch = match set {
                Some(value) => dispatch.constant("factor", value),
                None => dispatch,
            };
            dispatch.run().unwrap();
            assert_eq!(out[1], first);
        }
        assert!(matches!(
            pipeline.constant("factor", true),
            Err(Error::Dispatch { problem: Problem::ConstantSize { found: 1, needed: 4, .. }, .. })
        ));
    }
}

#[test]
fn unions_that_hold_vectors_are_filled_copied_and_read_as_bits() {
    let source = "
union both { float4 v; uint u[4]; half4 h; float2x2 m; };
struct holder { union { uint2 pair; ushort parts[4]; }; both b; };
kernel void bits(device uint* out [[buffer(0)]], constant both& c [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    threadgroup both t[4];
    t[i] = c;
    both b = t[i], from = { float4(1) };
    b.v.w += i;
    holder h = {};
    h.pair = uint2(0x10002, 3);
    h.b = b;
    holder copy = h;
    out[i] = copy.b.u[3] + copy.parts[1] + from.u[0];
}";
    for flavour in BOTH {
        let library = text(source, flavour);
        let (mut out, device) = (vec![0_u32; 4], Device::new());
        let dispatch = device.dispatch(&library, "bits").unwrap().buffer_mut(0, as_bytes_mut(&mut out));
        let dispatch = dispatch.value(1, as_bytes(&[0.0_f32, 0.0, 0.0, 2.0])).threads([4, 1, 1], [4, 1, 1]);
        let outcome = dispatch.run().unwrap();
        assert!(outcome.is_clean(), "{}", outcome.reports[0]);
        let right: Vec<u32> =
            (0..4_u8).map(|i| (2.0 + f32::from(i)).to_bits() + 1 + 1_f32.to_bits()).collect();
        assert_eq!(out, right);
    }
}

#[test]
fn a_kernel_may_have_the_name_of_a_library_function() {
    let library = text(
        "kernel void step(device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = step(1.0, float(i)); }
        namespace own { kernel void dot(device float* out [[buffer(0)]]) { out[0] = metal::dot(float2(1, 2), float2(3, 4)); } }",
        Flavour::Plain,
    );
    let mut out = vec![9_f32; 2];
    let device = Device::new();
    for (kernel, threads, right) in [("step", 2, [0.0, 1.0]), ("dot", 1, [11.0, 1.0])] {
        let dispatch = device.dispatch(&library, kernel).unwrap().buffer_mut(0, as_bytes_mut(&mut out));
        dispatch.threads([threads, 1, 1], [threads, 1, 1]).run().unwrap();
        assert_eq!(out, right);
    }
}

const ORDER: &str = "
kernel void order(device atomic_uint* next [[buffer(0)]], device uint* place [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    place[i] = atomic_fetch_add_explicit(next, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_none);
    place[i] += 1000 * atomic_fetch_add_explicit(next, 1u, memory_order_relaxed);
}";

fn order(library: &Library, seed: u64) -> Vec<u32> {
    let (mut next, mut place) = (vec![0_u32], vec![0_u32; 256]);
    let device = Device::new();
    let dispatch = device.dispatch(library, "order").unwrap();
    dispatch
        .buffer_mut(0, as_bytes_mut(&mut next))
        .buffer_mut(1, as_bytes_mut(&mut place))
        .threads([256, 1, 1], [64, 1, 1])
        .seed(seed)
        .workers(1)
        .run()
        .unwrap();
    place
}

#[test]
fn a_seed_gives_always_the_same_schedule_and_other_seeds_others() {
    let library = text(ORDER, Flavour::Plain);
    let in_order = order(&library, 0);
    assert_eq!(in_order[..3], [64_000, 65_001, 66_002]);
    let mut all = vec![in_order];
    for seed in 1..10 {
        assert_eq!(order(&library, seed), order(&library, seed));
        all.push(order(&library, seed));
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 10);
}

#[test]
fn ragged_grids_in_three_dimensions_reach_every_thread_once() {
    let library = text(
        "kernel void mark(device uint* seen [[buffer(0)]], uint3 at [[thread_position_in_grid]], uint3 size [[threads_per_grid]],
                          uint3 n [[threads_per_threadgroup]], uint3 full [[dispatch_threads_per_threadgroup]],
                          uint3 g [[threadgroup_position_in_grid]], uint3 t [[thread_position_in_threadgroup]],
                          uint index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint sg [[simdgroup_index_in_threadgroup]]) {
            const bool right = all(at == g * full + t) && index == (t.z * n.y + t.y) * n.x + t.x && lane == index % 32 && sg == index / 32;
            seen[(at.z * size.y + at.y) * size.x + at.x] += right ? 1 : 100;
        }",
        Flavour::Checked,
    );
    for (threads, threadgroup) in [([7, 5, 3], [4, 2, 2]), ([33, 1, 1], [32, 1, 1]), ([1, 40, 9], [1, 8, 8])]
    {
        let mut seen = vec![0_u32; threads.iter().product::<u32>() as usize];
        let device = Device::new();
        let outcome = device
            .dispatch(&library, "mark")
            .unwrap()
            .buffer_mut(0, as_bytes_mut(&mut seen))
            .threads(threads, threadgroup)
            .run()
            .unwrap();
        assert!(outcome.is_clean(), "{}", outcome.reports[0]);
        assert!(seen.iter().all(|&n| n == 1), "{seen:?}");
    }
}

#[test]
fn threadgroup_memory_is_poisoned_before_each_threadgroup() {
    let library = text(
        "kernel void peek(device float* out [[buffer(0)]], uint g [[threadgroup_position_in_grid]]) {
            threadgroup float x[1];
            out[g] = x[0];
            x[0] = 1;
        }",
        Flavour::Plain,
    );
    let mut out = vec![0_f32; 8];
    let device = Device::with_workers(1);
    device
        .dispatch(&library, "peek")
        .unwrap()
        .buffer_mut(0, as_bytes_mut(&mut out))
        .threadgroups([8, 1, 1], [1, 1, 1])
        .run()
        .unwrap();
    assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
}

#[test]
fn misaligned_host_memory_offsets_and_aliases_are_seen_as_bound() {
    let library = text(
        "kernel void add(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]], device float* c [[buffer(2)]],
                         uint i [[thread_position_in_grid]]) { c[i] = a[i] + b[i]; }",
        Flavour::Plain,
    );
    let mut bytes = [0_u8; 65];
    let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
    bytes[1..].copy_from_slice(as_bytes(&values));
    let device = Device::new();
    let outcome = device
        .dispatch(&library, "add")
        .unwrap()
        .buffer_mut(2, &mut bytes[1..])
        .alias(0, 2, 16)
        .alias(1, 2, 32)
        .threads([4, 1, 1], [4, 1, 1])
        .run()
        .unwrap();
    assert!(outcome.is_clean());
    let first: Vec<f32> = bytes[1..17].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(first, [12.0, 14.0, 16.0, 18.0]);
}

fn problem(result: softmetal::Result<softmetal::Outcome>) -> Problem {
    match result {
        Err(Error::Dispatch { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dispatch_refuses_what_cannot_be() {
    let library = text(
        "constant uint width [[function_constant(3)]];
        [[max_total_threads_per_threadgroup(64)]] kernel void k(device float* out [[buffer(0)]], threadgroup float* t [[threadgroup(0)]],
            uint i [[thread_position_in_grid]]) { t[i] = width; out[i] = t[i]; }",
        Flavour::Plain,
    );
    let device = Device::new();
    let new =
        || device.dispatch(&library, "k").unwrap().threadgroup_memory(0, 256).threads([8, 1, 1], [8, 1, 1]);
    assert!(matches!(problem(new().threads([8, 0, 1], [8, 1, 1]).run()), Problem::Empty { .. }));
    let many = problem(new().threadgroups([1, u32::MAX, 1], [1, 8, 1]).run());
    assert!(many.to_string().contains("[1, 4294967295, 1] threadgroups of [1, 8, 1]"), "{many}");
    assert!(matches!(
        problem(new().threads([128, 1, 1], [128, 1, 1]).run()),
        Problem::TooManyThreads { most: 64, .. }
    ));
    assert!(matches!(problem(new().buffer(31, &[]).run()), Problem::NoSlot { index: 31 }));
    let threadgroup = problem(new().threadgroup_memory(31, 16).run());
    assert_eq!(threadgroup.to_string(), "threadgroup argument 31: there are 31 slots");
    assert!(matches!(
        problem(new().buffer_at(0, &[0; 4], 5).run()),
        Problem::Offset { offset: 5, len: 4, .. }
    ));
    assert!(matches!(problem(new().alias(1, 2, 0).run()), Problem::Alias { index: 1, of: 2 }));
    assert!(matches!(
        problem(new().threadgroup_memory(1, 40000).run()),
        Problem::ThreadgroupMemory { bytes: 40256, most: 32768 }
    ));
    assert!(matches!(problem(new().constant(2, 1_u32).run()), Problem::NoConstant { .. }));
    assert!(matches!(
        problem(new().constant("width", true).run()),
        Problem::ConstantSize { found: 1, needed: 4, .. }
    ));
    assert!(matches!(device.dispatch(&library, "j"), Err(Error::NoKernel { .. })));
}

#[test]
fn collectives_of_some_lanes_are_counted_as_divergent() {
    let library = text(
        "kernel void some(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
            out[i] = i < 10 ? simd_sum(1u) : 0u;
            out[i] += 100 * simd_sum(1u);
        }",
        Flavour::Checked,
    );
    let mut out = vec![0_u32; 32];
    let device = Device::new();
    let outcome = device
        .dispatch(&library, "some")
        .unwrap()
        .buffer_mut(0, as_bytes_mut(&mut out))
        .threads([32, 1, 1], [32, 1, 1])
        .run()
        .unwrap();
    assert_eq!((out[3], out[12]), (3210, 3200));
    assert_eq!((outcome.stats.collectives, outcome.stats.divergent_collectives), (2, 1));
}

#[test]
fn a_device_has_as_much_threadgroup_memory_as_it_says() {
    let source = "kernel void k(device uint* out [[buffer(0)]], threadgroup uint* t [[threadgroup(0)]]) {
            threadgroup uint own[10240]; own[0] = 40; t[0] = 2; out[0] = own[0] + t[0];
        }";
    for flavour in [Flavour::Plain, Flavour::Checked] {
        let library = text(source, flavour);
        // 40 KiB of its own, and an argument of 16.
        let run = |device: &Device| {
            let mut out = [0_u32];
            let call = device.dispatch(&library, "k").unwrap().threadgroup_memory(0, 16 << 10);
            let outcome = call.buffer_mut(0, as_bytes_mut(&mut out)).run().unwrap();
            (outcome.reports.first().map(ToString::to_string).unwrap_or_default(), out[0])
        };
        let (device, large) = (Device::new(), Device::new().threadgroup_memory(64 << 10));
        assert_eq!(run(&large), (String::new(), 42));
        let (report, _) = run(&device);
        assert!(report.contains("exceed the limit of 32768"), "{report}");
        // The same host threads, after the larger ones.
        assert_eq!(run(&large.threadgroup_memory(57344)).1, 42);
    }
}
