//! Norms over the last axis, plain and with a residual added first.

use metallic_core::DType;

use super::rows::{ROWS, RowGrid};
use super::typed::{PerFloat, VECTORS};
use super::{Arg, COMMON, Constants, Family, Launch, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// `rows` rows of `cols` elements, `per_group` of them in a threadgroup.
    NormParams { rows: u32, cols: u32, per_group: u32, eps: f32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "norm",
    params: &[NormParams::MSL],
    uses: &[COMMON, VECTORS, ROWS],
    text: include_str!("norm.metal"),
    kernels: &[
        ("rms_norm_f32", RMS.args[0]),
        ("rms_norm_f16", RMS.args[1]),
        ("rms_norm_bf16", RMS.args[1]),
        ("layer_norm_f32", LAYER.args[0]),
        ("layer_norm_f16", LAYER.args[1]),
        ("layer_norm_bf16", LAYER.args[1]),
        ("add_rms_norm_f32", ADD_RMS.args[0]),
        ("add_rms_norm_f16", ADD_RMS.args[1]),
        ("add_rms_norm_bf16", ADD_RMS.args[1]),
        ("add_layer_norm_f32", ADD_LAYER.args[0]),
        ("add_layer_norm_f16", ADD_LAYER.args[1]),
        ("add_layer_norm_bf16", ADD_LAYER.args[1]),
    ],
};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// `x / sqrt(mean(x²) + eps) * w`: `(x, w) -> out`.
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * w + b`: `(x, w, b) -> out`.
    Layer,
    /// `sum = x + residual` and the RMS norm of it: `(x, residual, w) -> (sum, out)`.
    AddRms,
    /// `sum = x + residual` and the layer norm of it: `(x, residual, w, b) -> (sum, out)`.
    AddLayer,
}

// Rows by the alignment of their type; weights and biases are bound at whole words whatever their type.
const fn rms_args(align: usize) -> [Arg; 3] {
    [reads("x", align), reads("w", 4), writes("out", align)]
}

const fn layer_args(align: usize) -> [Arg; 4] {
    [reads("x", align), reads("w", 4), reads("b", 4), writes("out", align)]
}

const fn add_rms_args(align: usize) -> [Arg; 5] {
    let [x, w, out] = rms_args(align);
    [x, reads("residual", align), w, writes("sum", align), out]
}

const fn add_layer_args(align: usize) -> [Arg; 6] {
    let [x, w, b, out] = layer_args(align);
    [x, reads("residual", align), w, b, writes("sum", align), out]
}

const RMS: PerFloat = PerFloat {
    op: "rms_norm",
    functions: ["rms_norm_f32", "rms_norm_f16", "rms_norm_bf16"],
    args: [&rms_args(4), &rms_args(2)],
};

const LAYER: PerFloat = PerFloat {
    op: "layer_norm",
    functions: ["layer_norm_f32", "layer_norm_f16", "layer_norm_bf16"],
    args: [&layer_args(4), &layer_args(2)],
};

const ADD_RMS: PerFloat = PerFloat {
    op: "add_rms_norm",
    functions: ["add_rms_norm_f32", "add_rms_norm_f16", "add_rms_norm_bf16"],
    args: [&add_rms_args(4), &add_rms_args(2)],
};

const ADD_LAYER: PerFloat = PerFloat {
    op: "add_layer_norm",
    functions: ["add_layer_norm_f32", "add_layer_norm_f16", "add_layer_norm_bf16"],
    args: [&add_layer_args(4), &add_layer_args(2)],
};

impl Norm {
    fn kernel(self) -> &'static PerFloat {
        match self {
            Norm::Rms => &RMS,
            Norm::Layer => &LAYER,
            Norm::AddRms => &ADD_RMS,
            Norm::AddLayer => &ADD_LAYER,
        }
    }
}

/// A norm of `rows` rows of `dtype`; weights and biases are F32, or of `dtype` too.
pub(crate) fn norm(
    kind: Norm,
    (dtype, vectors): (DType, DType),
    (rows, cols): (u32, u32),
    eps: f32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let own = vectors == dtype;
    let kernel = kind.kernel();
    if !own && vectors != DType::F32 {
        let reason = format!("weights of {vectors} for rows of {dtype}, F32 or {dtype} are needed");
        return Err(GpuError::Unsupported { op: kernel.op, reason });
    }
    if cols == 0 {
        return Err(GpuError::Unsupported { op: kernel.op, reason: "rows of no elements".to_owned() });
    }
    let kernel = kernel.of(&FAMILY, dtype, Constants::of([u32::from(own)]))?;
    let grid = RowGrid::new((rows, cols), limits);
    Ok(grid.launch(kernel, NormParams { rows, cols, per_group: grid.per_group, eps }.params()))
}

/// `x / sqrt(mean(x²) + eps) * w` of each row: `(x [rows, cols], w: F32 [cols]) -> out [rows, cols]`.
pub(crate) fn rms_norm(
    dtype: DType,
    size: (u32, u32),
    eps: f32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    norm(Norm::Rms, (dtype, DType::F32), size, eps, limits)
}

#[cfg(test)]
mod tests {
    use super::super::harness::run;
    use super::super::typed::tests::{FLOATS, LENGTHS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    /// What the rows become, in double precision.
    fn exact(layer: bool, x: &[f32], (w, b): (&[f32], &[f32]), eps: f32) -> Vec<f64> {
        let mut out = Vec::new();
        for row in x.chunks(w.len()) {
            let n = row.len() as f64;
            let mean = if layer { row.iter().map(|x| f64::from(*x)).sum::<f64>() / n } else { 0.0 };
            let square = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (square + f64::from(eps)).sqrt();
            out.extend(row.iter().zip(w).zip(b).map(|((x, w), b)| {
                (f64::from(*x) - mean) * scale * f64::from(*w) + if layer { f64::from(*b) } else { 0.0 }
            }));
        }
        out
    }

    /// Runs a norm, with the sum where it has one, and compares.
    fn matches(kind: Norm, types: (DType, DType), rows: &[&[f32]], cols: u32, eps: f32) {
        let (dtype, vectors) = types;
        let n = rows[0].len();
        let (w, b) = (rounded(vectors, &waves(cols, 1.5)), rounded(vectors, &waves(cols, 0.5)));
        let layer = matches!(kind, Norm::Layer | Norm::AddLayer);
        let mut args: Vec<_> = rows.iter().map(|x| data(dtype, x)).collect();
        args.push(data(vectors, &w));
        if layer {
            args.push(data(vectors, &b));
        }
        let mut x = rounded(dtype, rows[0]);
        if let [_, residual] = rows {
            args.push(room(dtype, n));
            let sums: Vec<f32> = x.iter().zip(rounded(dtype, residual)).map(|(x, r)| x + r).collect();
            x = rounded(dtype, &sums);
        }
        args.push(room(dtype, n));
        let launch = norm(kind, types, (n as u32 / cols, cols), eps, &LIMITS).unwrap();
        let Some(found) = run(&launch, &args) else { return };
        if rows.len() == 2 {
            assert_eq!(floats(dtype, &found[args.len() - 2]), x, "the sum, {kind:?} {dtype} {cols}");
        }
        let expected = exact(layer, &x, (&w, &b), eps);
        let what = format!("{kind:?} of {cols} columns, {vectors} weights");
        assert_near(dtype, &floats(dtype, &found[args.len() - 1]), &expected, 2e-6, &what);
    }

    #[test]
    fn rows_of_every_length_and_type() {
        for dtype in FLOATS {
            for cols in LENGTHS {
                let rows = if cols > 1000 { 2 } else { 11 };
                let (x, r) = (waves(rows * cols, 3.0), waves(rows * cols, 1.0));
                matches(Norm::Rms, (dtype, DType::F32), &[&x], cols, 1e-5);
                matches(Norm::Layer, (dtype, DType::F32), &[&x], cols, 1e-5);
                matches(Norm::AddRms, (dtype, DType::F32), &[&x, &r], cols, 1e-5);
                matches(Norm::AddLayer, (dtype, DType::F32), &[&x, &r], cols, 1e-5);
            }
        }
    }

    #[test]
    fn weights_may_be_of_the_rows_type() {
        let (x, r) = (waves(3 * 70, 3.0), waves(3 * 70, 1.0));
        for dtype in FLOATS {
            matches(Norm::Rms, (dtype, dtype), &[&x], 70, 1e-5);
            matches(Norm::AddLayer, (dtype, dtype), &[&x, &r], 70, 1e-5);
        }
        let error = norm(Norm::Rms, (DType::F16, DType::BF16), (1, 4), 0.0, &LIMITS).unwrap_err();
        assert!(error.to_string().contains("BF16"), "{error}");
    }

    #[test]
    fn huge_and_tiny_values_keep_their_direction() {
        for size in [1e19, 3e38, 1e-3, 1e-20, 1e-30] {
            for cols in [48, 300] {
                let x = waves(2 * cols, size);
                matches(Norm::Rms, (DType::F32, DType::F32), &[&x], cols, 0.0);
                matches(Norm::Layer, (DType::F32, DType::F32), &[&x], cols, 0.0);
                matches(Norm::Rms, (DType::F32, DType::F32), &[&x], cols, 1e-5);
            }
        }
        let x = waves(2 * 48, 6e4);
        matches(Norm::Rms, (DType::F16, DType::F32), &[&x], 48, 1e-5);
        matches(Norm::Layer, (DType::F16, DType::F32), &[&x], 48, 1e-5);
    }

    #[test]
    fn a_mean_far_from_zero_costs_no_digits() {
        let x: Vec<f32> = waves(777, 1.0).iter().map(|x| 1000.0 + x).collect();
        matches(Norm::Layer, (DType::F32, DType::F32), &[&x], 777, 1e-5);
    }

    #[test]
    fn rows_of_zeros_stay_finite() {
        matches(Norm::Rms, (DType::F32, DType::F32), &[&[0.0; 66]], 33, 1e-6);
        matches(Norm::Layer, (DType::F32, DType::F32), &[&[5.0; 66]], 33, 1e-6);
    }
}
