//! Simd-group and quad-group functions against loops over lanes.

use super::support::{Random, bytes, compile, numbers, run_in_groups};

/// Reductions and scans: name, neutral value, operation.
type Fold = (&'static str, i64, fn(i64, i64) -> i64);
const REDUCTIONS: &[Fold] = &[
    ("sum", 0, |a, b| a + b),
    ("product", 1, i64::wrapping_mul),
    ("max", i64::MIN, i64::max),
    ("min", i64::MAX, i64::min),
    ("and", -1, |a, b| a & b),
    ("or", 0, |a, b| a | b),
    ("xor", 0, |a, b| a ^ b),
];

/// Shuffles: expression suffix, and the lane it reads within a group of `w`, or none to keep its own value.
type Shuffle = (&'static str, &'static str, fn(usize, usize) -> Option<usize>);
const SHUFFLES: &[Shuffle] = &[
    ("shuffle", "ushort((l * 5 + 3) % W)", |l, w| Some((l * 5 + 3) % w)),
    ("broadcast", "2", |_, _| Some(2)),
    ("shuffle_xor", "3", |l, _| Some(l ^ 3)),
    ("shuffle_up", "1", |l, _| l.checked_sub(1)),
    ("shuffle_down", "2", |l, w| (l + 2 < w).then_some(l + 2)),
    ("shuffle_rotate_up", "1", |l, w| Some((l + w - 1) % w)),
    ("shuffle_rotate_down", "3", |l, w| Some((l + 3) % w)),
    ("broadcast_first", "", |_, _| Some(0)),
];

const PLACES: usize = 64;

pub(crate) fn source() -> String {
    let mut text = "#include <metal_stdlib>\nusing namespace metal;\n".to_owned();
    for (group, w) in [("simd", 32), ("quad", 4)] {
        let lane = if group == "simd" { "thread_index_in_simdgroup" } else { "thread_index_in_quadgroup" };
        for t in ["int", "float"] {
            let mut body = String::new();
            let mut place = 0;
            let mut put = |expression: String| {
                body += &format!("o[i * {PLACES} + {place}] = {expression};\n");
                place += 1;
            };
            for (name, ..) in REDUCTIONS {
                let bits = matches!(*name, "and" | "or" | "xor");
                put(if bits && t == "float" { "0".into() } else { format!("{group}_{name}(v)") });
            }
            for name in ["sum", "product"] {
                put(format!("{group}_prefix_inclusive_{name}(v)"));
                put(format!("{group}_prefix_exclusive_{name}(v)"));
            }
            for (name, argument, _) in SHUFFLES {
                let argument = argument.replace('W', &w.to_string());
                let comma = if argument.is_empty() { "" } else { ", " };
                put(format!("{group}_{name}(v{comma}{argument})"));
            }
            put(format!("{group}_shuffle_and_fill_up(v, {t}(v + 1000), 3)"));
            put(format!("{group}_shuffle_and_fill_down(v, {t}(v + 1000), 1)"));
            put(format!("{group}_shuffle_and_fill_up(v, {t}(v + 1000), 1, 2)"));
            put(format!("{group}_shuffle_and_fill_down(v, {t}(v + 1000), 1, 2)"));
            put(format!(
                "{group}_all(v > 0) + 2 * {group}_any(v > 2) + 4 * {group}_is_first() + 8 * {group}_is_helper_thread()"
            ));
            put(format!("({group}_vote::vote_t({group}_ballot(v > 2)) >> l) & 1"));
            put(format!(
                "popcount(ulong({group}_vote::vote_t({group}_active_threads_mask()))) + 100 * {group}_ballot(v > 0).all() + 1000 * {group}_ballot(v > 99).any()"
            ));
            put(format!(
                "{group}_sum({t}2(v, 1)).y + {group}_shuffle_xor({t}4(v), 1).w - {group}_shuffle_xor(v, 1)"
            ));
            text += &format!(
                "kernel void {group}_{t}(device const {t}* x [[buffer(0)]], device {t}* o [[buffer(1)]], uint i [[thread_position_in_grid]],\n\
                 uint l [[{lane}]]) {{ {t} v = x[i];\n{body}}}\n"
            );
        }
    }
    text + "
kernel void some_lanes(device const int* x [[buffer(0)]], device int* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    int v = x[i]; o += i * 8;
    for (int k = 0; k < 8; k++) o[k] = 0;
    if (v % 2) {
        o[0] = simd_sum(v); o[1] = simd_max(v); o[2] = simd_prefix_exclusive_sum(v); o[3] = simd_broadcast_first(v);
        o[4] = int(ulong(simd_vote::vote_t(simd_ballot(v > 4)))); o[5] = quad_sum(v); o[6] = simd_all(v % 2);
    } else {
        o[7] = simd_min(v);
    }
}
kernel void small_types(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]], uint l [[thread_index_in_simdgroup]]) {
    o += i * 6;
    o[0] = simd_sum(half(l)); o[1] = float(simd_max(bfloat(l))); o[2] = simd_shuffle(uchar(l), 7); o[3] = simd_sum(ulong(l) << 33) >> 33;
    o[4] = simd_or(ushort(1 << (l % 16))); o[5] = simd_shuffle_down(short4(l), 1).z;
    simdgroup_barrier(mem_flags::mem_none);
}
"
}

