use metallic_core::{DType, Unary};

use super::super::cells::{CELL_TYPES, bytes, pack};
use super::super::harness::{Data, as_f32s, f32s, run};
use super::super::project::Part;
use super::super::project_tests::{Case, Made, case, held_within, make, run_stages};
use super::*;
use crate::threadgroup::tests::LIMITS;

const UNITS: MatrixUnits = MatrixUnits { cores: 2, threadgroup_memory: 32 << 10 };
pub(crate) const WITH_UNITS: Limits = Limits { matrix_units: Some(UNITS), max_threads: 256, ..LIMITS };

/// A matrix laid out in cells. `None` where there is no clang.
pub(crate) fn packed(dtype: DType, (rows, cols): (u32, u32), raw: &Data) -> Option<Data> {
    let room = bytes(dtype, rows as usize, cols as usize).unwrap();
    let launch = pack(dtype, (rows, cols), &WITH_UNITS).unwrap();
    Some(Data::Bytes(run(&launch, &[raw.clone(), Data::Room(room)])?[1].clone()))
}

/// Lays the matrices of a case out in cells. `None` where there is no clang.
pub(crate) fn in_cells(case: &Case, mut made: Made) -> Option<Made> {
    for part in made.projection.parts.iter().flatten() {
        let Slot::Input(index) = part.weight else { continue };
        made.inputs[index] = packed(part.dtype, (part.rows, case.cols as u32), &made.inputs[index])?;
    }
    Some(made)
}

/// Runs a case and holds it to the formula, within what two bytes leave of a number. `false` where there is no clang.
fn holds(case: &Case, limits: &Limits) -> bool {
    let Some(made) = in_cells(case, make(case, case.tokens)) else { return false };
    let stages = plan_vectors(&made.projection, limits).unwrap();
    held_within(1.6e-5, case, &made, &stages).is_some()
}

/// Columns of a whole cell and of half a cell more, as far as the type allows.
pub(crate) fn widths(dtype: DType) -> [usize; 2] {
    if dtype.block_len() > 32 { [256, 512] } else { [64, 160] }
}

#[test]
fn every_type_for_every_number_of_tokens() {
    for dtype in CELL_TYPES {
        for (tokens, rows) in [(1, 33), (3, 16), (5, 70)] {
            for cols in widths(*dtype) {
                if !holds(&Case { cols, ..case(*dtype, tokens, rows) }, &WITH_UNITS) {
                    return;
                }
            }
        }
    }
}

#[test]
fn matrices_of_one_type_and_of_several_with_everything_around_them() {
    for (tokens, types) in [
        (1, [DType::Q4K, DType::Q6K, DType::Q8_0]),
        (9, [DType::Q8_0, DType::Q4K, DType::F16]),
        (2, [DType::Q4_0; 3]),
    ] {
        let parts = vec![(types[0], 65), (types[1], 16), (types[2], 40)];
        let base = Case {
            parts,
            norm: Some(1e-5),
            bias: true,
            residual: true,
            cols: if tokens > 4 { 256 } else { 512 },
            ..case(DType::Q4K, tokens, 1)
        };
        let gated = vec![(types[0], 37); 2];
        let gated = Case { parts: gated, gate: Some(Unary::Silu), ..base.clone() };
        if !holds(&base, &WITH_UNITS) || !holds(&gated, &WITH_UNITS) {
            return;
        }
    }
}

#[test]
fn few_pairs_of_one_token_have_simdgroups_that_lay_out_what_they_need() {
    let kernel = |case: &Case| {
        let stages = plan_vectors(&make(case, case.tokens).projection, &WITH_UNITS).unwrap();
        stages.stages[0].launch.kernel.function
    };
    // The end of a row in the middle of what is laid out at a time, a cell of which half is there, and groups without a pair.
    for (types, rows, cols) in [
        (vec![DType::Q4_0], 70, 544),
        (vec![DType::Q8_0], 128, 832),
        (vec![DType::Q4K], 20, 1280),
        (vec![DType::Q4K, DType::Q4K, DType::Q6K], 33, 768),
    ] {
        let parts: Vec<_> = types.into_iter().map(|dtype| (dtype, rows)).collect();
        let base = Case { cols, parts, ..case(DType::Q4_0, 1, 1) };
        for norm in [None, Some(1e-5)] {
            let case = Case { norm, bias: norm.is_some(), residual: norm.is_none(), ..base.clone() };
            assert_eq!(kernel(&case), "cell_matvec_own", "{case:?}");
            if !holds(&case, &WITH_UNITS) {
                return;
            }
        }
    }
    let few = case(DType::Q4_0, 1, 70);
    for (case, expected) in [
        (Case { cols: 448, ..few.clone() }, "cell_matvec_1"),
        (Case { cols: 544, ..case(DType::Q4_0, 1, 256) }, "cell_matvec_1"),
        (Case { cols: 544, ..case(DType::F16, 1, 70) }, "cell_matvec_1"),
        (Case { cols: 544, ..case(DType::Q4_0, 2, 70) }, "cell_matvec_4"),
    ] {
        assert_eq!(kernel(&case), expected, "{case:?}");
    }
}

