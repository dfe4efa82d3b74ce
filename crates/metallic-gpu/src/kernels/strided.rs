//! Functions of one or two numbers over strided tensors; a stride of 0 repeats an element.

use metallic_core::{Binary, DType, Unary};

use super::axes::{AXES, Axes};
use super::elementwise::{map_args, scalar_code, zip_args};
use super::typed::{self, ACTIVATION, APPLY, FUNCTIONS, PerFloat, VECTORS, binary_code, unary_code};
use super::{Constants, Family, Launch, Params};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// Shape, strides of input and output, the number of a function that takes one.
    MapStridedParams {
        n0: u32, n1: u32, n2: u32, n3: u32,
        x0: u32, x1: u32, x2: u32, x3: u32,
        y0: u32, y1: u32, y2: u32, y3: u32,
        value: f32,
    }
}

kernel_params! {
    /// Shape, strides of both inputs and of the output.
    ZipStridedParams {
        n0: u32, n1: u32, n2: u32, n3: u32,
        a0: u32, a1: u32, a2: u32, a3: u32,
        b0: u32, b1: u32, b2: u32, b3: u32,
        y0: u32, y1: u32, y2: u32, y3: u32,
    }
}

pub(crate) const FAMILY: Family = Family {
    name: "strided",
    params: &[MapStridedParams::MSL, ZipStridedParams::MSL],
    uses: &[FUNCTIONS, VECTORS, ACTIVATION, APPLY, AXES],
    text: include_str!("strided.metal"),
    kernels: &[
        ("map_strided_f32", MAP.args[0]),
        ("map_strided_f16", MAP.args[1]),
        ("map_strided_bf16", MAP.args[1]),
        ("zip_strided_f32", ZIP.args[0]),
        ("zip_strided_f16", ZIP.args[1]),
        ("zip_strided_bf16", ZIP.args[1]),
    ],
};

const MAP: PerFloat = PerFloat {
    op: "map",
    functions: ["map_strided_f32", "map_strided_f16", "map_strided_bf16"],
    args: [&map_args(4), &map_args(2)],
};

