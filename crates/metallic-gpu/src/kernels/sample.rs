//! The best of each row: the largest number, the `k` largest, a drawn token.

use metallic_core::DType;
use metallic_core::tensor::Sample;

use super::rows::ROWS;
use super::typed::{PerFloat, VECTORS};
use super::{Arg, COMMON, Constants, Family, Kernel, Launch, Params, reads, updates, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// Rows of `n` numbers.
    ArgmaxParams { n: u32 }
}

kernel_params! {
    /// The `k` largest of rows of `n` numbers.
    TopKParams { n: u32, k: u32 }
}

kernel_params! {
    /// A draw from rows of `n` logits, see [`Sample`].
    SampleParams {
        n: u32,
        k: u32,
        inverse_temperature: f32,
        repeat: f32,
        inverse_repeat: f32,
        presence: f32,
        frequency: f32,
        seed_low: u32,
        seed_high: u32,
        draw: u32,
    }
}

pub(crate) const FAMILY: Family = Family {
    name: "sample",
    params: &[ArgmaxParams::MSL, TopKParams::MSL, SampleParams::MSL],
    uses: &[COMMON, VECTORS, ROWS],
    text: include_str!("sample.metal"),
    kernels: &[
        ("argmax_f32", ARGMAX.args[0]),
        ("argmax_f16", ARGMAX.args[1]),
        ("argmax_bf16", ARGMAX.args[1]),
        ("top_k_f32", TOP_K.args[0]),
        ("top_k_f16", TOP_K.args[1]),
        ("top_k_bf16", TOP_K.args[1]),
        ("sample_f32", SAMPLE.args[0]),
        ("sample_f16", SAMPLE.args[1]),
        ("sample_bf16", SAMPLE.args[1]),
    ],
};

const fn argmax_args(align: usize) -> [Arg; 2] {
    [reads("x", align), writes("out", 4)]
}

const fn top_k_args(align: usize) -> [Arg; 4] {
    [reads("x", align), updates("picked", 4), writes("values", align), writes("indices", 4)]
}

const fn sample_args(align: usize) -> [Arg; 3] {
    [reads("x", align), reads("counts", 4), writes("out", 4)]
}

const ARGMAX: PerFloat = PerFloat {
    op: "argmax",
    functions: ["argmax_f32", "argmax_f16", "argmax_bf16"],
    args: [&argmax_args(4), &argmax_args(2)],
};

const TOP_K: PerFloat = PerFloat {
    op: "top_k",
    functions: ["top_k_f32", "top_k_f16", "top_k_bf16"],
    args: [&top_k_args(4), &top_k_args(2)],
};

const SAMPLE: PerFloat = PerFloat {
    op: "sample",
    functions: ["sample_f32", "sample_f16", "sample_bf16"],
    args: [&sample_args(4), &sample_args(2)],
};

/// The index of the largest number of each row, of equals the lowest: `(x [rows, n]) -> out: U32 [rows]`.
pub(crate) fn argmax(dtype: DType, (rows, n): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    let kernel = ARGMAX.of(&FAMILY, dtype, Constants::of([0, 0, 0]))?;
    launch(kernel, ArgmaxParams { n }.params(), (rows, n), limits)
}

/// Bytes of scratch [`top_k`] needs.
pub(crate) fn top_k_scratch(rows: u32, k: u32) -> usize {
    rows as usize * k as usize * 8
}

/// The `k` largest numbers of each row and their indices, best first, of equals the lowest index first:
/// `(x [rows, n], picked: [`top_k_scratch`] bytes) -> (values [rows, k], indices: U32 [rows, k])`.
pub(crate) fn top_k(
    dtype: DType,
    (rows, n): (u32, u32),
    k: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    if k == 0 || k > n {
        return Err(GpuError::Unsupported { op: "top_k", reason: format!("the best {k} of {n}") });
    }
    let kernel = TOP_K.of(&FAMILY, dtype, Constants::of([0, 0, 0]))?;
    launch(kernel, TopKParams { n, k }.params(), (rows, n), limits)
}