#[test]
fn vectors_that_do_not_fit_come_in_chunks() {
    let few = MatrixUnits { cores: 1, threadgroup_memory: 32 << 10 };
    let limits = Limits { matrix_units: Some(few), max_threads: 128, ..LIMITS };
    for (dtype, tokens, cols) in [(DType::Q4_0, 4, 2720), (DType::F16, 7, 1376)] {
        let case = Case { cols, norm: Some(1e-6), ..case(dtype, tokens, 70) };
        let made = make(&case, tokens);
        let stages = plan_vectors(&made.projection, &limits).unwrap();
        let spread = CellSpread::of(&made.projection, Vectors::Staged, few, &limits).unwrap();
        assert!(spread.per_chunk * CELL_COLS < cols as u32, "{} cells at a time", spread.per_chunk);
        assert!(stages.stages[0].launch.threadgroup_bytes <= few.threadgroup_memory);
        if !holds(&case, &limits) {
            return;
        }
    }
}

#[test]
fn sums_that_do_not_fit_come_pair_by_pair() {
    let few = MatrixUnits { cores: 1, threadgroup_memory: 28 << 10 };
    let limits = Limits { matrix_units: Some(few), max_threads: 64, ..LIMITS };
    let case = Case { cols: 192, norm: Some(1e-6), ..case(DType::Q8_0, 1, 700) };
    let made = make(&case, 1);
    let spread = CellSpread::of(&made.projection, Vectors::Staged, few, &limits).unwrap();
    assert_eq!((spread.per_chunk, spread.at_a_time), (3, 11), "of 22 pairs");
    holds(&case, &limits);
}

#[test]
fn what_two_bytes_leave_comes_along_where_nothing_may_be_lost() {
    for (dtype, tokens) in [(DType::Q4_0, 1), (DType::Q4K, 3), (DType::Q8_0, 5), (DType::Q6K, 2)] {
        let case = Case { cols: 512, norm: Some(1e-5), residual: true, ..case(dtype, tokens, 70) };
        let Some(mut made) = in_cells(&case, make(&case, tokens)) else { return };
        made.projection.fine = true;
        let stages = plan_vectors(&made.projection, &WITH_UNITS).unwrap();
        held_within(4e-7, &case, &made, &stages).unwrap();
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for bad in [f32::NAN, f32::INFINITY] {
        let case = case(DType::Q4_0, 1, 16);
        let mut made = make(&case, 1);
        let Slot::Input(x) = made.projection.x else { panic!("vectors are an input") };
        let mut numbers = vec![1.0_f32; case.cols];
        numbers[3] = bad;
        made.inputs[x] = f32s(&numbers);
        let Some(made) = in_cells(&case, made) else { return };
        let stages = plan_vectors(&made.projection, &WITH_UNITS).unwrap();
        let Some(found) = run_stages(&stages, &made.inputs, 16 * 4) else { return };
        assert!(as_f32s(&found).iter().all(|y| y.is_nan()), "{bad}");
    }
}

#[test]
fn gates_of_two_types_and_rows_beyond_count_are_refused_by_name() {
    let case =
        Case { parts: vec![(DType::Q4_0, 32); 2], gate: Some(Unary::Silu), ..case(DType::Q4_0, 1, 32) };
    let made = make(&case, 1);
    let mut mixed = made.projection;
    mixed.parts[1] = mixed.parts[1].map(|part| Part { dtype: DType::Q8_0, ..part });
    let error = plan_vectors(&mixed, &WITH_UNITS).unwrap_err().to_string();
    assert!(error.contains("a gate in cells of Q4_0 over Q8_0"), "{error}");
    let mut long = Projection { gate: None, ..made.projection };
    long.parts[0] = long.parts[0].map(|part| Part { rows: u32::MAX / 64 * 63, ..part });
    let many = MatrixUnits { cores: 132, ..UNITS };
    let error = check(&long, &Limits { matrix_units: Some(many), ..WITH_UNITS });
    assert!(error.unwrap_err().to_string().contains("rows in cells; at most"));
    let few = MatrixUnits { cores: 1, threadgroup_memory: 4 << 10 };
    let error =
        plan_vectors(&made.projection, &Limits { matrix_units: Some(few), ..WITH_UNITS }).unwrap_err();
    assert!(error.to_string().contains("4096 bytes of threadgroup memory"), "{error}");
}
