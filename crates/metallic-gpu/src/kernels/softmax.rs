//! Softmax over the last axis.

use metallic_core::DType;

use super::rows::{ROWS, RowGrid};
use super::typed::VECTORS;
use super::{COMMON, Constants, Launch, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// `rows` rows of `cols` elements, `per_group` of them in a threadgroup.
    SoftmaxParams { rows: u32, cols: u32, per_group: u32 }
}

family! {
    "softmax" (SoftmaxParams) uses COMMON, VECTORS, ROWS;
    "softmax" each float of size { reads x: size; writes out: size }
}

/// `exp(x - max) / Σ exp(x - max)` of each row: `(x [rows, cols]) -> out [rows, cols]`. A row of nothing but `-inf` gives
/// zeros.
pub(crate) fn softmax(dtype: DType, (rows, cols): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    let grid = RowGrid::new((rows, cols), limits);
    let params = SoftmaxParams { rows, cols, per_group: grid.per_group }.params();
    Ok(grid.launch(FAMILY.of_float("softmax", dtype, Constants::NONE)?, params))
}

#[cfg(test)]
mod tests {
    use super::super::harness::run;
    use super::super::typed::tests::{FLOATS, LENGTHS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    fn exact(x: &[f32]) -> Vec<f64> {
        let max = x.iter().map(|x| f64::from(*x)).fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            return vec![0.0; x.len()];
        }
        let exps: Vec<f64> = x.iter().map(|x| (f64::from(*x) - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        exps.iter().map(|e| e / sum).collect()
    }

    fn matches(dtype: DType, x: &[f32], cols: u32) {
        let launch = softmax(dtype, (x.len() as u32 / cols, cols), &LIMITS).unwrap();
        let Some(found) = run(&launch, &[data(dtype, x), room(dtype, x.len())]) else { return };
        let expected: Vec<f64> = rounded(dtype, x).chunks(cols as usize).flat_map(exact).collect();
        // The smallest halves are 6e-8 apart.
        assert_near(dtype, &floats(dtype, &found[1]), &expected, 1e-7, &format!("rows of {cols}"));
    }

    #[test]
    fn rows_of_every_length_and_type() {
        for dtype in FLOATS {
            for cols in LENGTHS {
                matches(dtype, &waves(cols * if cols > 1000 { 2 } else { 9 }, 9.0), cols);
            }
        }
    }

    #[test]
    fn the_largest_may_come_anywhere_in_a_long_row() {
        let mut rising: Vec<f32> = (0..9001).map(|i| i as f32 * 0.01).collect();
        matches(DType::F32, &rising, 9001);
        rising.reverse();
        matches(DType::F32, &rising, 9001);
    }

    #[test]
    fn masked_numbers_have_no_share_and_a_masked_row_gives_zeros() {
        for cols in [5u32, 300, 4500] {
            let mut x = waves(3 * cols, 2.0);
            let n = cols as usize;
            x[n..2 * n].fill(f32::NEG_INFINITY);
            x[2 * n..3 * n - 1].fill(f32::NEG_INFINITY);
            x[0] = f32::NEG_INFINITY;
            matches(DType::F32, &x, cols);
            matches(DType::F16, &x, cols);
        }
    }

    #[test]
    fn huge_numbers_do_not_overflow() {
        matches(DType::F32, &[1e19, 0.0, -1e19, 1e19, 3e38, 3e38, -3e38, 0.0], 4);
        matches(DType::F16, &[6e4, 0.0, -6e4, 6e4], 4);
    }
}