/// Draws a token from each row of logits: `(x [rows, n], counts: U32 [rows, n]) -> out: U32 [rows]`; counts are unused where
/// `counted` is not set.
pub(crate) fn sample(
    dtype: DType,
    (rows, n): (u32, u32),
    sample: &Sample,
    counted: bool,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let greedy = sample.temperature == 0.0;
    let cut = !greedy && (1..n as usize).contains(&sample.top_k);
    let constants = Constants::of([u32::from(counted), u32::from(greedy), u32::from(cut)]);
    let params = SampleParams {
        n,
        k: if cut { sample.top_k as u32 } else { n },
        inverse_temperature: if greedy { 1.0 } else { 1.0 / sample.temperature },
        repeat: sample.repetition,
        inverse_repeat: 1.0 / sample.repetition,
        presence: sample.presence,
        frequency: sample.frequency,
        seed_low: sample.seed as u32,
        seed_high: (sample.seed >> 32) as u32,
        draw: sample.draw,
    };
    launch(SAMPLE.of(&FAMILY, dtype, constants)?, params.params(), (rows, n), limits)
}

fn launch(
    kernel: Kernel,
    params: Params,
    (rows, n): (u32, u32),
    limits: &Limits,
) -> Result<Launch, GpuError> {
    if n == 0 {
        return Err(GpuError::Unsupported { op: "sample", reason: "rows of no numbers".to_owned() });
    }
    let threads = threadgroup::row_threads(n, limits);
    Ok(Launch {
        kernel,
        params,
        groups: [rows, 1, 1],
        threads: [threads, 1, 1],
        threadgroup_bytes: 0,
        work: 0,
    })
}

#[cfg(test)]
mod tests {
    use metallic_core::tensor::by_rank;

