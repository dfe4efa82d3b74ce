//! Projections against a plain formula in `f64` on the decoded weights.

use metallic_core::{DType, Unary};

use super::harness::{self, Data, Memory, as_f32s, as_u32s, bytes_of, f32s};
use super::project::{Part, Projection, plan_tiles, plan_vectors};
use super::quant::WEIGHT_TYPES;
use super::quant::tests::{Numbers, decoded, weights};
use super::{Launch, Moved, Slot, Stages, matvec};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::threadgroup::tests::LIMITS;
use crate::tuning::Tuning;

/// Runs the stages of a projection; returns its result. `None` where there is no clang.
pub(crate) fn run_stages(stages: &Stages, inputs: &[Data], out_bytes: usize) -> Option<Vec<u8>> {
    let inputs = inputs.iter().cloned().enumerate().map(|(index, data)| (Slot::Input(index), data));
    let mut memory: Memory = inputs.chain([(Slot::Output, Data::Room(out_bytes))]).collect();
    harness::run_stages(stages, &mut memory)?;
    Some(bytes_of(&memory, Slot::Output))
}

/// What a test asks for; everything else follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) tokens: usize,
    pub(crate) cols: usize,
    pub(crate) parts: Vec<(DType, usize)>,
    pub(crate) norm: Option<f32>,
    pub(crate) bias: bool,
    pub(crate) residual: bool,
    pub(crate) gate: Option<Unary>,
    /// Size of the activations.
    pub(crate) size: f32,
}

pub(crate) fn case(dtype: DType, tokens: usize, rows: usize) -> Case {
    let cols = match dtype.block_len() {
        1 => 75,
        32 => 96,
        _ => 512,
    };
    let parts = vec![(dtype, rows)];
    Case { tokens, cols, parts, norm: None, bias: false, residual: false, gate: None, size: 1.0 }
}

/// A case with its numbers.
pub(crate) struct Made {
    pub(crate) projection: Projection,
    pub(crate) inputs: Vec<Data>,
    pub(crate) x: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    pub(crate) weights: Vec<Vec<f32>>,
    pub(crate) biases: Vec<Vec<f32>>,
    pub(crate) residual: Vec<f32>,
}

/// A case with the first of the activations of `of` tokens.
pub(crate) fn make(case: &Case, of: usize) -> Made {
    let mut numbers = Numbers(of as u64 + 1);
    let mut inputs = Vec::new();
    let mut add = |data: Data| {
        inputs.push(data);
        Slot::Input(inputs.len() - 1)
    };
    let mut x: Vec<f32> = numbers.units(of * case.cols).iter().map(|v| v * case.size).collect();
    x.truncate(case.tokens * case.cols);
    let norm: Vec<f32> = numbers.units(case.cols).iter().map(|v| v + 1.5).collect();
    let mut made = Made {
        projection: Projection {
            op: "project",
            tokens: case.tokens as u32,
            cols: case.cols as u32,
            parts: [None; 3],
            x: add(f32s(&x)),
            norm: case.norm.map(|eps| (eps, add(f32s(&norm)))),
            residual: None,
            gate: case.gate,
            fine: false,
        },
        inputs: Vec::new(),
        x,
        norm,
        weights: Vec::new(),
        biases: Vec::new(),
        residual: Vec::new(),
    };
    for (i, (dtype, rows)) in case.parts.iter().enumerate() {
        let bytes = weights(*dtype, rows * case.cols, 1.0, 11 + i as u64);
        made.weights.push(decoded(*dtype, &bytes));
        made.biases.push(numbers.units(*rows));
        let weight = add(Data::Bytes(bytes));
        let bias = case.bias.then(|| add(f32s(&made.biases[i])));
        made.projection.parts[i] = Some(Part { dtype: *dtype, rows: *rows as u32, weight, bias });
    }
    if case.residual {
        made.residual = numbers.units(case.tokens * made.projection.width() as usize);
        made.projection.residual = Some(add(f32s(&made.residual)));
    }
    made.inputs = inputs;
    made
}

