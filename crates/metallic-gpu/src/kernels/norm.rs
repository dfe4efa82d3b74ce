//! Norms over the last axis.

use metallic_core::DType;

use super::rows::{ROWS, RowGrid};
use super::typed::VECTORS;
use super::{COMMON, Constants, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// `rows` rows of `cols` elements, `per_group` of them in a threadgroup. Row `r` takes part `r % parts` of the weights.
    NormParams { rows: u32, cols: u32, per_group: u32, parts: u32, eps: f32 }
}

family! {
    "norm" (NormParams) uses COMMON, VECTORS, ROWS;
    // Weights and biases are bound at whole words whatever their type.
    "rms_norm" each float of size { reads x: size, w: 4; writes out: size }
    "layer_norm" each float of size { reads x: size, w: 4, b: 4; writes out: size }
}

/// A norm of `rows` rows of `cols` elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormSpec {
    pub(crate) dtype: DType,
    /// Type of weights and biases: that of the rows, or `F32`.
    pub(crate) vectors: DType,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    /// Weights for so many rows one after another; 1 where all rows have the same.
    pub(crate) parts: u32,
    pub(crate) eps: f32,
}

impl NormSpec {
    /// `F32` rows with the same `F32` weights.
    pub(crate) fn plain(rows: u32, cols: u32, eps: f32) -> NormSpec {
        NormSpec { dtype: DType::F32, vectors: DType::F32, rows, cols, parts: 1, eps }
    }

    fn launch(&self, op: &'static str, biased: bool, limits: &Limits) -> Result<Launch, GpuError> {
        let NormSpec { dtype, vectors, rows, cols, parts, eps } = *self;
        let own = vectors == dtype;
        if !own && vectors != DType::F32 {
            let reason = format!("weights of {vectors} for rows of {dtype}, F32 or {dtype} are needed");
            return Err(GpuError::unsupported(op, reason));
        }
        if cols == 0 {
            return Err(GpuError::unsupported(op, "rows of no elements"));
        }
        let kernel = FAMILY.of_float(op, dtype, Constants::of([u32::from(own), u32::from(biased)]))?;
        let grid = RowGrid::new((rows, cols), limits);
        let params = NormParams { rows, cols, per_group: grid.per_group, parts: parts.max(1), eps };
        Ok(grid.launch(kernel, params.params()))
    }
}

/// `x / sqrt(mean(x²) + eps) * w` of each row: `(x [rows, cols], w [parts, cols]) -> out [rows, cols]`.
pub(crate) fn rms_norm(spec: &NormSpec, limits: &Limits) -> Result<Launch, GpuError> {
    spec.launch("rms_norm", false, limits)
}

/// `(x - mean(x)) / sqrt(variance(x) + eps) * w + b` of each row: `(x [rows, cols], w [cols], b [cols]) -> out [rows, cols]`;
/// `b` is unused where it is not `biased`.
pub(crate) fn layer_norm(spec: &NormSpec, biased: bool, limits: &Limits) -> Result<Launch, GpuError> {
    spec.launch("layer_norm", biased, limits)
}