    use super::super::harness::{Data, as_u32s, run, u32s};
    use super::super::typed::tests::{FLOATS, bytes, data, floats, room, rounded, waves};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    fn ranked(row: &[f32]) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        all.sort_by(|a, b| by_rank(*a, *b));
        all
    }

    /// Many equals, what is no number, infinities, both zeros.
    fn odd(n: u32) -> Vec<f32> {
        (0..n)
            .map(|i| match i % 11 {
                3 => f32::NAN,
                5 => f32::NEG_INFINITY,
                7 => -0.0,
                8 => 0.0,
                j => f32::from(j as u8 % 4) - 2.5,
            })
            .collect()
    }

    fn best_matches(dtype: DType, x: &[f32], n: u32) {
        let rows = x.len() as u32 / n;
        let launch = argmax(dtype, (rows, n), &LIMITS).unwrap();
        let Some(found) = run(&launch, &[data(dtype, x), Data::Room(rows as usize * 4)]) else { return };
        let expected: Vec<u32> = rounded(dtype, x).chunks(n as usize).map(|row| ranked(row)[0].0).collect();
        assert_eq!(as_u32s(&found[1]), expected, "{dtype} {n}");
    }

    #[test]
    fn the_best_is_found_and_of_equals_the_first() {
        for dtype in FLOATS {
            for n in [1, 31, 33, 257, 1025, 4097] {
                best_matches(dtype, &waves(2 * n, 5.0), n);
                best_matches(dtype, &odd(2 * n), n);
            }
            best_matches(dtype, &[f32::NEG_INFINITY; 300], 300);
            best_matches(dtype, &[f32::NAN; 40], 40);
            best_matches(dtype, &[-0.0, 0.0, -1.0], 3);
        }
    }

    fn top_matches(dtype: DType, x: &[f32], n: u32, k: u32) {
        let rows = x.len() as u32 / n;
        let size = (rows * k) as usize;
        let launch = top_k(dtype, (rows, n), k, &LIMITS).unwrap();
        let args =
            [data(dtype, x), Data::Room(top_k_scratch(rows, k)), room(dtype, size), Data::Room(size * 4)];
        let Some(found) = top_k_results(&launch, &args) else { return };
        let x = rounded(dtype, x);
        let best: Vec<(u32, f32)> =
            x.chunks(n as usize).flat_map(|row| ranked(row).into_iter().take(k as usize)).collect();
        let (ids, values): (Vec<u32>, Vec<f32>) = best.into_iter().unzip();
        assert_eq!(as_u32s(&found[1]), ids, "{dtype}, {k} of {n}");
        let values = rounded(dtype, &values);
        let same =
            floats(dtype, &found[0]).iter().zip(&values).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
        assert!(same, "{dtype}, {k} of {n}");
    }

    /// Values and indices. What was picked lies in any order, so that it may differ from run to run.
    fn top_k_results(launch: &Launch, args: &[Data]) -> Option<Vec<Vec<u8>>> {
        super::super::harness::run_comparing(launch, args, &[2, 3])
    }

    #[test]
    fn the_best_few_come_in_order() {
        for dtype in FLOATS {
            for (n, k) in [(1, 1), (31, 5), (33, 33), (257, 40), (1025, 1), (1500, 70)] {
                top_matches(dtype, &waves(2 * n, 5.0), n, k);
                top_matches(dtype, &odd(2 * n), n, k);
            }
            top_matches(dtype, &[1.0; 300], 300, 257);
        }
        assert!(top_k(DType::F32, (1, 4), 5, &LIMITS).is_err());
    }

    #[test]
    fn draws_are_those_of_the_definition() {
        let plain = Sample::default();
        let penalties = Sample { repetition: 1.3, presence: 0.4, frequency: 0.2, ..plain };
        for dtype in FLOATS {
            for (n, how) in [
                (1, plain),
                (257, Sample { temperature: 0.7, seed: u64::MAX, draw: 9, ..plain }),
                (33, Sample { temperature: 1.5, top_k: 10, seed: 1 << 33, ..plain }),
                (1025, Sample { temperature: 0.9, top_k: 40, seed: 99, draw: u32::MAX, ..penalties }),
                (300, Sample { temperature: 0.0, ..penalties }),
                (300, Sample { temperature: 0.0, repetition: 1.3, ..plain }),
                (70, Sample { temperature: 1e-6, top_k: 50, seed: 5, ..penalties }),
                (31, Sample { top_k: 500, seed: 6, repetition: 0.8, ..penalties }),
            ] {
                let rows = 3;
                // Penalties push a logit below zero the other way, and tell infinite ones apart.
                let negative: Vec<f32> = waves(rows * n, 6.0).iter().map(|x| -1.0 - x.abs()).collect();
                let infinite: Vec<f32> =
                    (0..rows * n).map(|i| if i % 11 == 9 { f32::INFINITY } else { 0.5 }).collect();
                for x in [waves(rows * n, 6.0), odd(rows * n), negative, infinite] {
                    let counts: Vec<u32> =
                        (0..rows * n).map(|i| if i % 3 == 0 { i % 7 } else { 0 }).collect();
                    let counted = how.has_penalties();
                    let launch = sample(dtype, (rows, n), &how, counted, &LIMITS).unwrap();
                    let given = if counted { u32s(&counts) } else { Data::Unused };
                    let Some(found) = run(&launch, &[data(dtype, &x), given, Data::Room(12)]) else { return };
                    let x = floats(dtype, &bytes(dtype, &x));
                    for (row, found) in as_u32s(&found[2]).into_iter().enumerate() {
                        let part = row * n as usize..(row + 1) * n as usize;
                        let counts = if counted { &counts[part.clone()] } else { &[] };
                        assert_eq!(found, how.draw(row as u32, &x[part], counts), "{dtype} {n} {how:?}");
                    }
                }
            }
        }
    }
}