fn activate(f: Unary, x: f64) -> f64 {
    match f {
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Gelu => x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Unary::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Unary::Relu => x.max(0.0),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Exp => x.exp(),
        Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// `2/√π Σ (-1)ⁿ x²ⁿ⁺¹ / (n! (2n + 1))`, which keeps enough digits for the results of these tests.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// The results in `f64`, each with the sum of its terms' magnitudes: what an error is measured by.
fn expected(case: &Case, made: &Made) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for (t, x) in made.x.chunks(case.cols).enumerate() {
        let mut x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        if let Some(eps) = case.norm {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / case.cols as f64;
            let scale = 1.0 / (mean + f64::from(eps)).sqrt();
            x = x.iter().zip(&made.norm).map(|(x, w)| x * scale * f64::from(*w)).collect();
        }
        let mut sides: Vec<Vec<(f64, f64)>> = Vec::new();
        for (weight, bias) in made.weights.iter().zip(&made.biases) {
            let sums = weight.chunks(case.cols).zip(bias).map(|(row, bias)| {
                let bias = if case.bias { f64::from(*bias) } else { 0.0 };
                let terms = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x);
                terms.fold((bias, bias.abs()), |(sum, size), term| (sum + term, size + term.abs()))
            });
            sides.push(sums.collect());
        }
        let mut row: Vec<(f64, f64)> = match case.gate {
            None => sides.concat(),
            Some(f) => sides[0]
                .iter()
                .zip(&sides[1])
                .map(|(g, u)| {
                    let value = activate(f, g.0);
                    // An activation passes an error on with a slope of at most 1.2.
                    (value * u.0, value.abs() * u.1 + 1.2 * g.1 * u.0.abs())
                })
                .collect(),
        };
        if case.residual {
            let residual = &made.residual[t * row.len()..];
            for (value, residual) in row.iter_mut().zip(residual) {
                *value = (value.0 + f64::from(*residual), value.1 + f64::from(residual.abs()));
            }
        }
        all.extend(row);
    }
    all
}

type Plan = fn(&Projection, &Limits) -> Result<Stages, GpuError>;

/// What is run where no provider is asked for.
fn plan(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    if projection.tokens > matvec::MAX_TOKENS {
        plan_tiles(projection, limits)
    } else {
        plan_vectors(projection, limits)
    }
}

/// Runs a case and holds it to the formula. `None` where there is no clang.
fn held(case: &Case, plan: Plan) -> Option<Vec<f32>> {
    held_of(case, case.tokens, plan)
}

/// The same with the first tokens of a case of `of` tokens.
fn held_of(case: &Case, of: usize, plan: Plan) -> Option<Vec<f32>> {
    let made = make(case, of);
    let stages = plan(&made.projection, &LIMITS).unwrap();
    held_by(case, &made, &stages)
}

/// Runs the stages of a case and holds them to the formula.
fn held_by(case: &Case, made: &Made, stages: &Stages) -> Option<Vec<f32>> {
    // A part in a million of the terms, or what a denormal may lose.
    held_within(1e-6, case, made, stages)
}

/// The same within a part of the terms.
pub(crate) fn held_within(part: f64, case: &Case, made: &Made, stages: &Stages) -> Option<Vec<f32>> {
    let expected = expected(case, made);
    let found = as_f32s(&run_stages(stages, &made.inputs, expected.len() * 4)?);
    for (i, (found, (value, size))) in found.iter().zip(&expected).enumerate() {
        let error = (f64::from(*found) - value).abs();
        assert!(error <= part * size + 1e-36, "{case:?}, result {i}: {found}, needed {value} (of {size})");
    }
    Some(found)
}

/// Runs a case and holds it to the formula. `false` where there is no clang.
fn holds(case: &Case) -> bool {
    held(case, plan).is_some()
}

#[test]
fn every_type_for_every_number_of_tokens_that_goes_by_vectors() {
    for dtype in WEIGHT_TYPES {
        for (tokens, rows) in [(1, 33), (2, 1), (3, 70), (8, 5)] {
            if !holds(&case(*dtype, tokens, rows)) {
                return;
            }
        }
    }
}