#[cfg(test)]
mod tests {
    use super::super::harness::{Data, run};
    use super::super::typed::tests::{FLOATS, LENGTHS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Norm {
        Rms,
        Layer,
        Biased,
    }

    /// What the rows become, in double precision.
    fn exact(norm: Norm, x: &[f32], w: &[f32], b: &[f32], spec: &NormSpec) -> Vec<f64> {
        let mut out = Vec::new();
        for (row, x) in x.chunks(spec.cols as usize).enumerate() {
            let w = &w[row % spec.parts as usize * x.len()..][..x.len()];
            let n = x.len() as f64;
            let mean = if norm == Norm::Rms { 0.0 } else { x.iter().map(|x| f64::from(*x)).sum::<f64>() / n };
            let square = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (square + f64::from(spec.eps)).sqrt();
            out.extend(x.iter().zip(w).zip(b).map(|((x, w), b)| {
                let bias = if norm == Norm::Biased { f64::from(*b) } else { 0.0 };
                (f64::from(*x) - mean) * scale * f64::from(*w) + bias
            }));
        }
        out
    }

    fn matches(norm: Norm, spec: NormSpec, x: &[f32]) {
        let NormSpec { dtype, vectors, cols, parts, .. } = spec;
        let spec = NormSpec { rows: x.len() as u32 / cols, ..spec };
        let (w, b) = (rounded(vectors, &waves(parts * cols, 1.5)), rounded(vectors, &waves(cols, 0.5)));
        let mut args = vec![data(dtype, x), data(vectors, &w)];
        let launch = match norm {
            Norm::Rms => rms_norm(&spec, &LIMITS).unwrap(),
            Norm::Layer | Norm::Biased => {
                args.push(if norm == Norm::Biased { data(vectors, &b) } else { Data::Unused });
                layer_norm(&spec, norm == Norm::Biased, &LIMITS).unwrap()
            }
        };
        args.push(room(dtype, x.len()));
        let Some(found) = run(&launch, &args) else { return };
        let expected = exact(norm, &rounded(dtype, x), &w, &b, &spec);
        let what = format!("{norm:?} of {spec:?}");
        assert_near(dtype, &floats(dtype, &found[args.len() - 1]), &expected, 2e-6, &what);
    }

    #[test]
    fn rows_of_every_length_and_type() {
        for dtype in FLOATS {
            for cols in LENGTHS {
                let x = waves(if cols > 1000 { 2 } else { 11 } * cols, 3.0);
                let spec = NormSpec { dtype, ..NormSpec::plain(0, cols, 1e-5) };
                for norm in [Norm::Rms, Norm::Layer, Norm::Biased] {
                    matches(norm, spec, &x);
                }
            }
        }
    }

    #[test]
    fn weights_may_be_of_the_rows_type_and_differ_from_row_to_row() {
        let x = waves(6 * 70, 3.0);
        for dtype in FLOATS {
            let spec = NormSpec { dtype, vectors: dtype, ..NormSpec::plain(0, 70, 1e-5) };
            matches(Norm::Rms, spec, &x);
            matches(Norm::Rms, NormSpec { parts: 3, ..spec }, &x);
            matches(Norm::Biased, spec, &x);
        }
        matches(Norm::Rms, NormSpec { parts: 2, ..NormSpec::plain(0, 210, 1e-5) }, &x);
        let mixed = NormSpec { dtype: DType::F16, vectors: DType::BF16, ..NormSpec::plain(1, 4, 0.0) };
        let error = rms_norm(&mixed, &LIMITS).unwrap_err();
        assert!(error.to_string().contains("BF16"), "{error}");
    }

    #[test]
    fn huge_and_tiny_values_keep_their_direction() {
        for size in [1e19, 3e38, 1e-3, 1e-20, 1e-30] {
            for cols in [48, 300] {
                let x = waves(2 * cols, size);
                matches(Norm::Rms, NormSpec::plain(0, cols, 0.0), &x);
                matches(Norm::Biased, NormSpec::plain(0, cols, 0.0), &x);
                matches(Norm::Rms, NormSpec::plain(0, cols, 1e-5), &x);
            }
        }
        let x = waves(2 * 48, 6e4);
        let half = NormSpec { dtype: DType::F16, ..NormSpec::plain(0, 48, 1e-5) };
        matches(Norm::Rms, half, &x);
        matches(Norm::Biased, half, &x);
    }

    #[test]
    fn a_mean_far_from_zero_costs_no_digits() {
        let x: Vec<f32> = waves(777, 1.0).iter().map(|x| 1000.0 + x).collect();
        matches(Norm::Biased, NormSpec::plain(0, 777, 1e-5), &x);
    }

    #[test]
    fn rows_of_zeros_stay_finite() {
        matches(Norm::Rms, NormSpec::plain(0, 33, 1e-6), &[0.0; 66]);
        matches(Norm::Biased, NormSpec::plain(0, 33, 1e-6), &[5.0; 66]);
    }
}