/// The values that one group of lanes must give, place after place.
fn wanted(group: &[i64], float: bool) -> Vec<Vec<i64>> {
    let w = group.len();
    let mut places: Vec<Vec<i64>> = Vec::new();
    for &(name, neutral, fold) in REDUCTIONS {
        let value = group.iter().fold(neutral, |a, &b| fold(a, b));
        places.push(vec![if float && matches!(name, "and" | "or" | "xor") { 0 } else { value }; w]);
    }
    for (neutral, fold) in [(0, (|a, b| a + b) as fn(i64, i64) -> i64), (1, i64::wrapping_mul)] {
        let before = |l: usize| group[..l].iter().fold(neutral, |a, &b| fold(a, b));
        places.push((0..w).map(|l| before(l + 1)).collect());
        places.push((0..w).map(before).collect());
    }
    for (_, _, from) in SHUFFLES {
        places.push((0..w).map(|l| group[from(l, w).unwrap_or(l)]).collect());
    }
    let fill = |delta: i64, modulo: usize| -> Vec<i64> {
        let at = |l: usize| {
            let (base, inside) = (l / modulo * modulo, (l % modulo) as i64 + delta);
            let lane = base + inside.rem_euclid(modulo as i64) as usize;
            group[lane] + if (0..modulo as i64).contains(&inside) { 0 } else { 1000 }
        };
        (0..w).map(at).collect()
    };
    places.extend([fill(-3, w), fill(1, w), fill(-1, 2), fill(1, 2)]);
    let all = i64::from(group.iter().all(|&v| v > 0)) + 2 * i64::from(group.iter().any(|&v| v > 2));
    places.push((0..w).map(|l| all + if l == 0 { 4 } else { 0 }).collect());
    places.push(group.iter().map(|&v| i64::from(v > 2)).collect());
    let votes = w as i64 + 100 * i64::from(group.iter().all(|&v| v > 0));
    places.push(vec![votes; w]);
    places.push(vec![w as i64; w]);
    places
}

#[test]
fn simd_and_quad_functions_are_loops_over_lanes() {
    let Some(library) = compile("simd", &source()) else { return };
    let mut random = Random(10);
    // Small numbers, few of them not one: the product of 32 fits an int, and float holds it.
    let x: Vec<i64> = (0..128)
        .map(|i| {
            if i % 7 == 0 {
                (random.bits() % 5) as i64 - i64::from(i < 64)
            } else {
                1 + i64::from(i % 3 == 0)
            }
        })
        .collect();
    for (group, w) in [("simd", 32), ("quad", 4)] {
        for float in [false, true] {
            let input = if float {
                bytes(&x.iter().map(|&x| x as f32).collect::<Vec<_>>())
            } else {
                bytes(&x.iter().map(|&x| x as i32).collect::<Vec<_>>())
            };
            let kernel = format!("{group}_{}", if float { "float" } else { "int" });
            let result = &run_in_groups(&library, &kernel, (128, 64), &[input], &[128 * PLACES * 4])[0];
            let found: Vec<i64> = if float {
                numbers::<f32>(result).into_iter().map(|x| x as i64).collect()
            } else {
                numbers::<i32>(result).into_iter().map(i64::from).collect()
            };
            for (g, lanes) in x.chunks(w).enumerate() {
                for (place, wanted) in wanted(lanes, float).into_iter().enumerate() {
                    let found: Vec<i64> = (0..w).map(|l| found[(g * w + l) * PLACES + place]).collect();
                    assert_eq!(found, wanted, "{kernel}, place {place}, of {lanes:?}");
                }
            }
        }
    }
}

#[test]
fn collectives_under_a_branch_see_only_the_lanes_in_it() {
    let Some(library) = compile("simd", &source()) else { return };
    let x: Vec<i32> = (0..32).map(|i| i * 7 % 13).collect();
    let found = numbers::<i32>(&run_in_groups(&library, "some_lanes", (32, 32), &[bytes(&x)], &[32 * 32])[0]);
    let odd: Vec<usize> = (0..32).filter(|&i| x[i] % 2 == 1).collect();
    let sum: i32 = odd.iter().map(|&i| x[i]).sum();
    let votes = odd.iter().filter(|&&i| x[i] > 4).fold(0u32, |v, &i| v | 1 << i) as i32;
    for i in 0..32 {
        let row = &found[i * 8..i * 8 + 8];
        if x[i] % 2 == 1 {
            let before: i32 = odd.iter().filter(|&&j| j < i).map(|&j| x[j]).sum();
            let quad: i32 = odd.iter().filter(|&&j| j / 4 == i / 4).map(|&j| x[j]).sum();
            assert_eq!(
                row,
                [sum, *odd.iter().map(|&j| &x[j]).max().unwrap(), before, x[odd[0]], votes, quad, 1, 0],
                "lane {i}"
            );
        } else {
            assert_eq!(row, [0, 0, 0, 0, 0, 0, 0, 0], "lane {i}");
        }
    }
}

#[test]
fn small_and_wide_types_go_through_collectives() {
    let Some(library) = compile("simd", &source()) else { return };
    let found = numbers::<f32>(&run_in_groups(&library, "small_types", (32, 32), &[], &[32 * 24])[0]);
    for (l, row) in found.chunks(6).enumerate() {
        let next = if l == 31 { 31.0 } else { l as f32 + 1.0 };
        assert_eq!(row, [496.0, 31.0, 7.0, 496.0, 65535.0, next], "lane {l}");
    }
}