#[test]
fn every_type_by_tiles() {
    for dtype in WEIGHT_TYPES {
        for (tokens, rows) in [(9, 33), (33, 70)] {
            if !holds(&case(*dtype, tokens, rows)) {
                return;
            }
        }
    }
}

#[test]
fn tiles_at_their_borders() {
    for dtype in [DType::Q8_0, DType::F16, DType::Q4K, DType::Q6K] {
        // Columns of half a step of a tile, of whole ones, and of ragged ones where the type has them.
        let cols = if dtype.block_len() == 1 { 45 } else { dtype.block_len() };
        for (tokens, rows) in [(64, 64), (65, 1), (31, 129)] {
            if !holds(&Case { cols, ..case(dtype, tokens, rows) }) {
                return;
            }
        }
    }
}

#[test]
fn three_matrices_of_different_types_with_everything_around_them() {
    for tokens in [1, 3, 8, 9, 33] {
        for (norm, bias, residual) in
            [(Some(1e-5), true, true), (Some(1e-6), false, false), (None, true, false), (None, false, true)]
        {
            let parts = vec![(DType::Q4K, 33), (DType::Q6K, 70), (DType::F16, 1)];
            let base = Case { parts, norm, bias, residual, ..case(DType::Q4K, tokens, 1) };
            let two = Case { parts: base.parts[..2].to_vec(), ..base.clone() };
            if !holds(&base) || !holds(&two) {
                return;
            }
        }
    }
}

/// Three matrices, and two of which one is the other's gate, with everything around them.
fn with_everything(tokens: usize, rows: usize) -> [Case; 2] {
    let parts = vec![(DType::Q8_0, rows), (DType::F16, rows - 7), (DType::Q4_1, rows + 5)];
    let base = Case { norm: Some(1e-5), bias: true, residual: true, ..case(DType::Q8_0, tokens, 1) };
    let gated = vec![(DType::Q8_0, rows), (DType::F16, rows)];
    let gated = Case { parts: gated, gate: Some(Unary::Silu), ..base.clone() };
    [Case { parts, ..base }, gated]
}

#[test]
fn everything_around_products_holds_past_the_borders_of_tiles() {
    for (tokens, rows) in [(66, 70), (130, 66)] {
        for case in with_everything(tokens, rows) {
            if !holds(&case) {
                return;
            }
        }
    }
}

#[test]
fn simdgroups_with_many_rows_give_what_those_with_few_give() {
    for (tokens, busy, blocks) in [(1, 3, 8), (3, 5, 4), (11, 9, 2)] {
        for case in with_everything(tokens, 77) {
            let limits = Limits { busy_simdgroups: busy, ..LIMITS };
            let made = make(&case, tokens);
            let stages = plan_vectors(&made.projection, &limits).unwrap();
            let per_simd = words(&stages.stages[0].launch)[5];
            assert!(per_simd >= blocks, "{per_simd} blocks of a simdgroup, {blocks} are to be tested");
            let (Some(found), Some(few)) = (held_by(&case, &made, &stages), held(&case, plan_vectors)) else {
                return;
            };
            assert_eq!(found, few, "{tokens} tokens");
        }
    }
}

#[test]
fn every_activation_gates_a_matrix_of_another_type() {
    for (i, act) in
        [Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Relu, Unary::Sigmoid].into_iter().enumerate()
    {
        for tokens in [1, 3, 8, 9, 33] {
            let parts = vec![(DType::Q4_1, 33), (DType::Q5_0, 33)];
            let (norm, odd) = ((tokens > 1).then_some(1e-5), i % 2 == 1);
            let base = case(DType::Q4_1, tokens, 1);
            if !holds(&Case { parts, norm, bias: odd, residual: odd, gate: Some(act), ..base }) {
                return;
            }
        }
    }
}

#[test]
fn huge_and_tiny_activations() {
    for dtype in [DType::Q4_1, DType::F16, DType::Q8_0, DType::Q6K] {
        for tokens in [1, 4, 9] {
            for size in [1e15, 1e-15, 1e-30] {
                for norm in [None, Some(1e-6)] {
                    if !holds(&Case { norm, size, ..case(dtype, tokens, 5) }) {
                        return;
                    }
                }
            }
        }
    }
}

