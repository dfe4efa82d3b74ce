//! Functions of one or two numbers, element by element, over contiguous tensors.

use metallic_core::{Binary, DType, Unary};

use super::typed::{self, ACTIVATION, APPLY, FUNCTIONS, PerFloat, VECTORS, binary_code, unary_code};
use super::{Arg, Constants, Family, Launch, Params, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// A function of `n` elements and of one number.
    MapParams { n: u32, value: f32 }
}

kernel_params! {
    /// A function of `n` elements of `a` and of those of `b` at their index modulo `period`.
    ZipParams { n: u32, period: u32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "elementwise",
    params: &[MapParams::MSL, ZipParams::MSL],
    uses: &[FUNCTIONS, VECTORS, ACTIVATION, APPLY],
    text: include_str!("elementwise.metal"),
    kernels: &[
        ("map_f32", MAP.args[0]),
        ("map_f16", MAP.args[1]),
        ("map_bf16", MAP.args[1]),
        ("zip_f32", ZIP.args[0]),
        ("zip_f16", ZIP.args[1]),
        ("zip_bf16", ZIP.args[1]),
    ],
};

pub(super) const fn map_args(align: usize) -> [Arg; 2] {
    [reads("x", align), writes("out", align)]
}

pub(super) const fn zip_args(align: usize) -> [Arg; 3] {
    [reads("a", align), reads("b", align), writes("out", align)]
}

const MAP: PerFloat =
    PerFloat { op: "map", functions: ["map_f32", "map_f16", "map_bf16"], args: [&map_args(4), &map_args(2)] };

const ZIP: PerFloat =
    PerFloat { op: "zip", functions: ["zip_f32", "zip_f16", "zip_bf16"], args: [&zip_args(4), &zip_args(2)] };

/// `f(x)`: `(x [n]) -> out [n]`.
pub(crate) fn unary(dtype: DType, f: Unary, n: u32, limits: &Limits) -> Result<Launch, GpuError> {
    map(dtype, (unary_code(f), 0.0), n, limits)
}

/// `cap * tanh(x / cap)`: `(x [n]) -> out [n]`.
pub(crate) fn softcap(dtype: DType, cap: f32, n: u32, limits: &Limits) -> Result<Launch, GpuError> {
    map(dtype, (typed::SOFTCAP, cap), n, limits)
}

/// `f(x, value)`, or `f(value, x)` where it is reversed: `(x [n]) -> out [n]`.
pub(crate) fn scalar(
    dtype: DType,
    f: (Binary, bool),
    value: f32,
    n: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    map(dtype, (scalar_code(f), value), n, limits)
}

/// The code of `f(x, value)`, or of `f(value, x)`.
pub(crate) fn scalar_code((f, reversed): (Binary, bool)) -> u32 {
    match (binary_code(f), reversed) {
        (typed::SUB, true) => typed::SUB_FROM,
        (typed::DIV, true) => typed::DIV_INTO,
        (code, _) => code,
    }
}

/// `f(a[i], b[i % period])`: `(a [n], b [period]) -> out [n]`. A period of `n` is element by element; one of a row's length
/// lets one row serve all.
pub(crate) fn binary(
    dtype: DType,
    f: Binary,
    n: u32,
    period: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    zip(dtype, binary_code(f), (n, period), limits)
}

/// `act(gate) * up`: `(gate [n], up [n]) -> out [n]`.
pub(crate) fn gated(dtype: DType, act: Unary, n: u32, limits: &Limits) -> Result<Launch, GpuError> {
    zip(dtype, unary_code(act), (n, n), limits)
}

fn map(dtype: DType, (code, value): (u32, f32), n: u32, limits: &Limits) -> Result<Launch, GpuError> {
    launch(&MAP, dtype, code, (n, MapParams { n, value }.params()), limits)
}

fn zip(dtype: DType, code: u32, (n, period): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    if period == 0 || (n > 0 && period > n) {
        let reason = format!("a second operand of {period} elements for {n}");
        return Err(GpuError::Unsupported { op: "binary", reason });
    }
    launch(&ZIP, dtype, code, (n, ZipParams { n, period }.params()), limits)
}

/// Every thread has four elements.
fn launch(
    kernel: &PerFloat,
    dtype: DType,
    code: u32,
    (n, params): (u32, Params),
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let (groups, threads) = threadgroup::linear(n.div_ceil(4), limits);
    Ok(Launch {
        kernel: kernel.of(&FAMILY, dtype, Constants::of([code]))?,
        params,
        groups: [groups, 1, 1],
        threads: [threads, 1, 1],
        threadgroup_bytes: 0,
        work: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::harness::run;
    use super::super::typed::tests::{FLOATS, LENGTHS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    const UNARY: [Unary; 5] = [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid];
    const ALL: [Unary; 7] =
        [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid, Unary::Exp, Unary::Softplus];

    fn exact(f: Unary, x: f64) -> f64 {
        match f {
            Unary::Silu => x / (1.0 + (-x).exp()),
            Unary::Gelu => 0.5 * x * erfc(-x / 2f64.sqrt()),
            Unary::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
            }
            Unary::Relu => x.max(0.0),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Exp => x.exp(),
            Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        }
    }

    /// `1 - erf(x)`: the power series near zero, the continued fraction beyond.
    fn erfc(x: f64) -> f64 {
        if x < 0.0 {
            return 2.0 - erfc(-x);
        }
        if x > 3.0 {
            let fraction = (1..80).rev().fold(x, |tail, n| x + f64::from(n) / 2.0 / tail);
            return (-x * x).exp() / (fraction * std::f64::consts::PI.sqrt());
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    fn map_matches(launch: &Launch, dtype: DType, x: &[f32], f: impl Fn(f64) -> f64, what: &str) {
        let Some(found) = run(launch, &[data(dtype, x), room(dtype, x.len())]) else { return };
        let expected: Vec<f64> = rounded(dtype, x).iter().map(|x| f(f64::from(*x))).collect();
        assert_near(dtype, &floats(dtype, &found[1]), &expected, 3e-7, what);
    }

    #[test]
    fn functions_of_one_number_are_right_from_tiny_to_huge() {
        let mut x = waves(257, 9.0);
        x.extend([0.0, -0.0, 1e-30, -1e-7, 88.0, -88.0, 6e4, -6e4, -20.0, 14.5]);
        for dtype in FLOATS {
            for f in UNARY {
                let launch = unary(dtype, f, x.len() as u32, &LIMITS).unwrap();
                map_matches(&launch, dtype, &x, |x| exact(f, x), &format!("{f:?}"));
            }
        }
        let huge = [1e19, -1e19, 3e38, f32::INFINITY];
        for f in UNARY {
            let launch = unary(DType::F32, f, 4, &LIMITS).unwrap();
            let Some(found) = run(&launch, &[data(DType::F32, &huge), room(DType::F32, 4)]) else { return };
            let found = floats(DType::F32, &found[1]);
            let one = f == Unary::Sigmoid;
            assert_eq!(
                found,
                if one { [1.0, 0.0, 1.0, 1.0] } else { [1e19, 0.0, 3e38, f32::INFINITY] },
                "{f:?}"
            );
        }
    }

    #[test]
    fn exponentials_are_right_where_they_are_numbers_and_softplus_never_overflows() {
        let mut x = waves(257, 9.0);
        x.extend([0.0, -0.0, 1e-30, -1e-7, 10.5, -80.0, -6e4, -20.0]);
        for dtype in FLOATS {
            for f in [Unary::Exp, Unary::Softplus] {
                let launch = unary(dtype, f, x.len() as u32, &LIMITS).unwrap();
                map_matches(&launch, dtype, &x, |x| exact(f, x), &format!("{f:?}"));
            }
        }
        let x = [89.0, 3e38, f32::INFINITY, f32::NEG_INFINITY, -30.0, -80.0];
        for f in [Unary::Exp, Unary::Softplus] {
            let launch = unary(DType::F32, f, 6, &LIMITS).unwrap();
            let Some(found) = run(&launch, &[data(DType::F32, &x), room(DType::F32, 6)]) else { return };
            for (x, found) in x.iter().zip(floats(DType::F32, &found[1])) {
                let expected = exact(f, f64::from(*x));
                let same = found == expected as f32 || (f64::from(found) / expected - 1.0).abs() < 1e-6;
                assert!(same, "{f:?}({x}) = {found}, not {expected}");
            }
        }
    }

    #[test]
    fn gelu_keeps_its_digits_where_it_is_almost_zero() {
        let x = [-3.0f32, -5.0, -8.0, -12.0];
        let launch = unary(DType::F32, Unary::Gelu, 4, &LIMITS).unwrap();
        let Some(found) = run(&launch, &[data(DType::F32, &x), room(DType::F32, 4)]) else { return };
        for (x, found) in x.iter().zip(floats(DType::F32, &found[1])) {
            let expected = exact(Unary::Gelu, f64::from(*x));
            assert!((f64::from(found) / expected - 1.0).abs() < 1e-5, "gelu({x}) = {found}, not {expected}");
        }
    }

    #[test]
    fn lengths_that_are_no_multiple_of_four_are_covered() {
        for dtype in FLOATS {
            for n in LENGTHS {
                let x = waves(n, 2.0);
                let scaled = scalar(dtype, (Binary::Mul, false), -0.75, n, &LIMITS).unwrap();
                map_matches(&scaled, dtype, &x, |x| x * -0.75, "scaled");
                let capped = softcap(dtype, 0.7, n, &LIMITS).unwrap();
                let cap = f64::from(0.7f32);
                map_matches(&capped, dtype, &x, |x| cap * (x / cap).tanh(), "softcap");
            }
        }
    }

    #[test]
    fn a_number_stands_on_either_side() {
        type Exact = fn(f64, f64) -> f64;
        let x = waves(33, 3.0);
        let cases: [(Binary, Exact); 6] = [
            (Binary::Add, |a, b| a + b),
            (Binary::Sub, |a, b| a - b),
            (Binary::Mul, |a, b| a * b),
            (Binary::Div, |a, b| a / b),
            (Binary::Min, f64::min),
            (Binary::Max, f64::max),
        ];
        for dtype in FLOATS {
            for (f, exact) in cases {
                let launch = scalar(dtype, (f, false), 2.5, 33, &LIMITS).unwrap();
                map_matches(&launch, dtype, &x, |x| exact(x, 2.5), &format!("{f:?}"));
                let launch = scalar(dtype, (f, true), 2.5, 33, &LIMITS).unwrap();
                map_matches(&launch, dtype, &x, |x| exact(2.5, x), &format!("{f:?} reversed"));
            }
        }
    }

    fn zip_matches(launch: &Launch, dtype: DType, (a, b): (&[f32], &[f32]), f: impl Fn(f64, f64) -> f64) {
        let args = [data(dtype, a), data(dtype, b), room(dtype, a.len())];
        let Some(found) = run(launch, &args) else { return };
        let (a, b) = (rounded(dtype, a), rounded(dtype, b));
        let pairs = a.iter().zip(b.iter().cycle());
        let expected: Vec<f64> = pairs.map(|(a, b)| f(f64::from(*a), f64::from(*b))).collect();
        assert_near(dtype, &floats(dtype, &found[2]), &expected, 3e-7, launch.kernel.function);
    }

    #[test]
    fn one_row_serves_all_and_rows_meet_element_by_element() {
        for dtype in FLOATS {
            for (n, period) in
                [(1, 1), (33, 33), (66, 33), (21, 3), (8, 1), (1025, 1025), (4096, 64), (12, 5)]
            {
                let (a, b) = (waves(n, 3.0), waves(period, 2.0));
                let launch = binary(dtype, Binary::Add, n, period, &LIMITS).unwrap();
                zip_matches(&launch, dtype, (&a, &b), |a, b| a + b);
            }
            let (a, b) = (waves(66, 3.0), waves(33, 2.0));
            let launch = binary(dtype, Binary::Sub, 66, 33, &LIMITS).unwrap();
            zip_matches(&launch, dtype, (&a, &b), |a, b| a - b);
            let launch = binary(dtype, Binary::Mul, 66, 33, &LIMITS).unwrap();
            zip_matches(&launch, dtype, (&a, &b), |a, b| a * b);
            let launch = binary(dtype, Binary::Div, 66, 33, &LIMITS).unwrap();
            zip_matches(&launch, dtype, (&a, &b), |a, b| a / b);
        }
    }

    #[test]
    fn a_gate_multiplies() {
        let (gate, up) = (waves(261, 6.0), waves(261, 2.0));
        for dtype in FLOATS {
            for act in ALL {
                let launch = gated(dtype, act, 261, &LIMITS).unwrap();
                zip_matches(&launch, dtype, (&gate, &up), |g, u| exact(act, g) * u);
            }
        }
    }

    #[test]
    fn other_types_and_impossible_rows_are_refused_by_name() {
        let error = unary(DType::Q4_0, Unary::Relu, 32, &LIMITS).unwrap_err();
        assert!(error.to_string().contains("Q4_0"), "{error}");
        let error = binary(DType::F32, Binary::Add, 4, 5, &LIMITS).unwrap_err();
        assert!(error.to_string().contains('5'), "{error}");
    }
}
