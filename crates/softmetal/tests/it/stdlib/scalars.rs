//! half and bfloat: conversions and arithmetic round to the nearest, ties to even.

use super::support::{BFLOAT, Format, HALF, Random, bytes, compile, numbers, run};

pub(crate) const SOURCE: &str = "#include <metal_stdlib>\nusing namespace metal;
kernel void widen(device const ushort* x [[buffer(0)]], device float* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    o[i * 4] = float(as_type<half>(x[i]));
    o[i * 4 + 1] = as_type<bfloat>(x[i]);
    o[i * 4 + 2] = float(half(as_type<bfloat>(x[i])));
    o[i * 4 + 3] = float(static_cast<bfloat>(as_type<half>(x[i])));
}
kernel void narrow(device const float* x [[buffer(0)]], device half* h [[buffer(1)]], device bfloat* b [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    h[i] = half(x[i]);
    b[i] = bfloat(x[i]);
}
template <typename T> void arithmetic(T a, T b, T c, device T* o) {
    o[0] = a + b; o[1] = a - b; o[2] = a * b; o[3] = a / b; o[4] = -a; o[5] = fma(a, b, c);
    T d = a; d += b; o[6] = d; d = a; d *= b; o[7] = d;
    o[8] = a < b ? a : b; o[9] = a == b || a >= c ? a : 0; o[10] = T(3) + T(int(2)); o[11] = sqrt(abs(a));
}
kernel void halves(device const half* x [[buffer(0)]], device half* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    arithmetic(x[i * 3], x[i * 3 + 1], x[i * 3 + 2], o + i * 12);
}
kernel void bfloats(device const bfloat* x [[buffer(0)]], device bfloat* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    arithmetic(x[i * 3], x[i * 3 + 1], x[i * 3 + 2], o + i * 12);
}
kernel void mixed(device float* o [[buffer(0)]]) {
    bfloat b = 3; half h = 2.5h; float f = 1.0625f; int n = 4; uint u = 0;
    o[0] = b * h; o[1] = b * f; o[2] = f - b; o[3] = float(b + n); o[4] = float(1 - b);
    u = bfloat(7.0f); o[5] = u; h += b; o[6] = h; f *= b; o[7] = f; b /= 2; o[8] = float(b); o[9] = n > 3 ? float(b) : 1.0f;
    o[10] = float(n > 3 ? b : 0); b++; o[11] = float(b); o[12] = b > 2.0f && b < 3 && b != 1; o[13] = int(bfloat(-2.75f)); o[14] = float(1.5bf);
    o[15] = sizeof(bfloat) * 10 + alignof(bfloat);
}
";

#[test]
fn every_half_and_bfloat_widens_exactly() {
    let Some(library) = compile("scalars", SOURCE) else { return };
    let x: Vec<u16> = (0..=u16::MAX).collect();
    let found = numbers::<f32>(&run(&library, "widen", 65536, &[bytes(&x)], &[65536 * 16])[0]);
    for (bits, found) in x.iter().zip(found.chunks(4)) {
        let (half, bfloat) = (HALF.decode((*bits).into()), BFLOAT.decode((*bits).into()));
        let wanted = [half, bfloat, HALF.round(bfloat), BFLOAT.round(half)];
        for (found, wanted) in found.iter().zip(wanted) {
            let same = f64::from(*found) == wanted && found.is_sign_negative() == wanted.is_sign_negative();
            assert!(same || (found.is_nan() && wanted.is_nan()), "{bits:#x}: {found}, wanted {wanted}");
        }
    }
}

#[test]
fn floats_narrow_to_the_nearest_and_ties_to_even() {
    let Some(library) = compile("scalars", SOURCE) else { return };
    let mut random = Random(7);
    let mut x: Vec<f32> = (0..40_000).map(|_| f32::from_bits(random.bits() as u32)).collect();
    // The middle between two neighbours, and its own neighbours.
    for format in [HALF, BFLOAT] {
        for bits in (0..0x7000u32).step_by(7) {
            let middle = f64::midpoint(format.decode(bits), format.decode(bits + 1)) as f32;
            x.extend([middle, -middle, middle.next_up(), middle.next_down()]);
        }
    }
    let n = x.len();
    let results = run(&library, "narrow", n as u32, &[bytes(&x)], &[n * 2, n * 2]);
    for (result, format) in results.iter().zip([HALF, BFLOAT]) {
        for (x, found) in x.iter().zip(numbers::<u16>(result)) {
            let (found, wanted) = (format.decode(found.into()), format.round((*x).into()));
            assert!(
                found == wanted || (found.is_nan() && wanted.is_nan()),
                "{x:?} is {found}, wanted {wanted}"
            );
        }
    }
}

fn check_arithmetic(kernel: &str, format: Format) {
    let Some(library) = compile("scalars", SOURCE) else { return };
    let mut random = Random(8);
    let n = 3000;
    let bits: Vec<u16> = (0..n * 3)
        .map(|i| {
            if i % 2 == 0 {
                random.bits() as u16
            } else {
                format.encode(format.round(random.between(-9.0, 9.0).into()))
            }
        })
        .collect();
    let found = numbers::<u16>(&run(&library, kernel, n as u32, &[bytes(&bits)], &[n * 24])[0]);
    for (x, found) in bits.chunks(3).zip(found.chunks(12)) {
        let v: Vec<f64> = x.iter().map(|&bits| format.decode(bits.into())).collect();
        let (a, b, c) = (v[0], v[1], v[2]);
        let wanted = [
            a + b,
            a - b,
            a * b,
            a / b,
            -a,
            a.mul_add(b, c),
            a + b,
            a * b,
            if a < b { a } else { b },
            if a == b || a >= c { a } else { 0.0 },
            5.0,
            a.abs().sqrt(),
        ];
        for (k, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let (found, wanted) = (format.decode((*found).into()), format.round(wanted));
            assert!(
                found == wanted || (found.is_nan() && wanted.is_nan()),
                "{kernel} operation {k} of {v:?}: {found}, wanted {wanted}"
            );
        }
    }
}

#[test]
fn arithmetic_of_halves_rounds_once() {
    check_arithmetic("halves", HALF);
}

#[test]
fn arithmetic_of_bfloats_rounds_once() {
    check_arithmetic("bfloats", BFLOAT);
}

#[test]
fn bfloat_mixes_with_other_types_as_metal_has_it() {
    let Some(library) = compile("scalars", SOURCE) else { return };
    let found = numbers::<f32>(&run(&library, "mixed", 1, &[], &[64])[0]);
    assert_eq!(
        found,
        [7.5, 3.1875, -1.9375, 7.0, -2.0, 7.0, 5.5, 3.1875, 1.5, 1.5, 1.5, 2.5, 1.0, -2.0, 1.5, 22.0]
    );
}
