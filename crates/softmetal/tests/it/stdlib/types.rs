//! Vectors, swizzles, packed vectors and matrices.

use super::support::{Random, bytes, compile, numbers, run};

const TYPES: [&str; 12] =
    ["bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float", "bfloat"];

/// Every conversion between vectors must be that of their components: all types at four components, some at two and three.
fn conversions() -> String {
    let mut text = String::new();
    for from in TYPES {
        let mut body = String::new();
        for to in TYPES {
            let small = [from, to].iter().all(|t| ["int", "half", "float"].contains(t));
            for n in if small { 2..=4 } else { 4..=4 } {
                let same: String =
                    (0..n).map(|c| format!(" & (r.{0} == {to}(v.{0}))", ["x", "y", "z", "w"][c])).collect();
                body += &format!(
                    "{{ {from}{n} v = {from}{n}(a); {to}{n} r = {to}{n}(v); {to}{n} s = ({to}{n})v; ok &= true {same} & all(r == s); }}\n"
                );
            }
        }
        text += &format!(
            "kernel void convert_{from}(device const short* x [[buffer(0)]], device uint* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {{\n\
             {from}4 v4 = {from}4({from}(x[i]), {from}(x[i] / 3), {from}(x[i] % 7), {from}(x[i] & 15)); bool ok = true;\n{}\
             o[i] = ok; }}\n",
            body.replace("2(a)", "2(v4.xy)").replace("3(a)", "3(v4.xyz)").replace("4(a)", "4(v4)")
        );
    }
    text
}

/// Every swizzle: read, and written where no component repeats.
fn swizzles() -> String {
    let mut text = String::from(
        "template <typename T> bool msl_swizzles() { bool ok = true;\n\
         vec<T, 2> v2 = vec<T, 2>(T(1), T(2)); vec<T, 3> v3 = vec<T, 3>(T(1), T(2), T(3)); vec<T, 4> v4 = vec<T, 4>(T(1), T(2), T(3), T(4));\n",
    );
    for names in ["xyzw", "rgba"] {
        for n in 2usize..=4 {
            for m in 2usize..=4 {
                for code in 0..n.pow(m as u32) {
                    let places: Vec<usize> = (0..m).map(|k| code / n.pow(k as u32) % n).collect();
                    let name: String = places.iter().map(|&p| &names[p..=p]).collect();
                    let list: Vec<String> = places.iter().map(|p| format!("T({})", p + 1)).collect();
                    text += &format!("ok &= all(v{n}.{name} == vec<T, {m}>({}));\n", list.join(", "));
                    if (1..m).all(|k| !places[..k].contains(&places[k])) {
                        let new: Vec<String> = (0..m).map(|k| format!("T({})", k + 5)).collect();
                        let after: Vec<String> = (0..n)
                            .map(|c| {
                                places
                                    .iter()
                                    .position(|&p| p == c)
                                    .map_or(format!("T({})", c + 1), |k| format!("T({})", k + 5))
                            })
                            .collect();
                        text += &format!(
                            "{{ vec<T, {n}> w = v{n}; w.{name} = vec<T, {m}>({}); ok &= all(w == vec<T, {n}>({})); }}\n",
                            new.join(", "),
                            after.join(", ")
                        );
                    }
                }
            }
        }
    }
    text + "return ok; }\nkernel void swizzle(device uint* o [[buffer(0)]]) { o[0] = msl_swizzles<float>(); }\n"
}

