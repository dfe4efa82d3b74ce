//! Log-probabilities by the model itself, before any stage of choosing.

use metallic_core::sample::{number, top_k};

use super::Scratch;
use crate::generate::Logprob;

/// Log-probabilities of `id`, and of the `top` best tokens. Logits that are not numbers count as impossible; where all are, so is
/// every token.
pub fn logprobs(scratch: &mut Scratch, logits: &[f32], id: u32, top: usize) -> (f32, Vec<Logprob>) {
    let log_total = log_sum_exp(logits);
    let none = log_total == f64::NEG_INFINITY;
    let logprob = |logit: f32| if none { f32::NEG_INFINITY } else { (f64::from(logit) - log_total) as f32 };
    let chosen = logits.get(id as usize).map_or(f32::NEG_INFINITY, |x| number(*x));
    let best = top_k(logits, top, &mut scratch.rows);
    let best = best.map(|(id, logit)| Logprob { id, logprob: logprob(logit) }).collect();
    (logprob(chosen), best)
}

/// `ln Σ e^x` over the logits that are numbers, in f64.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let numbers = || logits.iter().map(|x| f64::from(number(*x)));
    let max = numbers().fold(f64::NEG_INFINITY, f64::max);
    max + sum_exp(numbers(), max).ln()
}

/// `e^x` for `x` ≤ 0 to the last digit or two; 0 below -708. Free of branches, so that loops over it become vector code.
pub fn exp(x: f64) -> f64 {
    // ln 2 in two parts: the first has so few digits that its multiples are exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding it rounds to whole numbers and leaves them in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    let bounded = x.max(-708.0);
    let shifted = bounded * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (bounded - k * LN_2_HIGH) - k * LN_2_LOW; // |r| ≤ ln 2 / 2
    let mut series = 0.0;
    for factor in INVERSE_FACTORIALS.iter().rev() {
        series = series * r + factor;
    }
    let power_of_two = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x >= -708.0 { series * power_of_two } else { 0.0 }
}

/// `1 / n!` from 0 on: the series of `e^r`.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut table = [1.0; 14];
    let mut n = 1;
    while n < table.len() {
        table[n] = table[n - 1] / n as f64;
        n += 1;
    }
    table
};

/// `Σ e^(x - max)`, summed in order.
fn sum_exp(values: impl Iterator<Item = f64>, max: f64) -> f64 {
    let mut values = values.fuse();
    let mut total = 0.0;
    loop {
        // A batch of its own, because a sum in order keeps the loop around it from becoming vector code.
        let mut batch = [f64::NEG_INFINITY; 32];
        let filled = batch.iter_mut().zip(&mut values).map(|(place, x)| *place = x).count();
        for x in &mut batch {
            *x = exp(*x - max);
        }
        total += batch[..filled].iter().sum::<f64>();
        if filled < batch.len() {
            return total;
        }
    }
}
