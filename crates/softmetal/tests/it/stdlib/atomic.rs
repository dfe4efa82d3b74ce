//! Atomics of every width, from many threads at once.

use super::support::{Bytes, compile, numbers, run_in_groups};

/// Type, and the functions it takes beyond load, store, exchange and compare-exchange.
const TYPES: &[(&str, bool)] =
    &[("int", true), ("uint", true), ("long", true), ("ulong", true), ("short", true), ("float", false)];

pub(crate) fn source() -> String {
    let mut text = "#include <metal_stdlib>\nusing namespace metal;\n".to_owned();
    for (t, bits) in TYPES {
        let relaxed = "memory_order_relaxed";
        let logic = if *bits {
            format!(
                "atomic_fetch_and_explicit(&o[5], {t}(~(1 << (i % 8))), {relaxed}); atomic_fetch_or_explicit(&o[6], {t}(1 << (i % 8)), {relaxed});\n\
                 atomic_fetch_xor_explicit(&o[7], {t}(i), {relaxed});\n\
                 atomic_min_explicit(&o[10], {t}(i), {relaxed}); atomic_max_explicit(&o[11], {t}(i), {relaxed});\n"
            )
        } else {
            String::new()
        };
        text += &format!(
            "kernel void t_{t}(device atomic_{t}* o [[buffer(0)]], uint i [[thread_position_in_grid]], uint l [[thread_position_in_threadgroup]]) {{\n\
             threadgroup atomic_{t} shared[1];\n\
             if (l == 0) atomic_store_explicit(&shared[0], {t}(0), {relaxed});\n\
             threadgroup_barrier(mem_flags::mem_threadgroup);\n\
             atomic_fetch_add_explicit(&shared[0], {t}(1), {relaxed});\n\
             threadgroup_barrier(mem_flags::mem_threadgroup);\n\
             atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);\n\
             if (l == 0) atomic_fetch_add_explicit(&o[0], atomic_load_explicit(&shared[0], {relaxed}), {relaxed});\n\
             atomic_fetch_add_explicit(&o[1], {t}(2), {relaxed}); atomic_fetch_sub_explicit(&o[2], {t}(1), {relaxed});\n\
             atomic_fetch_min_explicit(&o[3], {t}(i), {relaxed}); atomic_fetch_max_explicit(&o[4], {t}(i), {relaxed});\n{logic}\
             if (i == 7) atomic_store_explicit(&o[8], atomic_exchange_explicit(&o[9], {t}(77), {relaxed}), {relaxed});\n\
             {t} seen = atomic_load_explicit(&o[12], {relaxed});\n\
             while (!atomic_compare_exchange_weak_explicit(&o[12], &seen, {t}(seen + {t}(1)), {relaxed}, {relaxed})) {{}} }}\n"
        );
    }
    text + "kernel void t_bool(device atomic_bool* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n\
        if (i == 3) { atomic_store_explicit(&o[0], true, memory_order_relaxed);\n\
        o[1].value = atomic_exchange_explicit(&o[2], false, memory_order_relaxed); } }\n"
}

fn check<T: Bytes>(library: &softmetal::Library, t: &str, value: impl Fn(T) -> f64, one: &dyn Fn(i64) -> T) {
    // Zero everywhere but where a minimum or an AND is taken, or a value is exchanged.
    let start: Vec<T> = [0, 0, 0, 100, 0, 255, 0, 0, 0, 5, 100, 0, 0].map(one).into();
    let mut memory = super::support::bytes(&start);
    let device = softmetal::Device::new();
    let dispatch = device.dispatch(library, &format!("t_{t}")).unwrap();
    let outcome = dispatch.buffer_mut(0, &mut memory).threads([96, 1, 1], [32, 1, 1]).run().unwrap();
    assert!(outcome.is_clean(), "{:?}", outcome.reports);
    let found: Vec<f64> = numbers::<T>(&memory).into_iter().map(value).collect();
    let integers = t != "float";
    let xor = (0..96).fold(0, |a, b| a ^ b);
    let wanted = [
        96,
        192,
        -96,
        0,
        95,
        if integers { 0 } else { 255 },
        if integers { 255 } else { 0 },
        if integers { xor } else { 0 },
    ];
    let rest = [5, 77, if integers { 0 } else { 100 }, if integers { 95 } else { 0 }, 96];
    for (i, (found, wanted)) in found.into_iter().zip(wanted.into_iter().chain(rest)).enumerate() {
        // An unsigned type wraps below zero.
        let wanted = if wanted < 0 && t.starts_with('u') {
            wanted as f64 + 2f64.powi(T::SIZE as i32 * 8)
        } else {
            f64::from(wanted)
        };
        assert_eq!(found, wanted, "place {i} of atomic_{t}");
    }
}

#[test]
fn atomics_lose_no_update() {
    let Some(library) = compile("atomic", &source()) else { return };
    check::<i32>(&library, "int", f64::from, &|x| x as i32);
    check::<u32>(&library, "uint", f64::from, &|x| x as u32);
    check::<i64>(&library, "long", |x| x as f64, &|x| x);
    check::<u64>(&library, "ulong", |x| x as f64, &|x| x as u64);
    check::<i16>(&library, "short", f64::from, &|x| x as i16);
    check::<f32>(&library, "float", f64::from, &|x| x as f32);
    let found = run_in_groups(&library, "t_bool", (8, 8), &[], &[3]);
    assert_eq!(found[0][0], 1);
    assert_eq!(found[0][2], 0);
}
