//! Mixtures of experts: products with matrices chosen for each row, and the weighted sum of their results.

use metallic_core::DType;

use super::matvec::{DOTS, PITCH_BYTES, ROWS};
use super::project::{PROJECT, ProjectParams};
use super::typed::VECTORS;
use super::{
    COMMON, Constants, Launch, QUANT, QUANT_TYPES, Slot, Stage, Stages, family, row_bytes, weight_type, work,
};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// Matrices `[experts, rows, cols]`; so many choices one after another are `sharing` a row of `x`.
    ExpertParams { experts: u32, rows: u32, cols: u32, sharing: u32 }
    /// Rows of `parts` times `cols` elements.
    CombineParams { rows: u32, cols: u32, parts: u32 }
}

family! {
    "experts" (ProjectParams, ExpertParams, CombineParams) uses COMMON, QUANT_TYPES, QUANT, PROJECT, DOTS, VECTORS;
    "expert_linear" { reads x: 4, w: 2, ids: 4; writes out: 4 }
    "combine" each float of size { reads x: size, weights: size; writes out: size }
}

/// `x · W_eᵀ` with `e` from `ids`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertLinear {
    pub(crate) dtype: DType,
    pub(crate) experts: u32,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    /// Choices of all tokens.
    pub(crate) choices: u32,
    /// Choices that take the same row of `x`.
    pub(crate) sharing: u32,
}

/// [`ExpertLinear`]: `(x: F32 [choices / sharing, cols], w [experts, rows, cols], ids: U32 [choices]) ->
/// out: F32 [choices, rows]`. A choice that is no expert gives NaN.
pub(crate) fn expert_linear(spec: &ExpertLinear, limits: &Limits) -> Result<Stages, GpuError> {
    const OP: &str = "expert_linear";
    let ExpertLinear { dtype, experts, rows, cols, choices, sharing } = *spec;
    let number = weight_type(OP, dtype)?;
    let read = row_bytes(OP, dtype, cols)?.saturating_mul(rows as usize).saturating_mul(choices as usize);
    let each = PITCH_BYTES * ROWS;
    let most = (limits.threadgroup_memory / each).min(limits.max_threads / limits.simd_width.max(1));
    let tiles = rows.div_ceil(ROWS);
    let simds = limits.tuning.matvec_simdgroups.min(most).min(tiles).max(1);
    let constants = Constants::starting::<3, 8>([number, number, number, 0, 0, 0, 0, 0]);
    let params = ExpertParams { experts, rows, cols, sharing: sharing.max(1) }.params();
    let groups = [tiles.div_ceil(simds), choices, 1];
    let launch = Launch {
        threadgroup_bytes: simds * each,
        work: work([choices, rows, cols].map(|n| n as usize)),
        ..FAMILY.kernel(OP, constants).launch(params, groups, [simds * limits.simd_width, 1, 1])
    };
    let slots = [Slot::Input(0), Slot::Input(1), Slot::Input(2), Slot::Output];
    Ok(Stage::new(launch, slots).touching(1, read).into())
}

/// `Σ_c weights[c] * part_c` of each row: `(x [rows, parts * cols], weights [rows, parts]) -> out [rows, cols]`.
pub(crate) fn combine(
    dtype: DType,
    (rows, cols): (u32, u32),
    parts: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let params = CombineParams { rows, cols, parts }.params();
    let kernel = FAMILY.of_float("combine", dtype, Constants::NONE)?;
    Ok(kernel.plane(params, (cols.div_ceil(4), rows), limits))
}

