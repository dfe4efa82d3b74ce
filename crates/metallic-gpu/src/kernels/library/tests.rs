use metallic_core::{DType, Unary};

use super::super::Call;
use super::super::cell_matvec::tests::{WITH_UNITS, in_cells, widths};
use super::super::cells::CELL_TYPES;
use super::super::project_tests::{Case, case, held_within, make};
use super::super::quant::WEIGHT_TYPES;
use super::*;

const WITH_LIBRARY: Limits = Limits { library: true, ..WITH_UNITS };

/// Runs a case by a library's product, within what halfs leave of vectors and weights.
fn holds(case: &Case, cells: bool) -> bool {
    let made = make(case, case.tokens);
    let Some(made) = (if cells { in_cells(case, made) } else { Some(made) }) else { return false };
    let stages = plan(&made.projection, cells, &WITH_LIBRARY).unwrap();
    let within = if case.parts[0].0 == DType::BF16 { 4e-6 } else { 1e-3 };
    held_within(within, case, &made, &stages).is_some()
}

#[test]
fn every_type_in_cells_and_as_in_its_file() {
    for dtype in WEIGHT_TYPES.iter().filter(|dtype| **dtype != DType::F32) {
        let [narrow, wide] = widths(*dtype);
        if !holds(&Case { cols: wide, ..case(*dtype, 9, 33) }, false) {
            return;
        }
        if CELL_TYPES.contains(dtype) {
            let _ = holds(&Case { cols: wide, ..case(*dtype, 9, 33) }, true)
                && holds(&Case { cols: narrow, ..case(*dtype, 3, 16) }, true);
        }
    }
}

#[test]
fn everything_around_the_product_is_done_after_it() {
    for (types, cells) in [
        ([DType::Q4K, DType::Q6K, DType::F16], true),
        ([DType::BF16; 3], true),
        ([DType::Q5_0, DType::IQ4NL, DType::Q8_0], false),
    ] {
        let parts = vec![(types[0], 65), (types[1], 16), (types[2], 40)];
        let base =
            Case { parts, norm: Some(1e-5), bias: true, residual: true, cols: 256, ..case(types[0], 11, 1) };
        let gated = Case { parts: vec![(types[0], 37); 2], gate: Some(Unary::Silu), ..base.clone() };
        let large = Case { size: 1e9, ..gated.clone() };
        let _ = holds(&base, cells) && holds(&gated, cells) && holds(&large, cells);
    }
}

#[test]
fn what_halfs_do_not_hold_and_devices_do_not_have_is_refused() {
    let refused = |parts: Vec<(DType, usize)>, cols, limits| {
        let case = Case { cols, parts, ..case(DType::F16, 9, 1) };
        plan(&make(&case, 9).projection, false, &limits).unwrap_err().to_string()
    };
    let text = refused(vec![(DType::F16, 16), (DType::BF16, 16)], 64, WITH_LIBRARY);
    assert!(text.contains("do not hold"), "{text}");
    let text = refused(vec![(DType::F32, 16)], 64, WITH_LIBRARY);
    assert!(text.contains("F32"), "{text}");
    let text = refused(vec![(DType::F16, 16)], 75, WITH_LIBRARY);
    assert!(text.contains("rows of 75"), "{text}");
    let text = refused(vec![(DType::F16, 16)], 64, WITH_UNITS);
    assert!(text.contains("the device has none"), "{text}");
}

#[test]
fn matrices_become_one_product() {
    let parts = vec![(DType::Q4_0, 48), (DType::Q8_0, 16), (DType::Q4_0, 16)];
    let made = make(&Case { parts, cols: 64, ..case(DType::Q4_0, 20, 1) }, 20);
    let stages = plan(&made.projection, true, &WITH_LIBRARY).unwrap();
    let names: Vec<&str> = stages.stages.iter().map(|stage| stage.launch.kernel.function).collect();
    let cells = "library_cells";
    assert_eq!(names, ["library_rows", cells, cells, cells, "gemm_f16", "library_finish"]);
    let Some(Call::Product(product)) = stages.stages[4].call() else { panic!("a product") };
    assert_eq!((product.m, product.n, product.k, product.pitch), (20, 80, 64, 80));
    assert_eq!(product.bytes(), [20 * 64 * 2, 80 * 64 * 2, 20 * 80 * 4]);
    let starts: Vec<usize> = stages.stages[1..4].iter().map(|stage| stage.slots()[1].start).collect();
    assert_eq!(starts, [0, 48 * 64 * 2, 64 * 64 * 2]);
}