#[test]
fn rows_longer_than_a_simdgroup_takes_at_once_and_shorter_than_an_octet() {
    for (dtype, cols) in
        [(DType::Q4_0, 4096), (DType::Q6K, 1536), (DType::F32, 1031), (DType::BF16, 7), (DType::F32, 1)]
    {
        for tokens in [1, 5, 10] {
            if !holds(&Case { cols, norm: Some(1e-5), ..case(dtype, tokens, 9) }) {
                return;
            }
        }
    }
}

#[test]
fn a_token_has_the_same_numbers_whatever_comes_with_it() {
    for dtype in [DType::Q4_1, DType::Q4K, DType::Q8_0, DType::F16] {
        let many = Case { norm: Some(1e-5), ..case(dtype, 19, 37) };
        let Some(all) = held(&many, plan_vectors) else { return };
        for tokens in [1, 2, 3, 8] {
            let few = Case { tokens, ..many.clone() };
            let some = held_of(&few, many.tokens, plan_vectors).unwrap();
            assert_eq!(some, all[..some.len()], "{dtype}, {tokens} tokens");
        }
    }
}

#[test]
fn vectors_take_one_launch_and_tiles_one_for_each_side_of_a_gate() {
    for tokens in 1..=8 {
        let parts = vec![(DType::Q4K, 33), (DType::Q6K, 33)];
        let base = Case { parts, norm: Some(1e-5), residual: true, ..case(DType::Q4K, tokens, 1) };
        for gate in [None, Some(Unary::Silu)] {
            let made = make(&Case { gate, ..base.clone() }, tokens);
            let stages = plan_vectors(&made.projection, &LIMITS).unwrap();
            assert_eq!((stages.stages.len(), stages.scratch.len()), (1, 0), "{tokens} tokens");
        }
    }
    let parts = vec![(DType::Q4K, 33), (DType::Q4K, 33)];
    let gated = Case { parts, norm: Some(1e-5), gate: Some(Unary::Silu), ..case(DType::Q4K, 9, 1) };
    let stages = plan_tiles(&make(&gated, 9).projection, &LIMITS).unwrap();
    assert_eq!(stages.stages.len(), 3, "norm, gate, gated");
    assert_eq!(stages.scratch, [9 * 512 * 4, 9 * 33 * 4]);
}

/// The params of a launch.
fn words(launch: &Launch) -> Vec<u32> {
    as_u32s(launch.params.as_bytes())
}

/// A projection of these matrices, for plans alone.
fn sized(tokens: u32, cols: u32, rows: [u32; 3], gate: Option<Unary>) -> Projection {
    let part = |rows: u32| Part { dtype: DType::Q4_0, rows, weight: Slot::Input(1), bias: None };
    Projection {
        op: "project",
        tokens,
        cols,
        parts: rows.map(|rows| (rows > 0).then(|| part(rows))),
        x: Slot::Input(0),
        norm: None,
        residual: None,
        gate,
        fine: false,
    }
}

#[test]
fn simdgroups_cover_all_rows_within_the_limits_of_any_device() {
    let small = Limits { max_threads: 64, threadgroup_memory: 16 << 10, busy_simdgroups: 16, ..LIMITS };
    let tuning = Tuning { matvec_simdgroups: 8, matvec_sharing: 4, busy: 50, ..Tuning::DEFAULT };
    let other = Limits { tuning, ..LIMITS };
    let blocks = |limits: &Limits| {
        words(&plan_vectors(&sized(1, 576, [151_936, 0, 0], None), limits).unwrap().stages[0].launch)[5]
    };
    assert_eq!(
        (blocks(&LIMITS), blocks(&other)),
        (2, 8),
        "fewer simdgroups have more of a core's memory each"
    );
    let least = Limits { tuning: Tuning { matvec_blocks: 1, ..tuning }, ..LIMITS };
    assert_eq!(blocks(&least), 1);
    for limits in [LIMITS, small, Limits { busy_simdgroups: 1, ..LIMITS }, other, least] {
        for tokens in [1, 2, 4, 8, 40] {
            for (rows, gate) in [
                ([1, 0, 0], None),
                ([576, 192, 192], None),
                ([151_936, 0, 0], None),
                ([4864, 4864, 0], Some(Unary::Silu)),
            ] {
                let stages = plan_vectors(&sized(tokens, 576, rows, gate), &limits).unwrap();
                let launch = stages.stages[0].launch;
                launch.check(&limits).unwrap();
                let words = words(&launch);
                let tile = words[5] * 4;
                let parts = if gate.is_some() { &rows[..1] } else { &rows[..] };
                let needed: u32 = parts.iter().map(|rows| rows.div_ceil(tile)).sum();
                let simds = launch.threads[0] / 32;
                let there = launch.groups[0] * simds;
                assert!(there >= needed && there < needed + simds, "{rows:?}: {there}, needed {needed}");
                let busy = needed >= limits.busy() || words[5] == 1;
                assert!(busy, "{rows:?}: {needed} simdgroups of {} blocks", words[5]);
            }
        }
    }
}