#[cfg(test)]
mod tests {
    use super::super::Moved;
    use super::super::harness::{Data, as_f32s, f32s, run, u32s};
    use super::super::quant::WEIGHT_TYPES;
    use super::super::quant::tests::{Numbers, decoded, weights};
    use super::super::typed::tests::{FLOATS, assert_near, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    /// Against the formula; a choice outside the experts must give NaN.
    fn matches(spec: &ExpertLinear, ids: &[u32]) {
        let ExpertLinear { dtype, experts, rows, cols, sharing, .. } = *spec;
        let spec = ExpertLinear { choices: ids.len() as u32, ..*spec };
        let (n, k) = (rows as usize, cols as usize);
        let w = weights(dtype, experts as usize * n * k, 1.0, 5);
        let x = Numbers(9).units(ids.len() / sharing as usize * k);
        let stages = expert_linear(&spec, &LIMITS).unwrap();
        let args = [f32s(&x), Data::Bytes(w.clone()), u32s(ids), Data::Room(ids.len() * n * 4)];
        let Some(found) = run(&stages.stages[0].launch, &args) else { return };
        let found = as_f32s(&found[3]);
        let w = decoded(dtype, &w);
        for (choice, id) in ids.iter().enumerate() {
            let x = &x[choice / sharing as usize * k..][..k];
            for row in 0..n {
                let found = found[choice * n + row];
                if *id >= experts {
                    assert!(found.is_nan(), "{spec:?}: {found} of no expert");
                    continue;
                }
                let w = &w[(*id as usize * n + row) * k..][..k];
                let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let (expected, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let off = (f64::from(found) - expected).abs();
                assert!(off <= 1e-6 * size + 1e-30, "{spec:?}, {choice}, {row}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn every_choice_has_its_own_matrix_of_any_type() {
        for dtype in WEIGHT_TYPES {
            let cols = if dtype.is_quantized() { 512 } else { 75 };
            let spec = ExpertLinear { dtype: *dtype, experts: 3, rows: 7, cols, choices: 0, sharing: 2 };
            matches(&spec, &[2, 0, 1, 1]);
            matches(&ExpertLinear { sharing: 1, ..spec }, &[0, 2]);
        }
    }

    #[test]
    fn rows_and_columns_of_every_number_are_covered() {
        for rows in [1, 3, 4, 5, 16, 17, 70] {
            for cols in [1, 15, 16, 17, 33, 600] {
                let spec = ExpertLinear { dtype: DType::F16, experts: 2, rows, cols, choices: 0, sharing: 3 };
                matches(&spec, &[1, 0, 1]);
            }
        }
    }

    #[test]
    fn a_choice_that_is_no_expert_gives_nan_and_harms_no_other() {
        let spec = ExpertLinear { dtype: DType::Q8_0, experts: 4, rows: 9, cols: 64, choices: 0, sharing: 2 };
        matches(&spec, &[4, 3, u32::MAX, 0, 1 << 31, 4]);
    }

    #[test]
    fn matrices_are_counted_for_every_choice() {
        let spec =
            ExpertLinear { dtype: DType::Q4_0, experts: 64, rows: 10, cols: 64, choices: 6, sharing: 2 };
        let stages = expert_linear(&spec, &LIMITS).unwrap();
        assert_eq!(stages.stages[0].slots()[1].moved, Moved::Bytes(6 * 10 * 36));
        assert_eq!(stages.stages[0].launch.work, 6 * 10 * 64);
        let error = expert_linear(&ExpertLinear { cols: 40, ..spec }, &LIMITS).unwrap_err().to_string();
        assert!(error.contains("40 elements of Q4_0"), "{error}");
    }

    #[test]
    fn parts_are_weighed_and_summed() {
        for dtype in FLOATS {
            for (rows, cols, parts) in [(1u32, 1u32, 1u32), (3, 5, 2), (9, 70, 8), (2, 1027, 3)] {
                let (x, w) = (waves(rows * parts * cols, 3.0), waves(rows * parts, 1.0));
                let launch = combine(dtype, (rows, cols), parts, &LIMITS).unwrap();
                let args = [data(dtype, &x), data(dtype, &w), room(dtype, (rows * cols) as usize)];
                let Some(found) = run(&launch, &args) else { return };
                let (x, w) = (rounded(dtype, &x), rounded(dtype, &w));
                let sum = |i: u32| {
                    let (row, col) = (i / cols, i % cols);
                    let term = |part: u32| {
                        let at = (row * parts + part) as usize;
                        f64::from(x[at * cols as usize + col as usize]) * f64::from(w[at])
                    };
                    (0..parts).map(term).sum::<f64>()
                };
                let expected: Vec<f64> = (0..rows * cols).map(sum).collect();
                assert_near(dtype, &floats(dtype, &found[2]), &expected, 2e-6, "combine");
            }
        }
    }
}
