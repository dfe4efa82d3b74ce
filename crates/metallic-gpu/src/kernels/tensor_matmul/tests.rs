use metallic_core::Unary;

use super::super::project_tests::{Case, case, held_within, make};
use super::super::quant::WEIGHT_TYPES;
use super::*;
use crate::threadgroup::tests::LIMITS;

const WITH_TENSORS: Limits = Limits { tensor_ops: true, ..LIMITS };

/// Runs a case, within what halfs leave of vectors and weights. False where there is no clang.
fn tensors_hold(case: &Case) -> bool {
    let made = make(case, case.tokens);
    let stages = plan(&made.projection, &WITH_TENSORS).unwrap();
    held_within(6e-4, case, &made, &stages).is_some()
}

#[test]
fn weights_of_every_type_are_multiplied_in_whole_tiles() {
    for dtype in WEIGHT_TYPES {
        if !tensors_hold(&case(*dtype, 9, 33)) {
            return;
        }
    }
    // Several tiles both ways, the last ones begun; numbers that halfs do not hold as they are.
    for (tokens, rows, size) in [(70, 130, 1.0), (64, 64, 1e9), (5, 1, 1e-9)] {
        if !tensors_hold(&Case { cols: 160, size, ..case(DType::Q4_0, tokens, rows) }) {
            return;
        }
    }
}

#[test]
fn everything_around_products_goes_with_them() {
    let parts = vec![(DType::Q4K, 65), (DType::BF16, 16), (DType::Q6K, 40)];
    let base =
        Case { parts, norm: Some(1e-5), bias: true, residual: true, cols: 256, ..case(DType::Q4K, 17, 1) };
    let gated = Case { parts: vec![(DType::Q4_0, 70); 2], gate: Some(Unary::Silu), ..base.clone() };
    let floats = Case { parts: vec![(DType::F32, 37); 2], cols: 75, ..gated.clone() };
    let _ = tensors_hold(&base) && tensors_hold(&gated) && tensors_hold(&floats);
}

#[test]
fn devices_without_tensor_operations_and_gates_of_two_kinds_are_refused() {
    let made = make(&case(DType::Q4_0, 9, 16), 9);
    let error = plan(&made.projection, &LIMITS).unwrap_err().to_string();
    assert!(error.contains("tensor operations") && error.contains("M5"), "{error}");
    let parts = vec![(DType::Q4_0, 16), (DType::BF16, 16)];
    let made = make(&Case { parts, gate: Some(Unary::Silu), ..case(DType::Q4_0, 9, 16) }, 9);
    let error = plan(&made.projection, &WITH_TENSORS).unwrap_err().to_string();
    assert!(error.contains("Q4_0") && error.contains("BF16"), "{error}");
}
