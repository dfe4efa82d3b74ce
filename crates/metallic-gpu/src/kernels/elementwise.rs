//! Functions of one or two numbers, element by element, over contiguous tensors.

use metallic_core::DType;

use super::typed::{ACTIVATION, FUNCTIONS, VECTORS};
use super::{Constants, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// A function of `n` elements and of one number.
    MapParams { n: u32, value: f32 }
    /// A function of `n` elements of `a` and of those of `b` at their index modulo `period`.
    ZipParams { n: u32, period: u32 }
}

family! {
    "elementwise" (MapParams, ZipParams) uses FUNCTIONS, VECTORS, ACTIVATION;
    "map" each float of size { reads x: size; writes out: size }
    "zip" each float of size { reads a: size, b: size; writes out: size }
}

/// `f(x)`, `f(x, value)` or `f(value, x)`, by the code of a function: `(x [n]) -> out [n]`.
pub(crate) fn map(
    dtype: DType,
    (code, value): (u32, f32),
    n: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let kernel = FAMILY.of_float("map", dtype, Constants::of([code]))?;
    // Every thread has four elements.
    Ok(kernel.line(MapParams { n, value }.params(), n.div_ceil(4), limits))
}

/// `f(a[i], b[i % period])`, or `act(a[i]) * b[i % period]`, by the code of a function: `(a [n], b [period]) -> out [n]`. A
/// period of `n` is element by element; one of a row's length lets one row serve all.
pub(crate) fn zip(
    dtype: DType,
    code: u32,
    (n, period): (u32, u32),
    limits: &Limits,
) -> Result<Launch, GpuError> {
    if period == 0 || (n > 0 && period > n) {
        let reason = format!("a second operand of {period} elements for {n}");
        return Err(GpuError::unsupported("binary", reason));
    }
    let kernel = FAMILY.of_float("zip", dtype, Constants::of([code]))?;
    Ok(kernel.line(ZipParams { n, period }.params(), n.div_ceil(4), limits))
}

#[cfg(test)]
mod tests {
    use metallic_core::{Binary, Unary};

    use super::super::harness::run;
    use super::super::typed::tests::{FLOATS, LENGTHS, assert_near, data, floats, room, rounded, waves};
    use super::super::typed::{SOFTCAP, binary_code, scalar_code, unary_code};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    const UNARY: [Unary; 5] = [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid];
    const ALL: [Unary; 7] =
        [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid, Unary::Exp, Unary::Softplus];

    fn unary(dtype: DType, f: Unary, n: u32) -> Result<Launch, GpuError> {
        map(dtype, (unary_code(f), 0.0), n, &LIMITS)
    }

    fn scalar(dtype: DType, f: (Binary, bool), value: f32, n: u32) -> Launch {
        map(dtype, (scalar_code(f.0, f.1), value), n, &LIMITS).unwrap()
    }

    fn binary(dtype: DType, f: Binary, n: u32, period: u32) -> Result<Launch, GpuError> {
        zip(dtype, binary_code(f), (n, period), &LIMITS)
    }

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
                let launch = unary(dtype, f, x.len() as u32).unwrap();
                map_matches(&launch, dtype, &x, |x| exact(f, x), &format!("{f:?}"));
            }
        }
        let huge = [1e19, -1e19, 3e38, f32::INFINITY];
        for f in UNARY {
            let launch = unary(DType::F32, f, 4).unwrap();
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
                let launch = unary(dtype, f, x.len() as u32).unwrap();
                map_matches(&launch, dtype, &x, |x| exact(f, x), &format!("{f:?}"));
            }
        }
        let x = [89.0, 3e38, f32::INFINITY, f32::NEG_INFINITY, -30.0, -80.0];
        for f in [Unary::Exp, Unary::Softplus] {
            let launch = unary(DType::F32, f, 6).unwrap();
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
        let launch = unary(DType::F32, Unary::Gelu, 4).unwrap();
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
                let scaled = scalar(dtype, (Binary::Mul, false), -0.75, n);
                map_matches(&scaled, dtype, &x, |x| x * -0.75, "scaled");
                let capped = map(dtype, (SOFTCAP, 0.7), n, &LIMITS).unwrap();
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
                let launch = scalar(dtype, (f, false), 2.5, 33);
                map_matches(&launch, dtype, &x, |x| exact(x, 2.5), &format!("{f:?}"));
                let launch = scalar(dtype, (f, true), 2.5, 33);
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
                let launch = binary(dtype, Binary::Add, n, period).unwrap();
                zip_matches(&launch, dtype, (&a, &b), |a, b| a + b);
            }
            let (a, b) = (waves(66, 3.0), waves(33, 2.0));
            let launch = binary(dtype, Binary::Sub, 66, 33).unwrap();
            zip_matches(&launch, dtype, (&a, &b), |a, b| a - b);
            let launch = binary(dtype, Binary::Mul, 66, 33).unwrap();
            zip_matches(&launch, dtype, (&a, &b), |a, b| a * b);
            let launch = binary(dtype, Binary::Div, 66, 33).unwrap();
            zip_matches(&launch, dtype, (&a, &b), |a, b| a / b);
        }
    }

    #[test]
    fn a_gate_multiplies() {
        let (gate, up) = (waves(261, 6.0), waves(261, 2.0));
        for dtype in FLOATS {
            for act in ALL {
                let launch = zip(dtype, unary_code(act), (261, 261), &LIMITS).unwrap();
                zip_matches(&launch, dtype, (&gate, &up), |g, u| exact(act, g) * u);
            }
        }
    }

    #[test]
    fn other_types_and_impossible_rows_are_refused_by_name() {
        let error = unary(DType::Q4_0, Unary::Relu, 32).unwrap_err();
        assert!(error.to_string().contains("Q4_0"), "{error}");
        let error = binary(DType::F32, Binary::Add, 4, 5).unwrap_err();
        assert!(error.to_string().contains('5'), "{error}");
    }
}