#[test]
fn weights_are_counted_as_often_as_they_are_read() {
    let bytes = |times: usize, rows: usize| Moved::Bytes(times * rows * 576 / 32 * 18);
    let touched = |stages: &Stages, first: usize| -> Vec<Moved> {
        let last = stages.stages.last().unwrap();
        last.slots()[first..first + 3].iter().map(|bound| bound.moved).collect()
    };
    for (tokens, times) in [(1, 1), (8, 1), (9, 2), (16, 2), (40, 5)] {
        let stages = plan_vectors(&sized(tokens, 576, [70, 33, 0], None), &LIMITS).unwrap();
        assert_eq!(touched(&stages, 2), [bytes(times, 70), bytes(times, 33), Moved::Once]);
        assert_eq!(stages.stages[0].launch.work, u64::from(tokens) * 576 * 103);
    }
    for (tokens, times) in [(9, 1), (64, 1), (65, 2), (512, 8)] {
        let stages = plan_tiles(&sized(tokens, 576, [70, 33, 5], None), &LIMITS).unwrap();
        assert_eq!(touched(&stages, 1), [70, 33, 5].map(|rows| bytes(times, rows)));
        assert_eq!(stages.stages[0].launch.work, u64::from(tokens) * 576 * 108);
        let gated = plan_tiles(&sized(tokens, 576, [70, 70, 0], Some(Unary::Silu)), &LIMITS).unwrap();
        assert_eq!(touched(&gated, 1), [bytes(times, 70), Moved::Once, Moved::Once]);
        let work: u64 = gated.stages.iter().map(|stage| stage.launch.work).sum();
        assert_eq!(work, u64::from(tokens) * 576 * 140);
    }
}

#[test]
fn what_makes_no_projection_is_refused_with_its_numbers() {
    let refused = |projection: Projection, needed: &str| {
        for plan in [plan_vectors, plan_tiles] {
            let error = plan(&projection, &LIMITS).unwrap_err().to_string();
            assert!(error.contains("project") && error.contains(needed), "{error}");
        }
    };
    refused(sized(1, 576, [0, 0, 0], None), "0 matrices");
    refused(sized(1, 576, [4, 0, 4], None), "1 of them leading");
    refused(sized(0, 576, [4, 0, 0], None), "0 tokens");
    refused(sized(1, 0, [4, 0, 0], None), "0 columns");
    refused(sized(1, 100, [4, 0, 0], None), "100 elements of Q4_0");
    refused(sized(1, 576, [4, 5, 0], Some(Unary::Silu)), "[4, 5, 0]");
    refused(sized(1, 576, [4, 0, 0], Some(Unary::Silu)), "two alike");
    refused(sized(1 << 20, 576, [1 << 20, 0, 0], None), "1048576 tokens");
    let mut uneven = sized(1, 576, [4, 4, 0], None);
    uneven.parts[1].as_mut().unwrap().bias = Some(Slot::Input(2));
    refused(uneven, "a bias for some");
    let mut integers = sized(1, 576, [4, 0, 0], None);
    integers.parts[0].as_mut().unwrap().dtype = DType::U32;
    refused(integers, "U32");
}
