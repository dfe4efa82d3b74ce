//! Relational and geometric functions.

use super::support::{HALF, Random, bytes, close, compile, numbers, run};

pub(crate) const SOURCE: &str = "#include <metal_stdlib>\nusing namespace metal;
kernel void relational(device const float* x [[buffer(0)]], device const half* h [[buffer(1)]], device const bfloat* b [[buffer(2)]],
                       device uint* o [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    float v = x[i];
    o[i * 3] = isfinite(v) | isinf(v) << 1 | isnan(v) << 2 | isnormal(v) << 3 | signbit(v) << 4 | isordered(v, v) << 5 | isunordered(v, 1.0f) << 6;
    o[i * 3 + 1] = isfinite(h[i]) | isinf(h[i]) << 1 | isnan(h[i]) << 2 | isnormal(h[i]) << 3 | signbit(h[i]) << 4
        | isordered(h[i], h[i]) << 5 | isunordered(h[i], h[i]) << 6;
    o[i * 3 + 2] = isfinite(b[i]) | isinf(b[i]) << 1 | isnan(b[i]) << 2 | isnormal(b[i]) << 3 | signbit(b[i]) << 4
        | isordered(b[i], b[i]) << 5 | isunordered(b[i], b[i]) << 6;
    float2 w = float2(v, 1.0f);
    bool same = isfinite(w).x == isfinite(v) && isinf(w).x == isinf(v) && isnan(w).x == isnan(v) && isnormal(w).x == isnormal(v)
        && signbit(w).x == signbit(v) && isordered(w, w).x == isordered(v, v) && isunordered(w, w).x == isunordered(v, v) && isfinite(w).y;
    if (!same) o[i * 3] = 999;
}
kernel void choices(device uint* o [[buffer(0)]]) {
    bool4 some = bool4(true, false, true, false);
    o[0] = all(some); o[1] = any(some); o[2] = all(bool3(true)); o[3] = any(bool2(false)); o[4] = all(true); o[5] = any(false);
    o[6] = all(not(some) == !some);
    int4 s = select(int4(1, 2, 3, 4), int4(5, 6, 7, 8), some);
    o[7] = s.x * 1000 + s.y * 100 + s.z * 10 + s.w;
    o[8] = select(3, 4, true); o[9] = select(3, 4, false); o[10] = uint(select(half(1.0f), half(2.0f), true));
    o[11] = select(float4(1), float4(2), false).w;
}
kernel void geometric(device const float3* x [[buffer(0)]], device float* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float3 a = x[i * 3], b = x[i * 3 + 1], c = x[i * 3 + 2];
    o += i * 20;
    o[0] = dot(a, b); float3 k = cross(a, b); o[1] = k.x; o[2] = k.y; o[3] = k.z;
    o[4] = length(a); o[5] = length_squared(a); o[6] = distance(a, b); o[7] = distance_squared(a, b);
    float3 n = normalize(b); o[8] = n.x; o[9] = n.y; o[10] = n.z;
    float3 f = faceforward(a, b, c); o[11] = f.x;
    float3 r = reflect(a, n); o[12] = r.x; o[13] = r.y; o[14] = r.z;
    float3 t = refract(normalize(a), n, 0.7f); o[15] = t.x; o[16] = t.y; o[17] = t.z;
    o[18] = dot(half4(1, 2, 3, 4), half4(1, 1, 1, 2)); o[19] = dot(int4(1, 2, 3, 4), int4(-1, 1, 1, 2));
}
";

fn expected(class: std::num::FpCategory, negative: bool) -> u32 {
    use std::num::FpCategory::{Infinite, Nan, Normal};
    let bit = |b: bool, n: u32| u32::from(b) << n;
    let nan = class == Nan;
    bit(!nan && class != Infinite, 0)
        | bit(class == Infinite, 1)
        | bit(nan, 2)
        | bit(class == Normal, 3)
        | bit(negative, 4)
        | bit(!nan, 5)
        | bit(nan, 6)
}

#[test]
fn numbers_are_classified_by_their_bits() {
    let Some(library) = compile("relational", SOURCE) else { return };
    let mut random = Random(4);
    let mut x: Vec<f32> = (0..500).map(|_| f32::from_bits(random.bits() as u32)).collect();
    x.extend([
        0.0,
        -0.0,
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE,
        1e-40,
        1.0,
        -3.5,
        f32::MAX,
        -1e-45,
    ]);
    let h: Vec<u16> = (0..512).map(|i| if i < 256 { i * 257 } else { random.bits() as u16 }).collect();
    let b: Vec<u16> = x.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let found =
        numbers::<u32>(&run(&library, "relational", 512, &[bytes(&x), bytes(&h), bytes(&b)], &[512 * 12])[0]);
    for i in 0..512 {
        assert_eq!(found[i * 3], expected(x[i].classify(), x[i].is_sign_negative()), "{}", x[i]);
        let value = HALF.decode(h[i].into());
        let class = if value != 0.0 && value.abs() < 2f64.powi(-14) {
            std::num::FpCategory::Subnormal
        } else {
            value.classify()
        };
        assert_eq!(found[i * 3 + 1], expected(class, h[i] >> 15 == 1), "half {:#x}", h[i]);
        let value = f32::from_bits(u32::from(b[i]) << 16);
        assert_eq!(
            found[i * 3 + 2],
            expected(value.classify(), value.is_sign_negative()),
            "bfloat {:#x}",
            b[i]
        );
    }
}

#[test]
fn all_any_and_select_choose() {
    let Some(library) = compile("relational", SOURCE) else { return };
    let found = numbers::<u32>(&run(&library, "choices", 1, &[], &[12 * 4])[0]);
    assert_eq!(found, [0, 1, 1, 0, 1, 0, 1, 5274, 4, 3, 2, 1]);
}

#[test]
fn geometric_functions_are_those_of_the_reference() {
    let Some(library) = compile("relational", SOURCE) else { return };
    let mut random = Random(5);
    let x: Vec<f32> = (0..64 * 12).map(|_| random.between(-3.0, 3.0)).collect();
    let found = numbers::<f32>(&run(&library, "geometric", 64, &[bytes(&x)], &[64 * 80])[0]);
    for (x, found) in x.chunks(12).zip(found.chunks(20)) {
        let v = |n: usize| [0, 1, 2].map(|k| f64::from(x[n * 4 + k]));
        let (a, b, c) = (v(0), v(1), v(2));
        let dot = |a: [f64; 3], b: [f64; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
        let scale = |a: [f64; 3], s: f64| a.map(|x| x * s);
        let minus = |a: [f64; 3], b: [f64; 3]| [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
        let n = scale(b, 1.0 / dot(b, b).sqrt());
        let i = scale(a, 1.0 / dot(a, a).sqrt());
        let k = 1.0 - 0.49 * (1.0 - dot(n, i).powi(2));
        let refracted = minus(scale(i, 0.7), scale(n, 0.7 * dot(n, i) + k.sqrt()));
        let reflected = minus(a, scale(n, 2.0 * dot(n, a)));
        let mut wanted =
            vec![dot(a, b), a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
        wanted.extend([
            dot(a, a).sqrt(),
            dot(a, a),
            dot(minus(a, b), minus(a, b)).sqrt(),
            dot(minus(a, b), minus(a, b)),
        ]);
        wanted.extend(n);
        wanted.push(if dot(c, b) < 0.0 { a[0] } else { -a[0] });
        wanted.extend(reflected.into_iter().chain(refracted).chain([14.0, 12.0]));
        for (number, (&found, wanted)) in found.iter().zip(wanted).enumerate() {
            assert!(close(found.into(), wanted, 2e-5), "result {number} of {x:?}: {found}, wanted {wanted}");
        }
    }
}
