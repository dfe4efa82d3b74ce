use metallic_core::{DType, Unary};

use super::super::cell_matvec::MAX_TOKENS;
use super::super::cell_matvec::tests::{WITH_UNITS, in_cells, widths};
use super::super::cell_rows;
use super::super::cells::CELL_TYPES;
use super::super::project_tests::{Case, case, held_within, make};
use super::*;
use crate::gpu::MatrixUnits;

/// Runs a case by tiles, within what halfs leave of its vectors.
fn tiles_hold(case: &Case) -> bool {
    let Some(made) = in_cells(case, make(case, case.tokens)) else { return false };
    let by = if case.tokens <= MAX_TOKENS as usize { cell_rows::plan } else { plan };
    let stages = by(&made.projection, &WITH_UNITS).unwrap();
    // Numbers of two bytes are finer than halfs.
    let bytes = stages.stages[0].launch.kernel.function == "cell_bytes";
    held_within(if bytes { 1.6e-5 } else { 6e-4 }, case, &made, &stages).is_some()
}

#[test]
fn many_tokens_go_by_tiles() {
    for dtype in CELL_TYPES.iter().filter(|dtype| **dtype != DType::BF16) {
        let [narrow, wide] = widths(*dtype);
        for (tokens, rows, cols) in [(9, 33, wide), (32, 130, narrow), (5, 70, narrow), (8, 33, wide)] {
            if !tiles_hold(&Case { cols, ..case(*dtype, tokens, rows) }) {
                return;
            }
        }
    }
    // Numbers that halfs do not hold as they are.
    for (size, tokens) in [(1e9, 9), (1e-9, 7)] {
        if !tiles_hold(&Case { cols: 160, size, ..case(DType::Q4_0, tokens, 33) }) {
            return;
        }
    }
    let bfloats = make(&Case { cols: 64, ..case(DType::BF16, 9, 16) }, 9);
    assert!(plan(&bfloats.projection, &WITH_UNITS).unwrap_err().to_string().contains("bfloats"));
}

#[test]
fn vectors_come_from_threadgroup_memory_where_it_has_room_and_else_from_their_buffer() {
    // Threadgroup memory that has room for two simdgroups, but not for the vectors beside them.
    for (dtype, cols, little) in
        [(DType::Q4_0, 160, 16), (DType::Q8_0, 64, 21), (DType::Q4K, 256, 20), (DType::Q6K, 256, 22)]
    {
        let case = Case { cols, norm: Some(1e-5), residual: true, ..case(dtype, 7, 60) };
        let Some(made) = in_cells(&case, make(&case, 7)) else { return };
        for (kilobytes, cores, kernel) in
            [(32, 1, "cell_rows_near"), (little, 1, "cell_rows"), (32, 2, "cell_rows")]
        {
            let units = MatrixUnits { cores, threadgroup_memory: kilobytes << 10 };
            let limits = Limits { matrix_units: Some(units), max_threads: 64, ..WITH_UNITS };
            let stages = cell_rows::plan(&made.projection, &limits).unwrap();
            assert_eq!(stages.stages[1].launch.kernel.function, kernel, "{dtype}");
            held_within(1.6e-5, &case, &made, &stages).unwrap();
        }
    }
}

#[test]
fn everything_around_products_goes_by_tiles_too() {
    let types = [DType::Q4K, DType::Q6K, DType::F16];
    let parts = vec![(types[0], 65), (types[1], 16), (types[2], 40)];
    let base =
        Case { parts, norm: Some(1e-5), bias: true, residual: true, cols: 256, ..case(DType::Q4K, 17, 1) };
    let gated = Case { parts: vec![(DType::Q4_0, 37); 2], gate: Some(Unary::Silu), ..base.clone() };
    for tokens in [17, 7] {
        let _ = tiles_hold(&Case { tokens, ..base.clone() }) && tiles_hold(&Case { tokens, ..gated.clone() });
    }
}
