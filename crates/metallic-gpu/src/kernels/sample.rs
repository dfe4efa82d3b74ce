//! The best of each row: the largest number, the `k` largest, the token that is chosen.

#[cfg(test)]
mod tests;

use metallic_core::DType;
use metallic_core::sample::Record;

use self::record::ChoiceRecord;
use super::rows::ROWS;
use super::typed::VECTORS;
use super::{COMMON, Constants, EARLY, Kernel, Launch, Params, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// A choice from rows of `n` numbers, each in so many parts, of which the best are found before; 0: nothing is.
    ChooseParams { n: u32, parts: u32 }
    /// The `k` largest of rows of `n` numbers.
    TopKParams { n: u32, k: u32 }
}

// Kernels read it out of packed words: nothing here makes one.
#[cfg_attr(not(test), allow(dead_code))]
mod record {
    use crate::params::kernel_params;

    kernel_params! {
        /// How a row's token is chosen: the words of a [`Record`](metallic_core::sample::Record).
        ChoiceRecord {
            inverse_temperature: f32, top_k: u32, typical: u32, top_p: u32, ln_min_p: f32, repetition: f32,
            inverse_repetition: f32, presence: f32, frequency: f32, seed_low: u32, seed_high: u32, draw_low: u32,
            draw_high: u32, edits_at: u32, edits: u32, unused: u32,
        }
    }
}

family! {
    "sample" (ChooseParams, TopKParams, ChoiceRecord) uses COMMON, EARLY, VECTORS, ROWS;
    "argmax" each float of size { reads x: size; writes out: 4 }
    "top_k" each float of size { reads x: size; updates picked: 4; writes indices: 4 }
    "choose" { updates x: 4; reads choices: 4, found: 8; writes out: 4 }
    "choose_parts" { updates x: 4; reads choices: 4; writes found: 8 }
}

/// The index of the largest number of each row, of equals the lowest: `(x [rows, n]) -> out: U32 [rows]`.
pub(crate) fn argmax(dtype: DType, (rows, n): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    let kernel = FAMILY.of_float("argmax", dtype, Constants::NONE)?;
    launch(kernel, ChooseParams { n, parts: 0 }.params(), (rows, n), limits)
}

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
        return Err(GpuError::unsupported("top_k", format!("the best {k} of {n}")));
    }
    let kernel = FAMILY.of_float("top_k", dtype, Constants::NONE)?;
    launch(kernel, TopKParams { n, k }.params(), (rows, n), limits)
}

/// Tokens of a part of a row: `CHOICE_PART` in the MSL. Rows that have fewer than three go to one threadgroup as they are.
const PART: u32 = 4096;
const LEAST_PARTS: u32 = 3;
/// Threads of a part, which have four times four tokens each.
const PART_THREADS: u32 = 256;

/// The token of each row of logits, [`metallic_core::sample::NO_CANDIDATE`] where none is possible:
/// `(x: F32 [rows, n], choices: words of [`Choices`](metallic_core::sample::Choices)) -> out: U32 [rows]`. Logits of edited
/// tokens are written over. The words have passed [`check_choices`].
pub(crate) fn choose((rows, n): (u32, u32), limits: &Limits) -> Result<Stages, GpuError> {
    let parts = n.div_ceil(PART);
    let parts = if parts < LEAST_PARTS { 0 } else { parts };
    let params = ChooseParams { n, parts }.params();
    let last = launch(FAMILY.kernel("choose", Constants::NONE), params, (rows, n), limits)?;
    let [x, choices, found] = [Slot::Input(0), Slot::Input(1), Slot::Scratch(0)];
    if parts == 0 {
        return Ok(Stage::new(last, [x, choices, Slot::Unused, Slot::Output]).into());
    }
    let threads = threadgroup::row_threads(PART, limits).min(PART_THREADS);
    let kernel = FAMILY.kernel("choose_parts", Constants::NONE);
    let first = Stage::new(kernel.launch(params, [parts, rows, 1], [threads, 1, 1]), [x, choices, found]);
    // Whoever is greedy is done with the bests of the parts; most of those who draw look at the row once more.
    let last = Stage::new(last, [x, choices, found, Slot::Output]);
    Ok(Stages { stages: vec![first, last], scratch: vec![8 * rows as usize * parts as usize] })
}

/// Refuses packed choices that [`choose`] cannot follow: words that do not hold `rows` rows, and typical tokens, which the
/// host alone chooses by.
pub(crate) fn check_choices(words: &[u32], rows: usize) -> Result<(), GpuError> {
    for row in 0..rows {
        let refused = |reason: String| GpuError::unsupported("choose", reason);
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
        return Err(GpuError::unsupported("sample", "rows of no numbers"));
    }
    Ok(kernel.launch(params, [rows, 1, 1], [threadgroup::row_threads(n, limits), 1, 1]))
}
