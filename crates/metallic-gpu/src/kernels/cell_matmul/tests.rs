use metallic_core::{DType, Unary};

use super::super::cell_matvec::MAX_TOKENS;
use super::super::cell_matvec::tests::{WITH_UNITS, in_cells, widths};
use super::super::cell_rows;
use super::super::cells::CELL_TYPES;
use super::super::project_tests::{Case, case, held_within, make};
use super::*;

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