const OTHERS: &str = "
struct Pair { packed_float3 a; packed_half4 b; char c; packed_uchar3 d; };
kernel void packed(device const Pair* x [[buffer(0)]], device Pair* y [[buffer(1)]], device float* o [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    float3 v = x[i].a; half4 h = x[i].b;
    y[i].a = v * 2 + x[i].a; y[i].b = h + h; y[i].c = x[i].c; y[i].d = packed_uchar3(uchar3(x[i].d) + 1); y[i].a.x += 1; y[i].a.yz = v.zy;
    o[i * 4] = sizeof(Pair); o[i * 4 + 1] = alignof(packed_float3) * 100 + sizeof(packed_short3) * 10 + sizeof(packed_bfloat2);
    o[i * 4 + 2] = x[i].a[1] - x[i].a.y; float3 n = -x[i].a; o[i * 4 + 3] = dot(n + x[i].a * 2, float3(1));
}
kernel void construct(device float* o [[buffer(0)]]) {
    uint a = 1, b = 2, c = 3; int n = -4;
    uint4 k = {a, b, c}; o[0] = k.x + k.y * 10 + k.z * 100 + k.w * 1000;
    float4 f = float4(float2(1, 2), 3, half(4)); o[1] = dot(f, float4(1, 10, 100, 1000));
    f = float4(1, float3(2, 3, 4)); o[2] = dot(f, float4(1, 10, 100, 1000));
    f = 2; o[3] = dot(f, float4(1)); f += 1; f *= float4(1, 2, 3, 4); f -= f.wzyx; o[4] = f.x; o[5] = f.w;
    float4 table[2] = {{1, 2, 3, 4}, float4(5)}; o[6] = table[0].w + table[1].x; int2 q = {n, n}; q++; --q; o[7] = q.x + (q++).y + q.x;
    bool4 m = f > 0 && !(f == 3); o[8] = m.x + m.y * 10 + m.z * 100 + m.w * 1000;
    uint3 u = (uint3(5, 6, 7) << 2u) ^ uint3(1) | 8u; o[9] = u.x + u.y + u.z; o[10] = (int3(17, -17, 5) % 5).y; f[2] = 9; o[11] = f.z;
    thread float& r = f.y; r = 7; o[12] = f[1]; f.xy.x; f.zw += 1; o[13] = f.z; o[14] = (a > 0 ? f.xy : float2(0)).y; float3 z{}; o[15] = z.x + z.y + z.z;
    float2 p = float2(3, 4); auto sw = p.yx; o[16] = sw.x; o[17] = (~uint2(0)).x == 0xffffffffu; array<float, 3> arr = {{1, 2, 3}}; o[18] = arr[2] + arr.size();
    o[19] = as_type<float>(as_type<uint>(1.5f)) + as_type<half2>(0x3c004000u).x; vec<int, 3> g = vec<int, 3>(1.9f, -1.9f, 2u); o[20] = g.x * 100 + g.y * 10 + g.z;
}
kernel void sizes(device uint* o [[buffer(0)]]) {
    o[0] = sizeof(float3); o[1] = alignof(float3); o[2] = sizeof(half3); o[3] = sizeof(char4); o[4] = alignof(ulong2); o[5] = sizeof(bool3);
    o[6] = sizeof(packed_half3); o[7] = sizeof(float3x3); o[8] = sizeof(half2x4); o[9] = sizeof(bfloat4); o[10] = sizeof(packed_ulong3); o[11] = alignof(half4x4);
}
kernel void matrices(device const float* x [[buffer(0)]], device float* o [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    x += i * 32; o += i * 64;
    float4x4 a, b;
    for (uint c = 0; c < 4; c++) for (uint r = 0; r < 4; r++) { a[c][r] = x[c * 4 + r]; b[c][r] = x[16 + c * 4 + r]; }
    float4x4 p = a * b; float4 v = a * b[0], w = b[0] * a;
    for (uint c = 0; c < 4; c++) for (uint r = 0; r < 4; r++) { o[c * 4 + r] = p[c][r]; }
    for (uint r = 0; r < 4; r++) { o[16 + r] = v[r]; o[20 + r] = w[r]; }
    o[24] = determinant(a); o[25] = determinant(float3x3(a[0].xyz, a[1].xyz, a[2].xyz)); o[26] = determinant(float2x2(a[0].xy, a[1].xy));
    o[27] = transpose(a)[1][2] - a[2][1]; float2x3 m = float2x3(1, 2, 3, 4, 5, 6); float3x2 t = transpose(m); o[28] = t[2][1]; o[29] = (m * float2(1, 10)).z;
    o[30] = (float3(1, 10, 100) * m).y; o[31] = (m * t)[1][1]; o[32] = ((a + b) - (b - -a))[3][3]; o[33] = (2.0f * a - a * 2.0f)[1][1];
    half4x4 h = half4x4(a); float4x4 back(h); o[34] = abs(back[2][1] - a[2][1]) < 0.002f; o[35] = float4x4(3.0f)[2][2] + float4x4(3.0f)[2][1]; o[36] = a == a && a != b;
}
kernel void limits(device float* o [[buffer(0)]]) {
    o[0] = numeric_limits<float>::max() == FLT_MAX; o[1] = numeric_limits<half>::max(); o[2] = numeric_limits<int>::lowest() == INT_MIN;
    o[3] = numeric_limits<uchar>::max(); o[4] = isinf(numeric_limits<bfloat>::infinity()); o[5] = float(numeric_limits<half>::epsilon()) * 1024;
    o[6] = numeric_limits<ulong>::digits; o[7] = is_same_v<make_scalar_t<half4>, half> && is_vec<float2>::value && is_floating_point_v<bfloat>;
}
";

pub(crate) fn source() -> String {
    format!("#include <metal_stdlib>\nusing namespace metal;\n{OTHERS}")
}

pub(crate) fn tables() -> String {
    format!("#include <metal_stdlib>\nusing namespace metal;\n{}{}", conversions(), swizzles())
}

#[test]
fn vectors_convert_component_by_component_and_every_swizzle_works() {
    let Some(library) = compile("types_tables", &tables()) else { return };
    let x: Vec<i16> = (0..64).map(|i| i * 2 - 3).map(|x: i16| x.abs()).collect();
    for from in TYPES {
        let found = numbers::<u32>(&run(&library, &format!("convert_{from}"), 64, &[bytes(&x)], &[256])[0]);
        assert!(found.iter().all(|&ok| ok == 1), "conversions from {from}: {found:?}");
    }
    assert_eq!(numbers::<u32>(&run(&library, "swizzle", 1, &[], &[4])[0]), [1]);
}

#[test]
fn vectors_are_built_and_computed_as_in_metal() {
    let Some(library) = compile("types", &source()) else { return };
    let found = numbers::<f32>(&run(&library, "construct", 1, &[], &[84])[0]);
    let wanted = [
        321.0, 4321.0, 4321.0, 8.0, -9.0, 9.0, 9.0, -11.0, 1000.0, 83.0, -2.0, 9.0, 7.0, 10.0, 7.0, 0.0, 4.0,
        1.0, 6.0, 3.5, 92.0,
    ];
    assert_eq!(found, wanted);
    let found = numbers::<u32>(&run(&library, "sizes", 1, &[], &[48])[0]);
    assert_eq!(found, [16, 16, 8, 4, 16, 4, 6, 48, 16, 8, 24, 8]);
    let found = numbers::<f32>(&run(&library, "limits", 1, &[], &[32])[0]);
    assert_eq!(found, [1.0, 65504.0, 1.0, 255.0, 1.0, 1.0, 64.0, 1.0]);
}

#[test]
fn packed_vectors_have_no_padding_and_become_vectors() {
    let Some(library) = compile("types", &source()) else { return };
    // float3 a at 0, half4 b at 12, char c at 20, uchar3 d at 21; 24 bytes in all.
    let element = |k: u8| -> Vec<u8> {
        let mut e = bytes(&[f32::from(k), 2.0, 3.0]);
        e.extend(bytes(&[0x3c00u16, 0x4000, 0x4200, 0x4400]));
        e.extend([k, 1, 2, k]);
        e
    };
    let x: Vec<u8> = (0..8).flat_map(element).collect();
    let results = run(&library, "packed", 8, &[x], &[8 * 24, 8 * 16]);
    for k in 0..8u8 {
        let y = &results[0][usize::from(k) * 24..];
        let a = f32::from(k);
        assert_eq!(numbers::<f32>(&y[..12]), [a * 3.0 + 1.0, 3.0, 2.0]);
        assert_eq!(numbers::<u16>(&y[12..20]), [0x4000, 0x4400, 0x4600, 0x4800]);
        assert_eq!(y[20..24], [k, 2, 3, k + 1]);
        let o = numbers::<f32>(&results[1][usize::from(k) * 16..][..16]);
        assert_eq!(o, [24.0, 464.0, 0.0, a + 5.0]);
    }
}

#[test]
fn matrices_multiply_by_columns() {
    let Some(library) = compile("types", &source()) else { return };
    let mut random = Random(9);
    let x: Vec<f32> = (0..32 * 8).map(|_| random.between(-2.0, 2.0)).collect();
    let found = numbers::<f32>(&run(&library, "matrices", 8, &[bytes(&x)], &[64 * 32])[0]);
    for (x, found) in x.chunks(32).zip(found.chunks(64)) {
        let a = |c: usize, r: usize| f64::from(x[c * 4 + r]);
        let b = |c: usize, r: usize| f64::from(x[16 + c * 4 + r]);
        let mut wanted = Vec::new();
        for c in 0..4 {
            wanted.extend((0..4).map(|r| (0..4).map(|k| a(k, r) * b(c, k)).sum::<f64>()));
        }
        wanted.extend((0..4).map(|r| (0..4).map(|k| a(k, r) * b(0, k)).sum::<f64>()));
        wanted.extend((0..4).map(|c| (0..4).map(|k| b(0, k) * a(c, k)).sum::<f64>()));
        let det = |n: usize| determinant((0..n).map(|c| (0..n).map(|r| a(c, r)).collect()).collect());
        wanted.extend([det(4), det(3), det(2), 0.0, 6.0, 63.0, 654.0, 26.0, 0.0, 0.0, 1.0, 3.0, 1.0]);
        // (m * t)[1][1] with m of columns (1 2 3) (4 5 6): 2·2 + 5·5 = 29.
        wanted[31] = 29.0;
        for (k, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            assert!((f64::from(*found) - wanted).abs() < 1e-4, "result {k}: {found}, wanted {wanted}");
        }
    }
}

/// By elimination, which the library does not use.
fn determinant(mut m: Vec<Vec<f64>>) -> f64 {
    let mut result = 1.0;
    for i in 0..m.len() {
        let pivot = (i..m.len()).max_by(|&p, &q| m[p][i].abs().total_cmp(&m[q][i].abs())).unwrap();
        if pivot != i {
            m.swap(i, pivot);
            result = -result;
        }
        result *= m[i][i];
        let (above, below) = m.split_at_mut(i + 1);
        for row in below {
            let factor = row[i] / above[i][i];
            for (x, pivot) in row.iter_mut().zip(&above[i]) {
                *x -= factor * pivot;
            }
        }
    }
    result
}
