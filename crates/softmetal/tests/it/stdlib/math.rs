//! Math and common functions of float, half and bfloat, scalars and vectors.

use super::support::{BFLOAT, FLOAT, Format, HALF, Random, bytes, close, compile, numbers, run};

type Unary = (&'static str, fn(f64) -> f64, (f64, f64));
type Binary = (&'static str, fn(f64, f64) -> f64, (f64, f64), (f64, f64));
type Ternary = (&'static str, fn(f64, f64, f64) -> f64);

const PI: f64 = std::f64::consts::PI;

const UNARY: &[Unary] = &[
    ("acos", f64::acos, (-1.0, 1.0)),
    ("acosh", f64::acosh, (1.0, 90.0)),
    ("asin", f64::asin, (-1.0, 1.0)),
    ("asinh", f64::asinh, (-50.0, 50.0)),
    ("atan", f64::atan, (-20.0, 20.0)),
    ("atanh", f64::atanh, (-0.99, 0.99)),
    ("abs", f64::abs, (-9.0, 9.0)),
    ("ceil", f64::ceil, (-9.0, 9.0)),
    ("cos", f64::cos, (-30.0, 30.0)),
    ("cosh", f64::cosh, (-9.0, 9.0)),
    ("cospi", |x| (x * PI).cos(), (-4.0, 4.0)),
    ("exp", f64::exp, (-9.0, 9.0)),
    ("exp2", f64::exp2, (-12.0, 12.0)),
    ("exp10", |x| 10f64.powf(x), (-4.0, 4.0)),
    ("fabs", f64::abs, (-9.0, 9.0)),
    ("floor", f64::floor, (-9.0, 9.0)),
    ("fract", |x| x - x.floor(), (-9.0, 9.0)),
    ("log", f64::ln, (1e-3, 1e3)),
    ("log2", f64::log2, (1e-3, 1e3)),
    ("log10", f64::log10, (1e-3, 1e3)),
    ("rint", f64::round_ties_even, (-9.0, 9.0)),
    ("round", f64::round, (-9.0, 9.0)),
    ("rsqrt", |x| 1.0 / x.sqrt(), (1e-3, 1e3)),
    ("saturate", |x| x.clamp(0.0, 1.0), (-2.0, 2.0)),
    ("sign", f64::signum, (-2.0, 2.0)),
    ("sin", f64::sin, (-30.0, 30.0)),
    ("sinh", f64::sinh, (-9.0, 9.0)),
    ("sinpi", |x| (x * PI).sin(), (-4.0, 4.0)),
    ("sqrt", f64::sqrt, (0.0, 1e3)),
    ("tan", f64::tan, (-1.5, 1.5)),
    ("tanh", f64::tanh, (-4.0, 4.0)),
    ("tanpi", |x| (x * PI).tan(), (-0.45, 0.45)),
    ("trunc", f64::trunc, (-9.0, 9.0)),
];

const ANY: (f64, f64) = (-8.0, 8.0);
const BINARY: &[Binary] = &[
    ("atan2", f64::atan2, ANY, ANY),
    ("copysign", f64::copysign, ANY, ANY),
    ("divide", |x, y| x / y, ANY, (0.5, 8.0)),
    ("fdim", |x, y| (x - y).max(0.0), ANY, ANY),
    ("fmax", f64::max, ANY, ANY),
    ("fmin", f64::min, ANY, ANY),
    ("fmod", |x, y| x % y, ANY, (0.5, 8.0)),
    ("max", f64::max, ANY, ANY),
    ("min", f64::min, ANY, ANY),
    ("pow", f64::powf, (0.1, 4.0), (-4.0, 4.0)),
    ("powr", f64::powf, (0.1, 4.0), (-4.0, 4.0)),
    ("step", |edge, x| if x < edge { 0.0 } else { 1.0 }, ANY, ANY),
];

fn median(x: f64, y: f64, z: f64) -> f64 {
    x.min(y).max(x.max(y).min(z))
}

const TERNARY: &[Ternary] = &[
    ("clamp", |x, y, z| x.max(y.min(z)).min(y.max(z))),
    ("fma", f64::mul_add),
    ("fmax3", |x, y, z| x.max(y).max(z)),
    ("fmedian3", median),
    ("fmin3", |x, y, z| x.min(y).min(z)),
    ("max3", |x, y, z| x.max(y).max(z)),
    ("median3", median),
    ("min3", |x, y, z| x.min(y).min(z)),
    ("mix", |x, y, a| x + (y - x) * a),
];

const N: usize = 192;

/// One kernel per function: results in float, half and bfloat, and whether vectors and the namespaces agree with scalars.
fn kernel(name: &str, inputs: usize) -> String {
    let buffers = inputs + 4;
    let read = |t: &str| (0..inputs).map(|n| format!("({t})x{n}[i]")).collect::<Vec<_>>();
    let arguments = |t: &str| {
        let mut list = read(t);
        // A clamp's bounds are in order.
        if name == "clamp" {
            list[1..].clone_from_slice(&[
                format!("min(({t})x1[i], ({t})x2[i])"),
                format!("max(({t})x1[i], ({t})x2[i])"),
            ]);
        }
        list.join(", ")
    };
    let vector = |t: &str, n: usize| {
        let each =
            |k: usize| (0..n).map(|c| format!("({t})x{k}[(i + {c}) % {N}]")).collect::<Vec<_>>().join(", ");
        let vectors: String =
            (0..inputs).map(|k| format!("{t}{n} v{k}_{n}{t} = {t}{n}({}); ", each(k))).collect();
        let call =
            |suffix: &str| (0..inputs).map(|k| format!("v{k}_{n}{t}{suffix}")).collect::<Vec<_>>().join(", ");
        let same: String = (0..n)
            .map(|c| format!("&& msl_same(r_{n}{t}[{c}], {name}({}))", call(&format!("[{c}]"))))
            .collect();
        format!("{vectors} {t}{n} r_{n}{t} = {name}({}); ok = ok {same};\n", call(""))
    };
    let parameters: String =
        (0..inputs).map(|n| format!("device const float* x{n} [[buffer({n})]], ")).collect();
    let vectors: String = ["float", "half", "bfloat"]
        .iter()
        .flat_map(|t| (2..=4).map(|n| vector(t, n)).collect::<Vec<_>>())
        .collect();
    let float = arguments("float");
    format!(
        "kernel void t_{name}({parameters} device float* f [[buffer({inputs})]], device half* h [[buffer({})]],\n\
         device bfloat* b [[buffer({})]], device uint* agree [[buffer({})]], uint i [[thread_position_in_grid]]) {{\n\
         f[i] = {name}({float}); h[i] = {name}({}); b[i] = {name}({});\n\
         bool ok = msl_same(fast::{name}({float}), f[i]) && msl_same(precise::{name}({float}), f[i]);\n{vectors}\
         agree[i] = ok; }}\n",
        inputs + 1,
        inputs + 2,
        buffers - 1,
        arguments("half"),
        arguments("bfloat"),
    )
}

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n\
    static bool msl_same(float a, float b) { return as_type<uint>(a) == as_type<uint>(b) || (a != a && b != b); }\n\
    static bool msl_same(half a, half b) { return msl_same(float(a), float(b)); }\n\
    static bool msl_same(bfloat a, bfloat b) { return msl_same(float(a), float(b)); }\n";

/// A library per arity, so that clang works on them in parallel tests.
pub(crate) fn source(arity: usize) -> String {
    let names: Vec<&str> = match arity {
        1 => UNARY.iter().map(|case| case.0).collect(),
        2 => BINARY.iter().map(|case| case.0).collect(),
        _ => TERNARY.iter().map(|case| case.0).collect(),
    };
    names.iter().fold(HEAD.to_owned(), |text, name| text + &kernel(name, arity))
}

/// Runs one function and compares; `wanted` gets the inputs as the format has them.
fn check(library: &softmetal::Library, name: &str, inputs: &[Vec<f32>], wanted: impl Fn(&[f64]) -> f64) {
    let buffers: Vec<Vec<u8>> = inputs.iter().map(|input| bytes(input)).collect();
    let results = run(library, &format!("t_{name}"), N as u32, &buffers, &[N * 4, N * 2, N * 2, N * 4]);
    let float: Vec<f64> = numbers::<f32>(&results[0]).into_iter().map(f64::from).collect();
    let half: Vec<f64> =
        numbers::<u16>(&results[1]).into_iter().map(|bits| HALF.decode(bits.into())).collect();
    let bfloat: Vec<f64> =
        numbers::<u16>(&results[2]).into_iter().map(|bits| BFLOAT.decode(bits.into())).collect();
    let compare = |format: Format, found: &[f64], what: &str| {
        for i in 0..N {
            let x: Vec<f64> = inputs.iter().map(|input| format.round(input[i].into())).collect();
            let want = format.round(wanted(&x));
            // fdim, mix, … subtract: their error is that of the operands.
            let size = x
                .iter()
                .fold(want.abs(), |size, x| if name == "mix" { size.max(x.abs() * 8.0) } else { size });
            // The reference of sinpi and its like is itself off by the error of π.
            let tolerance = if format.fraction == 23 { 4.0 } else { 1.0 } * format.ulp(size) + 1e-15;
            assert!(
                close(found[i], want, tolerance),
                "{name}({x:?}) as {what} is {}, wanted {want}",
                found[i]
            );
        }
    };
    compare(FLOAT, &float, "float");
    compare(HALF, &half, "half");
    compare(BFLOAT, &bfloat, "bfloat");
    let agree = numbers::<u32>(&results[3]);
    assert!(
        agree.iter().all(|&ok| ok == 1),
        "{name}: vectors or fast::/precise:: differ from scalars, {agree:?}"
    );
}

fn samples(random: &mut Random, (low, high): (f64, f64)) -> Vec<f32> {
    let mut values: Vec<f32> = (0..N).map(|_| random.between(low, high)).collect();
    // Ends, and values that are halves of whole numbers.
    values[..2].copy_from_slice(&[low as f32, high as f32]);
    for (value, k) in values[2..8].iter_mut().zip([0.5f32, 1.0, 1.5, 2.5, -0.5, -1.5]) {
        *value = k.clamp(low as f32, high as f32);
    }
    values
}

#[test]
fn functions_of_one_argument_are_those_of_the_reference() {
    let Some(library) = compile("math_unary", &source(1)) else { return };
    let mut random = Random(1);
    for &(name, reference, range) in UNARY {
        check(&library, name, &[samples(&mut random, range)], |x| reference(x[0]));
    }
}

#[test]
fn functions_of_two_arguments_are_those_of_the_reference() {
    let Some(library) = compile("math_binary", &source(2)) else { return };
    let mut random = Random(2);
    for &(name, reference, a, b) in BINARY {
        check(&library, name, &[samples(&mut random, a), samples(&mut random, b)], |x| reference(x[0], x[1]));
    }
}

#[test]
fn functions_of_three_arguments_are_those_of_the_reference() {
    let Some(library) = compile("math_ternary", &source(3)) else { return };
    let mut random = Random(3);
    for &(name, reference) in TERNARY {
        let inputs = [(); 3].map(|()| samples(&mut random, ANY));
        check(&library, name, &inputs, |x| reference(x[0], x[1], x[2]));
    }
}

pub(crate) const SPECIAL: &str = "#include <metal_stdlib>\nusing namespace metal;
kernel void two_results(device const float* x [[buffer(0)]], device float* o [[buffer(1)]], device int* e [[buffer(2)]],
                        uint i [[thread_position_in_grid]]) {
    int exponent; float whole, c; half hc; half hw;
    o[i * 8] = frexp(x[i], exponent); e[i * 4] = exponent;
    o[i * 8 + 1] = modf(x[i], whole); o[i * 8 + 2] = whole;
    o[i * 8 + 3] = sincos(x[i], c); o[i * 8 + 4] = c;
    o[i * 8 + 5] = ldexp(x[i], int(i) - 8);
    o[i * 8 + 6] = nextafter(x[i], INFINITY); o[i * 8 + 7] = smoothstep(-3.0f, 4.0f, x[i]);
    e[i * 4 + 1] = ilogb(x[i]);
    int2 e2; float2 w2, c2;
    float2 v = float2(x[i], -x[i]);
    bool same = all(frexp(v, e2) == float2(o[i * 8], -o[i * 8])) && all(e2 == int2(exponent))
        && all(modf(v, w2) == float2(o[i * 8 + 1], -o[i * 8 + 1])) && all(w2 == float2(whole, -whole))
        && all(sincos(v, c2) == float2(o[i * 8 + 3], -o[i * 8 + 3])) && all(c2 == float2(c))
        && all(ldexp(v, int2(3, -3)) == float2(x[i] * 8, -x[i] / 8)) && all(ilogb(v) == int2(ilogb(x[i])))
        && all(nextafter(v, v) == v) && all(smoothstep(-3.0f, 4.0f, v.xx) == float2(o[i * 8 + 7]))
        && float(nextafter(half(1.0f), half(2.0f))) == 1.0009765625f && float(nextafter(bfloat(1.0f), bfloat(0.0f))) == 0.99609375f
        && float(sincos(half(0.5f), hc)) > 0.479f && float(hc) < 0.878f && modf(half(1.5f), hw) == half(0.5f) && hw == half(1.0f);
    e[i * 4 + 2] = same;
    e[i * 4 + 3] = 0;
}
kernel void edges(device float* o [[buffer(0)]]) {
    const float nan = NAN, inf = INFINITY;
    o[0] = fmin(nan, 1.0f); o[1] = fmax(1.0f, nan); o[2] = max(nan, 2.0f); o[3] = min(2.0f, nan);
    o[4] = sqrt(-1.0f); o[5] = log(0.0f); o[6] = exp(1000.0f); o[7] = pow(-2.0f, 3.0f); o[8] = pow(-2.0f, 0.5f);
    o[9] = sinpi(1.0f); o[10] = cospi(0.5f); o[11] = round(2.5f); o[12] = rint(2.5f); o[13] = fract(-1e-9f); o[14] = sign(-0.0f);
    o[15] = ldexp(1.0f, -149); o[16] = ldexp(1.0f, 200); o[17] = fmod(-5.5f, 2.0f); o[18] = atan2(0.0f, -1.0f); o[19] = inf - inf;
    o[20] = saturate(nan); o[21] = clamp(5.0f, 0.0f, 1.0f); o[22] = mad(2.0f, 3.0f, 4.0f); o[23] = float(sign(nan));
}
";

#[test]
fn functions_with_a_second_result_give_both() {
    let Some(library) = compile("math_special", SPECIAL) else { return };
    let x: Vec<f32> = vec![
        0.0, 1.0, -1.0, 0.75, -3.25, 1e-40, 6.5e4, 123.456, -0.001, 2.0, -7.5, 1e30, 0.1, -0.5, 31.0, 5.5,
    ];
    let results = run(&library, "two_results", 16, &[bytes(&x)], &[16 * 8 * 4, 16 * 4 * 4]);
    let (o, e) = (numbers::<f32>(&results[0]), numbers::<i32>(&results[1]));
    for (i, &x) in x.iter().enumerate() {
        let (o, e) = (&o[i * 8..], &e[i * 4..]);
        assert_eq!(o[0] * 2f32.powi(e[0] / 2) * 2f32.powi(e[0] - e[0] / 2), x, "frexp({x})");
        assert!(x == 0.0 || (0.5..1.0).contains(&o[0].abs()), "frexp({x}) = {}", o[0]);
        assert_eq!((o[1] + o[2], o[2]), (x, x.trunc()), "modf({x})");
        assert!(
            close(o[3].into(), f64::from(x).sin(), 1e-6) && close(o[4].into(), f64::from(x).cos(), 1e-6),
            "sincos({x})"
        );
        assert!(
            close(o[5].into(), (f64::from(x) * 2f64.powi(i as i32 - 8)) as f32 as f64, 0.0),
            "ldexp({x})"
        );
        assert_eq!(o[6], x.next_up(), "nextafter({x})");
        let t = ((x + 3.0) / 7.0).clamp(0.0, 1.0);
        assert!(close(o[7].into(), f64::from(t * t * (3.0 - 2.0 * t)), 1e-6), "smoothstep({x})");
        let exponent = if x == 0.0 { i32::MIN } else { f64::from(x).abs().log2().floor() as i32 };
        assert_eq!(e[1], exponent, "ilogb({x})");
        assert_eq!(e[2], 1, "vectors at {x}");
    }
}

#[test]
fn edges_are_as_the_specification_has_them() {
    let Some(library) = compile("math_special", SPECIAL) else { return };
    let found = numbers::<f32>(&run(&library, "edges", 1, &[], &[24 * 4])[0]);
    let nan = f32::NAN;
    let wanted = [
        1.0,
        1.0,
        2.0,
        2.0,
        nan,
        f32::NEG_INFINITY,
        f32::INFINITY,
        -8.0,
        nan,
        0.0,
        0.0,
        3.0,
        2.0,
        1.0f32.next_down(),
        -0.0,
        f32::from_bits(1),
        f32::INFINITY,
        -1.5,
        std::f32::consts::PI,
        nan,
        0.0,
        1.0,
        10.0,
        0.0,
    ];
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan()),
            "case {i}: {found}, wanted {wanted}"
        );
    }
}