const ZIP: PerFloat = PerFloat {
    op: "zip",
    functions: ["zip_strided_f32", "zip_strided_f16", "zip_strided_bf16"],
    args: [&zip_args(4), &zip_args(2)],
};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Map {
    /// `f(x)`
    Unary(Unary),
    /// `cap * tanh(x / cap)`
    Softcap(f32),
    /// `f(x, value)`, or `f(value, x)` where it is reversed.
    Scalar {
        /// The function.
        op: Binary,
        /// The number.
        value: f32,
        /// Whether the number comes first.
        reversed: bool,
    },
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Zip {
    /// `f(a, b)`
    Binary(Binary),
    /// `act(a) * b`
    Gated(Unary),
}

/// `(x) -> out`.
pub(crate) fn map(dtype: DType, f: Map, axes: &Axes<2>, limits: &Limits) -> Result<Launch, GpuError> {
    let (code, value) = match f {
        Map::Unary(f) => (unary_code(f), 0.0),
        Map::Softcap(cap) => (typed::SOFTCAP, cap),
        Map::Scalar { op, value, reversed } => (scalar_code((op, reversed)), value),
    };
    let ([n0, n1, n2, n3], [[x0, x1, x2, x3], [y0, y1, y2, y3]]) = (axes.shape, axes.strides);
    let params = MapStridedParams { n0, n1, n2, n3, x0, x1, x2, x3, y0, y1, y2, y3, value }.params();
    launch(&MAP, dtype, code, (axes.threads("map")?, params), limits)
}

/// `(a, b) -> out`.
pub(crate) fn zip(dtype: DType, f: Zip, axes: &Axes<3>, limits: &Limits) -> Result<Launch, GpuError> {
    let code = match f {
        Zip::Binary(f) => binary_code(f),
        Zip::Gated(act) => unary_code(act),
    };
    let ([n0, n1, n2, n3], strides) = (axes.shape, axes.strides);
    let [[a0, a1, a2, a3], [b0, b1, b2, b3], [y0, y1, y2, y3]] = strides;
    let params = ZipStridedParams { n0, n1, n2, n3, a0, a1, a2, a3, b0, b1, b2, b3, y0, y1, y2, y3 }.params();
    launch(&ZIP, dtype, code, (axes.threads("zip")?, params), limits)
}

fn launch(
    kernel: &PerFloat,
    dtype: DType,
    code: u32,
    (n, params): (u32, Params),
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let (groups, threads) = threadgroup::linear(n, limits);
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
    use metallic_core::tensor::View;

    use super::super::harness::run;
    use super::super::typed::tests::{FLOATS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[test]
    fn rows_and_columns_repeat_by_a_stride_of_zero() {
        let (rows, cols) = (5usize, 33usize);
        for dtype in FLOATS {
            let (a, b) = (waves(cols as u32, 3.0), waves(rows as u32, 2.0));
            let axes = Axes::new("zip", &[rows, cols], [&[0, 1], &[1, 0], &[1, rows]]).unwrap();
            let launch = zip(dtype, Zip::Binary(Binary::Sub), &axes, &LIMITS).unwrap();
            let args = [data(dtype, &a), data(dtype, &b), room(dtype, rows * cols)];
            let Some(found) = run(&launch, &args) else { return };
            let (a, b) = (rounded(dtype, &a), rounded(dtype, &b));
            let expected: Vec<f64> =
                (0..rows * cols).map(|i| f64::from(a[i / rows]) - f64::from(b[i % rows])).collect();
            assert_near(dtype, &floats(dtype, &found[2]), &expected, 0.0, "sub");
        }
    }

    #[test]
    fn four_axes_of_which_no_two_are_one_are_walked_by_their_own_strides() {
        let (shape, strides) = ([2, 3, 5, 7], [[200, 60, 9, 1], [211, 63, 10, 1], [105, 35, 7, 1]]);
        let places = |strides: &[usize; 4]| -> Vec<usize> {
            let view = View::strided(DType::F32, 0, &shape, strides).unwrap();
            view.offsets().collect()
        };
        let [a_places, b_places, _] = strides.each_ref().map(places);
        let (a, b) = (waves(400, 3.0), waves(400, 2.0));
        let [a_strides, b_strides, out] = &strides;
        let axes = Axes::new("zip", &shape, [&a_strides[..], b_strides, out]).unwrap();
        assert_eq!(axes.shape, shape.map(|n| n as u32));
        let launch = zip(DType::F32, Zip::Binary(Binary::Sub), &axes, &LIMITS).unwrap();
        let args = [data(DType::F32, &a), data(DType::F32, &b), room(DType::F32, 210)];
        let Some(found) = run(&launch, &args) else { return };
        let pairs = a_places.iter().zip(&b_places);
        let expected: Vec<f64> = pairs.map(|(i, j)| f64::from(a[*i]) - f64::from(b[*j])).collect();
        assert_near(DType::F32, &floats(DType::F32, &found[2]), &expected, 0.0, "sub");
        let axes = Axes::new("map", &shape, [&b_strides[..], out]).unwrap();
        let launch = map(DType::F32, Map::Unary(Unary::Relu), &axes, &LIMITS).unwrap();
        let Some(found) = run(&launch, &[data(DType::F32, &b), room(DType::F32, 210)]) else { return };
        let expected: Vec<f64> = b_places.iter().map(|j| f64::from(b[*j].max(0.0))).collect();
        assert_near(DType::F32, &floats(DType::F32, &found[1]), &expected, 0.0, "relu");
    }

    #[test]
    fn gates_and_functions_of_stepped_tensors() {
        let n = 70usize;
        for dtype in FLOATS {
            let (a, b) = (waves(2 * n as u32, 3.0), waves(n as u32, 2.0));
            let axes = Axes::new("zip", &[n], [&[2], &[1], &[1]]).unwrap();
            let launch = zip(dtype, Zip::Gated(Unary::Relu), &axes, &LIMITS).unwrap();
            let args = [data(dtype, &a), data(dtype, &b), room(dtype, n)];
            let Some(found) = run(&launch, &args) else { return };
            let (a, b) = (rounded(dtype, &a), rounded(dtype, &b));
            let expected: Vec<f64> = (0..n).map(|i| f64::from(a[2 * i].max(0.0)) * f64::from(b[i])).collect();
            assert_near(dtype, &floats(dtype, &found[2]), &expected, 0.0, "gated");
            let axes = Axes::new("map", &[n], [&[2], &[1]]).unwrap();
            for (f, exact) in [
                (
                    Map::Scalar { op: Binary::Sub, value: 1.5, reversed: true },
                    (|x| 1.5 - x) as fn(f64) -> f64,
                ),
                (Map::Softcap(2.0), |x| 2.0 * (x / 2.0).tanh()),
                (Map::Unary(Unary::Sigmoid), |x| 1.0 / (1.0 + (-x).exp())),
            ] {
                let launch = map(dtype, f, &axes, &LIMITS).unwrap();
                let Some(found) = run(&launch, &[data(dtype, &a), room(dtype, n)]) else { return };
                let expected: Vec<f64> = (0..n).map(|i| exact(f64::from(a[2 * i]))).collect();
                assert_near(dtype, &floats(dtype, &found[1]), &expected, 3e-7, &format!("{f:?}"));
            }
        }
    }
}
