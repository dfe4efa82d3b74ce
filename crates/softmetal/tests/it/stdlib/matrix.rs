//! simdgroup_matrix: loads, stores, products, and which lane has which element.

use super::support::{BFLOAT, Format, HALF, Random, bytes, compile, numbers, run_in_groups};

const SOURCE: &str = "#include <metal_stdlib>\nusing namespace metal;
template <typename T> void products(device const T* x, device float* o) {
    simdgroup_matrix<T, 8, 8> a, b, ta, d; simdgroup_float8x8 c, e;
    simdgroup_load(a, x, 16); simdgroup_load(b, x, 16, ulong2(8, 0)); simdgroup_load(ta, x, 16, ulong2(0, 0), true);
    simdgroup_load(c, o, 8);
    simdgroup_multiply_accumulate(e, a, b, c); simdgroup_store(e, o + 64, 8);
    simdgroup_multiply(d, a, b); simdgroup_float8x8 f = simdgroup_float8x8(1.0f), g; simdgroup_multiply(g, f, d); simdgroup_store(g, o + 128, 8);
    simdgroup_multiply_accumulate(e, ta, b, make_filled_simdgroup_matrix<float, 8, 8>(0.5f)); simdgroup_store(e, o + 192, 8, ulong2(0, 0), true);
    d = a * simdgroup_matrix<T, 8, 8>(T(2)); simdgroup_multiply(e, d, make_diagonal_simdgroup_matrix<T, 8, 8>(T(1))); simdgroup_store(e, o + 256, 8);
}
kernel void of_half(device const half* x [[buffer(0)]], device float* o [[buffer(1)]]) { products(x, o); }
kernel void of_bfloat(device const bfloat* x [[buffer(0)]], device float* o [[buffer(1)]]) { products(x, o); }
kernel void of_float(device const float* x [[buffer(0)]], device float* o [[buffer(1)]]) { products(x, o); }
kernel void layout(device float* o [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 m;
    m.thread_elements()[0] = lane * 2; m.thread_elements()[1] = lane * 2 + 1;
    simdgroup_store(m, o, 8);
}
";

pub(crate) fn source() -> &'static str {
    SOURCE
}

fn check(kernel: &str, format: Format, encode: &dyn Fn(f64) -> Vec<u8>) {
    let Some(library) = compile("simdgroup_matrix", SOURCE) else { return };
    let mut random = Random(11);
    // 8 rows of 16: A at the left, B at the right.
    let x: Vec<f64> = (0..128).map(|_| format.round(random.between(-2.0, 2.0).into())).collect();
    let input: Vec<u8> = x.iter().flat_map(|&x| encode(x)).collect();
    let c: Vec<f32> = (0..64).map(|i| i as f32 * 0.25).collect();
    let mut memory = bytes(&c);
    memory.resize(320 * 4, 0);
    let device = softmetal::Device::new();
    let outcome = device
        .dispatch(&library, kernel)
        .unwrap()
        .buffer(0, &input)
        .buffer_mut(1, &mut memory)
        .threads([32, 1, 1], [32, 1, 1])
        .run()
        .unwrap();
    assert!(outcome.is_clean(), "{:?}", outcome.reports);
    let found = numbers::<f32>(&memory);
    let (a, b) = (|r: usize, k: usize| x[r * 16 + k], |k: usize, n: usize| x[k * 16 + 8 + n]);
    for r in 0..8 {
        for n in 0..8 {
            let product: f64 = (0..8).map(|k| a(r, k) * b(k, n)).sum();
            let transposed: f64 = (0..8).map(|k| a(k, r) * b(k, n)).sum();
            let near = |place: usize, wanted: f64, slack: f64| {
                let found = f64::from(found[place]);
                assert!(
                    (found - wanted).abs() <= slack,
                    "{kernel} [{r}][{n}] at {place}: {found}, wanted {wanted}"
                );
            };
            near(64 + r * 8 + n, product + f64::from(c[r * 8 + n]), 1e-5);
            near(128 + r * 8 + n, product, 1e-5 + format.ulp(product));
            near(192 + n * 8 + r, transposed + 0.5, 1e-5);
            near(256 + r * 8 + n, 2.0 * a(r, n), 0.0);
        }
    }
}

#[test]
fn products_of_halves_are_those_of_the_reference() {
    check("of_half", HALF, &|x| HALF.encode(x).to_le_bytes().into());
}

#[test]
fn products_of_bfloats_are_those_of_the_reference() {
    check("of_bfloat", BFLOAT, &|x| BFLOAT.encode(x).to_le_bytes().into());
}

#[test]
fn products_of_floats_are_those_of_the_reference() {
    check("of_float", super::support::FLOAT, &|x| (x as f32).to_le_bytes().into());
}

#[test]
fn lanes_hold_the_elements_that_apples_lanes_hold() {
    let Some(library) = compile("simdgroup_matrix", SOURCE) else { return };
    let found = numbers::<f32>(&run_in_groups(&library, "layout", (32, 32), &[], &[256])[0]);
    for lane in 0..32usize {
        let quad = lane / 4;
        let (row, column) = ((quad & 4) + lane / 2 % 4, (quad & 2) * 2 + lane % 2 * 2);
        assert_eq!(found[row * 8 + column], (lane * 2) as f32, "lane {lane}");
        assert_eq!(found[row * 8 + column + 1], (lane * 2 + 1) as f32, "lane {lane}");
    }
}
