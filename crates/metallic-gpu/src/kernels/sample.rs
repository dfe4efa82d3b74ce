//! The best of each row: the largest number, the `k` largest, the token that is chosen.

#[cfg(test)]
mod tests;

use metallic_core::DType;
use metallic_core::sample::Record;

use self::record::ChoiceRecord;
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
    /// A choice from rows of `n` logits.
    ChooseParams { n: u32 }
}

// Kernels read it out of packed words: nothing here makes one.
#[cfg_attr(not(test), allow(dead_code))]
mod record {
    use crate::params::kernel_params;

    kernel_params! {
        /// How a row's token is chosen: the words of a [`Record`](metallic_core::sample::Record).
        ChoiceRecord {
            inverse_temperature: f32,
            top_k: u32,
            typical: u32,
            top_p: u32,
            ln_min_p: f32,
            repetition: f32,
            inverse_repetition: f32,
            presence: f32,
            frequency: f32,
            seed_low: u32,
            seed_high: u32,
            draw_low: u32,
            draw_high: u32,
            edits_at: u32,
            edits: u32,
            unused: u32,
        }
    }
}

pub(crate) const FAMILY: Family = Family {
    name: "sample",
    params: &[ArgmaxParams::MSL, TopKParams::MSL, ChooseParams::MSL, ChoiceRecord::MSL],
    uses: &[COMMON, VECTORS, ROWS],
    text: include_str!("sample.metal"),
    kernels: &[
        ("argmax_f32", ARGMAX.args[0]),
        ("argmax_f16", ARGMAX.args[1]),
        ("argmax_bf16", ARGMAX.args[1]),
        ("top_k_f32", TOP_K.args[0]),
        ("top_k_f16", TOP_K.args[1]),
        ("top_k_bf16", TOP_K.args[1]),
        ("choose", CHOOSE),
    ],
};

const CHOOSE: &[Arg] = &[updates("x", 4), reads("choices", 4), writes("out", 4)];

const fn argmax_args(align: usize) -> [Arg; 2] {
    [reads("x", align), writes("out", 4)]
}

const fn top_k_args(align: usize) -> [Arg; 3] {
    [reads("x", align), updates("picked", 4), writes("indices", 4)]
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

/// The index of the largest number of each row, of equals the lowest: `(x [rows, n]) -> out: U32 [rows]`.
pub(crate) fn argmax(dtype: DType, (rows, n): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    let kernel = ARGMAX.of(&FAMILY, dtype, Constants::NONE)?;
    launch(kernel, ArgmaxParams { n }.params(), (rows, n), limits)
}

/// Bytes of scratch [`top_k`] needs.
pub(crate) fn top_k_scratch(rows: u32, k: u32) -> usize {
    rows as usize * k as usize * 8
}

/// The indices of the `k` largest numbers of each row, best first, of equals the lowest index first:
/// `(x [rows, n], picked: [`top_k_scratch`] bytes) -> indices: U32 [rows, k]`.
pub(crate) fn top_k(
    dtype: DType,
    (rows, n): (u32, u32),
    k: u32,
    limits: &Limits,
) -> Result<Launch, GpuError> {
    if k == 0 || k > n {
        return Err(GpuError::Unsupported { op: "top_k", reason: format!("the best {k} of {n}") });
    }
    let kernel = TOP_K.of(&FAMILY, dtype, Constants::NONE)?;
    launch(kernel, TopKParams { n, k }.params(), (rows, n), limits)
}

/// The token of each row of logits, [`metallic_core::sample::NO_CANDIDATE`] where none is possible:
/// `(x: F32 [rows, n], choices: words of [`Choices`](metallic_core::sample::Choices)) -> out: U32 [rows]`. Logits of edited
/// tokens are written over. The words have passed [`check_choices`].
pub(crate) fn choose((rows, n): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    let kernel = Kernel { family: &FAMILY, function: "choose", constants: Constants::NONE, args: CHOOSE };
    launch(kernel, ChooseParams { n }.params(), (rows, n), limits)
}

/// Refuses packed choices that [`choose`] cannot follow: words that do not hold `rows` rows, and typical tokens, which the
/// host alone chooses by.
pub(crate) fn check_choices(words: &[u32], rows: usize) -> Result<(), GpuError> {
    for row in 0..rows {
        let refused = |reason: String| GpuError::Unsupported { op: "choose", reason };
        let (record, _) = Record::read(words, row).map_err(|error| refused(error.to_string()))?;
        if record.typical != 0 {
            return Err(refused(format!("row {row} keeps typical tokens, which is done on the host")));
        }
    }
    Ok(())
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
