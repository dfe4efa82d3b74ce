//! The best of each row: the largest number, the `k` largest, the token that is chosen.

#[cfg(test)]
mod tests;

use metallic_core::DType;
use metallic_core::sample::Record;

use self::record::ChoiceRecord;
use super::rows::ROWS;
use super::typed::VECTORS;
use super::{COMMON, Constants, Kernel, Launch, Params, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// A choice from rows of `n` numbers.
    ChooseParams { n: u32 }
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
    "sample" (ChooseParams, TopKParams, ChoiceRecord) uses COMMON, VECTORS, ROWS;
    "argmax" each float of size { reads x: size; writes out: 4 }
    "top_k" each float of size { reads x: size; updates picked: 4; writes indices: 4 }
    "choose" { updates x: 4; reads choices: 4; writes out: 4 }
}

/// The index of the largest number of each row, of equals the lowest: `(x [rows, n]) -> out: U32 [rows]`.
pub(crate) fn argmax(dtype: DType, (rows, n): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    let kernel = FAMILY.of_float("argmax", dtype, Constants::NONE)?;
    launch(kernel, ChooseParams { n }.params(), (rows, n), limits)
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

/// The token of each row of logits, [`metallic_core::sample::NO_CANDIDATE`] where none is possible:
/// `(x: F32 [rows, n], choices: words of [`Choices`](metallic_core::sample::Choices)) -> out: U32 [rows]`. Logits of edited
/// tokens are written over. The words have passed [`check_choices`].
pub(crate) fn choose((rows, n): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    launch(FAMILY.kernel("choose", Constants::NONE), ChooseParams { n }.params(), (rows, n), limits)
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
