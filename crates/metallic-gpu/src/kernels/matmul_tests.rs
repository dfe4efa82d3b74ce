//! Products of float matrices against a plain formula in `f64`.

use metallic_core::DType;

use super::harness::{Data, run};
use super::matmul::{FloatProduct, Strides, plan_float};
use super::quant::tests::{decoded, weights};
use crate::threadgroup::tests::LIMITS;

/// Runs a product of matrices whose elements lie at these strides in `len` elements each. `false` without clang.
fn holds(product: &FloatProduct, a_len: usize, b_len: usize) -> bool {
    let FloatProduct { dtype, batch, m, n, k, a, b } = *product;
    let (left, right) = (weights(dtype, a_len, 1.0, 3), weights(dtype, b_len, 1.0, 4));
    let bytes = (batch * m * n) as usize * dtype.block_bytes();
    let launch = plan_float(product, &LIMITS).unwrap();
    let args = [Data::Bytes(left.clone()), Data::Bytes(right.clone()), Data::Room(bytes)];
    let Some(found) = run(&launch, &args) else { return false };
    let (left, right, found) = (decoded(dtype, &left), decoded(dtype, &right), decoded(dtype, &found[2]));
    let rounding = if dtype == DType::F32 {
        0.0
    } else if dtype == DType::F16 {
        1.0 / 2048.0
    } else {
        1.0 / 256.0
    };
    for (i, found) in found.iter().enumerate() {
        let i = i as u32;
        let (z, row, col) = (i / (m * n), i / n % m, i % n);
        let terms = (0..k).map(|j| {
            let left = left[(z * a.batch + row * a.row + j * a.col) as usize];
            let right = right[(z * b.batch + j * b.row + col * b.col) as usize];
            f64::from(left) * f64::from(right)
        });
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let error = (f64::from(*found) - sum).abs();
        assert!(
            error <= 1e-6 * size + rounding * sum.abs() + 1e-7,
            "{product:?} at {z}, {row}, {col}: {found}, needed {sum}"
        );
    }
    true
}

fn product(dtype: DType, (m, n, k): (u32, u32, u32)) -> FloatProduct {
    let (a, b) = (Strides::row_major(m, k), Strides::row_major(k, n));
    FloatProduct { dtype, batch: 1, m, n, k, a, b }
}

#[test]
fn matrices_of_one_element_at_tile_borders_and_past_them() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (m, n, k) in [(1, 1, 1), (64, 64, 32), (33, 65, 75), (65, 9, 7)] {
            if !holds(&product(dtype, (m, n, k)), (m * k) as usize, (k * n) as usize) {
                return;
            }
        }
    }
}

#[test]
fn transposed_padded_and_shared_matrices_of_a_batch() {
    let (m, n, k) = (17, 35, 40);
    let plain = FloatProduct { batch: 3, ..product(DType::F32, (m, n, k)) };
    let a_transposed = FloatProduct { a: Strides::row_major(k, m).transposed(), ..plain };
    let b_transposed = FloatProduct { b: Strides::row_major(n, k).transposed(), ..plain };
    let padded = Strides { batch: 50 * m, row: 50, col: 1 };
    let every_second = Strides { batch: 0, row: 2 * n, col: 2 };
    let strided = FloatProduct { a: padded, b: every_second, ..plain };
    for (product, a, b) in [
        (plain, 3 * m * k, 3 * k * n),
        (a_transposed, 3 * m * k, 3 * k * n),
        (b_transposed, 3 * m * k, 3 * k * n),
        (strided, 3 * m * 50 - 10, 2 * k * n - 1),
    ] {
        if !holds(&product, a as usize, b as usize) {
            return;
        }
    }
}

#[test]
fn what_no_kernel_does_is_refused_by_name() {
    let error = plan_float(&product(DType::Q4_0, (32, 32, 32)), &LIMITS).unwrap_err();
    assert!(error.to_string().contains("Q4_0"), "{error}");
    let error = plan_float(&product(DType::F32, (0, 4, 4)), &LIMITS).unwrap_err();
    assert!(error.to_string().contains("0 by 4"), "{error}");
    let small = crate::Limits { threadgroup_memory: 4096, ..LIMITS };
    let error = plan_float(&product(DType::F32, (4, 4, 4)), &small).unwrap_err();
    assert!(error.to_string().contains("4096"), "{error}");
}
