//! Norms over the last axis.

use metallic_core::DType;

use super::{Arg, COMMON, Constants, Family, Kernel, Launch, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// One threadgroup per row of `cols` elements.
    RmsNormParams { cols: u32, eps: f32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "norm",
    params: &[RmsNormParams::MSL],
    uses: &[COMMON],
    text: include_str!("norm.metal"),
    kernels: &[("rms_norm_f32", ARGS4), ("rms_norm_f16", ARGS2), ("rms_norm_bf16", ARGS2)],
};

const ARGS4: &[Arg] = &[reads("x", 4), reads("w", 4), writes("out", 4)];
const ARGS2: &[Arg] = &[reads("x", 2), reads("w", 4), writes("out", 2)];

/// `x / sqrt(mean(x²) + eps) * w` of each row: `(x [rows, cols], w [cols]) -> out [rows, cols]`.
pub(crate) fn rms_norm(
    dtype: DType,
    (rows, cols): (u32, u32),
    eps: f32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let (function, args) = match dtype {
        DType::F32 => ("rms_norm_f32", ARGS4),
        DType::F16 => ("rms_norm_f16", ARGS2),
        DType::BF16 => ("rms_norm_bf16", ARGS2),
        other => {
            return Err(GpuError::Unsupported { op: "rms_norm", reason: format!("rows of {other}") });
        }
    };
    Ok(Launch {
        kernel: Kernel { family: &FAMILY, function, constants: Constants::NONE, args },
        params: RmsNormParams { cols, eps }.params(),
        groups: [rows, 1, 1],
        threads: [threadgroup::row_threads(cols, limits), 1, 1],
        threadgroup_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::harness::{Data, as_f32s, f32s, run};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[test]
    fn rms_norm_of_short_and_ragged_rows() {
        for (rows, cols) in [(1u32, 1u32), (3, 33), (2, 577)] {
            let x: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
            let w: Vec<f32> = (0..cols).map(|i| 1.0 + (i as f32).cos() * 0.5).collect();
            let launch = rms_norm(DType::F32, (rows, cols), 1e-5, &LIMITS).unwrap();
            let Some(found) = run(&launch, &[f32s(&x), f32s(&w), Data::Room(x.len() * 4)]) else { return };
            for (row, out) in x.chunks(cols as usize).zip(as_f32s(&found[2]).chunks(cols as usize)) {
                let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / f64::from(cols);
                for ((x, w), out) in row.iter().zip(&w).zip(out) {
                    let expected = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*w);
                    assert!((expected - f64::from(*out)).abs() < 1e-5, "{expected} {out}");
                }
            }
        }
    }
}
